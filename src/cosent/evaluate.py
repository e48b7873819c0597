"""Score a prepared corpus with a trained model: one JSON line on stdout, a table on stderr.

cosent evaluate --model runs/stsb --corpus stsb --split test --predictions out.tsv
"""

import json
import math
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cosent.cli import run
from cosent.data.retrieval_arguments import RetrievalArguments
from cosent.errors import InputError, writing
from cosent.evaluation.calibration import Calibration
from cosent.files import partial_file
from cosent.flags import REQUIRED, option, refuse_below_1
from cosent.inference.prompt_arguments import PromptArguments, described, warn_of_other_prompts
from cosent.run_record import read_record
from cosent.schema import SPLITS

PREDICTION_COLUMNS = ("id", "sentence1", "sentence2", "label", "prediction", "score")


@dataclass
class EvaluateArguments:
    """Model, corpus and threshold of an evaluation."""

    model: str = option(REQUIRED, "Folder of a trained model, a shipped encoder or a Hub id.")
    corpus: str = option(REQUIRED, "Prepared corpus: a name under --data_dir, or a folder.")
    split: str = option("test", "Split to score.", SPLITS)
    data_dir: str = option("data", "Folder of the prepared corpora.")
    batch_size: int = option(512, "Most sentences or pairs per forward pass; their tokens are limited too.")
    threshold: float | None = option(None, "Lowest score of a similar pair; default: that of the model.")
    find_threshold: bool = option(False, "Find threshold and probabilities on the validation split of this corpus.")
    threshold_grid: float | None = option(None, "Step of a grid over 0..1 for --find_threshold; default: exact search.")
    int8: bool = option(False, "Linear layers in int8 (CPU).")
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available, cpu with --int8.")
    predictions: str | None = option(None, "TSV to write, a row per pair: " + ", ".join(PREDICTION_COLUMNS) + ".")


def main(args: EvaluateArguments, prompt_args: PromptArguments, retrieval_args: RetrievalArguments) -> None:
    from cosent.compute.devices import choose_device
    from cosent.compute.distributed import rank
    from cosent.data.corpus import load_corpus
    from cosent.data.retrieval import retrieval_task
    from cosent.evaluation.calibration import calibration_metrics
    from cosent.evaluation.metrics import SimilarityMetrics
    from cosent.inference.embedding import quantized
    from cosent.inference.shared_work import embed_pool, score
    from cosent.modeling.auto import load_model
    from cosent.modeling.embedder import Embedder

    start = time.time()
    device = choose_device(args.device, args.int8)
    refuse_below_1(args, "batch_size")
    if args.predictions and not Path(args.predictions).parent.is_dir():
        raise InputError(f"--predictions {args.predictions}: there is no such folder. Create it first.")
    corpus = load_corpus(args.corpus, args.data_dir)
    model = load_model(args.model).to(device)
    if args.int8:
        model = quantized(model)
    prompts = model.prompts.sides(prompt_args.prompt, prompt_args.prompt_name)
    warn_of_other_prompts(args.model, *prompts)
    task = None
    if retrieval_args.retrieval and isinstance(model, Embedder):
        task = retrieval_task(corpus, args.split, retrieval_args)
    if task is None:
        scores = score(model, corpus.split(args.split), args.batch_size, prompts)
    else:
        queries, documents = embed_pool(model, task.pool, args.batch_size, prompts)
        scores = (queries[task.places[:, 0]] * documents[task.places[:, 1]]).sum(axis=1)
    labels = corpus.labels(args.split)
    decision = choose_decision(args, corpus, model, prompts)
    metrics = SimilarityMetrics().compute(predictions=scores, references=labels, threshold=decision.threshold)
    if rank() > 0:
        return
    if args.predictions:
        write_predictions(args.predictions, corpus.split(args.split), scores, decision.threshold)
    result = {"model": args.model, "corpus": corpus.manifest.name, "split": args.split, "pairs": len(scores)}
    result |= {
        "int8": args.int8,
        "prompts": prompts,
        "threshold": decision.threshold,
        "threshold_from": decision.threshold_from,
    }
    result |= {"calibration": decision.method, "calibration_from": decision.calibration_from}
    errors = {}
    if corpus.manifest.label_kind == "binary":
        tower = "bi_encoder" if isinstance(model, Embedder) else "cross_encoder"
        errors = calibration_metrics(decision.calibration, scores, labels, tower)
    found = {} if task is None else retrieval(task, queries, documents)
    print(table(result, metrics, errors), *retrieval_lines(found), sep="\n", file=sys.stderr)
    numbers = {name: value if math.isfinite(value) else None for name, value in (metrics | errors).items()}
    print(json.dumps(result | numbers | found | {"seconds": time.time() - start}))  # JSON has no NaN


