"""Score pairs of sentences.

cosent similarity --model runs/stsb 我喜欢北京 我不喜欢北京
cosent similarity --model runs/stsb --pairs pairs.csv --text_columns q1 q2 --output scored.xlsx
cosent similarity --model runs/stsb --pairs labelled.tsv --label_column label
"""

import json
import sys
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from cosent.cli import option, refuse_below_1, refuse_changed, run
from cosent.data.files import (
    OF_TABLES,
    PAIR,
    LabelColumn,
    Table,
    TableArguments,
    check_output,
    label_values,
    open_table,
    table_writer,
)
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.models.prompts import PromptArguments, described, warn_of_other_prompts
from cosent.run import choose_rule

CHUNK = 32768  # pairs read, scored and written at a time
UNLIKELY = 1e-4  # a share at which EM has run to an end of its range


@dataclass
class SimilarityArguments:
    """Sentences to compare."""

    model: str = option("similar", "Folder of a trained model, a shipped model or a Hub id.")
    sentences: list[str] | None = option(None, "Sentences, in pairs.", positional=True, commas=True)
    pairs: str | None = option(
        None, "Instead of sentences: file with a pair per row, of any length: txt or tsv (tabs), csv, jsonl, parquet, "
        "xlsx; text also as .gz."
    )  # fmt: skip
    text_columns: list[str] | None = option(
        None, "Names of its two columns of sentences, or positions from 0 if it has no header; default: sentence1 and "
        "sentence2 and their like, or the only two.", commas=True,
    )  # fmt: skip
    label_column: str | None = option(
        None, "Name of a column of known scores or labels: printed next to the model's scores, with the Spearman "
        "correlation of both at the end."
    )  # fmt: skip
    output: str | None = option(
        None, "File for the rows of --pairs with score, and where known probability and verdict: tsv, csv, jsonl, "
        "parquet, xlsx; default: lines on stdout."
    )  # fmt: skip
    json: bool = option(False, "Print a JSON line per pair.")
    corpus: str | None = option(None, "Corpus whose threshold and probabilities to use; default: all of training.")
    base_rate: str | None = option(
        None, "Share of similar pairs among yours, as 0.001, which probabilities and verdicts then hold for; auto: "
        "estimated from the scores of all --pairs; default: that of the corpus."
    )  # fmt: skip
    long_texts: str = option(
        "truncate", "What becomes of texts longer than the model reads (bi-encoders): cut; mean of the vectors of "
        "overlapping windows; or the best pair of windows.", ("truncate", "mean", "best"),
    )  # fmt: skip
    batch_size: int = option(512, "Most sentences or pairs per forward pass; their tokens are limited too.")
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")
    overwrite: bool = option(False, "Replace the output if it exists.")


def main(args: SimilarityArguments, prompt_args: PromptArguments, table_args: TableArguments) -> None:
    start = time.time()
    table = check(args, table_args)  # before imports that take seconds
    resolve(args.model)
    from tqdm.auto import tqdm

    from cosent.compute.onednn import choose_device
    from cosent.evaluation.metrics import correlations
    from cosent.models.auto import load_bi_encoder, load_model
    from cosent.run import decision_rules

    pairs = table.rows() if table else pair_up(args.sentences or [])
    labels = None
    if table and args.label_column:
        labels = LabelColumn(table.path, args.label_column, label_values(table_args.label_values))
    rules = decision_rules(args.model)
    load = load_model if args.long_texts == "truncate" else partial(load_bi_encoder, long_texts=args.long_texts)
    model = load(args.model).to(choose_device(args.device))
    prompts = model.prompts.sides(prompt_args.prompt, prompt_args.prompt_name)
    warn_of_other_prompts(args.model, *prompts)
    rule, note = rule_and_note(rules, args, prompts)
    print(note, file=sys.stderr)
    columns = table.sentences if table else ("sentence1", "sentence2")
    scores, known, written = array("d"), array("d"), 0
    scored = score(model, pairs, columns, args.batch_size, prompts)
    if rule is not None and args.base_rate is not None:
        rule, scored = with_base_rate(rule, args.base_rate, scored)
    new = ("score",) if rule is None else ("score", "probability", "verdict")
    shown = partial(show, columns=columns, label=args.label_column, known=known, as_json=args.json)
    with nullcontext(shown) if args.output is None else table_writer(args.output, (*table.names, *new)) as append:
        chunks = scored if args.output is None else tqdm(scored, unit=f" x {CHUNK:,} pairs", file=sys.stderr)
        for chunk, values in chunks:
            rows = [row | new for row, new in zip(chunk, answers(values, rule), strict=True)]
            if labels is not None:
                known.extend(labels.read(row, number) for number, row in enumerate(rows, start=written + 1))
                scores.extend(row["score"] for row in rows)
            append(rows)
            written += len(rows)
    if args.output is not None:
        result = {"output": args.output, "pairs": written, "seconds": round(time.time() - start, 3)}
        print(json.dumps(result | {"pairs_per_second": round(written / result["seconds"], 1)}))
    if len(set(known)) > 1:  # else there is no order to compare with
        print(f"Spearman with {args.label_column}: {correlations(scores, known)['spearman']:.4f}", file=sys.stderr)


