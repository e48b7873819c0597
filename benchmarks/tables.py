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
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.anchors import anchors_table
from benchmarks.approximate import approximate_table
from benchmarks.backbone_tables import backbones_table, packing_table
from benchmarks.choosing_tables import choosing_table, kept_quality, quality_table
from benchmarks.claims_table import claims_table
from benchmarks.ensemble_tables import fusion_table, merged_table
from benchmarks.exactness import exactness_table
from benchmarks.finding import finding_table
from benchmarks.generation import generation_table
from benchmarks.kills import kills_table
from benchmarks.mteb_equality import mteb_table
from benchmarks.published_runs import published_table
from benchmarks.quickstart import quickstart_table
from benchmarks.scale_table import scale_table
from benchmarks.scaling import scaling_table
from benchmarks.search import search_table
from benchmarks.spread import spread_table
from benchmarks.students import student_table
from cosent.errors import InputError, messages_for_users
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number
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
