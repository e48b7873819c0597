"""Score a corpus, a labelled file or a search with one model or two: JSON, and tables on stderr.

cosent evaluate --model runs/stsb --corpus stsb --split test
cosent evaluate --model runs/faq --pairs labelled.csv --text_columns q1 q2 --label_column same --baseline similar
cosent evaluate --model runs/faq --text faq.xlsx --text_column question --queries queries.csv

--queries has the columns query and answer: the answer is a sentence of --text or another value of its row, and empty
where --text has none. Right, wrong and missing answers are counted over the thresholds of `cosent search`.
--baseline is another model; the differences have 95% intervals over the same rows. `cosent similarity --pairs FILE
--output FILE` writes the scores of the pairs.
With --pairs, --corpus names the corpus whose threshold counts; by default the only one that the model was trained on.
"""

import json
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cosent.data.corpus import SPLITS, Corpus, Manifest, labels_of, load_corpus, pair_groups
from cosent.data.files import (
    LABEL_NAMES,
    OF_TABLES,
    SENTENCE1_NAMES,
    SENTENCE2_NAMES,
    LabelArguments,
    open_table,
    read_rows,
)
from cosent.data.labels import LABEL_WORDS, label_values, number_of, remedy_of
from cosent.data.retrieval import retrieval_task
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.evaluation.retrieval import mean_intervals, retrieval_metrics
from cosent.evaluation.significance import paired_means, paired_spearman
from cosent.evaluation.similarity import pair_cosines
from cosent.flags import option, refuse_changed
from cosent.jobs.arguments import CorpusSource, Int8, ModelSource, PairsFile, SentenceFile, open_model
from cosent.models.decision import DECISION_NAME, DecisionRule, decision_rules, rule_for
from cosent.models.prompts import PromptArguments, warn_of_other_prompts

Gaps = dict[str, tuple[float, float, float] | None]  # by metric: difference and its interval

OF_PAIRS = ("label_column", "label_values", "text_columns")
SPLIT = "test"  # of a labelled file
INTERVAL_HEAD = f"{'':20}              95%"
FEATURES = {"sentence1": "string", "sentence2": "string", "label": "float32"}


@dataclass(kw_only=True)
class EvaluateArguments(CorpusSource, PairsFile, LabelArguments, SentenceFile, PromptArguments, Int8, ModelSource):
    """Evaluation options."""

    label_column: str | None = option(None, "Name or position of the column of labels; default: label, score, ...")
    queries: str | None = option(None, "With --text: file of queries, with the columns query and answer.")
    baseline: str | None = option(None, "Another model, bi-encoder or cross-encoder, to compare with.")
    split: str = option("test", "Split to score.", SPLITS)
    retrieval: bool = option(True, "bi_encoder: measure Recall@1, 5 and 10, MRR@10, nDCG@10 and MAP too.")


@dataclass(frozen=True)
class Measured:
    """Results of one model.

    Args:
        result: as JSON.
        lines: as a table.
        values: metrics that are means, by name, each of shape `(rows,)`: of pairs `accuracy`, of queries the others.
        scores: of the pairs, of shape `(pairs,)`; None for a search.
    """

    result: dict[str, Any]
    lines: list[str]
    values: dict[str, np.ndarray]
    scores: np.ndarray | None = None


def main(args: EvaluateArguments) -> None:
    start = time.time()
    check_arguments(args)  # before imports that take seconds
    names = [args.model] if args.baseline is None else [args.model, args.baseline]
    for name in names:
        resolve(name)
    pairs = None
    if args.text is None or args.queries is None:
        corpus = corpus_of(args)
        pairs = corpus.split(args.split)
        measure = partial(measure_pairs, corpus=corpus)
    else:
        from cosent.search.answers import read_queries, values_of

        rows = list(read_rows([args.text], args.text_column, args.options))
        queries = read_queries(args.queries, set().union(*values_of(rows)), args.text, args.options.encoding)
        measure = partial(measure_search, rows=rows, queries=queries)
    measured, *baseline = [measure(replace(args, model=name)) for name in names]
    result, lines = measured.result, measured.lines
    for other in baseline:
        gaps = differences(measured, other, pairs)
        result |= {"baseline": other.result, "differences": gaps}
        lines += ["", *other.lines, "", f"{args.model} minus {args.baseline}, on the same rows", INTERVAL_HEAD]
        lines += [
            interval_line(name, *gap, sign="+") if gap else f"  {name:<18}too few separate pairs"
            for name, gap in gaps.items()
        ]
    print(*lines, sep="\n", file=sys.stderr)
    print(json.dumps(result | {"seconds": time.time() - start}, ensure_ascii=False))


