"""mteb's own Chinese STS tasks, run on prepared corpora or on the rows of the Hub."""

import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path

from cosent.compute.distributed import rank
from cosent.data.corpus import load_corpus
from cosent.errors import InputError
from cosent.measuring.mteb_arguments import TASKS, MtebArguments
from cosent.measuring.mteb_encoder import MtebEncoder, import_mteb, model_meta, trained_tasks
from cosent.modeling.embedder import Embedder
from cosent.schema import MANIFEST_NAME

logger = logging.getLogger(__name__)
BENCHMARK = "MTEB(cmn, v1)"  # C-MTEB: which splits its tasks read
SHARE_PAIRS = {"ATEC": "AFQMC", "AFQMC": "ATEC"}  # thousands of the same pairs: Ant Financial published both
STRIPPED = 0.001  # of the characters: prepared sentences lack the spaces around them, which a few published ones have


def evaluate_tasks(model, args, mteb_args: MtebArguments, prompts: tuple[str, str]) -> dict:
    """Runs the tasks and writes mteb's result files; returns what was found, by task.

    Args:
        model: any model; those that do not embed single sentences are refused.
        args: the `EvaluateArguments`.
        prompts: texts in front of the first and the second sentence.

    Raises:
        InputError: mteb is missing, the model is a cross-encoder, the prompts differ, or there are no rows.
    """
    check(model, args.model, prompts)
    mteb = import_mteb()
    tasks = chosen_tasks(mteb, mteb_args, args.data_dir)
    experiment = {"int8": True} if args.int8 else {}
    if prompts[0] != model.prompts.text():
        experiment["prompt"] = prompts[0]
    meta = model_meta(model, args.model, mteb_args.mteb_name, mteb_args.mteb_revision, experiment)
    encoder = MtebEncoder(model, prompts[0], meta)
    cache = mteb.ResultCache(mteb_args.mteb_output) if rank() == 0 else None
    found = {}
    for task in tasks:
        load = with_prepared_rows if mteb_args.mteb_data == "prepared" else with_rows_of_the_hub
        rows = load(task, args.data_dir)
        with redirect_stdout(sys.stderr):
            result = mteb.evaluate(
                encoder, task, cache=cache, overwrite_strategy="always", co2_tracker=False, show_progress_bar=False,
                encode_kwargs={"batch_size": args.batch_size},
            )  # fmt: skip
        found[task.metadata.name] = figures(task, result.task_results[0]) | {"rows": rows}
        task.unload_data()
    warn_of_leaks(trained_tasks(args.model) or [], list(found))
    folder = None if cache is None else str(cache.get_task_result_path("", meta).parent)
    return {"mteb": mteb.__version__, "name": meta.name, "revision": meta.revision, "results": folder, "tasks": found}


def check(model, name: str, prompts: tuple[str, str]) -> None:
    if not isinstance(model, Embedder):
        raise InputError(
            f"{name} is a cross-encoder. mteb's STS tasks embed each sentence alone and compare cosines, which it "
            "cannot: it reads both at once. --corpus NAME gives its Spearman on the same rows; for --mteb, name a "
            "bi-encoder."
        )
    if prompts[0] != prompts[1]:
        raise InputError(
            f"--mteb: expected one prompt, got {prompts[0]!r} and {prompts[1]!r}. mteb's STS tasks do not say which "
            "sentence of a pair is which, so both would get the same one. Give one, or use --corpus NAME."
        )


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


def with_prepared_rows(task, data_dir: str) -> str:
    """Gives a task the rows of a prepared corpus; returns how they compare with the published ones.

    Rows that are not the published ones get a revision of their own in mteb's result file.
    """
    corpus = load_corpus(task.metadata.name.lower(), data_dir)
    task.dataset = {split: corpus.split(split).rename_column("label", "score") for split in task.eval_splits}
    task.data_loaded = True
    compared = compare_rows(task)
    if compared != "published":
        revision = "-".join(["prepared", *(corpus.manifest.splits[split]["sha256"][:12] for split in task.eval_splits)])
        dataset = {"path": str(corpus.folder), "revision": revision}
        task.metadata = task.metadata.model_copy(update={"dataset": dataset})
        logger.warning(
            "%s: these are not the rows of the leaderboard (%s). Do not submit the result.",
            task.metadata.name,
            compared,
        )
    return compared


def with_rows_of_the_hub(task, data_dir: str) -> str:
    """Loads the rows as mteb does; returns how they compare with the published ones."""
    try:
        task.load_data()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{task.metadata.name}: {task.metadata.dataset['path']} could not be read from the Hub ({error}). Check "
            "the network and HF_ENDPOINT, or prepare the corpus and leave --mteb_data hub out."
        ) from error
    return compare_rows(task)


def compare_rows(task) -> str:
    """`published`, or what differs from the statistics of the published rows, which come with mteb."""
    for split in task.eval_splits:
        theirs, rows = task.metadata.descriptive_stats[split], task.dataset[split]
        sides = {name: rows[name][:] for name in ("sentence1", "sentence2")}
        pairs = [
            ("rows", len(rows), theirs["num_samples"], 0),
            ("mean label", sum(rows["score"][:]) / len(rows), theirs["label_statistics"]["avg_score"], 1e-6),
        ]
        for number, (name, texts) in enumerate(sides.items(), start=1):
            stated = theirs[f"text{number}_statistics"]
            total = stated["total_text_length"]
            pairs.append((f"distinct {name}", len(set(texts)), stated["unique_texts"], 0))
            pairs.append((f"characters of {name}", sum(map(len, texts)), total, STRIPPED * total))
        for what, ours, published, tolerance in pairs:
            if abs(ours - published) > tolerance:
                return f"{split}: {what} {ours:g}, published {published:g}"
    return "published"


def figures(task, result) -> dict:
    """The main figures of mteb's result; of the only split that the leaderboard reads."""
    (split,) = task.eval_splits
    (scores,) = result.scores[split]
    names = ("cosine_spearman", "cosine_pearson")
    return {"split": split, "pairs": len(task.dataset[split])} | {name: scores[name] for name in names}


def warn_of_leaks(trained: list[str], measured: list[str]) -> None:
    for task in measured:
        if (other := SHARE_PAIRS.get(task)) in trained:
            logger.warning(
                "%s shares thousands of pairs with %s, which the model was trained on: its figure says little.",
                task,
                other,
            )


def table_lines(result: dict) -> list[str]:
    """The table of a result."""
    head = f"{result['name']} by mteb {result['mteb']}"
    rows = [f"  {name:<8}{one['split']:<12}{one['pairs']:>7,} pairs  {100 * one['cosine_spearman']:6.2f}"
            for name, one in result["tasks"].items()]  # fmt: skip
    mean = sum(one["cosine_spearman"] for one in result["tasks"].values()) / len(result["tasks"])
    return [f"{head}, cosine Spearman x100", *rows, f"  mean{100 * mean:35.2f}"]
