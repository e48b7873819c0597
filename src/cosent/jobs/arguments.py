"""Arguments of the jobs that search and mine, apart from what they load: their help needs no torch."""

from dataclasses import dataclass

from cosent.cli import option, refuse_below_1, refuse_negative
from cosent.errors import InputError


@dataclass
class IndexArguments:
    """The sentences, and the model that compares them."""

    model: str = option("similar", "Bi-encoder: folder of a trained model, a shipped model or a Hub id.")
    index: str | None = option(None, "Vectors that `cosent encode` wrote with --normalize.")
    text: list[str] | None = option(
        None, "Instead: text files, a sentence per line; embedded once, and cached by model and text."
    )
    long_texts: str = option(
        "truncate", "What becomes of texts longer than the model reads: cut; mean of the vectors of overlapping "
        "windows; or the best window, with --text.", ("truncate", "mean", "best"),
    )  # fmt: skip
    truncate_dim: int | None = option(None, "Compare the first numbers of every vector only, with --text.")
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")

    def __post_init__(self):
        if self.index is not None and self.truncate_dim is not None:
            raise InputError("--truncate_dim shortens what is embedded, and --index is. Give it to `cosent encode`.")
        if (self.index is None) == (self.text is None):
            raise InputError("Name either --index, vectors of `cosent encode`, or --text, files of sentences.")
        if self.index is not None and self.long_texts == "best":
            raise InputError("--long_texts best keeps several vectors of a text, and --index has one. Give --text.")


@dataclass(kw_only=True)
class PairArguments:
    """Which pairs to make."""

    text: list[str] | None = option(None, "Further sentences: .txt or .jsonl files, also .gz, a sentence per line.")
    range_min: int = option(10, "How many of the nearest neighbours of a sentence are skipped.")
    range_max: int = option(100, "How many of the nearest neighbours of a sentence are looked at.")
    per_sentence: int = option(1, "Neighbours taken per sentence.")
    margin: float | None = option(
        None, "Least distance of a neighbour's cosine below that of the least similar pair that is labelled similar."
    )
    relative_margin: float | None = option(
        None, "The same as a share: 0.05 leaves out neighbours above 0.95 of that cosine (TopK-PercPos)."
    )
    max_score: float | None = option(None, "Highest cosine of a neighbour.")
    min_score: float | None = option(None, "Lowest cosine of a neighbour.")
    draw: str = option("nearest", "Which of the neighbours that remain are taken.", ("nearest", "random"))
    neighbours: int | None = option(None, "Pairs with neighbours, drawn from those found; default: all.")
    random: int = option(0, "Random pairs.")
    own: int | None = option(
        None, "Pairs of the corpus itself, drawn at random; a teacher replaces their labels. Default: all."
    )
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")
    teacher_cache: str | None = option(None, "Folder of vectors and scores; default: ~/.cache/cosent/model_outputs.")

    def __post_init__(self):
        refuse_below_1(self, "range_max", "per_sentence")
        counts = ("range_min", "neighbours", "random", "own")
        refuse_negative(self, *(name for name in counts if getattr(self, name) is not None))
        if self.range_max < (least := self.range_min + self.per_sentence):
            raise InputError(f"--range_min and --per_sentence need a --range_max of at least {least}.")
