"""Merge several trained models into one folder: one JSON line on stdout.

cosent merge --by vectors --models runs/a runs/b --output runs/both        bi-encoders: the mean of their cosines
cosent merge --by weights --models runs/seed1 runs/seed2 --output runs/soup    runs from one start: mean weights
cosent merge --by scores --models runs/cross1 runs/cross2 --output runs/both   cross-encoders: the mean of their logits
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cosent.cli import REQUIRED, option, refuse_changed, run
from cosent.data.corpus import Corpus
from cosent.errors import InputError, complete_folder, writing
from cosent.evaluation.calibration import fit_calibration
from cosent.evaluation.metrics import SimilarityMetrics, can_rank, find_threshold
from cosent.models.auto import load_model
from cosent.models.bi_encoder import Embedder, TextModel
from cosent.run import Proof
from cosent.training.evaluation import Evaluation
from cosent.training.proof import SAME_WEIGHTS, answers, relative_difference

SENTENCES = 50_000  # most that the directions of --width are chosen by


@dataclass
class MergeArguments:
    """Models to merge, and how."""

    models: list[str] = option(REQUIRED, "Folders of trained models, shipped encoders or Hub ids; two or more.")
    by: str = option(REQUIRED, "What is averaged.", ("vectors", "weights", "scores"))
    output: str = option(REQUIRED, "Folder to write.")
    weights: list[float] | None = option(None, "A positive number for each model; default: equal ones.")
    width: int | None = option(
        None, "By vectors: project them to so many dimensions, chosen by --text or --corpus; default: all of them."
    )
    text: list[str] | None = option(None, "Sentences for --width: .txt or .jsonl files, also .gz, a sentence per line.")
    corpus: str | None = option(
        None, "Prepared corpus whose validation split finds threshold and probabilities, and whose train split serves "
        "--width; default: none are found.",
    )  # fmt: skip
    data_dir: str = option("data", "Folder of the prepared corpora.")
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")


def main(args: MergeArguments) -> None:
    from cosent.data.corpus import load_corpus
    from cosent.models.ensemble import common_start
    from cosent.run import CorpusRecord, RunRecord
    from cosent.training.record import environment, footprint

    start = time.time()
    check(args)
    corpus = None if args.corpus is None else load_corpus(args.corpus, args.data_dir)
    model = merged(args)
    facts, about = ([], {}) if args.width is None else project(args, model, corpus)
    found = decide(model, corpus)
    record = RunRecord(
        recipe=asdict(args) | {"model_name_or_path": common_start(args.models) if args.by == "weights" else None},
        environment=environment(),
        train_seconds=0.0,
        seconds=time.time() - start,
        history=[],
        footprint=footprint(model, None),
        corpora={} if corpus is None else {corpus.manifest.name: CorpusRecord.of(corpus.folder)},
        after=found.metrics,
        thresholds=found.thresholds,
        calibrations=found.calibrations,
        prompts=model.prompts.sides(),
    )
    given = args.weights or [1.0] * len(args.models)
    weights = [weight / sum(given) for weight in given]
    with writing(args.output), complete_folder(Path(args.output)) as folder:
        model.save_pretrained(folder)
        record.proof = prove(model, folder)
        (folder / "README.md").write_text(model_card(args.by, args.models, weights, facts), encoding="utf-8")
        record.save(folder)
    result = {"output": args.output, "by": args.by, "weights": [round(weight, 4) for weight in weights]} | about
    print(json.dumps(result | {"validation": found.metrics, "seconds": round(time.time() - start, 1)}))


def check(args: MergeArguments) -> None:
    """Refuses arguments that would fail only after all models are loaded.

    Raises:
        InputError: an output that exists, models or weights that make no mean, or flags that do not go together.
    """
    output = Path(args.output)
    if output.exists():
        raise InputError(f"--output {output} exists, and nothing was written. Name another folder, or remove it.")
    if len(args.models) < 2:
        raise InputError(f"--models takes two models or more, got {len(args.models)}: one alone is its own mean.")
    given = args.weights
    if given is not None and (len(given) != len(args.models) or not all(0 < weight < np.inf for weight in given)):
        raise InputError(
            f"--weights takes one positive number for each of the {len(args.models)} models, got "
            f"{' '.join(f'{weight:g}' for weight in given)}. Leave it out for equal ones."
        )
    if args.by != "vectors":
        refuse_changed(args, ("width",), "--by vectors")
    if args.width is None:
        refuse_changed(args, ("text",), "--width")
    elif not args.text and args.corpus is None:
        raise InputError("--width chooses dimensions by sentences, and there are none. Name some: --text or --corpus.")


def merged(args: MergeArguments):
    """The merged model, on its device."""
    from cosent.compute.onednn import choose_device
    from cosent.models.ensemble import ScoreEnsemble, VectorEnsemble, average

    models = [load_member(name, args.by) for name in args.models]
    if args.by == "weights":
        model = average(models, args.models, args.weights or [1.0] * len(models))
    else:
        model = (VectorEnsemble if args.by == "vectors" else ScoreEnsemble)(models, args.weights)
    return model.to(choose_device(args.device))


def load_member(name: str, by: str):
    """Loads one of the models.

    Raises:
        InputError: a model that has no such mean with others.
    """
    from cosent.models.auto import load_model
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.models.cross_encoder import CrossEncoder

    kinds = {"vectors": (SentenceEncoder,), "scores": (CrossEncoder,), "weights": (SentenceEncoder, CrossEncoder)}[by]
    model = load_model(name)
    if not isinstance(model, kinds):
        tower = {SentenceEncoder: "a bi-encoder", CrossEncoder: "a cross-encoder"}
        got = tower.get(type(model), "an ensemble")
        raise InputError(
            f"--by {by} merges models of which each is {' or '.join(tower[kind] for kind in kinds)}, and {name} is "
            f"{got}. Cosines and logits have no mean, but their ranks have: docs/ensembles.md. Of an ensemble name "
            "the members."
        )
    return model


def project(args: MergeArguments, ensemble, corpus) -> tuple[list[str], dict]:
    """Adds the projection to an ensemble; sentences about it for the README, and numbers for stdout."""
    import torch

    from cosent.models.modules import IDENTITY, Dense

    sentences = sentences_of(args, corpus)
    found = fit_projection(ensemble.encode(sentences, show_progress_bar=True), args.width)
    width, dimensions = found.weight.shape
    dense = Dense(dimensions, width, bias=False, activation_function=IDENTITY)
    dense.linear.weight.data = torch.from_numpy(found.weight)
    ensemble.tail.append(dense.to(ensemble.device))
    about = {"width": width, "of": dimensions, "sentences": len(sentences)}
    about |= {"lost_variance": round(found.lost_variance, 6), "moved_cosines": round(found.moved, 6)}
    fact = (
        f"The {dimensions} dimensions of all vectors together are projected to {width}, chosen by {len(sentences):,} "
        f"sentences: {found.lost_variance:.2%} of their variance is lost, and the cosines of random pairs of them "
        f"change by {found.moved:.4f} on average."
    )
    return [fact], about


def sentences_of(args: MergeArguments, corpus) -> list[str]:
    """Distinct sentences of the files and of the train split, at most `SENTENCES`, drawn at random."""
    from cosent.data.pairs import read_texts

    rows = [] if corpus is None else corpus.split("train")
    columns = [rows[name][:] for name in ("sentence1", "sentence2")] if corpus is not None else []
    distinct = list(dict.fromkeys([*read_texts(args.text or []), *(one for column in columns for one in column)]))
    if len(distinct) <= SENTENCES:
        return distinct
    return [distinct[place] for place in np.random.default_rng(0).choice(len(distinct), SENTENCES, replace=False)]


ARGUMENTS = (MergeArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)


SAMPLED_PAIRS = 10_000  # random ones, whose cosines say what is lost


@dataclass(frozen=True)
class Projection:
    """Orthonormal directions, and what is lost outside of them.

    Args:
        weight: float32 of shape `(width, dimensions)`, orthonormal rows.
        lost_variance: share of the variance of the sentences' vectors.
        moved: mean absolute change of the cosine of random pairs of them.
    """

    weight: np.ndarray
    lost_variance: float
    moved: float


def fit_projection(vectors: np.ndarray, width: int) -> Projection:
    """The `width` orthonormal directions that keep most of the squared length of vectors.

    The mean is not taken off, as PCA does: cosines are between vectors from the origin, and at full width they stay
    exactly as they are.

    Args:
        vectors: float32 of shape `(sentences, dimensions)`.

    Raises:
        InputError: fewer sentences than `width`, or a width that is not from 1 to `dimensions`.
    """
    count, dimensions = vectors.shape
    if not 1 <= width <= dimensions:
        raise InputError(f"--width must be 1 to {dimensions}, the width of all vectors together, got {width}.")
    if count < width:
        raise InputError(
            f"--width {width} needs at least as many sentences to choose the directions by, got {count}: the others "
            "would be arbitrary. Name more with --text or --corpus, or take fewer dimensions."
        )
    moment = np.zeros((dimensions, dimensions))
    for start in range(0, count, 4096):
        part = vectors[start : start + 4096].astype(np.float64)
        moment += part.T @ part
    _, directions = np.linalg.eigh(moment / count)  # by rising share
    weight = np.ascontiguousarray(directions[:, ::-1][:, :width].T)
    mean = vectors.mean(axis=0, dtype=np.float64)
    variance = np.trace(moment) / count - mean @ mean
    kept = np.einsum("wd,de,we->", weight, moment / count, weight) - np.sum((weight @ mean) ** 2)
    return Projection(weight.astype(np.float32), max(0.0, 1 - kept / variance), change(vectors, weight))


def change(vectors: np.ndarray, weight: np.ndarray) -> float:
    """Mean absolute change of the cosine of random pairs of vectors by a projection."""
    first, second = np.random.default_rng(0).integers(len(vectors), size=(2, SAMPLED_PAIRS))
    projected = vectors @ weight.T.astype(np.float32)
    before, after = (cosines(of, first, second) for of in (vectors, projected))
    return float(np.abs(after - before).mean())


def cosines(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return np.einsum("pd,pd->p", unit[first], unit[second])


def decide(model: TextModel, corpus: Corpus | None) -> Evaluation:
    """Scores the validation split; for labels of 0 and 1 also finds threshold and map.

    Nothing is found without a corpus, since the thresholds of members mean nothing for their mean.
    """
    found = Evaluation()
    if corpus is None:
        return found
    name, rows, labels = corpus.manifest.name, corpus.split("validation"), corpus.labels("validation")
    scores = model.similarity(rows["sentence1"][:], rows["sentence2"][:], show_progress_bar=True)
    if corpus.manifest.label_kind == "binary" and can_rank(labels):
        found.thresholds[name] = find_threshold(scores, labels)[0]
        found.calibrations[name] = fit_calibration(scores, labels)
    metrics = SimilarityMetrics().compute(predictions=scores, references=labels, threshold=found.thresholds.get(name))
    found.metrics[name] = {"validation": metrics}
    return found


WHAT = {
    "vectors": "Several bi-encoders as one: the cosine of two sentences is the weighted mean of the members' cosines.",
    "scores": "Several cross-encoders as one: the score of a pair is the weighted mean of the members' scores.",
    "weights": "One model whose weights are the weighted mean of those of several. It loads wherever they do.",
}
CALLS = {
    "vectors": ("SentenceTransformer", 'encode(["怎么还款"])', 'encode(["怎么还款"])'),
    "scores": ("CrossEncoder", 'similarity("怎么还款", "如何还款")', 'predict([("怎么还款", "如何还款")])'),
}
LOADING = """To load it, `cosent` must be installed; sentence-transformers then has to be told to import a class
from there. No code is in this folder.

