"""Score a corpus, a labelled file, judged documents or tasks of mteb with a trained model: JSON, and a table on stderr.

cosent evaluate --model runs/stsb --corpus stsb --split test --predictions out.tsv
cosent evaluate --model runs/faq --pairs labelled.csv --text_columns q1 q2 --label_column same
cosent evaluate --model runs/faq --queries queries.jsonl --documents corpus.jsonl --qrels qrels/test.tsv
cosent evaluate --model runs/cross --retriever runs/faq --queries queries.jsonl --documents corpus.jsonl --qrels ...
cosent evaluate --model runs/stsb --mteb sts --mteb_output mteb/
"""

import json
import math
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cosent.cli import option, refuse_below_1, refuse_changed, run
from cosent.data.corpus import Corpus
from cosent.data.files import (
    AS_USUAL,
    LABEL_NAMES,
    OF_TABLES,
    SENTENCE1_NAMES,
    SENTENCE2_NAMES,
    FileOptions,
    LabelColumn,
    TableArguments,
    label_values,
    open_table,
)
from cosent.data.manifest import SPLITS, Manifest
from cosent.data.retrieval import Judged, RetrievalArguments, read_judged
from cosent.encoders import resolve
from cosent.errors import InputError, partial_file, writing
from cosent.evaluation.calibration import Calibration
from cosent.inference.arguments import MtebArguments
from cosent.models.prompts import PromptArguments, described, warn_of_other_prompts
from cosent.run import read_record

PREDICTION_COLUMNS = ("id", "sentence1", "sentence2", "label", "prediction", "score")


def write_predictions(path: str, rows, scores: np.ndarray, threshold: float | None) -> None:
    """Writes a row per pair in corpus order; `prediction` is 1 or 0 at the threshold and empty without one.

    Tabs and line breaks inside a sentence become spaces: every line has six fields, and nothing is quoted.
    """
    predictions = [""] * len(scores) if threshold is None else (scores.astype(np.float64) >= threshold).astype(int)
    with writing(path), partial_file(path) as partial, open(partial, "w", encoding="utf-8", newline="\n") as file:
        print(*PREDICTION_COLUMNS, sep="\t", file=file)
        for index, (row, prediction, value) in enumerate(zip(rows, predictions, scores, strict=True)):
            sentences = [re.sub(r"[\t\r\n]+", " ", row[name]) for name in ("sentence1", "sentence2")]
            print(index, *sentences, f"{row['label']:g}", prediction, f"{value:.6f}", sep="\t", file=file)


def table(result: dict, metrics: dict, errors: dict) -> list[str]:
    """Lines of the metrics, and of the errors of the probabilities."""
    rows = result.get("file") or f"{result['corpus']} {result['split']}"
    head = f"{result['model']} on {rows} ({result['pairs']} pairs)"
    if result["threshold"] is not None:
        head += f", threshold {result['threshold']:.4f} from {result['threshold_from']}"
    lines = [head, *(f"  {name:<18}{value:8.4f}" for name, value in metrics.items())]
    if errors:
        method = result["calibration"] or "no map"
        lines += ["", f"as probabilities ({method}: {result['calibration_from']})", f"{'':20}   as is  calibrated"]
    for name in ("brier", "log_loss", "calibration_error") if errors else ():
        line = f"  {name:<18}{errors[f'uncalibrated_{name}']:8.4f}"
        lines.append(line + (f"{errors[name]:12.4f}" if name in errors else ""))
    return lines


def retrieval_table(found: dict, what: str = "retrieval") -> list[str]:
    lines = ["", f"{what}: {found['queries']} queries among {found['pool']} sentences", f"{'':20}              95%"]
    for name, (low, high) in found["intervals"].items():
        lines.append(f"  {name:<18}{found[name]:8.4f}  {low:.4f} to {high:.4f}")
    return lines


