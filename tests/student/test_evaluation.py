"""What generation metrics say."""

import math

import pytest
import torch

from cosent.evaluation.overlap import character_overlap
from cosent.modeling.bi_encoder import SentenceEncoder
from cosent.student.attention_mask import unilm_mask
from cosent.student.decoding import Sampling
from cosent.student.evaluation import perplexity, sample_report
from cosent.student.model import Student


@pytest.fixture
def student(tiny_student) -> Student:
    return Student.from_pretrained(str(tiny_student))


def test_overlap_by_hand():
    """Fails if the overlap with the source counts something else than characters and character pairs."""
    assert character_overlap("我好", "我好") == 1 and character_overlap("我", "你") == 0
    assert character_overlap("我很好", "我好") == pytest.approx(2 * 2 / (5 + 3))  # 我, 好; pairs 我很 很好 / 我好
    assert character_overlap("", "") == 0


def test_perplexity_against_a_naive_loop(student):
    """Fails if tokens are weighted by sentence, a direction is missing, or dropout is on."""
    pairs = [("怎么还款", "如何才能还款"), ("好", "今天的天气很好")]
    losses, tokens = 0.0, 0
    student.eval()
    for source, target in [*pairs, *((b, a) for a, b in pairs)]:
        encoded = student.tokenizer(source, target, return_tensors="pt")
        types = encoded["token_type_ids"]
        mask = unilm_mask(encoded["attention_mask"], types)
        with torch.no_grad():
            states = student.backbone(encoded["input_ids"], attention_mask=mask, token_type_ids=types)[0]
            logits = student.head(states)[0].double().log_softmax(-1)
        for place in range(1, types.shape[1]):
            if types[0, place]:
                losses -= float(logits[place - 1, encoded["input_ids"][0, place]])
                tokens += 1
    student.train()
    measured = perplexity(student, [a for a, _ in pairs], [b for _, b in pairs])
    assert math.log(measured) == pytest.approx(losses / tokens, rel=1e-5)
    assert student.training


def test_the_report_of_a_student_that_only_copies(student, tiny_model, monkeypatch):
    """Fails if repeated samples, copies of the source or unfinished ones count as written."""
    copied = student.tokenizer("今天", add_special_tokens=False)["input_ids"]
    other = student.tokenizer("今天好", add_special_tokens=False)["input_ids"]
    written = [[copied, other, other], [other]]
    monkeypatch.setattr("cosent.student.evaluation.write_targets", lambda *_: written)
    judge = SentenceEncoder.from_pretrained(str(tiny_model))
    report = sample_report(student, judge, ["今天", "今天好"], Sampling(num_samples=4))
    assert report["ended"] == 4 / 8 and report["distinct"] == 1 / 8 and report["wordless"] == 1 / 2
    assert report["overlap"] == pytest.approx(2 * 3 / (3 + 5))
    assert report["judged"] == pytest.approx(judge.similarity("今天", "今天好"), abs=1e-6)
    assert report["similar"] == float(student.similarity("今天", "今天好") >= 0.8)
