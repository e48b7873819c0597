"""What an evaluation writes: the table on stderr, and the file of predictions."""

import re

import numpy as np

from cosent.errors import writing
from cosent.files import partial_file

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


def table(result: dict, metrics: dict, errors: dict) -> str:
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
    return "\n".join(lines)


def retrieval_lines(found: dict) -> list[str]:
    if not found:
        return []
    lines = ["", f"retrieval: {found['queries']} queries among {found['pool']} sentences", f"{'':20}              95%"]
    for name, (low, high) in found["intervals"].items():
        lines.append(f"  {name:<18}{found[name]:8.4f}  {low:.4f} to {high:.4f}")
    return lines
