"""Pairs that training has seen and that are held out to measure it."""

from cosent.data.corpus import Corpus


def leaks(training: list[Corpus], measured: list[Corpus]) -> dict[str, int]:
    """Number of held-out pairs that occur in the training split of any corpus, in either order.

    The keys are corpus and split, as in `lcqmc test`. Sentences count as they are, as in `data_scripts.audit`. Splits
    without a leak are left out.
    """
    seen = {pair for corpus in training for pair in unordered_pairs(corpus, "train")}
    found = {}
    for corpus in measured:
        for split in corpus.splits:
            count = 0 if split == "train" else sum(pair in seen for pair in unordered_pairs(corpus, split))
            if count:
                found[f"{corpus.manifest.name} {split}"] = count
    return found


def unordered_pairs(corpus: Corpus, split: str) -> list[tuple[str, str]]:
    rows = corpus.split(split)
    pairs = zip(rows["sentence1"][:], rows["sentence2"][:], strict=True)
    return [(first, second) if first <= second else (second, first) for first, second in pairs]