SPLIT = "test"  # of a labelled file
FEATURES = {"sentence1": "string", "sentence2": "string", "label": "float32"}
OF_RETRIEVAL = ("retrieval", "retrieval_from")
OF_JUDGED = ("queries", "documents", "qrels")
OF_CORPUS = ("text_columns", "label_column", "split", "threshold", "find_threshold", "threshold_grid", "predictions")
CANDIDATES = 100  # documents of a retriever that a cross-encoder puts in order


@dataclass
class EvaluateArguments:
    """Model, corpus and threshold of an evaluation."""

    model: str = option("similar", "Folder of a trained model, a shipped model or a Hub id.")
    corpus: str | None = option(None, "Prepared corpus: a name under --data_dir, or a folder.")
    pairs: str | None = option(
        None, "Instead: file with a labelled pair per row: txt or tsv (tabs), csv, jsonl, parquet, xlsx; text also as "
        ".gz. --corpus then names the corpus whose threshold counts; default: the only one that the model has."
    )  # fmt: skip
    text_columns: list[str] | None = option(
        None, "Names of its two columns of sentences, or positions from 0 if it has no header; default: sentence1 and "
        "sentence2 and their like, or the first two of three.", commas=True,
    )  # fmt: skip
    label_column: str | None = option(None, "Name or position of its column of labels; default: label, score, ...")
    queries: str | None = option(
        None, "Instead: queries of your own, with --documents and --qrels: tables with the columns _id and text, as in "
        "BEIR."
    )  # fmt: skip
    documents: str | None = option(None, "Documents that the queries should find: _id, text and perhaps title.")
    qrels: str | None = option(None, "Which query should find which document: query-id, corpus-id and score.")
    retriever: str | None = option(
        None, f"cross_encoder, with --qrels: bi-encoder whose {CANDIDATES} nearest documents --model puts in order."
    )
    split: str = option("test", "Split to score.", SPLITS)
    data_dir: str = option("data", "Folder of the prepared corpora.")
    batch_size: int = option(512, "Most sentences or pairs per forward pass; their tokens are limited too.")
    threshold: float | None = option(None, "Lowest score of a similar pair; default: that of the model.")
    find_threshold: bool = option(False, "Find threshold and probabilities on the validation split of this corpus.")
    threshold_grid: float | None = option(None, "Step of a grid over 0..1 for --find_threshold; default: exact search.")
    int8: bool = option(False, "Linear layers in int8 (CPU).")
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available, cpu with --int8.")
    predictions: str | None = option(None, "TSV to write, a row per pair: " + ", ".join(PREDICTION_COLUMNS) + ".")


def main(
    args: EvaluateArguments,
    prompt_args: PromptArguments,
    retrieval_args: RetrievalArguments,
    mteb_args: MtebArguments,
    table_args: TableArguments,
) -> None:
    start = time.time()
    check(args, retrieval_args, mteb_args, table_args)  # before imports that take seconds
    resolve(args.model)
    from cosent.compute.distributed import rank
    from cosent.compute.onednn import choose_device
    from cosent.inference.embedding import quantized
    from cosent.models.auto import load_model

    device = choose_device(args.device, args.int8)
    corpus, judged = None, None
    if args.qrels is not None:
        judged = read_judged(args.queries, args.documents, args.qrels)
    elif mteb_args.mteb is None:
        corpus = rows_of(args, table_args)
    model = load_model(args.model).to(device)
    if args.int8:
        model = quantized(model)
    prompts = model.prompts.sides(prompt_args.prompt, prompt_args.prompt_name)
    if judged is not None and prompt_args == PromptArguments():
        prompts = model.prompts.for_search()
    warn_of_other_prompts(args.model, *prompts)
    if judged is not None:
        retriever = None if args.retriever is None else load_model(args.retriever).to(device)
        result, lines = evaluate_judged(model, retriever, judged, args, prompts)
    elif corpus is not None:
        result, lines = evaluate_corpus(model, corpus, args, retrieval_args, prompts)
    else:
        from cosent.inference.mteb import evaluate_tasks, table_lines

        result = evaluate_tasks(model, args, mteb_args, prompts)
        lines = table_lines(result)
    if rank() == 0:
        print(*lines, sep="\n", file=sys.stderr)
        head = {"model": args.model, "int8": args.int8, "prompts": prompts}
        print(json.dumps(head | result | {"seconds": time.time() - start}))