```python
from cosent import load_model
load_model("FOLDER").{ours}

from sentence_transformers import {kind}
{kind}("FOLDER", trust_remote_code=True).{theirs}
```

Servers with code of their own (Text Embeddings Inference, vLLM) do not load it. The folders in `0_...` are the members;
each loads alone."""


def model_card(by: str, names: Sequence[str], weights: Sequence[float], facts: Sequence[str]) -> str:
    """The text.

    Args:
        weights: of the members, with a sum of 1.
        facts: further sentences about the model.
    """
    members = "\n".join(f"* {weight:.4g} of `{name}`" for name, weight in zip(names, weights, strict=True))
    parts = [f"# Merged by {by}", WHAT[by], members, *facts]
    if by in CALLS:
        kind, ours, theirs = CALLS[by]
        parts.append(LOADING.format(kind=kind, ours=ours, theirs=theirs))
    return "\n\n".join(parts) + "\n"


PAIRS = [("今天天气不错", "今天天气很好"), ("我喜欢北京", "我不喜欢北京"), ("怎么还款", "如何还款")]


def prove(model: TextModel, folder: Path) -> Proof:
    """Compares vectors or scores of a few sentences.

    Raises:
        InputError: they differ by more than rounding.
    """
    now, loaded = answers(model, PAIRS), answers(load_model(str(folder)).to(model.device), PAIRS)
    difference = relative_difference(loaded, now)
    if not difference <= SAME_WEIGHTS:
        raise InputError(
            f"Expected the merged folder, loaded from disk, to answer as the model in memory, got a difference of "
            f"{difference:.0e} of the largest value: it would be another model. Please report it with the members' "
            "config.json."
        )
    return Proof(difference, None, len(now), "vectors" if isinstance(model, Embedder) else "scores")
