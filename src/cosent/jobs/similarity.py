"""Score pairs of sentences.

cosent similarity --model runs/stsb 我喜欢北京 我不喜欢北京
cosent similarity --model runs/stsb --pairs pairs.csv --text_columns q1 q2 --output scored.xlsx

--output (csv, jsonl, xlsx) has the rows of --pairs with score and, for a model with a decision rule,
probability and verdict. Without it, pairs are printed.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from cosent.data.files import OF_TABLES, PAIR, Table, open_table
from cosent.data.formats import is_blank
from cosent.data.writers import check_output, table_writer
from cosent.errors import InputError
from cosent.flags import option, refuse_changed
from cosent.jobs.arguments import ModelSource, OutputFile, PairsFile, open_model
from cosent.models.decision import DecisionRule, rule_for
from cosent.models.prompts import PromptArguments, warn_of_other_prompts

CHUNK = 32768  # pairs read, scored and written at a time
PAIRED = ("sentence1", "sentence2")
ADDED = ("score", "probability", "verdict")  # columns of the output


@dataclass(kw_only=True)
class SimilarityArguments(OutputFile, PairsFile, PromptArguments, ModelSource):
    """Sentences to compare."""

    sentences: list[str] | None = option(None, "Sentences.", positional=True)
    corpus: str | None = option(None, "Corpus whose decision rule to use; default: the one for all of training.")
    base_rate: float | None = option(
        None,
        "Share of similar pairs among yours, e.g. 0.001, for which probabilities and verdicts are corrected; default: "
        "the share in the corpus of the rule.",
    )


def main(args: SimilarityArguments) -> None:
    table = checked_table(args)  # before imports that take seconds
    rows = pair_up(args.sentences or []) if table is None else unscored(table) if args.output else table.rows()
    model = open_model(args)
    from tqdm.auto import tqdm

    from cosent.models.bi_encoder import SentenceEncoder

    prompts = model.prompts.sides(args.prompt, args.prompt_name)
    warn_of_other_prompts(args.model, model.prompts, *prompts)
    rule, note = rule_and_note(args, prompts)
    print(note, file=sys.stderr)
    columns = PAIRED if table is None else table.sentences
    start = time.time()
    chunks = scored(model, rows, columns, prompts, rule)
    if table is None or args.output is None:
        likely = "" if rule is None else "probability  verdict      "
        print(f"{'cosine' if isinstance(model, SentenceEncoder) else 'score':>7}  {likely}{'  |  '.join(columns)}")
        for chunk in chunks:
            print(*(line(row, columns) for row in chunk), sep="\n")
        return
    written, added = 0, ADDED[:1] if rule is None else ADDED
    with table_writer(args.output, (*table.names, *added)) as append, tqdm(unit="pair", file=sys.stderr) as progress:
        for chunk in chunks:
            append(chunk)
            written += len(chunk)
            progress.update(len(chunk))
    seconds = round(time.time() - start, 3)
    result = {"output": args.output, "pairs": written, "seconds": seconds}
    print(json.dumps(result | {"pairs_per_second": round(written / seconds, 1)}))


def checked_table(args: SimilarityArguments) -> Table | None:
    """The table of `--pairs`, or None for sentences."""
    if args.pairs and args.sentences:
        raise InputError("Give sentences or --pairs FILE, not both.")
    if args.base_rate is not None and not 0 < args.base_rate < 1:
        raise InputError(f"--base_rate must lie between 0 and 1, got {args.base_rate:g}.")
    if args.pairs is None:
        refuse_changed(args, (*OF_TABLES, "output", "overwrite"), "--pairs FILE")
        return None
    table = open_table(args.pairs, args.text_columns, PAIR, "--text_columns", "--pairs", args.options)
    if args.output:
        check_output(args.output, args.pairs, args.overwrite)
        next(unscored(table), None)
    return table


def unscored(table: Table) -> Iterator[dict]:
    """The rows of a table; refuses one with a column that the output adds."""
    for row in table.rows():
        if taken := row.keys() & set(ADDED):
            raise InputError(f"{table.path} has a column {min(taken)}, which --output adds. Rename it in the file.")
        yield row


def rule_and_note(args: SimilarityArguments, prompts: tuple[str, str]) -> tuple[DecisionRule | None, str]:
    """The decision rule at the base rate of the flag, and a line about it or about why there is none."""
    rule, reason = rule_for(args.model, prompts, args.corpus)
    calibration = None if rule is None else rule.calibration
    if rule is not None and calibration is None:
        reason = f"the pairs of {rule.corpus} validation are all similar, or all not"
    if calibration is None and args.base_rate is not None:
        raise InputError(f"--base_rate corrects the probabilities of a decision rule, but {reason}.")
    if rule is None or calibration is None:
        return None, f"score; no probability or verdict: {reason}"
    if args.base_rate is None:
        return rule, f"score, probability and verdict (at {rule.threshold:.4f}) as on {rule.corpus} validation"
    if calibration.base_rate is None:
        raise InputError(f"--base_rate: the rule of {args.model} has no share of similar pairs. Run cosent calibrate.")
    note = f"score, probability and verdict (at a probability of 0.5) as on {rule.corpus} validation"
    return replace(rule, base_rate=args.base_rate), f"{note}, of which {calibration.base_rate:.4f} are similar"


def scored(
    model, rows: Iterable[dict], columns: tuple[str, ...], prompts: tuple[str, str], rule: DecisionRule | None
) -> Iterator[list[dict]]:
    """Yields chunks of the rows, with their new columns."""
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK)):
        first, second = ([row[name] for row in chunk] for name in columns)
        scores = model.similarity(first, second, prompt=prompts)
        yield [row | new for row, new in zip(chunk, answers(scores, rule), strict=True)]


def answers(scores: np.ndarray, rule: DecisionRule | None) -> list[dict]:
    """The new columns of each pair."""
    columns: list[list] = [[round(float(score), 6) for score in scores]]
    if rule is not None:
        columns += [[round(float(probability), 6) for probability in rule.probabilities(scores)], rule.verdicts(scores)]
    return [dict(zip(ADDED, row, strict=False)) for row in zip(*columns, strict=True)]


def line(row: dict, columns: tuple[str, ...]) -> str:
    """Score, with a rule probability and verdict, and the sentences."""
    verdict = f"  {row['probability']:11.4f}  {row['verdict']:<11}" if "verdict" in row else ""
    return f"{row['score']:7.4f}{verdict}  {row[columns[0]]}  |  {row[columns[1]]}"


def pair_up(sentences: list[str]) -> list[dict]:
    """Rows of sentences that were given two by two."""
    if not sentences or len(sentences) % 2 or any(map(is_blank, sentences)):
        raise InputError(f"Give sentences two by two, none of them empty, or --pairs FILE; got {sentences}.")
    return [dict(zip(PAIRED, both, strict=True)) for both in zip(sentences[::2], sentences[1::2], strict=True)]
