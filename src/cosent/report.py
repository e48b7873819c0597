"""Tables out of results: fills the blocks of the README, so that no number in it is typed by hand.

python -m cosent.report README.md
"""

import json
import re
import statistics
import sys
from pathlib import Path

from cosent.schema import InputError, messages_for_users

RESULTS = Path("recipes/results")
BLOCK = re.compile(r"(<!-- results:(\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def fill(text: str, results: Path = RESULTS) -> str:
    """Replaces what stands between `<!-- results:NAME -->` and `<!-- end -->` by the table of that result.

    Raises:
        InputError: a block names a result that is not under `results`.
    """

    def table(match: re.Match) -> str:
        start, name, _, end = match.groups()
        if (results / f"{name}.json").is_file():
            rendered = speed_table(read(results / f"{name}.json"))
        elif (results / name).is_dir():
            rendered = study_table(results / name)
        else:
            raise InputError(f"The README asks for results:{name}, and {results} has neither {name}.json nor {name}/.")
        return f"{start}{rendered}\n{end}"

    return BLOCK.sub(table, text)


def study_table(folder: Path) -> str:
    """Test Spearman x100 of a study: mean and standard deviation over seeds, by recipe (rows) and corpus (columns).

    The character overlap of each corpus, which needs no model, stands beside where an audit was kept.
    """
    cells: dict[str, dict[str, list[dict]]] = {}
    for file in sorted(folder.glob("*.json")):
        run = read(file)
        corpus = ",".join(run["corpora"])
        recipe = file.stem.removesuffix(f"-{corpus}-{run['recipe']['seed']}")
        cells.setdefault(recipe, {}).setdefault(corpus, []).append(run)
    corpora = sorted({corpus for row in cells.values() for corpus in row})
    lines = [
        f"| test Spearman x100, mean ± std | {' | '.join(corpora)} | seeds | minutes per run |",
        "|---" * (len(corpora) + 3) + "|",
        f"| character overlap, no model | {' | '.join(overlap(folder.parent, corpus) for corpus in corpora)} | | |",
    ]
    for recipe, row in sorted(cells.items()):
        values = [spread([100 * run["after"][corpus]["test"]["spearman"] for run in row[corpus]]) for corpus in corpora]
        runs = [run for corpus_runs in row.values() for run in corpus_runs]
        minutes = statistics.mean(run["train_seconds"] for run in runs) / 60
        lines.append(f"| {recipe} | {' | '.join(values)} | {len(runs) // len(corpora)} | {minutes:.1f} |")
    return "\n".join([*lines, "", protocol(runs[0])])


def protocol(run: dict) -> str:
    recipe = run["recipe"]
    batch, rate, epochs = (recipe[k] for k in ("per_device_train_batch_size", "learning_rate", "num_train_epochs"))
    return (
        f"`{recipe['model_name_or_path']}` encoder, {recipe['pooling']} pooling, batch {batch}, "
        f"learning rate {rate:g}, {epochs:g} epochs, best validation epoch; "
        f"{run['device']}, commit {(run['commit'] or 'unknown')[:10]}."
    )


def overlap(results: Path, corpus: str) -> str:
    """Spearman x100 of the character overlap on the test split, from the kept audit; empty without one."""
    file = results / "audit" / f"{corpus}.json"
    return f"{read(file)['splits']['test']['overlap_spearman']:.2f}" if file.is_file() else ""


def read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def speed_table(result: dict) -> str:
    """Speed against sentence-transformers: medians, ratio, memory, and the largest difference of what was computed."""
    lines = [
        "| task | encoder | data | ours | theirs | ratio | MiB, ours / theirs | largest difference | sgemm peak |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        share = f"{100 * row['sgemm_share']:.0f}%" if "sgemm_share" in row else ""
        lines.append(
            f"| {row['task']} | {row['encoder']} | {row['corpus']} {row['split']} | {row['ours']:.4g} | "
            f"{row['theirs']:.4g} {row['unit'].replace('_per_second', '/s')} | **{row['ratio']:.2f}** | "
            f"{row['ours_mib']:.0f} / {row['theirs_mib']:.0f} | {row['largest_difference']:.0e} | {share} |"
        )
    commits = ", ".join(dict.fromkeys((row["commit"] or "unknown")[:10] for row in result["rows"]))
    lines.append(
        f"\nMedians of {result['repeats']} interleaved measurements, each in its own process; {result['device']}, "
        f"{result['threads']} threads, {result['when']}, commit {commits}."
    )
    return "\n".join(lines)


def main(path: str) -> None:
    readme = Path(path)
    readme.write_text(fill(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with messages_for_users():
        main(sys.argv[1])