def check_arguments(args: EvaluateArguments) -> None:
    """Refuses arguments before a model is loaded."""
    if (args.text is None) != (args.queries is None) or bool(args.queries) == bool(args.pairs or args.corpus):
        raise InputError("Give one: --corpus NAME, --pairs FILE, or --text FILE with --queries FILE.")
    if args.queries is not None:
        refuse_changed(args, OF_PAIRS, "--pairs FILE")
        refuse_changed(args, ("split",), "--corpus NAME")
        refuse_changed(args, ("retrieval",), "--corpus NAME or --pairs FILE")
        args.single()
    elif args.pairs is None:
        refuse_changed(args, (*OF_TABLES, "label_column", "label_values"), "--pairs FILE")
    else:
        refuse_changed(args, ("split",), "--corpus NAME alone")
    refuse_changed(args, () if args.text else ("text_column",), "--text FILE")


def corpus_of(args: EvaluateArguments) -> Corpus:
    """The corpus to score: a prepared one, or a file under the name of the corpus that sets the threshold."""
    if args.pairs is None:
        assert args.corpus is not None  # see `check_arguments`
        return load_corpus(args.corpus, args.data_dir)
    rules = list(decision_rules(args.model))
    return read_labelled(args, args.corpus or (rules[0] if len(rules) == 1 else Path(args.pairs).stem))


def read_labelled(args: EvaluateArguments, name: str) -> Corpus:
    """The pairs of `--pairs` as the corpus `name`: labels of 0 and 1 are binary, other numbers graded."""
    import datasets

    assert args.pairs is not None  # see `corpus_of`
    columns = [*(args.text_columns or (None, None)), args.label_column]
    words = {**LABEL_WORDS, **label_values(args.label_values)}
    usual_names = (SENTENCE1_NAMES, SENTENCE2_NAMES, LABEL_NAMES)
    flags = "--text_columns and --label_column"
    table = open_table(args.pairs, columns, usual_names, flags, "--pairs", args.options)
    first, second, label = table.sentences
    rows = replace(table, sentences=(first, second)).placed([first, second, label])
    pairs = [(row[first], row[second], number_at(where, row[label], words)) for where, row in rows]
    by_name = dict(zip(FEATURES, map(list, zip(*pairs, strict=True)), strict=True))
    binary = set(by_name["label"]) <= {0.0, 1.0}
    low, high = (0.0, 1.0) if binary else (min(by_name["label"]), max(by_name["label"]))
    manifest = Manifest(name, "binary" if binary else "graded", low, high, {}, {SPLIT: {"rows": len(pairs)}})
    features = datasets.Features({name: datasets.Value(kind) for name, kind in FEATURES.items()})
    return Corpus(Path(args.pairs), manifest, {SPLIT: datasets.Dataset.from_dict(by_name, features=features)})


def number_at(where: str, label: object, words: Mapping[str, str]) -> float:
    """The number of a label; `where` names its file and line in an error."""
    number = number_of(label, words)
    if number is None:
        hint = " If it is the header, name its columns: --text_columns A B --label_column C."
        hint = hint if "line 1" in where else ""
        raise InputError(f"{where}: expected a number as the label, got {label!r}. {remedy_of(label)}{hint}")
    return number


