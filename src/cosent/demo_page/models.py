"""The models of the page, each loaded once and shared by all who look at it: see `TextModel`, threads may."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from cosent.compute.onednn import choose_device
from cosent.data.files import SENTENCE, open_table
from cosent.errors import InputError
from cosent.inference.decision import DecisionRule, decision_rules
from cosent.inference.index import Hit, Index
from cosent.models.auto import load_model
from cosent.models.bi_encoder import Embedder, TextModel
from cosent.models.student import Student

TOP, CANDIDATES = 10, 50  # sentences shown, and read again by the cross-encoder
SAMPLES, KEPT = 60, 20  # paraphrases drawn, and shown
MOST_SENTENCES = 1_000_000  # of --text, which is embedded before the page opens


@dataclass(frozen=True)
class Judge:
    """A model that scores pairs, and the rules that make verdicts of its scores.

    Args:
        name: end of its path, or its Hub id.
    """

    model: TextModel
    rules: Sequence[DecisionRule]
    name: str

    @classmethod
    def of(cls, folder: str, model: TextModel) -> "Judge":
        """A judge with those rules of its folder that were found with the prompts that it reads here."""
        prompts = model.prompts.sides()
        rules = [rule for rule in decision_rules(folder).values() if rule.prompts == prompts]
        return cls(model, rules, "/".join(Path(folder).parts[-2:]))

    @property
    def is_cosine(self) -> bool:
        return isinstance(self.model, Embedder)

    def scores(self, first: list[str], second: list[str]) -> np.ndarray:
        return np.asarray(self.model.similarity(first, second))


@dataclass(frozen=True)
class Models:
    """What the page can do; None where the flag is missing that brings it.

    Args:
        judges: `--model`, then `--cross`.
    """

    judges: Sequence[Judge]
    index: Index | None = None
    student: Student | None = None

    def find(self, query: str) -> list[Hit]:
        """The sentences nearest to a query, in the order of the cross-encoder if there is one."""
        assert self.index is not None
        reranker = self.judges[1].model if len(self.judges) > 1 else None
        top, candidates = (min(number, len(self.index)) for number in (TOP, CANDIDATES))
        return self.index.search([query], top, reranker=reranker, candidates=candidates)[0]

    def write(self, text: str) -> list[tuple[str, float, float]]:
        """Paraphrases of a sentence, each with the student's cosine and the score of `--model`."""
        assert self.student is not None
        found = self.student.similar_sentences([text], num_samples=SAMPLES, keep=KEPT)[0]
        written = [one for one, _ in found]
        judged = self.judges[0].scores([text] * len(written), written)
        return [(one, cosine, float(score)) for (one, cosine), score in zip(found, judged, strict=True)]


def load(
    model: str, cross: str | None, student: str | None, index: str | None, file: str | None, device: str | None
) -> Models:
    """Loads all that the flags name.

    Raises:
        InputError: what is no such model, vectors of another model, a file that cannot be read, or one that is too
            long to embed while somebody waits for the page.
    """
    place = choose_device(device)
    found = None
    if index is not None:
        found = Index.open(index, model, place)
    elif file is not None:
        found = Index.of(sentences_of(file), model, place)
    main = load_model(model).to(place) if found is None else found.encoder
    judges = [Judge.of(model, main)]
    if cross is not None:
        judges.append(Judge.of(cross, load_model(cross).to(place)))
    return Models(judges, found, None if student is None else Student.from_pretrained(student).to(place))


def sentences_of(file: str) -> list[str]:
    """The sentences of a file; see `open_table`."""
    texts = open_table(file, None, SENTENCE, "the only column, or one called text or sentence").texts()
    found = list(islice(texts, MOST_SENTENCES + 1))
    if len(found) > MOST_SENTENCES:
        raise InputError(
            f"--text {file} has more than {MOST_SENTENCES:,} sentences, which would be embedded before the page opens "
            "and kept in memory. Embed them once with `cosent encode --normalize`, and pass the vectors as --index."
        )
    return found
