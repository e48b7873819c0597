"""mteb's own Chinese STS tasks, run on prepared corpora or on the rows of the Hub."""

import hashlib
import logging
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from huggingface_hub import try_to_load_from_cache

from cosent.cli import option, refuse_changed
from cosent.compute.distributed import rank
from cosent.data.corpus import load_corpus
from cosent.data.manifest import MANIFEST_NAME, sha256_of_file
from cosent.encoders import SHIPPED, resolve
from cosent.errors import InputError
from cosent.inference.embedding import shared
from cosent.models.bi_encoder import Embedder
from cosent.run import RECORD_NAME, read_record

logger = logging.getLogger(__name__)

TASKS = ("ATEC", "BQ", "LCQMC", "PAWSX", "STSB", "AFQMC", "QBQTC")
BENCHMARK = "MTEB(cmn, v1)"  # C-MTEB: which splits its tasks read
SHARE_PAIRS = {"ATEC": "AFQMC", "AFQMC": "ATEC"}  # thousands of the same pairs: Ant Financial published both
STRIPPED = 0.001  # of the characters: prepared sentences lack the spaces around them, which a few published ones have
MODEL_FILES = (".safetensors", ".bin", ".json", ".txt", ".model")  # weights, settings, vocabularies


@dataclass
class MtebArguments:
    """Tasks of mteb: the Chinese STS tasks of its leaderboard, run by mteb itself."""

    mteb: list[str] | None = option(
        None, f"bi_encoder: instead of --corpus, tasks of mteb: {', '.join(TASKS)}, or sts for all."
    )
    mteb_data: str = option(
        "prepared", "Their rows: corpora under --data_dir called atec, bq, ...; or from the Hub, as mteb reads them.",
        ("prepared", "hub"),
    )  # fmt: skip
    mteb_output: str = option("mteb", "Folder of mteb's result files.")
    mteb_name: str | None = option(
        None, "Name of the model in them, OWNER/NAME; default: its Hub id, or local/ and the name of its folder."
    )
    mteb_revision: str | None = option(
        None, "Revision of the model in them; default: its commit on the Hub, or a hash of its files."
    )

    def __post_init__(self):
        if self.mteb is None:
            refuse_changed(self, ("mteb_data", "mteb_output", "mteb_name", "mteb_revision"), "--mteb sts")
            return
        self.mteb = list(dict.fromkeys(name.upper() for name in self.mteb))
        unknown = [name for name in self.mteb if name not in (*TASKS, "STS")]
        if unknown or ("STS" in self.mteb and len(self.mteb) > 1):
            raise InputError(f"--mteb takes sts, or some of {' '.join(TASKS)}, got {' '.join(self.mteb)}.")
        if self.mteb_name is not None and self.mteb_name.strip("/").count("/") != 1:
            raise InputError(f"--mteb_name {self.mteb_name}: expected OWNER/NAME.")


def evaluate_tasks(model, args, mteb_args: MtebArguments, prompts: tuple[str, str]) -> dict:
    """Runs the tasks and writes mteb's result files; returns what was found, by task.

    Args:
        model: any model; those that do not embed single sentences are refused.
        args: the `EvaluateArguments`.
        prompts: texts in front of the first and the second sentence.

    Raises:
        InputError: mteb is missing, the model is a cross-encoder, the prompts differ, or there are no rows.
    """
    if not isinstance(model, Embedder):
        raise InputError(
            f"{args.model} is a cross-encoder, and --mteb embeds each sentence alone. Name a bi-encoder; --corpus NAME "
            "gives its Spearman on the same rows."
        )
    if prompts[0] != prompts[1]:
        raise InputError(
            f"--mteb takes one prompt, got {prompts[0]!r} and {prompts[1]!r}: its tasks do not say which sentence of a "
            "pair is which. Give one, or use --corpus NAME."
        )
    mteb = import_mteb()
    tasks = chosen_tasks(mteb, mteb_args, args.data_dir)
    experiment = ({"int8": True} if args.int8 else {}) | (
        {"prompt": prompts[0]} if prompts[0] != model.prompts.text() else {}
    )
    meta = model_meta(model, args.model, mteb_args.mteb_name, mteb_args.mteb_revision, experiment)
    encoder = MtebEncoder(model, prompts[0], meta)
    cache = mteb.ResultCache(mteb_args.mteb_output) if rank() == 0 else None
    found = {}
    for task in tasks:
        rows = with_rows(task, args.data_dir, mteb_args.mteb_data)
        with redirect_stdout(sys.stderr):
            result = mteb.evaluate(
                encoder, task, cache=cache, overwrite_strategy="always", co2_tracker=False, show_progress_bar=False,
                encode_kwargs={"batch_size": args.batch_size},
            )  # fmt: skip
        found[task.metadata.name] = figures(task, result.task_results[0]) | {"rows": rows}
        task.unload_data()
    for name in found:
        if (other := SHARE_PAIRS.get(name)) in (trained_tasks(args.model) or []):
            logger.warning("%s shares thousands of pairs with %s, which the model was trained on.", name, other)
    folder = None if cache is None else str(cache.get_task_result_path("", meta).parent)
    return {"mteb": mteb.__version__, "name": meta.name, "revision": meta.revision, "results": folder, "tasks": found}


def import_mteb():
    """The package mteb.

    Raises:
        InputError: it is not installed.
    """
    try:
        import mteb
    except ImportError as error:
        raise InputError(
            f"--mteb runs the package mteb, which is not installed ({error}). Run pip install -e '.[mteb]'."
        ) from error
    return mteb


