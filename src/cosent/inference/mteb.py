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
from cosent.inference.embedding import score, shared
from cosent.models.bi_encoder import SentenceEncoder

logger = logging.getLogger(__name__)

BENCHMARK = "MTEB(cmn, v1)"  # C-MTEB: which splits its tasks read
OUTPUT = "mteb"  # folder of mteb's result files
STS = ("ATEC", "BQ", "LCQMC", "PAWSX", "STSB", "AFQMC", "QBQTC")
PAIRS = (*STS, "Ocnli", "Cmnli")
RERANKING = ("T2Reranking", "MMarcoReranking", "CMedQAv1-reranking", "CMedQAv2-reranking")
MAIN_FIGURES = {
    "STS": ("cosine_spearman", "cosine_pearson"),
    "PairClassification": ("max_accuracy", "cosine_ap"),
    "Reranking": ("map_at_1000", "mrr_at_10"),
}  # by type of task; the first is that of the leaderboard


def evaluate_tasks(model, args, prompts: tuple[str, str]) -> dict:
    """Runs the tasks of `EvaluateArguments` and writes mteb's result files; returns the main figures by task."""
    try:
        import mteb
    except ImportError as error:
        raise InputError(f"--mteb needs the package mteb ({error}). Run pip install -e '.[mteb]'.") from error
    tasks, embeds = chosen_tasks(args.mteb, args.data_dir), isinstance(model, SentenceEncoder)
    if not embeds and (pairs := [name for name in tasks if name in PAIRS]):
        raise InputError(f"{args.model} is a cross-encoder, and --mteb {pairs[0]} embeds sentences. Use --corpus NAME.")
    if embeds and prompts[0] != prompts[1]:
        raise InputError(f"--mteb takes one prompt, got {prompts[0]!r} and {prompts[1]!r}. Use --corpus NAME.")
    experiment = {"int8": True} if args.int8 else {}
    experiment |= {"prompt": prompts} if prompts != model.prompts.sides() else {}
    adapter = MtebEncoder if embeds else MtebCrossEncoder
    encoder = adapter(model, prompts, model_meta(model, args.model, experiment))
    cache = mteb.ResultCache(OUTPUT) if rank() == 0 else None
    figures = {}
    for name, task in tasks.items():
        with redirect_stdout(sys.stderr):
            load_rows(task, args.data_dir)
            result = mteb.evaluate(
                encoder, task, cache=cache, overwrite_strategy="always", co2_tracker=False, show_progress_bar=False
            )
        figures[name] = main_figures(task, result.task_results[0])
        task.unload_data()
    folder = None if cache is None else str(cache.get_task_result_path("", encoder.mteb_model_meta).parent)
    return {"mteb": mteb.__version__, "results": folder, "tasks": figures}


def chosen_tasks(names: list[str], data_dir: str) -> dict:
    """The tasks by name, with the splits of the leaderboard; of `sts`, those whose corpora are prepared."""
    import mteb

    spelled = {name.upper(): name for name in (*PAIRS, *RERANKING)}
    chosen = [spelled.get(name.upper(), name) for name in names]
    if [name.upper() for name in names] == ["STS"]:
        chosen = [name for name in STS if Path(data_dir, name.lower(), MANIFEST_NAME).is_file()]
        missing = ", ".join(name for name in STS if name not in chosen)
        if not chosen:
            raise InputError(f"--mteb sts: none of {missing} is prepared under {data_dir}. Run `cosent prepare NAME`.")
        if missing:
            logger.warning("--mteb sts without %s: not prepared under %s.", missing, data_dir)
    if unknown := set(chosen) - set(spelled.values()):
        raise InputError(f"--mteb takes sts alone, or {', '.join(spelled.values())}, got {' '.join(sorted(unknown))}.")
    tasks = {task.metadata.name: task for task in mteb.get_benchmark(BENCHMARK).tasks}
    return {name: tasks[name] for name in chosen}


