"""Say what a model has understood of Chinese: order of minimal pairs by phenomenon, vectors, and its worst pairs.

cosent probe --model similar
cosent probe --model mini runs/faq --output probe.html
cosent probe --model runs/faq --text questions.txt --corpus lcqmc --json
cosent probe --model runs/faq --text questions.txt --fix data/faq_fix
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from cosent.cli import nearest, option, refuse_below_1, refuse_changed, run
from cosent.data.manifest import SPLITS
from cosent.encoders import resolve
from cosent.errors import InputError, write_atomically, writing

LEAST = 10  # sentences of one's own, with something to exchange
MOST = 1000  # sentences whose vectors are compared with one another
WORST = 50
DIRECTIONS = 32  # of the spectrum
KEPT_FAILURES = 10  # of a phenomenon, each of another template


@dataclass
class ProbeArguments:
    """What to probe."""

    model: list[str] = option(["similar"], "One model, or two to compare: folders, shipped models, Hub ids.")
    phenomenon: list[str] | None = option(None, "Phenomena, as negation number typo; default: all.")
    items: int = option(120, "Items per phenomenon, at most.")
    text: list[str] | None = option(
        None, "Instead of sentences of the grammars, your own: files with a sentence a line, in which numbers, dates, "
        "places, negations, ... are exchanged."
    )  # fmt: skip
    corpus: str | None = option(
        None, "Labelled corpus whose worst pairs to show: a name under --data_dir, or a folder."
    )
    split: str = option("validation", "Its split.", SPLITS)
    data_dir: str = option("data", "Folder of the prepared corpora.")
    fix: str | None = option(
        None, "Folder to write: a prepared corpus of pairs of --text, reworded (2), changed (1) and random (0), for "
        "`cosent train --corpus faq FOLDER`; --phenomenon does not limit them."
    )  # fmt: skip
    output: str | None = option(None, "HTML page to write.")
    json: bool = option(False, "Print one JSON object instead of tables.")
    seed: int = option(42, "Seed of all that is drawn.")
    batch_size: int = option(512, "Most sentences or pairs per forward pass; their tokens are limited too.")
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")
    overwrite: bool = option(False, "Replace the page if it exists.")


def main(args: ProbeArguments) -> None:
    phenomena = check(args)  # before imports that take seconds
    for path in args.model:
        resolve(path)
    sentences = read_sentences(args.text)
    items = items_to_score(args, phenomena, sentences)
    if args.fix is not None:
        print(json.dumps(write_fix(args, sentences)), file=sys.stderr)
    from cosent.compute.onednn import choose_device
    from cosent.models.auto import load_model

    corpus = None if args.corpus is None else labelled_rows(args)
    models, scored = [], []
    for path in args.model:
        model = load_model(path).to(choose_device(args.device))
        scored.append(scores_of(partial(model.similarity, batch_size=args.batch_size), items, path))
        models.append(describe(path, args, model, items, *scored[-1]))
        models[-1] |= of_corpus_or_items(args, model, corpus, sentences, items, scored[-1][0])
    result = {
        "sentences": args.text or "grammars",
        "corpus": args.corpus and f"{args.corpus} {args.split}",
        "seed": args.seed,
        "models": models,
        "overlap": overlap(items),
        "differences": differences(items, scored) if len(scored) == 2 else {},
    }
    if args.output is not None:
        write_page(args.output, result, items, scored)
    print(json.dumps(result, ensure_ascii=False) if args.json else "\n".join(lines(result)))


def check(args: ProbeArguments) -> tuple[str, ...]:
    """Refuses arguments before a model is loaded; gives the phenomena."""
    from cosent.evaluation.minimal_pairs import PHENOMENA

    refuse_below_1(args, "items", "batch_size")
    for name in args.phenomenon or ():
        if name not in PHENOMENA:
            raise InputError(
                f"--phenomenon {name}: there is none of that name.{nearest(name, PHENOMENA)} They are "
                f"{', '.join(PHENOMENA)}."
            )
    if len(args.model) > 2 or len(set(args.model)) < len(args.model):
        raise InputError(f"--model takes one model, or two different ones, got {' '.join(args.model)}.")
    if args.corpus is None:
        refuse_changed(args, ("split", "data_dir"), "--corpus NAME")
    if args.text is None:
        refuse_changed(args, ("fix",), "--text FILE")
    if args.fix is not None and Path(args.fix).exists():
        raise InputError(f"--fix {args.fix} exists. Name another folder, or remove it.")
    if args.output is not None:
        if find_spec("matplotlib") is None:
            raise InputError("--output draws figures with matplotlib. Install: pip install -e '.[report]'.")
        if Path(args.output).suffix != ".html":
            raise InputError(f"--output {args.output} is an HTML page. Name a file that ends in .html.")
        if Path(args.output).exists() and not args.overwrite:
            raise InputError(f"--output {args.output} exists. Name another, or pass --overwrite.")
    return tuple(name for name in PHENOMENA if name in (args.phenomenon or PHENOMENA))


def read_sentences(text: list[str] | None) -> list[str]:
    """The different sentences of the files; none without files."""
    if text is None:
        return []
    from cosent.data.pairs import read_texts

    sentences = list(dict.fromkeys(read_texts(text)))
    if len(sentences) < LEAST:
        raise InputError(
            f"--text {' '.join(text)} has {len(sentences)} different sentences, and a probe needs {LEAST}. Add some."
        )
    return sentences


def items_to_score(args: ProbeArguments, phenomena: tuple[str, ...], sentences: list[str]) -> list:
    """Items of the grammars, or of one's own sentences."""
    from cosent.evaluation.minimal_pairs import items

    if args.text is None:
        return [item for name in phenomena for item in items(name, args.items, args.seed)]
    from cosent.inference.perturbations import items_of

    found = items_of(sentences, phenomena, args.items, args.seed)
    usable = len({item.anchor for item in found})
    if usable < min(LEAST, args.items):
        raise InputError(
            f"--text {' '.join(args.text)}: {usable} of {len(sentences)} sentences have something to exchange (a "
            f"number, date, place, negation, ...) for {' '.join(phenomena)}, and a probe needs {LEAST}. Add sentences "
            "or phenomena."
        )
    return found


