"""Sources of pretraining text: plain lines and pairs, without the sentences held out for evaluation."""

from collections.abc import Iterator
from itertools import islice

from cosent.data.corpus import load_corpus
from cosent.data.text import normalized_text, read_texts
from cosent.pretraining.arguments import TextArguments
from cosent.schema import sha256_of_file


class Texts:
    """The lines of all files without held-out sentences; `left_out` counts those of the last complete pass."""

    def __init__(self, args: TextArguments):
        self.names = args.text or args.pairs
        excluded = [*(args.exclude or []), *(args.pairs or [])]  # corpora that are read are always excluded
        self.excluded = held_out_sentences(excluded, args.data_dir) if excluded else frozenset()
        self.left_out = None

    def read(self) -> Iterator[str]:
        left_out = 0
        for text in read_texts(self.names):
            if normalized_text(text) in self.excluded:
                left_out += 1
            else:
                yield text
        self.left_out = left_out

    def sample(self, count: int) -> list[tuple[str, str]]:
        """The first texts, each twice, or pairs."""
        return [(text, text) for text in islice(self.read(), count)]

    def hashes(self) -> dict[str, str]:
        return {name: sha256_of_file(name) for name in self.names}


class Pairs(Texts):
    """The training pairs of prepared corpora without those that have a held-out sentence."""

    def __init__(self, args: TextArguments):
        super().__init__(args)
        self.corpora = {name: load_corpus(name, args.data_dir) for name in self.names}

    def read(self) -> Iterator[tuple[str, str]]:
        left_out = 0
        for corpus in self.corpora.values():
            rows = corpus.split("train")
            for pair in zip(rows["sentence1"][:], rows["sentence2"][:], strict=True):
                if self.excluded.isdisjoint(map(normalized_text, pair)):
                    yield pair
                else:
                    left_out += 1
        self.left_out = left_out

    def sample(self, count: int) -> list[tuple[str, str]]:
        return list(islice(self.read(), count))

    def hashes(self) -> dict[str, str]:
        return {name: corpus.manifest.splits["train"]["sha256"] for name, corpus in self.corpora.items()}


def held_out_sentences(corpora: list[str], data_dir: str) -> frozenset[str]:
    """Every sentence of the validation and test splits of prepared corpora, as `normalized_text`."""
    sentences = set()
    for name in corpora:
        corpus = load_corpus(name, data_dir)
        for split in set(corpus.splits) - {"train"}:
            for column in ("sentence1", "sentence2"):
                sentences.update(map(normalized_text, corpus.split(split)[column]))
    return frozenset(sentences)