def measure_pairs(args: EvaluateArguments, corpus: Corpus) -> Measured:
    """The metrics of `--model` on a split."""
    from cosent.evaluation.metrics import can_rank, evaluate_scores, spearman_at_most, too_few
    from cosent.models.bi_encoder import SentenceEncoder

    model = open_model(args)
    prompts = model.prompts.sides(args.prompt, args.prompt_name)
    warn_of_other_prompts(args.model, model.prompts, *prompts)
    task, rows = None, corpus.split(args.split)
    if args.retrieval and isinstance(model, SentenceEncoder):
        where = f"{corpus.folder} {args.split}"
        task = retrieval_task(rows, corpus.manifest, where)
    if task is None:
        scores = model.similarity(rows["sentence1"][:], rows["sentence2"][:], prompt=prompts, show_progress_bar=True)
    else:
        embed = partial(model.encode, task.pool, normalize_embeddings=True, show_progress_bar=True)
        queries = documents = embed(prompt=prompts[0])
        if prompts[0] != prompts[1]:
            documents = embed(prompt=prompts[1])
        scores = pair_cosines(queries[task.places[:, 0]], documents[task.places[:, 1]])
    labels = corpus.labels(args.split)
    rule, source = rule_and_source(args.model, corpus.manifest, prompts)
    threshold, calibration = (None, None) if rule is None else (rule.threshold, rule.calibration)
    metrics = evaluate_scores(scores, labels, threshold, calibration)
    if can_rank(labels):
        metrics["spearman_at_most"] = spearman_at_most(labels, scores)
    result = {"model": args.model, "int8": args.int8, "prompts": prompts, "corpus": corpus.manifest.name}
    result |= {"split": args.split, "pairs": len(scores)} | ({} if args.pairs is None else {"file": args.pairs})
    result |= {"threshold": threshold, "threshold_from": source, "calibration": calibration and calibration.method}
    lines, values = metrics_table(args.model, result, metrics), {}
    if rule is not None:
        values["accuracy"] = (rule.similar(scores) == labels).astype(np.float64)
    if (warning := too_few(labels, args.pairs or f"{corpus.manifest.name} {args.split}")) is not None:
        lines += [f"warning: {warning}"]
    result |= {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
    if task is None:
        return Measured(result, lines, values, scores)
    by_query = retrieval_metrics(queries, documents, task.relevance)
    means, intervals = {name: float(np.mean(each)) for name, each in by_query.items()}, mean_intervals(by_query)
    lines += ["", f"retrieval: {task.size['queries']} queries among {task.size['pool']} sentences", INTERVAL_HEAD]
    lines += [interval_line(name, means[name], *ends) for name, ends in intervals.items()]
    return Measured(result | means | {"intervals": intervals} | task.size, lines, values | by_query, scores)


def measure_search(args: EvaluateArguments, rows: list[tuple[str, dict]], queries: list[tuple[str, str]]) -> Measured:
    """Right, wrong and missing answers of `--model` over thresholds."""
    from cosent.search.answers import answers_of

    model = open_model(args)
    prompt = model.prompts.text(*args.single()) if args.prompt or args.prompt_name else None
    if prompt is not None:
        warn_of_other_prompts(args.model, model.prompts, prompt)
    answers, reason = answers_of(model, args.model, rows, queries, prompt, args.corpus)
    answered = np.count_nonzero(answers.answerable)
    head = f"{args.model}: {len(queries)} queries, {answered} with an answer, among {len(rows)} sentences"
    result: dict[str, Any] = {"model": args.model, "queries": args.queries}
    result |= {"text": args.text, "sentences": len(rows)}
    result |= {"flag": answers.flag, "thresholds": answers.over_thresholds()}
    lines = [head, *answers.table(), *([f"no probabilities: {reason}"] if reason else [])]
    right = answers.right[answers.answerable].astype(np.float64)
    return Measured(result, lines, {"nearest_right": right} if answered else {})


def differences(first: Measured, second: Measured, rows) -> Gaps:
    """Metrics of the first model minus those of the second, by name, each with its paired 95% interval.

    Pairs that share a sentence are drawn together; None where too few pairs are separate.
    """
    gaps: Gaps = {}
    groups = None
    if first.scores is not None and second.scores is not None:  # of pairs, not of a search
        groups = pair_groups(rows)
        gaps["spearman"] = paired_spearman(np.stack([first.scores, second.scores]), labels_of(rows), groups)
    for name in [name for name in first.values if name in second.values]:
        values = np.stack([first.values[name], second.values[name]])
        gaps[name] = paired_means(values, groups if name == "accuracy" else None)
    return gaps


def rule_and_source(model: str, manifest: Manifest, prompts: tuple[str, str]) -> tuple[DecisionRule | None, str]:
    """The rule of the model's folder for a corpus, and its source or the reason why there is none."""
    if manifest.label_kind != "binary":
        return None, "none: the labels are not binary"
    if manifest.name not in decision_rules(model):
        return None, f"none: {model} has none for {manifest.name}, which cosent calibrate finds"
    rule, reason = rule_for(model, prompts, manifest.name)
    if rule is None:
        return None, f"none: {reason}"
    return rule, f"{manifest.name} validation, by {DECISION_NAME} of the model"


def metrics_table(model: str, result: dict, metrics: dict) -> list[str]:
    """Lines of the metrics."""
    rows = result.get("file") or f"{result['corpus']} {result['split']}"
    head = f"{model} on {rows} ({result['pairs']} pairs)"
    if result["threshold"] is not None:
        head += f", threshold {result['threshold']:.4f} from {result['threshold_from']}"
    most = metrics.get("spearman_at_most", 1.0)
    lines = [f"  {name:<18}{value:8.4f}" for name, value in metrics.items() if name != "spearman_at_most"]
    if most < 1:
        lines[0] += f" of at most {most:.4f}, as labels are tied"
    return [head, *lines]


def interval_line(name: str, value: float, low: float, high: float, sign: str = "") -> str:
    """A line of a metric, or of its difference with a sign, and its interval."""
    return f"  {name:<18}{value:{sign}8.4f}  {low:{sign}.4f} to {high:{sign}.4f}"