def scores_of(score: Callable, items: list, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores of each sentence with its rewording, and with its changed form."""
    from cosent.inference.embedding import check_finite

    others = [item.same for item in items] + [item.different for item in items]
    values = np.asarray(score([item.anchor for item in items] * 2, others), np.float64)
    check_finite(values, 0, f"--model {name}")
    return values[: len(items)], values[len(items) :]


def overlap(items: list) -> dict[str, float]:
    """Accuracy of character overlap, by phenomenon."""
    from cosent.evaluation.similarity import character_overlap

    same, different = scores_of(lambda *sides: list(map(character_overlap, *sides)), items, "overlap")
    return {name: float((same > different)[rows].mean()) for name, rows in places(items).items()}


def places(items: list) -> dict[str, np.ndarray]:
    """Places of the items of each phenomenon."""
    names = np.array([item.phenomenon for item in items])
    return {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}


def describe(path: str, args, model, items: list, same: np.ndarray, different: np.ndarray) -> dict[str, Any]:
    """The accuracy of the order by phenomenon, mean scores, verdicts and failures of a model."""
    from cosent.evaluation.minimal_pairs import share_interval
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.run import choose_rule, decision_rules

    rule, templates = choose_rule(decision_rules(path), None, path), np.array([item.template for item in items])
    phenomena = {}
    for name, rows in places(items).items():
        hits = (same > different)[rows]
        best_first = rows[np.argsort((different - same)[rows], kind="stable")]
        wrong = {items[row].template: row for row in best_first if same[row] <= different[row]}  # the worst of each
        phenomena[name] = {
            "items": len(rows),
            "templates": len(np.unique(templates[rows])),
            "accuracy": float(hits.mean()),
            "interval": list(share_interval(hits, templates[rows])),
            "same": float(same[rows].mean()),
            "different": float(different[rows].mean()),
            "similar_same": None if rule is None else float(rule.similar(same[rows]).mean()),
            "similar_different": None if rule is None else float(rule.similar(different[rows]).mean()),
            "failures": [
                {**vars(items[row]), "score_same": float(same[row]), "score_different": float(different[row])}
                for row in sorted(wrong.values(), key=lambda row: same[row] - different[row])[:KEPT_FAILURES]
            ],
        }
    kind = "cosine" if isinstance(model, SentenceEncoder) else "score"
    alone = len({Path(other).name for other in args.model}) == len(args.model)
    return {"model": path, "name": Path(path).name if alone else path, "score": kind, "phenomena": phenomena}


def differences(items: list, scored: list) -> dict[str, dict]:
    """Accuracy of the second model minus that of the first, on the same items."""
    from cosent.evaluation.minimal_pairs import difference_interval

    templates, hits = np.array([item.template for item in items]), [same > different for same, different in scored]
    found = {}
    for name, rows in places(items).items():
        first, second = (of_model[rows] for of_model in hits)
        interval = list(difference_interval(first, second, templates[rows]))
        found[name] = {"difference": float(second.mean() - first.mean()), "interval": interval}
    return found


def of_corpus_or_items(args, model, corpus, sentences: list[str], items: list, same: np.ndarray) -> dict[str, Any]:
    """The worst pairs of the corpus, and the geometry of its sentences; without one, of one's own, or of the items.

    Args:
        corpus: as `labelled_rows`, or None.
        same: scores of the items with their rewording, the similar pairs without a corpus.
    """
    texts, worst = sentences or [item.anchor for item in items], []
    if corpus is not None:
        first, second, labels, similar_from = corpus
        scores = np.asarray(model.similarity(first, second, args.batch_size), np.float64)
        texts, same = [*first, *second], scores[labels >= similar_from]
        worst = worst_pairs(first, second, labels, scores)
    return {"geometry": geometry(model, texts, same, args), "worst": worst}


def geometry(model, texts: list[str], similar: np.ndarray, args: ProbeArguments) -> dict[str, Any] | None:
    """How the vectors of a bi-encoder lie; None for a cross-encoder.

    Args:
        similar: cosines of similar pairs: `alignment` is their mean `|u - v|^2 = 2 - 2 cos`.
    """
    from cosent.evaluation.similarity import hubness, spectrum, spread
    from cosent.models.bi_encoder import SentenceEncoder

    if not isinstance(model, SentenceEncoder):
        return None
    texts = sorted(set(texts))
    drawn = np.sort(np.random.default_rng(args.seed).permutation(len(texts))[:MOST])
    units = model.encode([texts[place] for place in drawn], args.batch_size, normalize_embeddings=True)
    shares = spectrum(units)
    return {
        "sentences": len(units),
        **spread(units),
        "hubness": hubness(units),
        "alignment": float(2 - 2 * similar.mean()) if len(similar) else None,
        "width": int(units.shape[1]),
        "directions_90": int(np.searchsorted(shares, 0.9) + 1),
        "spectrum": shares[:DIRECTIONS].tolist(),
    }


def labelled_rows(args: ProbeArguments) -> tuple[list[str], list[str], np.ndarray, float]:
    """Both sentences and the label of every pair of `--corpus`, and the least label of similar sentences."""
    from cosent.data.corpus import load_corpus
    from cosent.evaluation.metrics import can_rank

    corpus = load_corpus(args.corpus, args.data_dir)
    rows, labels = corpus.split(args.split), corpus.labels(args.split)
    if not can_rank(labels):
        raise InputError(f"--corpus {args.corpus} {args.split} has one label only, and no order. Name another split.")
    return rows["sentence1"][:], rows["sentence2"][:], labels, corpus.manifest.similar_from


def worst_pairs(first: list[str], second: list[str], labels: np.ndarray, scores: np.ndarray) -> list[dict]:
    """The pairs whose score has the most different rank from their label, as a share of all pairs."""
    from cosent.evaluation.significance import ranks

    gaps = (ranks(scores) - ranks(labels)) / len(labels)
    columns = (first, second, labels.tolist(), scores.tolist(), gaps.tolist())
    names = ("sentence1", "sentence2", "label", "score", "gap")
    worst = np.argsort(-np.abs(gaps), kind="stable")[:WORST]
    return [dict(zip(names, (column[row] for column in columns), strict=True)) for row in worst]


def write_fix(args: ProbeArguments, sentences: list[str]) -> dict[str, Any]:
    """Writes the prepared corpus of `--fix`; no sentence of its validation split is one of its train split."""
    from cosent.data.manifest import Manifest
    from cosent.inference.mining import write_corpus
    from cosent.inference.perturbations import LABELS, training_pairs

    folder, order = Path(args.fix or ""), np.random.default_rng(args.seed).permutation(len(sentences))
    held_out = set(order[: max(LEAST // 5, len(sentences) // 10)].tolist())
    splits, texts, counts = {}, {}, {}
    for split in ("train", "validation"):
        own = [text for place, text in enumerate(sentences) if (place in held_out) == (split == "validation")]
        pairs = training_pairs(own, args.seed)
        counts[split] = {name: Counter(pairs.values())[label] for name, label in LABELS.items()}
        if not all(counts[split].values()):
            raise InputError(
                f"--fix: {len(own)} sentences make {counts[split]} pairs for {split}. Add sentences with numbers, "
                "dates, places, negations, ... to --text."
            )
        sides = [np.array([texts.setdefault(text, len(texts)) for text in side]) for side in zip(*pairs, strict=True)]
        splits[split] = (*sides, np.array(list(pairs.values()), np.float32))
    longest = max(map(len, texts)) + 2
    manifest = Manifest(
        name=folder.name,
        label_kind="graded",
        label_min=min(LABELS.values()),
        label_max=max(LABELS.values()),
        max_length={"bi_encoder": min(512, longest), "cross_encoder": min(512, 2 * longest)},
        splits={"train": {"made": {"text": args.text, "seed": args.seed, "labels": LABELS}}},
        source=f"pairs made by `cosent probe --fix` of {' and '.join(args.text or [])}",
    )
    write_corpus(folder, manifest, list(texts), splits)
    return {"fix": args.fix} | counts


def lines(result: dict[str, Any]) -> list[str]:
    """The tables in text."""
    models, two = result["models"], len(result["models"]) == 2
    head = f"{'':14}{'items':>6}{'overlap':>9}" + "".join(f"{model['name'][-20:]:>22}" for model in models)
    found = ["accuracy of the order x100 (95%): the rewording scores above the changed sentence"]
    found.append(head + (f"{'difference':>24}" if two else ""))
    for name, of_overlap in result["overlap"].items():
        line = f"{name:14}{models[0]['phenomena'][name]['items']:>6}{100 * of_overlap:>9.1f}"
        for one in (model["phenomena"][name] for model in models):
            low, high = (100 * end for end in one["interval"])
            line += f"{100 * one['accuracy']:>10.1f} {f'({low:.0f} to {high:.0f})':>11}"
        if two:
            gap = result["differences"][name]
            low, high = (100 * end for end in gap["interval"])
            line += f"{100 * gap['difference']:>+9.1f} {f'({low:+.0f} to {high:+.0f})':>14}"
        found.append(line)
    if any(model["geometry"] for model in models):
        found += ["", "vectors"]
        for key in ("mean_cosine", "hubness", "alignment", "uniformity", "effective_rank", "directions_90"):
            values = [model["geometry"] and model["geometry"][key] for model in models]
            found.append(f"{key:29}" + "".join(f"{'' if value is None else f'{value:.3f}':>22}" for value in values))
    for model in models:
        if model["worst"]:
            found += ["", f"worst pairs of {result['corpus']}: {model['name']}", "  score  label   gap"]
        for pair in model["worst"]:
            numbers = f"{pair['score']:7.3f}  {pair['label']:5g}  {100 * pair['gap']:+4.0f}"
            found.append(f"{numbers}  {pair['sentence1']}  |  {pair['sentence2']}")
    return found


def write_page(path: str, result: dict[str, Any], items: list, scored: list) -> None:
    """Writes the HTML page."""
    from cosent.reporting.document import to_html
    from cosent.reporting.probing import page

    of_rows = places(items).items()
    by_name = [{name: (same[rows], different[rows]) for name, rows in of_rows} for same, different in scored]
    title = f"Probe of {' and '.join(model['name'] for model in result['models'])}"
    with writing(path):
        write_atomically(path, to_html(title, page(title, result, by_name)))
    print(path, file=sys.stderr)


ARGUMENTS = (ProbeArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
