"""Tables, figures and intervals out of results, so that no number is typed by hand.

python -m cosent.report results/native        report.md and report.html of a study, beside its results
python -m cosent.report README.md                     fills the blocks of a Markdown file
python -m cosent.report --ensemble RUN_A RUN_B        the mean of ranks of two runs, tested against each of them
"""

import argparse
import json
import re
import statistics
from pathlib import Path

import numpy as np

from cosent.evaluation.significance import difference, mean_of_ranks, resampled_spearman, spearman
from cosent.launching import check_world_size
from cosent.reporting import comparison, diagnostics
from cosent.reporting import document as page
from cosent.run_record import SCORES_NAME, Scores, read_scores
from cosent.schema import InputError, messages_for_users
from cosent.studies.results import Result, Study, read_results, spread

RESULTS = Path("results")
BLOCK = re.compile(r"(<!-- results:(\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main(args: argparse.Namespace) -> None:
    check_world_size()
    if args.ensemble:
        print(ensemble(*args.ensemble))
    elif Path(args.path).is_dir():
        for file in write(Path(args.path)):
            print(file)
    elif Path(args.path).is_file():
        readme = Path(args.path)
        readme.write_text(fill(readme.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        raise InputError(f"There is no {args.path}: pass a folder of results, or a Markdown file with blocks to fill.")


def write(folder: Path) -> tuple[Path, Path]:
    """Writes `report.md` and `report.html` into a folder of results."""
    study = read_results(folder)
    make = (comparison.overview, comparison.quality, comparison.differences, comparison.accuracy)
    make += (diagnostics.learning, diagnostics.distributions, diagnostics.distances, diagnostics.speed)
    sections = [section for section in (function(study) for function in make) if section.blocks]
    title = f"Study {study.name}"
    markdown, html = folder / "report.md", folder / "report.html"
    markdown.write_text(page.to_markdown(title, sections, html.name), encoding="utf-8")
    html.write_text(page.to_html(title, sections), encoding="utf-8")
    return markdown, html


def ensemble(first: str, second: str) -> str:
    """A Markdown table of two runs and their fusion by mean rank, on every test set that both have scored.

    Args:
        first, second: folders of trained models, or results of a study (`.json` or `.npz`).

    Raises:
        InputError: no scores there, no test set in common, or other test rows under the same name.
    """
    runs = [scores_of(place) for place in (first, second)]
    shared = [c for c in runs[0] if c in runs[1] and "test" in runs[0][c] and "test" in runs[1][c]]
    if not shared:
        raise InputError(f"{first} and {second} have no test set in common: {list(runs[0])} and {list(runs[1])}.")
    rows = []
    for corpus in shared:
        one, two = (run[corpus]["test"] for run in runs)
        if not np.array_equal(one["labels"], two["labels"]):
            raise InputError(f"{first} and {second} were tested on other rows of {corpus}: their labels differ.")
        scores = np.stack([one["after"], two["after"], mean_of_ranks(np.stack([one["after"], two["after"]]))])
        resampled, values = resampled_spearman(scores, one["labels"]), [spearman(s, one["labels"]) for s in scores]
        cells = [f"{100 * value:.2f}" for value in values]
        for single in (0, 1):
            gain = difference(resampled[:, 2:], resampled[:, single : single + 1], values[2] - values[single])
            cells.append(f"{100 * gain.mean:+.2f} [{100 * gain.low:+.2f}, {100 * gain.high:+.2f}]")
        rows.append([corpus, *cells])
    header = ["test Spearman x100", "A", "B", "mean of ranks", "gain over A [95%]", "gain over B [95%]"]
    caption = f"A is {first}, B is {second}. Paired bootstrap over test rows; A and B are single runs."
    return page.markdown_table(page.Table(caption, header, rows))


def scores_of(place: str) -> Scores:
    path = Path(place)
    file = path / SCORES_NAME if path.is_dir() else path.with_suffix(".npz")
    if not file.is_file():
        raise InputError(
            f"{place} has no scores: there is no {file}. Name the folder of a model that was trained here, or a "
            "result of a study. Runs from before scores were kept must run again."
        )
    return read_scores(file)


def fill(text: str, results: Path = RESULTS) -> str:
    """Replaces what stands between `<!-- results:NAME -->` and `<!-- end -->` by the table of that result.

    Raises:
        InputError: a block names a result that is not under `results`.
    """

    def table(match: re.Match) -> str:
        start, name, _, end = match.groups()
        if (results / f"{name}.json").is_file():
            result = read(results / f"{name}.json")
            rendered = TABLES.get(result.get("kind"), speed_table)(result)
        elif (results / name).is_dir():
            rendered = study_table(read_results(results / name))
        else:
            raise InputError(f"The README asks for results:{name}, and {results} has neither {name}.json nor {name}/.")
        return f"{start}{rendered}\n{end}"

    return BLOCK.sub(table, text)


def study_table(study: Study) -> str:
    """Test Spearman x100 of a study: mean and standard deviation over seeds, by method (rows) and corpus (columns).

    The character overlap of each corpus, which needs no model, stands beside where an audit was kept.
    """
    overlaps = " | ".join(spread([study.overlap(corpus)]) for corpus in study.corpora)
    header = [f"| test Spearman x100, mean ± std | {' | '.join(study.corpora)} | seeds | minutes per run |"]
    header += (
        ["weights trained | peak MiB |"]
        if (adapters := any((run.trained_share or 1) < 1 for run in study.results))
        else []
    )
    lines = [" ".join(header), "|---" * (len(study.corpora) + 3 + 2 * adapters) + "|"]
    lines.append(f"| character overlap, no model | {overlaps} | | |" + " | |" * adapters)
    for row, runs in study.rows.items():
        values = [spread(run.test(c) for run in study.cell(row, c)) for c in study.corpora]
        minutes = statistics.mean(run.record["train_seconds"] for run in runs) / 60
        line = f"| {row} | {' | '.join(values)} | {len({run.seed for run in runs})} | {minutes:.1f} |"
        if adapters:
            peak = statistics.mean(run.record["footprint"]["peak_mib"] for run in runs)
            line += f" {runs[0].trained_share:.1%} | {peak:.0f} |"
        lines.append(line)
    return "\n".join([*lines, "", protocol(study.results)])


def protocol(results: list[Result]) -> str:
    """What the runs share; where they differ, every value, in the order of the runs."""

    def values(key: str, form: str = "") -> str:
        each = [result.record["recipe"][key] for result in results]
        return " or ".join(dict.fromkeys(format(value, form) for value in each if value is not None))

    run = results[0].record
    limit = f", {values('limit_train')} training pairs" if run["recipe"].get("limit_train") else ""
    commits = ", ".join(dict.fromkeys(commit_of(result.record) for result in results))
    pooling = f", {values('pooling')} pooling" if values("pooling") else ""  # cross-encoders have none
    return (
        f"`{values('model_name_or_path')}` encoder{pooling}, batch "
        f"{values('per_device_train_batch_size')}, learning rate {values('learning_rate', 'g')}, "
        f"{values('num_train_epochs', 'g')} epochs{limit}, best validation epoch; "
        f"{run['device']}, commit {commits}."
    )


def commit_of(record: dict) -> str:
    return (record["commit"] or "unknown")[:10]


def read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


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
    commits = ", ".join(dict.fromkeys(commit_of(row) for row in result["rows"]))
    lines.append(
        f"\nMedians of {result['repeats']} interleaved measurements, each in its own process; {result['device']}, "
        f"{result['threads']} threads, {result['when']}, commit {commits}."
    )
    return "\n".join(lines)


def exactness_table(result: dict) -> str:
    """How far loss and gradient of a split batch are from those of one process, and the memory that parts save."""
    models = list(next(iter(result["differences"].values())))
    lines = [f"| {result['pairs']} pairs as | {' | '.join(models)} |", "|---" * (len(models) + 1) + "|"]
    for split, cells in result["differences"].items():
        shown = [f"{cells[model]['loss']:.0e} / {cells[model]['gradient']:.0e}" for model in models]
        lines.append(f"| {split} | {' | '.join(shown)} |")
    lines += ["", "| bi_encoder | activations, MiB | process, MiB |", "|---|---|---|"]
    lines += [
        f"| {case} | {memory['activations_mib']:.1f} | {memory['process_mib']:.0f} |"
        for case, memory in result["memory"].items()
    ]
    lines.append(
        f"\nLargest relative difference of loss / gradient from 1 x {result['pairs']}, {result['corpus']}, no dropout; "
        f"{result['device']}, commit {commit_of(result)}."
    )
    return "\n".join(lines)


def kills_table(result: dict) -> str:
    return (
        f"{result['kills']} times SIGKILL, {result['kills_while_saving']} of them while a checkpoint was written "
        f"({result['torn_checkpoints']} left it torn): {result['bit_equal']} of {result['runs']} runs ended with the "
        f"weights and the validation curve of an undisturbed run, bit for bit. {result['device']}, commit "
        f"{commit_of(result)}."
    )


def scaling_table(result: dict) -> str:
    """Speed of two processes beside one, and beside two that exchange nothing."""
    one, strangers, ddp = (
        result["pairs_per_second"][case] for case in ("one process", "two strangers", "two processes, DDP")
    )
    return (
        f"Pairs/s in training on {result['corpus']}, one thread a process: {one:.0f} on one process, {ddp:.0f} on two "
        f"(DDP), {strangers:.0f} on two that exchange nothing, which is what the machine has to give. DDP reaches "
        f"{ddp / strangers:.0%} of that, and {ddp / (2 * one):.0%} of twice one process. Medians of "
        f"{len(result['rounds']['one process'])} turns; {result['device']}, commit "
        f"{commit_of(result)}."
    )


def student_table(result: dict) -> str:
    """A teacher and its students: retrieval, and what those that write write on held-out synonyms."""
    lines = [
        f"| model | parameters | {result['corpus']} test Spearman x100 | perplexity | distinct | similar | overlap | "
        "judged | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        written = [""] * 5
        if "samples" in row:
            samples = [f"{row['samples'][key]:.3f}" for key in ("distinct", "similar", "overlap", "judged")]
            written = [f"{row['perplexity']:.1f}", *samples]
        cells = [f"{row['parameters'] / 1e6:.1f} M", spread(row["spearman"]), *written, f"{row['minutes']:.1f}"]
        lines.append(f"| {row['model']} | {' | '.join(cells)} |")
    epochs = f"{result['epochs']} epochs" if result["epochs"] > 1 else "one epoch"
    lines.append(
        f"\n{result['train_pairs']:,} training pairs, {epochs} a stage; mean ± standard deviation over seeds. Of "
        f"50 x 20 samples: share of distinct ones, share above a cosine of 0.8, character overlap with the source, the "
        f"teacher's mean cosine between the source and the top 5. {result['device']}, commit "
        f"{commit_of(result)}."
    )
    return "\n".join(lines)


def generation_table(result: dict) -> str:
    """Speed of writing, beside RoFormer-Sim's loop."""
    lines = [
        "| student | tokens per sentence | seconds, ours | theirs | ratio | same sentences |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        ours, theirs = (statistics.median(row["seconds"][side]) for side in ("ours", "theirs"))
        lines.append(
            f"| {row['layers']} layers | {row['tokens_per_sentence']:.1f} | {ours:.2f} | {theirs:.2f} | "
            f"**{row['ratio']:.1f}** | {row['equal']:.0%} |"
        )
    lines.append(
        f"\n{result['sources']} sources x {result['samples']} samples, medians of "
        f"{len(result['rows'][0]['seconds']['ours'])} turns; {result['device']}, {result['threads']} threads, commit "
        f"{commit_of(result)}."
    )
    return "\n".join(lines)


TABLES = {
    "exactness": exactness_table,
    "generation": generation_table,
    "kills": kills_table,
    "scaling": scaling_table,
    "student": student_table,
}  # by the `kind` of a result; speed has none


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("path", nargs="?", help="folder of results, or Markdown file with blocks")
    wanted.add_argument("--ensemble", nargs=2, metavar=("A", "B"), help="folders of two trained models, or results")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
