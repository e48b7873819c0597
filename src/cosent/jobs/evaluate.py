"""Score a corpus or a labelled file with a trained model: JSON, and a table on stderr.

cosent evaluate --model runs/stsb --corpus stsb --split test --predictions out.tsv
cosent evaluate --model runs/faq --pairs labelled.csv --text_columns q1 q2 --label_column same
cosent evaluate --model runs/faq --probe --baseline mini

With --pairs, --corpus names the corpus whose threshold counts; by default the only one that the model was trained on.
"""

import json
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cosent.cli import option, refuse_changed
from cosent.data.corpus import Corpus
from cosent.data.files import (
    AS_USUAL,
    LABEL_NAMES,
    OF_TABLES,
    SENTENCE1_NAMES,
    SENTENCE2_NAMES,
    FileOptions,
    LabelArguments,
    open_table,
    table_writer,
)
from cosent.data.labels import LABEL_WORDS, label_values, number_of, remedy_of
from cosent.data.manifest import SPLITS, Manifest
from cosent.data.retrieval import RetrievalArguments
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.jobs.arguments import CorpusSource, Int8, ModelSource, PairsFile, Vectors, open_model
from cosent.models.decision import DECISION_NAME, decision_rules
from cosent.models.prompts import PromptArguments, described, warn_of_other_prompts

if TYPE_CHECKING:
    from cosent.models.decision import DecisionRule

PREDICTION_COLUMNS = ("id", "sentence1", "sentence2", "label", "prediction", "score")
OF_CORPUS = ("split", "find_threshold", "predictions")
SPLIT = "test"  # of a labelled file
PROBABILITY_METRICS = ("brier", "log_loss", "calibration_error")
FEATURES = {"sentence1": "string", "sentence2": "string", "label": "float32"}


@dataclass(kw_only=True)
class EvaluateArguments(CorpusSource, PairsFile, LabelArguments, PromptArguments, Vectors, Int8, ModelSource):
    """Evaluation options."""

    label_column: str | None = option(None, "Name or position of the column of labels; default: label, score, ...")
    probe: bool = option(False, "Score 2,040 minimal pairs of Chinese, by phenomenon: negation, number, typo, ...")
    baseline: str | None = option(None, "With --probe: another model to compare with.")
    split: str = option("test", "Split to score.", SPLITS)
    find_threshold: bool = option(False, "Find threshold and probabilities on the validation split of this corpus.")
    predictions: str | None = option(None, "TSV file to write, a row per pair: " + ", ".join(PREDICTION_COLUMNS) + ".")


def main(args: EvaluateArguments, retrieval_args: RetrievalArguments) -> None:
    start = time.time()
    check_arguments(args, retrieval_args)  # before imports that take seconds
    resolve(args.model)
    from cosent.compute.distributed import rank
    from cosent.models.auto import load_model

    corpus = None if args.probe else rows_of(args)
    model = open_model(args)
    prompts = model.prompts.sides(args.prompt, args.prompt_name)
    warn_of_other_prompts(args.model, *prompts)
    if corpus is None:
        baseline = None if args.baseline is None else load_model(args.baseline).to(model.device)
        result, lines = evaluate_probe(model, baseline, args, prompts)
    else:
        result, lines = evaluate_corpus(model, corpus, args, retrieval_args, prompts)
    if rank() == 0:
        print(*lines, sep="\n", file=sys.stderr)
        head = {"model": args.model, "int8": args.int8, "prompts": prompts}
        print(json.dumps(head | result | {"seconds": time.time() - start}))


def check_arguments(args: EvaluateArguments, retrieval_args: RetrievalArguments) -> None:
    """Refuses arguments before a model is loaded."""
    args.refuse_best()
    if sum(map(bool, (args.corpus or args.pairs, args.probe))) != 1:
        raise InputError("Give one: --corpus NAME, --pairs FILE or --probe.")
    if not args.probe:
        refuse_changed(args, ("baseline",), "--probe")
    if args.pairs is None:
        refuse_changed(args, (*OF_TABLES, "label_values", *(() if args.corpus else OF_CORPUS)), "--pairs FILE")
    if not (args.pairs or args.corpus) and retrieval_args != RetrievalArguments():
        raise InputError("--retrieval and --retrieval_from are for --corpus and --pairs. Leave them out.")
    if args.predictions and not Path(args.predictions).parent.is_dir():
        raise InputError(f"--predictions {args.predictions}: there is no such folder. Create it first.")


def rows_of(args: EvaluateArguments) -> Corpus:
    """The corpus to score: a prepared one, or a file under the name of the corpus that sets the threshold."""
    from cosent.data.corpus import load_corpus

    if args.pairs is None:
        assert args.corpus is not None  # see `check`
        return load_corpus(args.corpus, args.data_dir)
    rules = list(decision_rules(args.model))
    name = args.corpus or (rules[0] if len(rules) == 1 else Path(args.pairs).stem)
    values = label_values(args.label_values)
    return read_labelled(args.pairs, args.text_columns, args.label_column, name, args.options, values)