def check(
    args: EvaluateArguments, retrieval_args: RetrievalArguments, mteb_args: MtebArguments, table_args: TableArguments
) -> None:
    """Refuses arguments before a model is loaded."""
    refuse_below_1(args, "batch_size")
    given = [getattr(args, name) is not None for name in OF_JUDGED]
    if any(given) and not all(given):
        raise InputError("--queries, --documents and --qrels belong together: name the three files.")
    if (args.corpus is not None or args.pairs is not None) + (mteb_args.mteb is not None) + all(given) != 1:
        raise InputError(
            "Give --corpus NAME, --pairs FILE, --qrels with --queries and --documents, or --mteb with tasks: one of "
            "them is scored."
        )
    if args.retriever is not None and not all(given):
        raise InputError("--retriever does nothing without --qrels. Add --queries, --documents and --qrels.")
    if args.pairs is None:
        refuse_changed(table_args, OF_TABLES, "--pairs FILE")
    if args.pairs is None and args.corpus is not None:
        refuse_changed(args, ("text_columns", "label_column"), "--pairs FILE")
    elif args.pairs is None:
        refuse_changed(args, OF_CORPUS, "--corpus NAME in place of --mteb or --qrels")
        refuse_changed(retrieval_args, OF_RETRIEVAL, "--corpus NAME in place of --mteb or --qrels")
    if args.find_threshold and args.threshold is not None:
        raise InputError("--threshold and --find_threshold are mutually exclusive. Give one of the two.")
    if args.threshold_grid is not None and not args.find_threshold:
        raise InputError("--threshold_grid is an option of --find_threshold. Add that flag, or leave both out.")
    if args.predictions and not Path(args.predictions).parent.is_dir():
        raise InputError(f"--predictions {args.predictions}: there is no such folder. Create it first.")


def rows_of(args: EvaluateArguments, table_args: TableArguments):
    """The corpus that is scored: a prepared one, or a file under the name of the corpus whose threshold counts."""
    from cosent.data.corpus import load_corpus

    if args.pairs is None:
        return load_corpus(args.corpus, args.data_dir)
    record = read_record(args.model)
    rules = [] if record is None else list(record.thresholds)
    name = args.corpus or (rules[0] if len(rules) == 1 else Path(args.pairs).stem)
    values = label_values(table_args.label_values)
    return read_labelled(args.pairs, args.text_columns, args.label_column, name, table_args.options, values)


def read_labelled(
    path: str,
    text_columns: list[str] | None,
    label_column: str | None,
    name: str,
    options: FileOptions = AS_USUAL,
    values: Mapping[str, str] | None = None,
) -> Corpus:
    """Reads all pairs of a file: labels of 0 and 1 are binary, other numbers graded.

    Args:
        text_columns, label_column: their names, or positions from 0 in a file without a header; default: the usual
            names, or the only three columns.
        name: of the corpus.
        values: what labels stand for; see `value_of`.
    """
    import datasets

    wanted = None
    if text_columns is not None or label_column is not None:
        wanted = [*(text_columns or ("sentence1", "sentence2")), label_column or "label"]
        if len(wanted) != 3:
            raise InputError(f"--text_columns takes two column names, got {' '.join(wanted[:-1])}. Name two.")
    known = (SENTENCE1_NAMES, SENTENCE2_NAMES, LABEL_NAMES)
    table = open_table(path, wanted, known, "--text_columns and --label_column", "--pairs", options)
    *sentences, label = table.sentences
    labels = LabelColumn(table.path, label, values)
    table, columns = replace(table, sentences=tuple(sentences)), {name: [] for name in FEATURES}
    for number, row in enumerate(table.rows([*sentences, label]), start=1):
        values = (row[sentences[0]], row[sentences[1]], labels.read(row, number))
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    binary = set(columns["label"]) <= {0.0, 1.0}
    low, high = (0.0, 1.0) if binary else (min(columns["label"]), max(columns["label"]))
    manifest = Manifest(name, "binary" if binary else "graded", low, high, {}, {SPLIT: {"rows": len(columns["label"])}})
    features = datasets.Features({name: datasets.Value(kind) for name, kind in FEATURES.items()})
    return Corpus(Path(path), manifest, {SPLIT: datasets.Dataset.from_dict(columns, features=features)})