def retrieval(task, queries: np.ndarray, documents: np.ndarray) -> dict:
    """Retrieval metrics of a `RetrievalTask` with 95% intervals, and the numbers of queries and sentences searched."""
    from cosent.evaluation.retrieval import mean_intervals
    from cosent.inference.finding import found_by_vectors

    values = found_by_vectors(queries, documents, task.relevance)
    means = {name: float(np.mean(of_queries)) for name, of_queries in values.items()}
    return means | task.size | {"intervals": mean_intervals(values)}


def retrieval_lines(found: dict) -> list[str]:
    if not found:
        return []
    lines = ["", f"retrieval: {found['queries']} queries among {found['pool']} sentences", f"{'':20}              95%"]
    for name, (low, high) in found["intervals"].items():
        lines.append(f"  {name:<18}{found[name]:8.4f}  {low:.4f} to {high:.4f}")
    return lines


@dataclass(frozen=True)
class Decision:
    """A threshold and a map from scores to probabilities, or None, and the source of each."""

    threshold: float | None
    threshold_from: str
    calibration: Calibration | None
    calibration_from: str

    @property
    def method(self) -> str | None:
        return None if self.calibration is None else self.calibration.method


def choose_decision(args: EvaluateArguments, corpus, model, prompts: tuple[str, str]) -> Decision:
    """The threshold from a flag, this corpus' validation split or the training of the model; the map from the last two.

    Args:
        prompts: those of both sentences; what training found with others means nothing here.

    Raises:
        InputError: a threshold is requested on labels that are not binary, or in two ways.
    """
    if args.find_threshold and args.threshold is not None:
        raise InputError("--threshold sets a threshold and --find_threshold searches for one. Give one of the two.")
    if args.threshold_grid is not None and not args.find_threshold:
        raise InputError("--threshold_grid is an option of --find_threshold. Add that flag, or leave both out.")
    name, record = corpus.manifest.name, read_record(args.model)
    if corpus.manifest.label_kind != "binary":
        if args.threshold is not None or args.find_threshold:
            raise InputError(f"{name} has {corpus.manifest.label_kind} labels: accuracy at a threshold needs 0 and 1.")
        return Decision(None, "none: the labels are not binary", None, "none: the labels are not binary")
    if args.find_threshold:
        return find_decision(args, corpus, model, prompts)
    trained = f"{name} validation, when the model was trained"
    fits = record is not None and record.prompts == prompts
    threshold = record.thresholds.get(name) if fits else None
    calibration = record.calibrations.get(name) if fits else None
    source = f"none: the model was not trained on {name}; --find_threshold or --threshold"
    missing = f"none: the model has none for {name}; --find_threshold fits one"
    if record is not None and not fits:
        source = f"none: the model was trained with {described(record.prompts)}; --find_threshold or --threshold"
        missing = f"none: the model was trained with {described(record.prompts)}; --find_threshold fits one"
    if args.threshold is not None:
        threshold, source = args.threshold, "--threshold"
    elif threshold is not None:
        source = trained
    return Decision(threshold, source, calibration, missing if calibration is None else trained)


def find_decision(args: EvaluateArguments, corpus, model, prompts: tuple[str, str]) -> Decision:
    """The threshold and the map that fit the validation split of this corpus."""
    from cosent.evaluation.calibration_fit import fit_calibration
    from cosent.evaluation.metrics import can_rank, find_threshold
    from cosent.inference.shared_work import score
    from cosent.modeling.embedder import Embedder

    if args.threshold_grid and not isinstance(model, Embedder):
        raise InputError("--threshold_grid divides 0..1; the logits of a cross-encoder have no bounds. Drop it.")
    source = f"{corpus.manifest.name} validation"
    scores, labels = score(model, corpus.split("validation"), args.batch_size, prompts), corpus.labels("validation")
    threshold = find_threshold(scores, labels, grid=args.threshold_grid)[0]
    if not can_rank(labels):
        return Decision(threshold, source, None, "none: all labels of the validation split are equal")
    return Decision(threshold, source, fit_calibration(scores, labels), source)


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


def table(result: dict, metrics: dict, errors: dict) -> str:
    head = f"{result['model']} on {result['corpus']} {result['split']} ({result['pairs']} pairs)"
    if result["threshold"] is not None:
        head += f", threshold {result['threshold']:.4f} from {result['threshold_from']}"
    lines = [head, *(f"  {name:<18}{value:8.4f}" for name, value in metrics.items())]
    if errors:
        method = result["calibration"] or "no map"
        lines += ["", f"as probabilities ({method}: {result['calibration_from']})", f"{'':20}   as is  calibrated"]
    for name in ("brier", "log_loss", "calibration_error") if errors else ():
        line = f"  {name:<18}{errors[f'uncalibrated_{name}']:8.4f}"
        lines.append(line + (f"{errors[name]:12.4f}" if name in errors else ""))
    return "\n".join(lines)


ARGUMENTS = (EvaluateArguments, PromptArguments, RetrievalArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS)
