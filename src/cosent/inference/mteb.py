"""mteb's own Chinese tasks: STS and NLI pairs of prepared corpora, and reranking."""

import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
from datasets import Dataset

from cosent.compute.distributed import rank
from cosent.data.corpus import load_corpus
from cosent.data.manifest import MANIFEST_NAME, sha256_of_file
from cosent.encoders import SHIPPED, resolve
from cosent.errors import InputError
from cosent.inference.arguments import RERANKING_TASKS, TASKS, MtebArguments
from cosent.inference.embedding import score, shared
from cosent.models.bi_encoder import Embedder

logger = logging.getLogger(__name__)

BENCHMARK = "MTEB(cmn, v1)"  # C-MTEB: which splits its tasks read


def evaluate_tasks(model, args, mteb_args: MtebArguments, prompts: tuple[str, str]) -> dict:
    """Runs the tasks and writes mteb's result files; returns the main figures by task.

    Args:
        model: any model; a cross-encoder is refused for pairs, since mteb embeds each sentence alone.
        args: the `EvaluateArguments`.
        prompts: texts in front of the first and the second sentence.
    """
    pairs = [name for name in mteb_args.mteb or [] if name not in RERANKING_TASKS]
    if pairs and not isinstance(model, Embedder):
        raise InputError(
            f"{args.model} is a cross-encoder, and --mteb {pairs[0]} embeds each sentence alone. Name a bi-encoder, a "
            "task of reranking, or use --corpus NAME."
        )
    if isinstance(model, Embedder) and prompts[0] != prompts[1]:
        raise InputError(
            f"--mteb takes one prompt, got {prompts[0]!r} and {prompts[1]!r}. Give one, or use --corpus NAME."
        )
    try:
        import mteb
    except ImportError as error:
        raise InputError(f"--mteb needs the package mteb ({error}). Run pip install -e '.[mteb]'.") from error
    experiment = ({"int8": True} if args.int8 else {}) | (
        {"prompt": prompts} if prompts != model.prompts.sides() else {}
    )
    adapter = MtebEncoder if isinstance(model, Embedder) else MtebCrossEncoder
    encoder = adapter(model, prompts, model_meta(model, args.model, experiment))
    cache = mteb.ResultCache(mteb_args.mteb_output) if rank() == 0 else None
    figures = {}
    for task in chosen_tasks(mteb, mteb_args, args.data_dir):
        with redirect_stdout(sys.stderr):
            load_rows(task, args.data_dir)
            result = mteb.evaluate(
                encoder, task, cache=cache, overwrite_strategy="always", co2_tracker=False, show_progress_bar=False,
                encode_kwargs={"batch_size": args.batch_size},
            )  # fmt: skip
        figures[task.metadata.name] = main_figures(task, result.task_results[0])
        task.unload_data()
    folder = None if cache is None else str(cache.get_task_result_path("", encoder.mteb_model_meta).parent)
    return {"mteb": mteb.__version__, "results": folder, "tasks": figures}


def chosen_tasks(mteb, args: MtebArguments, data_dir: str) -> list:
    """The tasks with the splits of the leaderboard; of `sts`, those whose corpora are prepared."""
    names = args.mteb or []
    if names == ["STS"]:
        names = [name for name in TASKS if Path(data_dir, name.lower(), MANIFEST_NAME).is_file()]
        missing = ", ".join(name for name in TASKS if name not in names)
        if not names:
            raise InputError(f"--mteb sts: none of {missing} is prepared under {data_dir}. Run `cosent prepare NAME`.")
        if missing:
            logger.warning("--mteb sts without %s: not prepared under %s.", missing, data_dir)
    tasks = {task.metadata.name: task for task in mteb.get_benchmark(BENCHMARK).tasks}
    return [tasks[name] for name in names]


def load_rows(task, data_dir: str) -> None:
    """Gives a task its rows: pairs those of a prepared corpus, reranking what mteb reads from the Hub.

    Raises:
        InputError: the corpus is not prepared, or the Hub cannot be read.
    """
    if task.metadata.name not in RERANKING_TASKS:
        return use_prepared_rows(task, data_dir)
    try:
        task.load_data()
    except OSError as error:
        raise InputError(
            f"--mteb {task.metadata.name}: mteb cannot read {task.metadata.dataset['path']} from the Hub ({error}). "
            "Connect to it once; later runs read the cache. Files of your own: --queries, --documents and --qrels."
        ) from error


def use_prepared_rows(task, data_dir: str) -> None:
    """Gives a task the rows of a prepared corpus, and their revision in mteb's result file.

    Of NLI, those that C-MTEB has: entailment is 1, contradiction 0, and neutral pairs are left out.
    """
    corpus = load_corpus(task.metadata.name.lower(), data_dir)
    splits = {split: corpus.split(split) for split in task.eval_splits}
    if task.metadata.type == "PairClassification":
        splits = {split: classes(rows, corpus) for split, rows in splits.items()}
    else:
        splits = {split: rows.rename_column("label", "score") for split, rows in splits.items()}
    task.dataset = splits
    task.data_loaded = True
    revision = "-".join(["prepared", *(corpus.manifest.splits[split]["sha256"][:12] for split in task.eval_splits)])
    dataset = {"path": str(corpus.folder), "revision": revision}
    task.metadata = task.metadata.model_copy(update={"dataset": dataset})


