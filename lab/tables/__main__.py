"""Fill the tables of README and docs from the committed results.

python -m lab.tables              README.md, README.zh-CN.md, docs/*.md, lab/*.md, cards of the encoders
python -m lab.tables FILE ...     these Markdown files
python -m lab.tables --check      change nothing, exit with 1 where a table is not current

The text between `<!-- results:NAME -->` and `<!-- end -->` is replaced by the table of the study in the folder
`lab/results/NAME`, or of the benchmark whose JSON is `lab/results/NAME.json`. `<!-- results:NAME probabilities -->`
asks for the errors of a study's probabilities instead of its Spearman, `retrieval` for retrieval metrics next to it,
`corpora` for a row per corpus, `losses` for losses of several studies next to CoSENT, `seen` for test pairs apart whose
sentences training has not read, and `picture` for the picture of an experiment.
`results:reference` is the list of public names, of the code; `results:front` is README's first table (`zh`: Chinese).
Figures in sentences and other tables: see figures.py.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from cosent.errors import InputError, messages_for_users
from lab import ROOT
from lab.benchmarks.cards import cards_table
from lab.benchmarks.encode import encode_table
from lab.benchmarks.front import front_table
from lab.benchmarks.phenomena import phenomena_table
from lab.benchmarks.quickstart import quickstart_table
from lab.benchmarks.speed.__main__ import speed_table
from lab.claims.table import claims_table
from lab.tables import differences
from lab.tables.compared import corpora_table, losses_table, retrieval_table
from lab.tables.figures import fill_figures, passages
from lab.tables.finished import (
    adds_probed_table,
    adds_table,
    exactness_table,
    roformer_sim_table,
    ten_pairs_table,
)
from lab.tables.pictures import picture
from lab.tables.reference import reference
from lab.tables.rows import read_study
from lab.tables.studies import probabilities_table, seen_table, study_table

BLOCK = re.compile(r"(<!-- results:(\w+)(?: (\w+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
VIEWS = {  # of a study
    None: study_table,
    "corpora": corpora_table,
    "losses": losses_table,
    "picture": picture,
    "probabilities": probabilities_table,
    "retrieval": retrieval_table,
    "seen": seen_table,
}
TABLES = {  # of lab/results/NAME.json
    "adds": adds_table,
    "adds_probed": adds_probed_table,
    "cards": cards_table,
    "claims": claims_table,
    "encode": encode_table,
    "exactness": exactness_table,
    "phenomena": phenomena_table,
    "quickstart": quickstart_table,
    "roformer_sim": roformer_sim_table,
    "roformer_sim pairs": ten_pairs_table,
    "speed": speed_table,
    "speed_e5": speed_table,
}


def main(args: argparse.Namespace, root: Path = ROOT) -> None:
    stale = []
    for file in args.files or pages(root):
        text = file.read_text(encoding="utf-8")
        current = filled(file, text, root)
        if current != text:
            stale.append(str(file))
            if not args.check:
                file.write_text(current, encoding="utf-8")
    if not args.check and root == ROOT:
        differences.save(everything=not args.files)
    for name in stale:
        print(f"{name}: {'not current; run python -m lab.tables' if args.check else 'filled'}")
    if args.check and stale:
        sys.exit(1)


def pages(root: Path = ROOT) -> list[Path]:
    """The existing Markdown files that may have tables."""
    patterns = ("README.md", "README.zh-CN.md", "docs/*.md", "lab/*.md", "src/cosent/encoders/*/README.md")
    return [file for pattern in patterns for file in sorted(root.glob(pattern))]


def filled(page: Path, text: str, root: Path = ROOT) -> str:
    """The text of a page with the tables and figures of today."""
    return fill_figures(fill(text, root / "lab/results"), passages(page, root))


def fill(text: str, results: Path) -> str:
    """Replaces the content of every block by the table of the result that it names; a study may not have been run yet.

    Raises:
        InputError: a block names a result that is not under `results`, or a view that a study does not have.
    """

    def table(match: re.Match) -> str:
        start, name, view, _, end = match.groups()
        file = results / f"{name}.json"
        if name == "reference":
            text = reference()
        elif name == "front" and file.is_file():
            found = [json.loads((results / f"{each}.json").read_text(encoding="utf-8")) for each in ("front", "encode")]
            text = front_table(*found, view)
        elif (shown := f"{name} {view}" if view else name) in TABLES and file.is_file():
            text = TABLES[shown](json.loads(file.read_text(encoding="utf-8")))
        elif (ROOT / f"recipes/studies/{name}.yaml").is_file() and not (results / name).is_dir():
            text = f"Not run yet: `python -m lab.study {name}`."
        elif view in VIEWS and (results / name).is_dir():
            text = VIEWS[view](read_study(results / name))
        else:
            raise InputError(f"There is no table for results:{name} {view or ''} in {results}.")
        return f"{start}{text}\n{end}"

    return BLOCK.sub(table, text)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="Markdown files; default: README, docs and lab")
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 where a table is not current")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
