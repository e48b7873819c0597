"""Lines to pretrain on, without the sentences held out for evaluation."""

from collections.abc import Iterator
from itertools import islice

from cosent.data.corpus import load_corpus
from cosent.data.text import normalized_text, read_texts
from cosent.pretraining.arguments import TextArguments
from cosent.schema import sha256_of_file


class Texts:
    """The lines of all files without held-out sentences; `left_out` counts those of the last complete pass."""

    def __init__(self, args: TextArguments):
        self.names = args.text
        self.excluded = held_out_sentences(args.exclude or [], args.data_dir)
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
        """The first texts, each twice."""
        return [(text, text) for text in islice(self.read(), count)]

    def hashes(self) -> dict[str, str]:
        return {name: sha256_of_file(name) for name in self.names}


def held_out_sentences(corpora: list[str], data_dir: str) -> frozenset[str]:
    """Every sentence of the validation and test splits of prepared corpora, as `normalized_text`."""
    sentences = set()
    for name in corpora:
        corpus = load_corpus(name, data_dir)
        for split in set(corpus.splits) - {"train"}:
            for column in ("sentence1", "sentence2"):
                sentences.update(map(normalized_text, corpus.split(split)[column]))
    return frozenset(sentences)
