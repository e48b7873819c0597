"""Making a lookup end to end: what it reads, leaves out, learns and saves."""

import logging

import numpy as np
import pytest

from cosent.flags import parse
from cosent.models.bi_encoder import SentenceEncoder
from cosent.record import read_record
from lab import lookup
from tests.conftest import SENTENCES
from tests.support.launching import later_wins

LINES = ["我很喜欢北京", "今天的天气好不好", "红苹果好吃吗", "推荐一款红车", "怎样才能还款", "ＡＢＣ公司", "怎么还"]


@pytest.fixture
def make(tiny_bi, make_corpus, pairs, tmp_path, monkeypatch):
    """A function that makes a lookup of a tiny corpus and text, and returns its folder."""
    held = [("怎样才能还款", "天气好", 1.0)] * 4
    corpus = make_corpus({"train": pairs, "validation": held, "test": held})
    (tmp_path / "text.txt").write_text("\n".join(LINES), encoding="utf-8")
    monkeypatch.setattr(lookup, "DISTILLED", 8)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*flags, output="made"):
        words = ["--text", tmp_path / "text.txt", "--corpus", corpus, "--corpus_weights", 1, "--exclude", corpus]
        words += ["--teacher", tiny_bi, "--output", tmp_path / output, "--batch_size", 16, "--entries", 50]
        words += ["--width", 6, "--distilled_width", 8, "--passes", 60, "--distillation_rate", 0.05, "--steps", 60]
        words = later_wins([*map(str, [*words, "--learning_rate", 0.05, *flags])])
        lookup.main(*parse(words, lookup.LookupArguments))
        return tmp_path / output

    return run


def test_a_lookup_learns_and_has_not_read_what_is_held_out(make, pairs, caplog, tmp_path):
    """Fails if a test sentence is distilled, the losses do not fall, or the folder is no ordinary bi-encoder."""
    read = []
    caplog.set_level(logging.INFO)
    with pytest.MonkeyPatch.context() as patch:
        vocabulary = lookup.vocabulary
        patch.setattr(lookup, "vocabulary", lambda sentences: read.extend(sentences) or vocabulary(sentences))
        (tmp_path / "forms.txt").write_text("買\t买 𧹒\n還\t还\n乾\t干 乾\n好\t好\n", encoding="utf-8")
        folder = make("--forms", tmp_path / "forms.txt")
    assert set(read) == ({*SENTENCES, *LINES} - {"怎样才能还款", "怎么还"}), "held out, and too short"
    encoder = SentenceEncoder.from_pretrained(str(folder))
    assert encoder.embedding_dimension == 6 and encoder.backbone.config.entries == 50
    assert "abc" in encoder.tokenizer.decode(encoder.tokenizer("ＡＢＣ")["input_ids"])
    assert encoder.similarity("怎么還款買", "怎么还款买") == 1.0 > encoder.similarity("乾", "干")
    first, second, labels = zip(*pairs, strict=True)
    scores, labels = encoder.similarity([*first], [*second]), np.array(labels)
    assert scores[labels == 1].mean() > scores[labels == 0].mean() + 0.2
    losses = [float(line.rpartition(" ")[2]) for line in caplog.messages if line.startswith("distillation")]
    assert len(losses) > 0 and read_record(folder).recipe["entries"] == 50
