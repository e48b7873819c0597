"""mteb's own Chinese STS tasks, run on prepared corpora."""

import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np

from cosent.compute.distributed import rank
from cosent.data.corpus import load_corpus
from cosent.data.manifest import MANIFEST_NAME, sha256_of_file
from cosent.encoders import SHIPPED, resolve
from cosent.errors import InputError
from cosent.inference.arguments import TASKS, MtebArguments
from cosent.inference.embedding import shared
from cosent.models.bi_encoder import Embedder

logger = logging.getLogger(__name__)

BENCHMARK = "MTEB(cmn, v1)"  # C-MTEB: which splits its tasks read


def evaluate_tasks(model, args, mteb_args: MtebArguments, prompts: tuple[str, str]) -> dict:
    """Runs the tasks and writes mteb's result files; returns the main figures by task.

    Args:
        model: any model; a cross-encoder is refused, since mteb embeds each sentence alone.
        args: the `EvaluateArguments`.
        prompts: texts in front of the first and the second sentence.
    """
    if not isinstance(model, Embedder):
        raise InputError(
            f"{args.model} is a cross-encoder, and --mteb embeds each sentence alone. Name a bi-encoder, or use "
            "--corpus NAME."
        )
    if prompts[0] != prompts[1]:
        raise InputError(
            f"--mteb takes one prompt, got {prompts[0]!r} and {prompts[1]!r}. Give one, or use --corpus NAME."
        )
    try:
        import mteb
    except ImportError as error:
        raise InputError(f"--mteb needs the package mteb ({error}). Run pip install -e '.[mteb]'.") from error
    experiment = ({"int8": True} if args.int8 else {}) | (
        {"prompt": prompts[0]} if prompts[0] != model.prompts.text() else {}
    )
    encoder = MtebEncoder(model, prompts[0], model_meta(model, args.model, experiment))
    cache = mteb.ResultCache(mteb_args.mteb_output) if rank() == 0 else None
    figures = {}
    for task in chosen_tasks(mteb, mteb_args, args.data_dir):
        use_prepared_rows(task, args.data_dir)
        with redirect_stdout(sys.stderr):
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


def use_prepared_rows(task, data_dir: str) -> None:
    """Gives a task the rows of a prepared corpus, and their revision in mteb's result file."""
    corpus = load_corpus(task.metadata.name.lower(), data_dir)
    task.dataset = {split: corpus.split(split).rename_column("label", "score") for split in task.eval_splits}
    task.data_loaded = True
    revision = "-".join(["prepared", *(corpus.manifest.splits[split]["sha256"][:12] for split in task.eval_splits)])
    dataset = {"path": str(corpus.folder), "revision": revision}
    task.metadata = task.metadata.model_copy(update={"dataset": dataset})


class MtebEncoder:
    """An `Embedder` with the methods that mteb calls: `EncoderProtocol` of mteb.

    It reads sentences as `cosent evaluate` does: with the same prompt and maximum length, each distinct one once,
    shared out over the processes of the job.
    """

    def __init__(self, model, prompt: str, meta):
        self.model, self.prompt, self.mteb_model_meta = model, prompt, meta

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
    return ModelMeta.create_empty({
        "name": f"{owner}/{folder.resolve().name}" if weights else name_or_path,
        "revision": "-".join(sha256[:12] for sha256 in weights) or "main",
        "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "max_tokens": model.max_length,
        "embed_dim": model.embedding_dimension,
        "similarity_fn_name": ScoringFunction.COSINE,
        "framework": ["PyTorch"],
        "experiment_kwargs": experiment or None,
    })  # fmt: skip


def main_figures(task, result) -> dict:
    """The main figures of mteb's result; of the only split that the leaderboard reads."""
    (split,) = task.eval_splits
    (scores,) = result.scores[split]
    names = ("cosine_spearman", "cosine_pearson")
    return {"split": split, "pairs": len(task.dataset[split])} | {name: scores[name] for name in names}


def table_lines(result: dict) -> list[str]:
    """The table of a result."""
    rows = [f"  {name:<8}{one['split']:<12}{one['pairs']:>7,} pairs  {100 * one['cosine_spearman']:6.2f}"
            for name, one in result["tasks"].items()]  # fmt: skip
    mean = sum(one["cosine_spearman"] for one in result["tasks"].values()) / len(result["tasks"])
    return [f"mteb {result['mteb']}, cosine Spearman x100", *rows, f"  mean{100 * mean:35.2f}"]