def evaluate_corpus(
    model, corpus, args: EvaluateArguments, retrieval_args: RetrievalArguments, prompts: tuple[str, str]
) -> tuple[dict, list[str]]:
    """The metrics on a split, as JSON and as lines; writes `--predictions`."""
    from cosent.compute.distributed import rank
    from cosent.data.retrieval import retrieval_task
    from cosent.evaluation.calibration import calibration_metrics
    from cosent.evaluation.metrics import SimilarityMetrics
    from cosent.evaluation.similarity import pair_cosines
    from cosent.inference.embedding import embed_pool, score
    from cosent.inference.neighbours import found_by_vectors
    from cosent.models.bi_encoder import Embedder

    task = None
    if retrieval_args.retrieval and isinstance(model, Embedder):
        task = retrieval_task(corpus, args.split, retrieval_args)
    if task is None:
        scores = score(model, corpus.split(args.split), args.batch_size, prompts)
    else:
        queries, documents = embed_pool(model, task.pool, args.batch_size, prompts)
        scores = pair_cosines(queries[task.places[:, 0]], documents[task.places[:, 1]])
    labels = corpus.labels(args.split)
    threshold, threshold_from, calibration, calibration_from = choose_decision(args, corpus, model, prompts)
    metrics = SimilarityMetrics().compute(predictions=scores, references=labels, threshold=threshold)
    if rank() > 0:
        return {}, []
    if args.predictions:
        write_predictions(args.predictions, corpus.split(args.split), scores, threshold)
    result = {
        "model": args.model,
        "corpus": corpus.manifest.name,
        "split": args.split,
        "pairs": len(scores),
        **({} if args.pairs is None else {"file": args.pairs}),
        "threshold": threshold,
        "threshold_from": threshold_from,
        "calibration": calibration and calibration.method,
        "calibration_from": calibration_from,
    }
    errors, found = {}, {}
    if corpus.manifest.label_kind == "binary":
        tower = "bi_encoder" if isinstance(model, Embedder) else "cross_encoder"
        errors = calibration_metrics(calibration, scores, labels, tower)
    lines = table(result, metrics, errors)
    if task is not None:
        found = summary(found_by_vectors(queries, documents, task.relevance)) | task.size
        lines += retrieval_table(found)
    numbers = {name: value if math.isfinite(value) else None for name, value in (metrics | errors).items()}
    return result | numbers | found, lines  # JSON has no NaN


def summary(values: dict[str, np.ndarray]) -> dict:
    """Means of retrieval metrics over queries, and their intervals."""
    from cosent.evaluation.retrieval import mean_intervals

    means = {name: float(np.mean(of_queries)) for name, of_queries in values.items()}
    return means | {"intervals": mean_intervals(values)}