def read_labelled(
    path: str,
    text_columns: list[str] | None,
    label_column: str | None,
    name: str,
    options: FileOptions = AS_USUAL,
    values: Mapping[str, str] = {},
) -> Corpus:
    """Reads all pairs of a file as the corpus `name`: labels of 0 and 1 are binary, other numbers graded.

    Columns are named, or numbered from 0 in a file without a header; `values` are what labels stand for.
    """
    import datasets

    wanted = [*(text_columns or (None, None)), label_column]
    known = (SENTENCE1_NAMES, SENTENCE2_NAMES, LABEL_NAMES)
    table = open_table(path, wanted, known, "--text_columns and --label_column", "--pairs", options)
    first, second, label = table.sentences
    rows = replace(table, sentences=(first, second)).placed([first, second, label])
    read = [(row[first], row[second], number_at(where, row[label], LABEL_WORDS | values)) for where, row in rows]
    columns = dict(zip(FEATURES, map(list, zip(*read, strict=True)), strict=True))
    binary = set(columns["label"]) <= {0.0, 1.0}
    low, high = (0.0, 1.0) if binary else (min(columns["label"]), max(columns["label"]))
    manifest = Manifest(name, "binary" if binary else "graded", low, high, {}, {SPLIT: {"rows": len(read)}})
    features = datasets.Features({name: datasets.Value(kind) for name, kind in FEATURES.items()})
    return Corpus(Path(path), manifest, {SPLIT: datasets.Dataset.from_dict(columns, features=features)})


def number_at(where: str, label: object, words: Mapping[str, str]) -> float:
    """The number of a label; `where` names its file and line in an error."""
    number = number_of(label, words)
    if number is None:
        hint = (
            " If it is the header, name its columns: --text_columns A B --label_column C." if "line 1" in where else ""
        )
        raise InputError(f"{where}: expected a number as the label, got {label!r}. {remedy_of(label)}{hint}")
    return number


def evaluate_corpus(
    model, corpus: Corpus, args: EvaluateArguments, retrieval_args: RetrievalArguments, prompts: tuple[str, str]
) -> tuple[dict, list[str]]:
    """The metrics on a split, as JSON and as lines; writes `--predictions`."""
    from cosent.compute.distributed import rank
    from cosent.data.retrieval import retrieval_task
    from cosent.evaluation.metrics import can_rank, evaluate_scores, spearman_at_most, too_few
    from cosent.evaluation.retrieval import retrieval_metrics
    from cosent.evaluation.similarity import pair_cosines
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.models.embedding import embed_shared, score

    task, embeds = None, isinstance(model, SentenceEncoder)
    if retrieval_args.retrieval and embeds:
        rows, where = corpus.split(args.split), f"{corpus.folder} {args.split}"
        task = retrieval_task(rows, corpus.manifest, where, retrieval_args.retrieval_from)
    if task is None:
        scores = score(model, corpus.split(args.split), prompts)
    else:
        queries = documents = embed_shared(model, task.pool, prompts[0])
        if prompts[0] != prompts[1]:
            documents = embed_shared(model, task.pool, prompts[1])
        scores = pair_cosines(queries[task.places[:, 0]], documents[task.places[:, 1]])
    labels = corpus.labels(args.split)
    rule, source = rule_for(args, corpus, model, prompts)
    tower = ("bi_encoder" if embeds else "cross_encoder") if corpus.manifest.label_kind == "binary" else None
    threshold, calibration = (None, None) if rule is None else (rule.threshold, rule.calibration)
    metrics = evaluate_scores(scores, labels, threshold, calibration, tower)
    if can_rank(labels):
        metrics["spearman_at_most"] = spearman_at_most(labels, scores)
    if rank() > 0:
        return {}, []
    if args.predictions:
        write_predictions(args.predictions, corpus.split(args.split), scores, threshold)
    result = {"corpus": corpus.manifest.name, "split": args.split, "pairs": len(scores)}
    result |= {} if args.pairs is None else {"file": args.pairs}
    method = rule and rule.calibration and rule.calibration.method
    result |= {"threshold": threshold, "threshold_from": source, "calibration": method}
    found, lines = {}, table(args.model, result, metrics)
    if task is not None:
        found = summary(retrieval_metrics(queries, documents, task.relevance)) | task.size
        lines += retrieval_table(found)
    if (warning := too_few(labels, args.pairs or f"{corpus.manifest.name} {args.split}")) is not None:
        lines += [f"warning: {warning}"]
    numbers = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    return result | numbers | found, lines  # JSON has no NaN


def rule_for(
    args: EvaluateArguments, corpus: Corpus, model, prompts: tuple[str, str]
) -> tuple["DecisionRule | None", str]:
    """The rule of validation now or of the model's folder, and its source; one of other prompts does not apply."""
    from cosent.models.decision import DecisionRule
    from cosent.models.embedding import score

    name, rules = corpus.manifest.name, decision_rules(args.model)
    if corpus.manifest.label_kind != "binary":
        if args.find_threshold:
            raise InputError(f"--find_threshold: {name} has {corpus.manifest.label_kind} labels, not 0 and 1. Omit it.")
        return None, "none: the labels are not binary"
    if args.find_threshold:
        scores = score(model, corpus.split("validation"), prompts)
        return DecisionRule.of(name, scores, corpus.labels("validation"), prompts), f"{name} validation"
    if name not in rules:
        return None, f"none: {args.model} has none for {name}; --find_threshold, or keep one by cosent calibrate"
    if rules[name].prompts != prompts:
        return None, f"none: it was found with {described(rules[name].prompts)}; --find_threshold"
    source = f"{name} validation, by {DECISION_NAME} of the model"
    if args.shortened:
        source += f", though not with {args.shortened}"
    return rules[name], source