def load_rows(task, data_dir: str) -> None:
    """Gives a task the rows of a prepared corpus and their revision; reranking reads the Hub.

    Of NLI, those that C-MTEB has: entailment is 1, contradiction 0, and neutral pairs are left out.
    """
    name = task.metadata.name
    if name in RERANKING:
        try:
            return task.load_data()
        except OSError as error:
            raise InputError(f"--mteb {name}: the Hub cannot be read ({error}). Own files: --qrels.") from error
    corpus = load_corpus(name.lower(), data_dir)
    splits = {split: corpus.split(split) for split in task.eval_splits}
    if task.metadata.type == "PairClassification":
        task.dataset = {split: classes(rows, corpus) for split, rows in splits.items()}
    else:
        task.dataset = {split: rows.rename_column("label", "score") for split, rows in splits.items()}
    task.data_loaded = True
    revision = "-".join(["prepared", *(corpus.manifest.splits[split]["sha256"][:12] for split in task.eval_splits)])
    dataset = {"path": str(corpus.folder), "revision": revision}
    task.metadata = task.metadata.model_copy(update={"dataset": dataset})


def classes(rows, corpus):
    """Pairs with `labels` of 1 and 0: entailment and contradiction of an NLI corpus, or binary labels as they are."""
    manifest = corpus.manifest
    if manifest.label_kind == "graded":
        raise InputError(f"{corpus.folder} has graded labels, and this task needs nli or 0 and 1.")
    kept = rows[np.flatnonzero(np.isin(rows["label"], (manifest.label_min, manifest.label_max)))]
    sentences = {name: kept[name] for name in ("sentence1", "sentence2")}
    return Dataset.from_dict(sentences | {"labels": [int(label == manifest.label_max) for label in kept["label"]]})


class MtebEncoder:
    """An `SentenceEncoder` with the methods of mteb's `EncoderProtocol`; processes share out the sentences."""

    def __init__(self, model, prompts: tuple[str, str], meta):
        self.model, self.prompt, self.mteb_model_meta = model, prompts[0], meta

    def encode(self, inputs, **of_task) -> np.ndarray:
        sentences = [sentence for batch in inputs for sentence in batch["text"]]
        options = {"show_progress_bar": rank() == 0, "prompt": self.prompt}
        return shared(lambda part: self.model.encode(sentences[part], **options), len(sentences))

    def similarity(self, embeddings1, embeddings2):
        from mteb.similarity_functions import cos_sim

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1, embeddings2):
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(embeddings1, embeddings2)


class MtebCrossEncoder:
    """A cross-encoder with the method of mteb's `CrossEncoderProtocol`."""

    def __init__(self, model, prompts: tuple[str, str], meta):
        self.model, self.prompts, self.mteb_model_meta = model, prompts, meta

    def predict(self, inputs1, inputs2, **of_task) -> np.ndarray:
        columns = ([text for batch in inputs for text in batch["text"]] for inputs in (inputs1, inputs2))
        return score(self.model, dict(zip(("sentence1", "sentence2"), columns, strict=True)), self.prompts)


def model_meta(model, name_or_path: str, experiment: dict):
    """The `ModelMeta` next to mteb's results; `experiment`, if any, gets a folder of its own."""
    from mteb.models import ModelMeta
    from mteb.models.model_meta import ScoringFunction

    folder = Path(resolve(name_or_path))
    weights = [sha256_of_file(file) for file in sorted(folder.glob("*.safetensors"))]  # none of a Hub id
    owner = "cosent" if name_or_path in SHIPPED else "local"
    embeds = isinstance(model, SentenceEncoder)
    return ModelMeta.create_empty({
        "name": f"{owner}/{folder.resolve().name}" if weights else name_or_path,
        "revision": "-".join(sha256[:12] for sha256 in weights) or "main",
        "embed_dim": model.embedding_dimension if embeds else None,
        "similarity_fn_name": ScoringFunction.COSINE if embeds else None,
        "model_type": ["dense" if embeds else "cross-encoder"],
        "experiment_kwargs": experiment or None,
    })  # fmt: skip


def main_figures(task, result) -> dict:
    """The main figures of mteb's result; of the only split that the leaderboard reads."""
    (split,) = task.eval_splits
    (scores,) = result.scores[split]
    if task.metadata.name in RERANKING:
        counted = {"queries": len(task.dataset["default"][split]["queries"])}
    else:
        counted = {"pairs": len(task.dataset[split])}
    return {"split": split} | counted | {name: scores[name] for name in MAIN_FIGURES[task.metadata.type]}


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
