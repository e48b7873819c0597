"""Fill the tables of README and docs from the committed results.

python -m benchmarks.tables              README.md, README.zh-CN.md and docs/*.md
python -m benchmarks.tables FILE ...     these Markdown files
python -m benchmarks.tables --check      change nothing, exit with 1 where a table is not current

The text between `<!-- results:NAME -->` and `<!-- end -->` is replaced by the table of the study in the folder
`results/NAME`, of the benchmark whose JSON is `results/NAME.json`, or of several results (`OF_SEVERAL`);
`<!-- results:NAME probabilities -->` asks for the errors of a study's probabilities instead of its Spearman,
`retrieval` for retrieval metrics next to it, and `teaching` for what teachers add.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.anchors import anchors_table
from benchmarks.approximate import approximate_table
from benchmarks.backbone_tables import backbones_table, packing_table
from benchmarks.choosing_tables import choosing_table, kept_quality, quality_table
from benchmarks.claims_table import claims_table
from benchmarks.ensemble_tables import fusion_table, merged_table
from benchmarks.mteb_equality import mteb_table
from benchmarks.published_runs import published_table
from benchmarks.quickstart import quickstart_table
from benchmarks.scale_table import scale_table
from benchmarks.spread import spread_table
from cosent.errors import InputError, messages_for_users
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number, Range, times_100
from cosent.reporting.probabilities import probabilities_table
from cosent.reporting.readme_tables import study_table
from cosent.reporting.retrieval import retrieval_table
from cosent.reporting.teaching_table import teaching_table
from cosent.run_record import shortened
from cosent.studies.results import Study, read_results

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- results:(\w+)(?: (\w+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main(args: argparse.Namespace, root: Path = ROOT) -> None:
    stale = []
    for file in args.files or pages(root):
        text = file.read_text(encoding="utf-8")
        filled = fill(text, root / "results")
        if filled != text:
            stale.append(str(file))
            if not args.check:
                file.write_text(filled, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'not current; run python -m benchmarks.tables' if args.check else 'filled'}")
    if args.check and stale:
        sys.exit(1)


def pages(root: Path = ROOT) -> list[Path]:
    """The existing Markdown files that may have tables."""
    files = [root / "README.md", root / "README.zh-CN.md", *sorted((root / "docs").glob("*.md"))]
    return [file for file in files if file.is_file()]


def fill(text: str, results: Path) -> str:
    """Replaces the content of every block by the table of the result that it names.

    Raises:
        InputError: a block names a result that is not under `results`, or that has no renderer.
    """

    def table(match: re.Match) -> str:
        start, name, view, _, end = match.groups()
        if view not in VIEWS:
            raise InputError(f"A page asks for results:{name} {view}, and a study has no view {view!r}.")
        return f"{start}{render(name, results, VIEWS[view])}\n{end}"

    return BLOCK.sub(table, text)


def render(name: str, results: Path, table: Callable[[Study], str] = study_table) -> str:
    """The Markdown of one result; of a study, the given table."""
    if name in OF_SEVERAL:
        return OF_SEVERAL[name](results)
    file, folder = results / f"{name}.json", results / name
    if file.is_file():
        result = json.loads(file.read_text(encoding="utf-8"))
        kind = result.get("kind", "speed")
        if kind not in TABLES:
            raise InputError(f"{file} is of kind {kind!r}, and only {', '.join(TABLES)} have a table.")
        return TABLES[kind](result)
    if folder.is_dir():
        return table(read_results(folder))
    raise InputError(
        f"A page asks for results:{name}, but {results} has neither {name}.json nor {name}/. The table would stay as "
        "it was typed. Run the benchmark or the study, or remove the block."
    )


def speed_table(result: dict) -> str:
    """Speed against sentence-transformers: medians, ratio, memory, and the largest difference of results."""
    header = ["task", "encoder", "data", "ours", "theirs", "ratio", "MiB, ours / theirs", "largest difference"]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        data, ours = f"{row['corpus']} {row['split']}", Number(row["ours"], form=".4g")
        theirs = f"{row['theirs']:.4g} {row['unit'].replace('_per_second', '/s')}"
        memory = f"{row['ours_mib']:.0f} / {row['theirs_mib']:.0f}"
        difference = Number(row["largest_difference"], form=".0e")
        share = Number(row["sgemm_share"], form=".0%") if "sgemm_share" in row else None
        ratio = Number(row["ratio"])
        rows.append([row["task"], row["encoder"], data, ours, theirs, ratio, memory, difference, share])
    ratios = [(place, header.index("ratio")) for place in range(len(rows))]
    commits = ", ".join(dict.fromkeys(shortened(row["commit"]) for row in result["rows"]))
    return (
        f"{markdown_table([*header, 'sgemm peak'], rows, strong=ratios)}\n\n"
        f"Medians of {result['repeats']} interleaved measurements, each in its own process; {result['device']}, "
        f"{result['threads']} threads, {result['when']}, commit {commits}."
    )


def exactness_table(result: dict) -> str:
    """Differences of loss and gradient of a split batch from those of one process, and memory of cached parts."""
    models, pairs = list(next(iter(result["differences"].values()))), result["pairs"]
    splits = [
        [split, *(f"{cells[model]['loss']:.0e} / {cells[model]['gradient']:.0e}" for model in models)]
        for split, cells in result["differences"].items()
    ]
    memory = [
        [case, Number(mib["activations_mib"], form=".1f"), Number(mib["process_mib"], form=".0f")]
        for case, mib in result["memory"].items()
    ]
    return (
        f"{markdown_table([f'{pairs} pairs as', *models], splits)}\n\n"
        f"{markdown_table(['bi_encoder', 'activations, MiB', 'process, MiB'], memory)}\n\n"
        f"Largest relative difference of loss / gradient from 1 x {pairs}, {result['corpus']}, no dropout; "
        f"{result['device']}, commit {shortened(result['commit'])}."
    )


def kills_table(result: dict) -> str:
    return (
        f"{result['kills']} times SIGKILL, {result['kills_while_saving']} of them while a checkpoint was written "
        f"({result['torn_checkpoints']} left it torn): {result['bit_equal']} of {result['runs']} runs ended with the "
        f"weights and the validation curve of an undisturbed run, bit for bit. {result['device']}, commit "
        f"{shortened(result['commit'])}."
    )


def scaling_table(result: dict) -> str:
    """Speed of two processes next to that of one process and of two independent ones."""
    one, strangers, ddp = (
        result["pairs_per_second"][case] for case in ("one process", "two strangers", "two processes, DDP")
    )
    return (
        f"Pairs/s in training on {result['corpus']}, one thread a process: {one:.0f} on one process, {ddp:.0f} on two "
        f"(DDP), {strangers:.0f} on two that exchange nothing, which is what the machine has to give. DDP reaches "
        f"{ddp / strangers:.0%} of that, and {ddp / (2 * one):.0%} of twice one process. Medians of "
        f"{len(result['rounds']['one process'])} turns; {result['device']}, commit "
        f"{shortened(result['commit'])}."
    )


def search_table(result: dict) -> str:
    """Exact search against faiss, the bandwidth of memory and the peak of sgemm; medians of processor time."""
    cpu = {name: statistics.median(seconds["cpu"]) for name, seconds in result["rounds"].items()}
    size = result["rows"] * result["width"]
    bandwidth, peak = 4 * size / cpu["read"], 2 * SGEMM_ROWS**3 / cpu["sgemm"]
    rows: list[list[Cell]] = []
    for name, queries in (("one query", 1), ("all queries", result["queries"])):
        ours, theirs = (cpu[f"{name}, {side}"] for side in ("ours", "faiss"))
        shares = (4 * size / ours / bandwidth, None) if queries == 1 else (None, 2 * size * queries / ours / peak)
        ratio = Number(theirs / ours)
        seconds = [Number(value, form=".3f") for value in (ours, theirs)]
        rows.append([f"{queries:,}", *seconds, ratio, *(None if s is None else Number(s, form=".0%") for s in shares)])
    header = ["queries", "ours, s", "faiss IndexFlatIP, s", "ratio", "of bandwidth", "of sgemm peak"]
    return (
        f"{markdown_table(header, rows, strong=[(place, 3) for place in range(len(rows))])}\n\n"
        f"{result['rows']:,} x {result['width']} float32, top {result['top']}, the same neighbours in "
        f"{result['same_neighbours']:.2%}. Medians of processor time of one thread, all tasks in turn in one process; "
        f"reading reaches {bandwidth / 1e9:.1f} GB/s, sgemm {peak / 1e9:.0f} GFLOP/s. {result['device']}, "
        f"{result['when']}, faiss {result['faiss']}, commit {shortened(result['commit'])}."
    )


SGEMM_ROWS = 2048  # rows and columns of the product in `benchmarks.search`


def student_table(result: dict) -> str:
    """A teacher and its students: retrieval and, for those that generate, statistics of their samples."""
    header = ["model", "parameters", f"{result['corpus']} test Spearman x100", "perplexity", *SAMPLES, "minutes"]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        written: list[Cell] = [None] * (1 + len(SAMPLES))
        if "samples" in row:
            samples = [Number(row["samples"][key], form=".3f") for key in SAMPLES]
            written = [Number(row["perplexity"], form=".1f"), *samples]
        parameters, minutes = f"{row['parameters'] / 1e6:.1f} M", Number(row["minutes"], form=".1f")
        rows.append([row["model"], parameters, times_100(row["spearman"]), *written, minutes])
    epochs = f"{result['epochs']} epochs" if result["epochs"] > 1 else "one epoch"
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"{result['train_pairs']:,} training pairs, {epochs} a stage; mean ± standard deviation over seeds. Of "
        f"50 x 20 samples: share of distinct ones, share above a cosine of 0.8, character overlap with the source, the "
        f"teacher's mean cosine between the source and the top 5. {result['device']}, commit "
        f"{shortened(result['commit'])}."
    )


SAMPLES = ("distinct", "similar", "overlap", "judged")


def generation_table(result: dict) -> str:
    """Speed of sampling sentences against RoFormer-Sim's own loop."""
    header = ["student", "tokens per sentence", "seconds, ours", "theirs", "ratio", "same sentences"]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        tokens, ratio = (Number(row[key], form=".1f") for key in ("tokens_per_sentence", "ratio"))
        medians = [Number(statistics.median(row["seconds"][side])) for side in ("ours", "theirs")]
        rows.append([f"{row['layers']} layers", tokens, *medians, ratio, Number(row["equal"], form=".0%")])
    ratios = [(place, header.index("ratio")) for place in range(len(rows))]
    turns = len(result["rows"][0]["seconds"]["ours"])
    return (
        f"{markdown_table(header, rows, strong=ratios)}\n\n"
        f"{result['sources']} sources x {result['samples']} samples, medians of {turns} turns; {result['device']}, "
        f"{result['threads']} threads, commit {shortened(result['commit'])}."
    )


