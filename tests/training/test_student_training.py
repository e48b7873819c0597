"""Batches of a student, the noise on its sources, and what its metrics say."""

import math

import numpy as np
import pytest
import torch

from cosent.data.corpus import load_corpus
from cosent.models.student import Student, unilm_mask
from cosent.training.arguments import StudentTrainingArguments
from cosent.training.global_batch import pair_metrics
from cosent.training.student import Corruption, StudentCollator, StudentTrainer


def own(synonyms: bool, teacher) -> dict:
    """The targets of a pair."""
    return {"labels": np.float32(synonyms), "synonyms": synonyms, "teacher": np.array(teacher, np.float32)}


def test_batches_by_hand():
    """Fails if a direction is lost, a target keeps its [CLS], segments do not fit the tokens, a model learns to write
    the opposite, a retrieval model gets targets, or what a teacher says ends up beside other sentences or pairs."""
    batch = StudentCollator(0)([([2, 7, 3], [2, 8, 9, 3], {"labels": np.float32(1), "synonyms": True})])
    assert batch["input_ids"].tolist() == [[2, 7, 3, 8, 9, 3], [2, 8, 9, 3, 7, 3]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1] * 6, [1] * 6] and "teacher" not in batch

    pairs = [
        (np.array([2, 7, 3]), np.array([2, 8, 3]), own(False, [[1.0, 2.0], [3.0, 4.0]])),
        (np.array([2, 5, 3]), np.array([2, 6, 3]), own(True, [[5.0, 6.0], [7.0, 8.0]])),
    ]
    batch = StudentCollator(0)(pairs)
    assert batch["input_ids"].tolist() == [[2, 7, 3, 0, 0], [2, 8, 3, 0, 0], [2, 5, 3, 6, 3], [2, 6, 3, 5, 3]]
    assert batch["token_type_ids"].sum(dim=1).tolist() == [0, 0, 2, 2]
    assert batch["attention_mask"].sum(dim=1).tolist() == [3, 3, 5, 5]
    assert batch["teacher"].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    pairs = [([2, 7, 3], [2, 8, 9, 3], own(True, 0.5)), ([2, 3], [2, 3], own(False, -1))]
    batch = StudentCollator(0, generation=False)(pairs)
    assert batch["input_ids"].tolist() == [[[2, 7, 3, 0], [2, 8, 9, 3]], [[2, 3, 0, 0], [2, 3, 0, 0]]]
    assert set(batch) == {"input_ids", "attention_mask", "labels", "teacher"} and batch["teacher"].tolist() == [0.5, -1]


def test_the_shares_of_the_noise(tokenizer):
    """Fails if sources are corrupted more or less than RoFormer-Sim's, or special tokens are touched."""
    corruption = Corruption.from_tokenizer(tokenizer)
    generator = np.random.default_rng(0)
    ids = np.array([tokenizer.cls_token_id, *range(1000, 1100), tokenizer.sep_token_id])
    noisy = np.stack([corruption(ids, generator) for _ in range(2000)])
    touched = (noisy != ids).any(axis=1)
    assert touched.mean() == pytest.approx(0.5, abs=0.03)
    masked = (noisy[touched, 1:-1] == tokenizer.mask_token_id).mean()
    replaced = (noisy[touched, 1:-1] != ids[1:-1]).mean() - masked
    assert masked == pytest.approx(0.15 * 0.8, abs=0.005) and replaced == pytest.approx(0.15 * 0.1, abs=0.002)
    assert (noisy[:, [0, -1]] == ids[[0, -1]]).all()
    random = noisy[(noisy != ids) & (noisy != tokenizer.mask_token_id)]
    assert not set(random) & set(tokenizer.all_special_ids) and len(set(random)) > 100


def test_pieces_of_a_word_go_together():
    """Fails if half a Latin word stays visible and gives the rest away."""
    continues = np.zeros(20, dtype=bool)
    continues[[11, 12]] = True  # "##..."
    corruption = Corruption(continues, np.array([7]), mask_token_id=4, share=1.0, ratio=0.5)
    ids = np.array([2, 10, 11, 12, 9, 3])
    generator = np.random.default_rng(0)
    seen = {tuple(corruption(ids, generator) == 4) for _ in range(200)}
    assert seen == {(False, a, a, a, b, False) for a in (False, True) for b in (False, True)}


def test_evaluation_against_a_naive_loop(tiny_student, make_corpus, tmp_path):
    """Fails if tokens are weighted by sentence, a direction is missing, dropout or noise are on, or scores change."""
    rows = [("怎么还款", "如何才能还款", 1.0), ("好", "今天的天气很好", 1.0), ("今天", "明天", 0.0)]
    student = Student.from_pretrained(str(tiny_student), dropout=0.5)
    expected = student.similarity(*(list(side) for side in list(zip(*rows, strict=True))[:2]))
    losses, tokens = 0.0, 0
    student.eval()
    for source, target in [pair for a, b, label in rows if label for pair in ((a, b), (b, a))]:
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
    data = load_corpus(str(make_corpus({"test": rows}))).split("test")
    options = {"output_dir": str(tmp_path), "use_cpu": True, "eval_strategy": "no", "dataloader_drop_last": False}
    trainer = StudentTrainer(student, StudentTrainingArguments(**options), corruption_share=1.0, train_dataset=data)
    predicted = trainer.predict(data)
    measured = pair_metrics(predicted.predictions, predicted.label_ids)["perplexity"]
    assert math.log(measured) == pytest.approx(losses / tokens, rel=1e-5)
    np.testing.assert_allclose(predicted.predictions["scores"], expected, atol=1e-6)
    assert trainer.data_collator.corruption.share == 1, "training would be without noise"
