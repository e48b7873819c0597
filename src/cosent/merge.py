"""Merge several trained models into one folder: one JSON line on stdout.

cosent merge --by vectors --models runs/a runs/b --output runs/both        bi-encoders: the mean of their cosines
cosent merge --by weights --models runs/seed1 runs/seed2 --output runs/soup    runs from one start: mean weights
cosent merge --by scores --models runs/cross1 runs/cross2 --output runs/both   cross-encoders: the mean of their logits
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cosent.cli import run
from cosent.errors import InputError, writing
from cosent.files import complete_folder
from cosent.flags import REQUIRED, option, refuse_changed

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
    from cosent.merging.decision import decide
    from cosent.merging.model_card import model_card
    from cosent.merging.proof import prove
    from cosent.merging.soup import common_start
    from cosent.run import CorpusRecord, RunRecord
    from cosent.training.environment import environment, footprint

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
    from cosent.compute.devices import choose_device
    from cosent.merging.soup import average
    from cosent.modeling.ensemble import ScoreEnsemble, VectorEnsemble

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
    from cosent.modeling.auto import load_model
    from cosent.modeling.bi_encoder import SentenceEncoder
    from cosent.modeling.cross_encoder import CrossEncoder

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

    from cosent.merging.projection import fit_projection
    from cosent.modeling.tail import IDENTITY, Dense

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
    from cosent.data.text import read_texts

    rows = [] if corpus is None else corpus.split("train")
    columns = [rows[name][:] for name in ("sentence1", "sentence2")] if corpus is not None else []
    distinct = list(dict.fromkeys([*read_texts(args.text or []), *(one for column in columns for one in column)]))
    if len(distinct) <= SENTENCES:
        return distinct
    return [distinct[place] for place in np.random.default_rng(0).choice(len(distinct), SENTENCES, replace=False)]


ARGUMENTS = (MergeArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