def finding_table(result: dict) -> str:
    """Spearman and retrieval of a model before and after training, by corpus that it is tested on."""
    header = ["tested on", "queries", "pool", "Spearman", "Recall@1", "Recall@10", "gain in Recall@10"]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        moved = (f"{100 * row['before'][key]:.2f} → {100 * row['after'][key]:.2f}"
                 for key in ("spearman", "recall_at_1", "recall_at_10"))  # fmt: skip
        low, high = row["gain"]["recall_at_10"]
        gain = Range(100 * low, 100 * high)
        rows.append([row["corpus"], row["queries"], row["pool"], *moved, gain])
    trained = result["trained"]
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"Test x100 of `{result['before']}`, before → after {trained['loss']} on {', '.join(trained['corpus'])} "
        f"(learning rate {trained['learning_rate']:g}, {trained['num_train_epochs']:g} epochs), and the paired 95% "
        f"interval of the gain over queries; one seed, {result['device']}, commit {shortened(result['commit'])}."
    )


VIEWS = {  # of a study
    None: study_table,
    "probabilities": probabilities_table,
    "retrieval": retrieval_table,
    "teaching": teaching_table,
}
# By the `kind` of a result; results of speed have none.
TABLES = {
    "backbones": backbones_table,
    "approximate": approximate_table,
    "choosing": choosing_table,
    "choosing_quality": quality_table,
    "claims": claims_table,
    "exactness": exactness_table,
    "fusion": fusion_table,
    "finding": finding_table,
    "generation": generation_table,
    "kills": kills_table,
    "merged": merged_table,
    "mteb": mteb_table,
    "packing": packing_table,
    "quickstart": quickstart_table,
    "scale": scale_table,
    "scaling": scaling_table,
    "search": search_table,
    "speed": speed_table,
    "spread": spread_table,
    "student": student_table,
}

# By the name of a block: tables of other files than one result.
OF_SEVERAL = {"anchors": anchors_table, "kept_quality": kept_quality, "published_runs": published_table}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="Markdown files; default: README and docs")
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 where a table is not current")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