def chosen_tasks(mteb, args: MtebArguments, data_dir: str) -> list:
    """The tasks with the splits of the leaderboard; of `sts`, those whose corpora are prepared."""
    names = list(TASKS) if args.mteb == ["STS"] else args.mteb or []
    if args.mteb == ["STS"] and args.mteb_data == "prepared":
        missing = [name for name in names if not Path(data_dir, name.lower(), MANIFEST_NAME).is_file()]
        names = [name for name in names if name not in missing]
        if not names:
            raise InputError(
                f"--mteb sts: none of {', '.join(map(str.lower, TASKS))} is prepared under {data_dir}. Run python -m "
                "data_scripts.prepare NAME --source RAW, or read them from the Hub: --mteb_data hub."
            )
        if missing:
            logger.warning("--mteb sts without %s: not prepared under %s.", ", ".join(missing), data_dir)
    known = {task.metadata.name: task for task in mteb.get_benchmark(BENCHMARK).tasks}
    return [known[name] for name in names]


def with_rows(task, data_dir: str, source: str = "prepared") -> str:
    """Loads the rows of a task, and compares them with the statistics of the published rows, which come with mteb.

    Prepared rows that are not the published ones get a revision of their own in mteb's result file.

    Returns:
        `published`, or what differs.
    """
    if source == "hub":
        try:
            task.load_data()
        except (OSError, ValueError) as error:
            raise InputError(
                f"{task.metadata.name}: {task.metadata.dataset['path']} could not be read from the Hub ({error}). "
                "Check the network and HF_ENDPOINT, or leave --mteb_data out."
            ) from error
        return compare_rows(task)
    corpus = load_corpus(task.metadata.name.lower(), data_dir)
    task.dataset = {split: corpus.split(split).rename_column("label", "score") for split in task.eval_splits}
    task.data_loaded = True
    compared = compare_rows(task)
    if compared != "published":
        revision = "-".join(["prepared", *(corpus.manifest.splits[split]["sha256"][:12] for split in task.eval_splits)])
        dataset = {"path": str(corpus.folder), "revision": revision}
        task.metadata = task.metadata.model_copy(update={"dataset": dataset})
        logger.warning("%s: these are not the rows of the leaderboard (%s). Do not submit the result.",
                       task.metadata.name, compared)  # fmt: skip
    return compared


def compare_rows(task) -> str:
    for split in task.eval_splits:
        theirs, rows = task.metadata.descriptive_stats[split], task.dataset[split]
        facts = [
            ("rows", len(rows), theirs["num_samples"], 0),
            ("mean label", sum(rows["score"][:]) / len(rows), theirs["label_statistics"]["avg_score"], 1e-6),
        ]
        for name, stated in (("sentence1", theirs["text1_statistics"]), ("sentence2", theirs["text2_statistics"])):
            texts, total = rows[name][:], stated["total_text_length"]
            facts.append((f"distinct {name}", len(set(texts)), stated["unique_texts"], 0))
            facts.append((f"characters of {name}", sum(map(len, texts)), total, STRIPPED * total))
        for what, ours, published, tolerance in facts:
            if abs(ours - published) > tolerance:
                return f"{split}: {what} {ours:g}, published {published:g}"
    return "published"


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


def model_meta(model, name_or_path: str, name: str | None, revision: str | None, experiment: dict):
    """The `ModelMeta` that mteb stores next to its results.

    Args:
        name, revision: see `MtebArguments`.
        experiment: settings that change the vectors and are not those of the model; results with them get a folder of
            their own.
    """
    from mteb.models import ModelMeta
    from mteb.models.model_meta import ScoringFunction

    path, trained_on = resolve(name_or_path), trained_tasks(name_or_path)
    return ModelMeta.create_empty({
        "name": name or default_name(name_or_path, path),
        "revision": revision or default_revision(path),
        "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "max_tokens": model.max_length,
        "embed_dim": model.embedding_dimension,
        "similarity_fn_name": ScoringFunction.COSINE,
        "framework": ["PyTorch"],
        "training_datasets": None if trained_on is None else set(trained_on),
        "experiment_kwargs": experiment or None,
    })  # fmt: skip


def default_name(name_or_path: str, path: str) -> str:
    if not Path(path).is_dir():
        return name_or_path if "/" in name_or_path else f"hub/{name_or_path}"
    return f"cosent/{name_or_path}" if name_or_path in SHIPPED else f"local/{Path(path).resolve().name}"


def default_revision(path: str) -> str:
    """The commit of a Hub id; of a folder the SHA-256 of its weights, settings and vocabularies, by their names."""
    if not Path(path).is_dir():
        return Path(str(try_to_load_from_cache(path, "config.json"))).parent.name  # .../snapshots/COMMIT/config.json
    digest = hashlib.sha256()
    for file in sorted(Path(path).rglob("*")):
        inner = file.relative_to(path)
        of_run = inner.name == RECORD_NAME or inner.parts[0].startswith("checkpoint-")
        if file.suffix in MODEL_FILES and not of_run:
            digest.update(f"{inner.as_posix()} {sha256_of_file(file)}\n".encode())
    return digest.hexdigest()[:40]


def trained_tasks(model: str) -> list[str] | None:
    """The tasks on whose training splits `run.json` says that a model was trained; None if it has no such record."""
    record = read_record(model)
    if record is None:
        return None
    corpora = record.recipe.get("corpus") or []
    names = {Path(one).name.upper() for one in (corpora if isinstance(corpora, list) else [corpora])}
    return [task for task in TASKS if task in names]


def figures(task, result) -> dict:
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
    return [f"{result['name']} by mteb {result['mteb']}, cosine Spearman x100", *rows, f"  mean{100 * mean:35.2f}"]
