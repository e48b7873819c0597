"""Precision that `cosent search --precision` promises on validation, and the precision reached on test.

python -m lab.benchmarks.abstention --corpora lcqmc bq stsb --output lab/results/abstention.json
"""

import argparse

from cosent.comparing.document import Cell, markdown_table
from cosent.data.corpus import load_corpus
from cosent.models.auto import load_bi_encoder
from cosent.record import shortened
from cosent.search.precision import answer_rules, simulate
from lab.benchmarks.common import save

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SHARES = ("bound", "answered", "test_precision", "test_answered", "test_answered_wrongly")


def measure(encoder, name: str) -> list[dict]:
    """A row for each level; one that no rule reaches has no shares."""
    corpus, prompts = load_corpus(name), encoder.prompts.for_search()
    validation, test = (simulate(encoder, corpus, split, prompts) for split in ("validation", "test"))
    rules, rows = answer_rules(validation), []
    for level in LEVELS:
        rows.append({"corpus": name, "promised": level, "queries": len(validation.groups)})
        rule = next((rule for rule in rules if rule.precision >= level), None)
        if rule is None:
            continue
        answered = rule.answers(test.best, test.second)
        right = answered & test.right
        reached = (right.sum() / answered.sum(), right[0].mean(), answered[1].mean())
        rows[-1] |= dict(zip(SHARES, (rule.precision, rule.answered, *map(float, reached)), strict=True))
    return rows


def abstention_table(result: dict) -> str:
    """Promised and reached precision by corpus; the levels that no rule reaches are named below."""
    header = [
        "corpus",
        "promised",
        "bound",
        "answered, validation",
        "precision, test",
        "answered, test",
        "wrongly answered, test",
    ]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        if "bound" in row:
            rows.append([row["corpus"], f"{row['promised']:.0%}", *(f"{row[name]:.0%}" for name in SHARES)])
    refused: dict[str, float] = {}
    for row in result["rows"]:
        if "bound" not in row:
            refused.setdefault(row["corpus"], row["promised"])
    levels = ", ".join(f"{level:.0%} on {corpus}" for corpus, level in refused.items())
    return (
        f"{markdown_table(header, rows)}\n\n`{result['model']}`; no rule reaches {levels} or more, which the command "
        f"refuses; commit {shortened(result['commit'])}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="similar", help="bi-encoder")
    parser.add_argument("--corpora", nargs="+", required=True, help="prepared corpora")
    parser.add_argument("--output", required=True, help="JSON file to write")
    args = parser.parse_args()
    encoder = load_bi_encoder(args.model)
    rows = [row for name in args.corpora for row in measure(encoder, name)]
    print(abstention_table(save(args.output, "abstention", rows, model=args.model)))


if __name__ == "__main__":
    main()