def evaluate_judged(
    model, retriever, judged: Judged, args: EvaluateArguments, prompts: tuple[str, str]
) -> tuple[dict, list[str]]:
    """Retrieval metrics on judged documents, as JSON and as lines; of a cross-encoder those of its order.

    Args:
        retriever: the bi-encoder that finds the candidates of a cross-encoder; None for a bi-encoder.
    """
    from cosent.evaluation.retrieval import retrieval_metrics
    from cosent.inference.neighbours import found, reordered
    from cosent.models.bi_encoder import Embedder

    if isinstance(model, Embedder) != (retriever is None) or not isinstance(retriever or model, Embedder):
        raise InputError(
            f"{args.model} searches all documents by itself: leave --retriever out."
            if isinstance(model, Embedder)
            else f"{args.model} is a cross-encoder, which only puts documents in order. Name the bi-encoder that finds "
            "them: --retriever similar."
        )
    size = {"queries": len(judged.queries), "pool": len(judged.documents)}
    searching = prompts if retriever is None else retriever.prompts.for_search()
    rows = found(retriever or model, judged.queries, judged.documents, CANDIDATES, args.batch_size, searching)
    result = summary(retrieval_metrics(rows, judged.relevance)) | size
    lines = [f"{args.model} on {args.qrels}", *retrieval_table(result, f"retrieval by {args.retriever or args.model}")]
    if retriever is not None:
        before = {name: value for name, value in result.items() if name not in size}
        rows = reordered(model, judged.queries, judged.documents, rows, args.batch_size, prompts)
        result = summary(retrieval_metrics(rows, judged.relevance)) | size | {"retriever": before}
        lines += retrieval_table(result, f"the {rows.shape[1]} nearest in the order of {args.model}")
    return {"qrels": args.qrels} | result, lines


Decision = tuple[float | None, str, Calibration | None, str]  # threshold, its source, map to probabilities, its source


def choose_decision(args: EvaluateArguments, corpus: Corpus, model, prompts: tuple[str, str]) -> Decision:
    """The threshold of a flag, of this corpus' validation split or of the training of the model; the map likewise.

    Args:
        prompts: those of both sentences; what training found with others does not apply.
    """
    name, record = corpus.manifest.name, read_record(args.model)
    if corpus.manifest.label_kind != "binary":
        if args.threshold is not None or args.find_threshold:
            raise InputError(f"{name} has {corpus.manifest.label_kind} labels: accuracy at a threshold needs 0 and 1.")
        return None, "none: the labels are not binary", None, "none: the labels are not binary"
    if args.find_threshold:
        return find_decision(args, corpus, model, prompts)
    trained = f"{name} validation, when the model was trained"
    threshold, calibration, reason = None, None, f"the model was not trained on {name}"
    if record is not None and record.prompts == prompts:
        threshold, calibration = record.thresholds.get(name), record.calibrations.get(name)
    elif record is not None:
        reason = f"the model was trained with {described(record.prompts)}"
    source = f"none: {reason}; --find_threshold or --threshold" if threshold is None else trained
    if args.threshold is not None:
        threshold, source = args.threshold, "--threshold"
    return threshold, source, calibration, trained if calibration else f"none: {reason}; --find_threshold"


def find_decision(args: EvaluateArguments, corpus: Corpus, model, prompts: tuple[str, str]) -> Decision:
    """The threshold and the map that fit the validation split of this corpus."""
    from cosent.evaluation.calibration import fit_calibration
    from cosent.evaluation.metrics import can_rank, find_threshold
    from cosent.inference.embedding import score
    from cosent.models.bi_encoder import Embedder

    if args.threshold_grid and not isinstance(model, Embedder):
        raise InputError("--threshold_grid divides 0..1; the logits of a cross-encoder have no bounds. Drop it.")
    source = f"{corpus.manifest.name} validation"
    scores, labels = score(model, corpus.split("validation"), args.batch_size, prompts), corpus.labels("validation")
    threshold = find_threshold(scores, labels, grid=args.threshold_grid)[0]
    if not can_rank(labels):
        return threshold, source, None, "none: all labels of the validation split are equal"
    return threshold, source, fit_calibration(scores, labels), source


ARGUMENTS = (EvaluateArguments, PromptArguments, RetrievalArguments, MtebArguments, TableArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS)
