"""Precision of `cosent dedup` by threshold, against single linkage, on labelled pairs.

python -m lab.benchmarks.dedup --corpora lcqmc bq --output lab/results/dedup.json

A dropped sentence and the one that is kept for it are the same by the labels (of one group of synonyms), labelled as
different, or neither: most close pairs have no label.
"""

import argparse

import numpy as np

from cosent.comparing.document import Cell, markdown_table
from cosent.data.corpus import Corpus, load_corpus
from cosent.data.groups import components
from cosent.data.retrieval import pool_and_relevance
from cosent.models.auto import load_bi_encoder
from cosent.models.decision import decision_rules
from cosent.record import shortened
from cosent.search.neighbours import nearest, representatives
from lab.benchmarks.common import save

THRESHOLDS = (0.9, 0.95, 0.97)
MOST = 2000  # neighbours of a sentence that single linkage looks at


def linked(vectors: np.ndarray, threshold: float) -> np.ndarray:
    """The first row of each row's group by single linkage, as up to commit d34ce17."""
    rows, scores = nearest(vectors, vectors, min(MOST, len(vectors)))
    first, place = np.nonzero(scores >= threshold)
    group = components(first, rows[first, place], len(vectors))
    return np.unique(group, return_index=True)[1][np.unique(group, return_inverse=True)[1]]


def measure(encoder, corpus: Corpus, model: str) -> list[dict]:
    """A row for each way to group and threshold: dropped sentences, and their precision by labels."""
    pool, known, _ = pool_and_relevance(corpus, "test")
    same = components(np.repeat(known.queries, np.diff(known.starts)), known.items, len(pool))
    place, rows = {sentence: row for row, sentence in enumerate(pool)}, corpus.split("test")
    pairs = zip(rows["sentence1"], rows["sentence2"], corpus.labels("test"), strict=True)
    different = {frozenset((place[a], place[b])) for a, b, label in pairs if label == 0 and a in place and b in place}
    vectors = encoder.encode(pool, normalize_embeddings=True)
    rule = decision_rules(model)["all"]
    tried = [("single linkage", linked, rule.threshold), ("single linkage", linked, rule.merge_threshold)]
    tried += [
        ("representative", grouped, value) for value in sorted({*THRESHOLDS, rule.threshold, rule.merge_threshold})
    ]
    found = []
    for way, group, threshold in tried:
        owner = group(vectors, threshold)
        dropped = np.flatnonzero(owner != np.arange(len(owner)))
        known_same = same[dropped] == same[owner[dropped]]
        known_different = np.array([frozenset(pair) in different for pair in zip(dropped, owner[dropped], strict=True)])
        judged = int(known_same.sum() + known_different.sum())
        found.append(
            {
                "corpus": corpus.manifest.name,
                "groups": way,
                "threshold": threshold,
                "sentences": len(owner),
                "dropped": len(dropped),
                "largest": int(np.bincount(owner).max()),
                "same": int(known_same.sum()),
                "judged": judged,
            }
        )
    return found


def grouped(vectors: np.ndarray, threshold: float) -> np.ndarray:
    """The `representatives` of all rows."""
    return np.concatenate([owner for _, owner, _ in representatives(vectors, threshold)])


def dedup_table(result: dict) -> str:
    """Precision of dropped sentences, by corpus, way to group and threshold."""
    header = [
        "corpus",
        "groups by",
        "threshold",
        "dropped",
        "largest group",
        "right, of labelled",
        "labelled same, of all",
    ]
    rows: list[list[Cell]] = [
        [
            row["corpus"],
            row["groups"],
            f"{row['threshold']:.4f}",
            f"{row['dropped']:,} of {row['sentences']:,}",
            f"{row['largest']:,}",
            f"{row['same'] / row['judged']:.1%}",
            f"{row['same'] / row['dropped']:.0%}",
        ]
        for row in result["rows"]
    ]
    about = "sentences of the test split; without the rules on facts, so that only cosines count"
    return f"{markdown_table(header, rows)}\n\n`{result['model']}`, {about}; commit {shortened(result['commit'])}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="similar")
    parser.add_argument("--corpora", nargs="+", default=["lcqmc", "bq"])
    parser.add_argument("--data_dir", default="data")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    encoder = load_bi_encoder(args.model).eval()
    rows = [row for name in args.corpora for row in measure(encoder, load_corpus(name, args.data_dir), args.model)]
    print(dedup_table(save(args.output, "dedup", rows, model=args.model)))


if __name__ == "__main__":
    main()
