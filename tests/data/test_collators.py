"""Batches are the tensors that the collators promise."""

from cosent.data.pairs import JoinedPairCollator, PairCollator


def test_collator_gives_the_tensors_of_its_docstring():
    """Fails if padding, mask or pair order are not what the collator says."""
    batch = PairCollator(0)([([2, 3], [2, 7, 3], 1.0)])
    assert batch["input_ids"].tolist() == [[[2, 3, 0], [2, 7, 3]]]
    assert batch["attention_mask"].tolist() == [[[1, 1, 0], [1, 1, 1]]]
    assert batch["labels"].tolist() == [1.0]


def test_joined_collator_gives_the_tensors_of_its_docstring():
    """Fails if segments do not begin where the second sentence does, or padding is numbered as a segment."""
    pairs = [([2, 3, 7, 3], 2, 1.0), ([2, 3, 3], 2, 0.0)]
    batch = JoinedPairCollator(0, True)(pairs)
    assert batch["input_ids"].tolist() == [[2, 3, 7, 3], [2, 3, 3, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1, 1], [0, 0, 1, 0]]
    assert batch["labels"].tolist() == [1.0, 0.0]
    assert "token_type_ids" not in JoinedPairCollator(0, False)(pairs)