def classes(rows, corpus):
    """Pairs with `labels` of 1 and 0: entailment and contradiction of an NLI corpus, or binary labels as they are."""
    manifest = corpus.manifest
    if manifest.label_kind == "graded":
        raise InputError(f"{corpus.folder} has graded labels, and this task needs nli or 0 and 1.")
    labels = np.asarray(rows["label"])
    kept = rows[np.flatnonzero(np.isin(labels, (manifest.label_min, manifest.label_max)))]
    sentences = {name: kept[name] for name in ("sentence1", "sentence2")}
    return Dataset.from_dict(sentences | {"labels": [int(label == manifest.label_max) for label in kept["label"]]})


class MtebEncoder:
    """An `Embedder` with the methods that mteb calls: `EncoderProtocol` of mteb.

    It reads sentences as `cosent evaluate` does: with the same prompt and maximum length, each distinct one once,
    shared out over the processes of the job.
    """

    def __init__(self, model, prompts: tuple[str, str], meta):
        self.model, self.prompt, self.mteb_model_meta = model, prompts[0], meta

    def encode(self, inputs, *, batch_size: int, **of_task) -> np.ndarray:
        """Vectors of the sentences in batches `{"text": [sentence, ...]}`; nothing depends on the task."""
        sentences = [sentence for batch in inputs for sentence in batch["text"]]
        options = {"batch_size": batch_size, "show_progress_bar": rank() == 0, "prompt": self.prompt}
        return shared(lambda part: self.model.encode(sentences[part], **options), len(sentences))

    def similarity(self, embeddings1, embeddings2):
        from mteb.similarity_functions import cos_sim

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1, embeddings2):
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(embeddings1, embeddings2)


class MtebCrossEncoder:
    """A cross-encoder with the method that mteb calls: `CrossEncoderProtocol` of mteb."""

    def __init__(self, model, prompts: tuple[str, str], meta):
        self.model, self.prompts, self.mteb_model_meta = model, prompts, meta

    def predict(self, inputs1, inputs2, *, batch_size: int, **of_task) -> np.ndarray:
        """Scores of the pairs of two streams of batches `{"text": [sentence, ...]}`."""
        columns = ([text for batch in inputs for text in batch["text"]] for inputs in (inputs1, inputs2))
        pairs = dict(zip(("sentence1", "sentence2"), columns, strict=True))
        return score(self.model, pairs, batch_size, self.prompts)


def model_meta(model, name_or_path: str, experiment: dict):
    """The `ModelMeta` that mteb stores next to its results.

    Args:
        experiment: settings that change the vectors and are not those of the model; results with them get a folder of
            their own.
    """
    from mteb.models import ModelMeta
    from mteb.models.model_meta import ScoringFunction

    folder = Path(resolve(name_or_path))
    weights = [sha256_of_file(file) for file in sorted(folder.glob("*.safetensors"))]  # none of a Hub id
    owner = "cosent" if name_or_path in SHIPPED else "local"
    embeds = isinstance(model, Embedder)
    return ModelMeta.create_empty({
        "name": f"{owner}/{folder.resolve().name}" if weights else name_or_path,
        "revision": "-".join(sha256[:12] for sha256 in weights) or "main",
        "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "max_tokens": model.max_length,
        "embed_dim": model.embedding_dimension if embeds else None,
        "similarity_fn_name": ScoringFunction.COSINE if embeds else None,
        "model_type": ["dense" if embeds else "cross-encoder"],
        "framework": ["PyTorch"],
        "experiment_kwargs": experiment or None,
    })  # fmt: skip


MAIN_FIGURES = {
    "STS": ("cosine_spearman", "cosine_pearson"),
    "PairClassification": ("max_accuracy", "cosine_ap"),
    "Reranking": ("map_at_1000", "mrr_at_10"),
}  # by type of task; the first is that of the leaderboard


def main_figures(task, result) -> dict:
    """The main figures of mteb's result; of the only split that the leaderboard reads."""
    (split,) = task.eval_splits
    (scores,) = result.scores[split]
    rows = task.dataset["default"][split]["queries"] if task.metadata.name in RERANKING_TASKS else task.dataset[split]
    counted = "queries" if task.metadata.name in RERANKING_TASKS else "pairs"
    return {"split": split, counted: len(rows)} | {name: scores[name] for name in MAIN_FIGURES[task.metadata.type]}


def table_lines(result: dict) -> list[str]:
    """The table of a result: the leaderboard's figure of each task, and the mean where all have the same."""
    rows, figures = [], {}
    for task, one in result["tasks"].items():
        counted = "pairs" if "pairs" in one else "queries"
        name = next(name for names in MAIN_FIGURES.values() for name in names if name in one)
        figures.setdefault(name, []).append(one[name])
        rows.append(f"  {task:<19}{one['split']:<12}{one[counted]:>7,} {counted:<8}{name:<16}{100 * one[name]:6.2f}")
    means = [f"  mean{100 * sum(values) / len(values):64.2f}" for values in figures.values() if len(figures) == 1]
    return [f"mteb {result['mteb']}, x100", *rows, *means]