def write_predictions(path: str, rows, scores: np.ndarray, threshold: float | None) -> None:
    """Writes a row per pair in corpus order; `prediction` is 1 or 0 at the threshold and empty without one."""
    predictions = [None] * len(scores) if threshold is None else (scores.astype(np.float64) >= threshold).astype(int)
    with table_writer(path, PREDICTION_COLUMNS) as write:
        for number, (row, prediction, value) in enumerate(zip(rows, predictions, scores, strict=True)):
            numbers = {"label": f"{row['label']:g}", "prediction": prediction, "score": f"{value:.6f}"}
            write([{"id": number, "sentence1": row["sentence1"], "sentence2": row["sentence2"]} | numbers])


def evaluate_probe(model, baseline, args: EvaluateArguments, prompts: tuple[str, str]) -> tuple[dict, list[str]]:
    """Accuracy on the shipped minimal pairs by phenomenon, as JSON and as lines; of a baseline too if there is one."""
    from cosent.evaluation.phenomena import by_phenomenon, pairs, passed, read_items
    from cosent.models.embedding import check_finite, score

    items, hits = read_items(), []
    for one, name, sides in ((model, args.model, prompts), (baseline, args.baseline, None)):
        if one is not None:
            sides = sides or one.prompts.sides(args.prompt, args.prompt_name)
            scores = score(one, pairs(items), sides)
            check_finite(scores, 0, f"--model {name}")
            hits.append(passed(scores))
    found = by_phenomenon(items, *hits)
    return {"probe": found} | ({} if baseline is None else {"baseline": args.baseline}), probe_table(args, found)


def probe_table(args: EvaluateArguments, found: dict[str, dict]) -> list[str]:
    """Lines of the accuracy by phenomenon."""

    def cell(one: dict, name: str, interval: str, sign: str = "") -> str:
        low, high = (100 * end for end in one[interval])
        return f"{100 * one[name]:>{sign}10.1f} {f'({low:{sign}.0f} to {high:{sign}.0f})':>12}"

    lines = ["accuracy x100 (95%): the other wording scores above the changed sentence"]
    lines.append(f"{'':14}{'items':>6}{'overlap':>9}{args.model[-22:]:>23}")
    lines[-1] += f"{f'minus {args.baseline}'[-22:]:>23}" if args.baseline else ""
    for name, one in found.items():
        line = f"{name:14}{one['items']:>6}{100 * one['overlap']:>9.1f}" + cell(one, "accuracy", "interval")
        lines.append(line + (cell(one, "difference", "difference_interval", "+") if args.baseline else ""))
    return lines


def summary(values: dict[str, np.ndarray]) -> dict:
    """Means of retrieval metrics over queries, and their intervals."""
    from cosent.evaluation.retrieval import mean_intervals

    means = {name: float(np.mean(of_queries)) for name, of_queries in values.items()}
    return means | {"intervals": mean_intervals(values)}


def table(model: str, result: dict, metrics: dict) -> list[str]:
    """Lines of the metrics, and of the errors of the probabilities."""
    errors = [name for name in PROBABILITY_METRICS if f"uncalibrated_{name}" in metrics]
    plain = {name: value for name, value in metrics.items() if name.removeprefix("uncalibrated_") not in errors}
    rows = result.get("file") or f"{result['corpus']} {result['split']}"
    head = f"{model} on {rows} ({result['pairs']} pairs)"
    if result["threshold"] is not None:
        head += f", threshold {result['threshold']:.4f} from {result['threshold_from']}"
    most = plain.pop("spearman_at_most", 1.0)
    lines = [head, *(f"  {name:<18}{value:8.4f}" for name, value in plain.items())]
    if most < 1:
        lines[1] += f" of at most {most:.4f}, as labels are tied"
    if errors:
        lines += ["", f"as probabilities ({result['calibration'] or 'no map'})", f"{'':20}   as is  calibrated"]
    for name in errors:
        line = f"  {name:<18}{metrics[f'uncalibrated_{name}']:8.4f}"
        lines.append(line + (f"{metrics[name]:12.4f}" if name in metrics else ""))
    return lines


def retrieval_table(found: dict, what: str = "retrieval") -> list[str]:
    """Lines of the retrieval metrics and their intervals."""
    lines = ["", f"{what}: {found['queries']} queries among {found['pool']} sentences", f"{'':20}              95%"]
    for name, (low, high) in found["intervals"].items():
        lines.append(f"  {name:<18}{found[name]:8.4f}  {low:.4f} to {high:.4f}")
    return lines