def check(args: SimilarityArguments, table_args: TableArguments) -> Table | None:
    """The table of `--pairs`, or None for sentences."""
    refuse_below_1(args, "batch_size")
    if args.pairs and args.sentences:
        raise InputError("Give sentences or --pairs FILE, not both.")
    check_base_rate(args.base_rate, args.pairs)
    if args.pairs is None:
        refuse_changed(args, ("text_columns", "label_column", "output", "overwrite"), "--pairs FILE")
        refuse_changed(table_args, OF_TABLES, "--pairs FILE")
        return None
    if args.output and args.json:
        raise InputError("--json prints the pairs that --output writes to a file. Give one of the two.")
    table = open_table(args.pairs, args.text_columns, PAIR, "--text_columns", "--pairs", table_args.options)
    if args.label_column not in (None, *table.names):
        raise InputError(
            f"--label_column {args.label_column}: {args.pairs} has the columns {', '.join(table.names)}. Name one."
        )
    if args.output:
        check_output(args.output, args.pairs, args.overwrite)
        taken = [name for name in ("score", "probability", "verdict") if name in table.names]
        if taken:
            raise InputError(f"{args.pairs} has a column {taken[0]} already. Rename it.")
    return table


def check_base_rate(base_rate: str | None, pairs: str | None) -> None:
    """Refuses anything but a share or `auto`, which needs many pairs."""
    if base_rate == "auto" and pairs is None:
        raise InputError(
            "--base_rate auto estimates the share of similar pairs from many: give --pairs FILE, or a share."
        )
    try:
        fits = base_rate in (None, "auto") or 0 < float(base_rate or 0) < 1
    except ValueError:
        fits = False
    if not fits:
        raise InputError(f"--base_rate {base_rate}: expected a share between 0 and 1, as 0.001, or auto.")


def score(
    model, rows: Iterable[dict], columns: tuple[str, str], batch_size: int, prompts: tuple[str, str]
) -> Iterator[tuple[list[dict], np.ndarray]]:
    """Yields chunks of the rows, and their scores."""
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK)):
        first, second = ([row[name] for row in chunk] for name in columns)
        yield chunk, model.similarity(first, second, batch_size, prompt=prompts)


def with_base_rate(rule, base_rate: str, scored: Iterable) -> tuple[Any, Iterable]:
    """The rule at the base rate of the flag; for `auto`, all chunks are scored first, and held in memory."""
    if rule.calibration.base_rate is None:
        raise InputError(
            "--base_rate: the model does not say how many of its validation pairs are similar. Train it again."
        )
    if base_rate == "auto":
        from cosent.evaluation.calibration import estimated_base_rate

        scored = list(scored)
        probabilities = rule.probabilities(np.concatenate([values for _, values in scored]))
        share = estimated_base_rate(probabilities, rule.calibration.base_rate)
        if not UNLIKELY < share < 1 - UNLIKELY:
            raise InputError(
                f"--base_rate auto: no share of similar pairs explains these scores by the map of {rule.corpus}, whose "
                "pairs are of another kind. Label some of yours and give their share."
            )
        print(
            f"base rate: {share:.4f} by the scores, {rule.calibration.base_rate:.4f} on {rule.corpus}", file=sys.stderr
        )
    else:
        share = float(base_rate)
    return replace(rule, base_rate=min(max(share, 1e-9), 1 - 1e-9)), scored


def answers(scores, rule) -> list[dict]:
    """The new columns of each pair."""
    found: list[dict] = [{"score": round(float(score), 6)} for score in scores]
    if rule is not None:
        judged = zip(rule.probabilities(scores), rule.similar(scores), strict=True)
        for row, (probability, similar) in zip(found, judged, strict=True):
            row |= {"probability": round(float(probability), 6), "verdict": "similar" if similar else "not similar"}
    return found


def show(rows: list[dict], columns: tuple[str, str], label: str | None, known: array, as_json: bool) -> None:
    """Prints a line per row; `known` ends with the known scores of these rows, if there are any."""
    labels = known[-len(rows) :] if label else [None] * len(rows)
    for row, gold in zip(rows, labels, strict=True):
        with_gold = row if label is None else row | {label: gold}
        print(json.dumps(row, ensure_ascii=False, default=str) if as_json else line(with_gold, columns, label))
    sys.stdout.flush()


def rule_and_note(rules: dict, args: SimilarityArguments, prompts: tuple[str, str] = ("", "")):
    """The decision rule, see `choose_rule`, or None; and a note about it for the user.

    Args:
        prompts: texts in front of both sentences; a rule that was found with others says nothing about these scores.
    """
    rule = choose_rule(rules, args.corpus, args.model)
    if not rules:
        return None, "score; no probability or verdict, since this model was not trained here on labels of 0 and 1"
    if rule is None:
        return None, f"score; for probability and verdict choose --corpus {' or '.join(rules)}"
    if rule.prompts != prompts:
        return None, f"score; no probability or verdict, since this model was trained with {described(rule.prompts)}"
    return rule, f"score, probability and verdict (at {rule.threshold:.4f}) as on {rule.corpus} validation"


def line(row: dict, columns: tuple[str, str], label: str | None = None) -> str:
    """Score, the known one if there is a column of them, with a rule probability and verdict, and the sentences."""
    shown = f"{row['score']:7.4f}"
    if label is not None:
        shown += f"  {float(row[label]):7.4g}"
    if "verdict" in row:
        shown += f"  {row['probability']:6.4f}  {row['verdict']:<11}"
    return f"{shown}  {row[columns[0]]}  |  {row[columns[1]]}"


def pair_up(sentences: list[str]) -> list[dict]:
    if not sentences or len(sentences) % 2 or not all(sentences):
        raise InputError(
            f"similarity compares sentences in pairs, got {sentences}. Give an even number of non-empty sentences, "
            "or --pairs FILE."
        )
    return [{"sentence1": one, "sentence2": two} for one, two in zip(sentences[::2], sentences[1::2], strict=True)]


ARGUMENTS = (SimilarityArguments, PromptArguments, TableArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
