"""Markdown tables of committed results, filled into the marked blocks of README and docs."""

import json
import re
import statistics
from pathlib import Path

from cosent.errors import InputError
from cosent.reporting.numbers import spread
from cosent.studies.results import Result, Study, read_results

RESULTS = Path("results")
BLOCK = re.compile(r"(<!-- results:(\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


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
