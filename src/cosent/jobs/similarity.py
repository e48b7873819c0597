"""Score pairs of sentences.

cosent similarity --model runs/stsb 我喜欢北京 我不喜欢北京
cosent similarity --model runs/stsb --pairs pairs.csv --text_columns q1 q2 --output scored.xlsx

--output (tsv, csv, jsonl, parquet, xlsx) has the rows of --pairs with score and, for a model with a decision rule,
probability and verdict. Without it, pairs are printed.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from cosent.cli import option, refuse_changed
from cosent.data.files import OF_TABLES, PAIR, Table, open_table
from cosent.data.formats import is_blank
from cosent.data.writers import check_output, table_writer
from cosent.errors import InputError
from cosent.jobs.arguments import ModelSource, OutputFile, PairsFile, open_model
from cosent.models.decision import choose_rule
from cosent.models.prompts import PromptArguments, described, warn_of_other_prompts

CHUNK = 32768  # pairs read, scored and written at a time
PAIRED = ("sentence1", "sentence2")
ADDED = ("score", "probability", "verdict")  # columns


@dataclass(kw_only=True)
class SimilarityArguments(OutputFile, PairsFile, PromptArguments, ModelSource):
    """Sentences to compare."""

    sentences: list[str] | None = option(None, "Sentences, instead of a file.", positional=True, commas=True)
    corpus: str | None = option(None, "Corpus whose decision rule to use; default: the one for all of training.")
    base_rate: str | None = option(
        None,
        "Share of similar pairs among yours, e.g. 0.001, for which probabilities and verdicts are corrected; auto: "
        "estimated from the scores of all --pairs; default: that of the corpus.",
    )


def main(args: SimilarityArguments) -> None:
    table = checked_table(args)  # before imports that take seconds
    rows = pair_up(args.sentences or []) if table is None else table.rows()
    model = open_model(args)
    from tqdm.auto import tqdm

    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.models.decision import decision_rules

    prompts = model.prompts.sides(args.prompt, args.prompt_name)
    warn_of_other_prompts(args.model, *prompts)
    rule, note = rule_and_note(decision_rules(args.model), args, prompts)
    print(note, file=sys.stderr)
    columns = PAIRED if table is None else table.sentences
    start = time.time()
    scored: Iterable = score(model, rows, columns, prompts)
    if rule is not None and args.base_rate is not None:
        rule, scored = with_base_rate(rule, args.base_rate, scored, columns)
    if table is None or args.output is None:
        likely = "" if rule is None else "probability  verdict      "
        print(f"{'cosine' if isinstance(model, SentenceEncoder) else 'score':>7}  {likely}{'  |  '.join(columns)}")
        for chunk, scores in scored:
            answered = zip(chunk, answers(scores, rule), strict=True)
            print(*(line(row | new, columns) for row, new in answered), sep="\n")
        return
    written, added = 0, ADDED[:1] if rule is None else ADDED
    with table_writer(args.output, (*table.names, *added)) as append, tqdm(unit="pair", file=sys.stderr) as progress:
        for chunk, scores in scored:
            append([row | new for row, new in zip(chunk, answers(scores, rule), strict=True)])
            written += len(chunk)
            progress.update(len(chunk))
    seconds = round(time.time() - start, 3)
    result = {"output": args.output, "pairs": written, "seconds": seconds}
    print(json.dumps(result | {"pairs_per_second": round(written / seconds, 1)}))


def checked_table(args: SimilarityArguments) -> Table | None:
    """The table of `--pairs`, or None for sentences."""
    if args.pairs and args.sentences:
        raise InputError("Give sentences or --pairs FILE, not both.")
    check_base_rate(args.base_rate, args.pairs)
    if args.pairs is None:
        refuse_changed(args, (*OF_TABLES, "output", "overwrite"), "--pairs FILE")
        return None
    table = open_table(args.pairs, args.text_columns, PAIR, "--text_columns", "--pairs", args.options)
    if args.output:
        check_output(args.output, args.pairs, args.overwrite)
        if taken := set(ADDED) & set(table.names):
            raise InputError(f"{args.pairs} has a column {taken.pop()}, which --output adds. Rename it in the file.")
    return table


def check_base_rate(base_rate: str | None, pairs: str | None) -> None:
    """Refuses anything but a share or `auto`, which needs many pairs."""
    try:
        fits = base_rate is None or (pairs is not None if base_rate == "auto" else 0 < float(base_rate) < 1)
    except ValueError:
        fits = False
    if not fits:
        raise InputError(f"--base_rate {base_rate}: expected a share between 0 and 1, or with --pairs FILE auto.")


def score(
    model, rows: Iterable[dict], columns: tuple[str, ...], prompts: tuple[str, str]
) -> Iterator[tuple[list[dict], np.ndarray]]:
    """Yields chunks of the rows, and their scores."""
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK)):
        first, second = ([row[name] for row in chunk] for name in columns)
        yield chunk, model.similarity(first, second, prompt=prompts)


def with_base_rate(rule, base_rate: str, scored: Iterable, columns: tuple[str, ...]) -> tuple[Any, Iterable]:
    """The rule at the base rate of the flag; for `auto`, all chunks are scored first, and held in memory."""
    if rule.calibration.base_rate is None:
        raise InputError("--base_rate: the model lacks the share of similar validation pairs. Train it again.")
    if base_rate == "auto":
        import datasets

        from cosent.data.groups import pair_groups
        from cosent.evaluation.calibration import estimated_base_rate

        scored = list(scored)
        texts = {
            side: [row[name] for rows, *_ in scored for row in rows] for side, name in zip(PAIRED, columns, strict=True)
        }
        scores = np.concatenate([values for _, values in scored]).astype(np.float64)
        share, *ends = estimated_base_rate(rule.calibration, scores, pair_groups(datasets.Dataset.from_dict(texts)))
        known = f"{rule.calibration.base_rate:.4f} on {rule.corpus}"
        between = " to ".join(f"{end:.4f}" for end in ends)
        print(f"base rate: {share:.4f} by the scores (95%: {between}), {known}", file=sys.stderr)
    else:
        share = float(base_rate)
    return replace(rule, base_rate=min(max(share, 1e-9), 1 - 1e-9)), scored


def answers(scores, rule) -> list[dict]:
    """The new columns of each pair."""
    found: list[dict] = [{"score": round(float(score), 6)} for score in scores]
    if rule is not None:
        verdicts = zip(rule.probabilities(scores), rule.similar(scores), strict=True)
        for row, (probability, similar) in zip(found, verdicts, strict=True):
            row |= {"probability": round(float(probability), 6), "verdict": "similar" if similar else "not similar"}
    return found


def rule_and_note(rules: dict, args: SimilarityArguments, prompts: tuple[str, str] = ("", "")):
    """The decision rule, see `choose_rule`, or None, as where training read other prompts; and a note about it."""
    rule = choose_rule(rules, args.corpus, args.model)
    if not rules:
        return None, "score; no probability or verdict, which `cosent calibrate` finds on labels of 0 and 1"
    if rule is None:
        return None, f"score; for probability and verdict choose --corpus {' or '.join(rules)}"
    if rule.prompts != prompts:
        return None, f"score; no probability or verdict, since this model was trained with {described(rule.prompts)}"
    found = f"as on {rule.corpus} validation"
    threshold = f"{rule.threshold:.4f}" if args.base_rate is None else "a probability of 0.5"
    return rule, f"score, probability and verdict (at {threshold}) {found}"


def line(row: dict, columns: tuple[str, ...]) -> str:
    """Score, with a rule probability and verdict, and the sentences."""
    verdict = f"  {row['probability']:11.4f}  {row['verdict']:<11}" if "verdict" in row else ""
    return f"{row['score']:7.4f}{verdict}  {row[columns[0]]}  |  {row[columns[1]]}"


def pair_up(sentences: list[str]) -> list[dict]:
    if not sentences or len(sentences) % 2 or any(map(is_blank, sentences)):
        raise InputError(f"Give sentences two by two, none of them empty, or --pairs FILE; got {sentences}.")
    return [{"sentence1": one, "sentence2": two} for one, two in zip(sentences[::2], sentences[1::2], strict=True)]
