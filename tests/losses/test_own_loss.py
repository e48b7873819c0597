"""Losses of one's own from a file: what they may read, and what is said of a wrong one."""

from pathlib import Path

import pytest
import torch

from cosent.errors import InputError
from cosent.losses import TOWERS, find_loss
from cosent.losses.checks import equal_parts
from cosent.training.objective import Objective, build_objective

WRONG = [
    ("def f(labels, scores): ...", "scores, embeddings, logits; got labels"),
    ("def f(): ...", "got no parameter"),
    ("def f(scores, labels, weight): ...", "weight .*number"),
    ("def f(scores, labels, kind='mean'): ...", "kind .*number"),
    ("def f(scores, **others): ...", "others .*number"),
    ("f = 3", "no function 'f'"),
]


@pytest.mark.parametrize(("text", "named"), WRONG)
def test_a_function_that_cannot_be_a_loss(tmp_path, text, named):
    """Fails if a mistake of the user's file ends in a traceback of ours, or trains something else."""
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match=rf"--loss .*mine\.py:f.*{named}"):
        find_loss(f"{tmp_path}/mine.py:f")


def test_the_parameters_of_a_function_say_what_it_needs(tmp_path):
    """Fails if a tower without embeddings is accepted, groups are not asked for, a head has another size than the
    labels have classes, or a parameter loses the type of its default."""
    file = tmp_path / "mine.py"
    file.write_text("def f(embeddings, groups, top_k=3, weight=0.5): ...\ndef g(logits, labels, scores): ...\n")
    loss, on_logits = (find_loss(f"{file}:{name}") for name in "fg")
    assert (loss.towers, loss.compares_sentences) == (("bi_encoder",), True)
    assert on_logits.towers == TOWERS and not on_logits.compares_sentences
    objective = build_objective(loss, {"top_k": "5", "scale": None}, [])
    assert (
        objective.function.keywords == {"top_k": 5} and objective.outputs == ["embeddings"] and objective.classes == 0
    )
    both = [build_objective(on_logits, {}, [], tower) for tower in TOWERS]
    assert [one.classes for one in both] == [2, 2] and both[0].outputs == ["logits", "scores"]
    for parameters, named in (({"top_k": "1.5"}, "top_k=1.5.* 3"), ({"scale": 2.0}, "--scale .*top_k, weight")):
        with pytest.raises(InputError, match=named):
            build_objective(loss, parameters, [])


@pytest.mark.parametrize("value", [torch.ones(3), 1.0, None])
def test_a_loss_returns_a_scalar_tensor(value):
    """Fails if a loss of every pair, or a number without a gradient, trains on in silence or ends in a traceback."""
    with pytest.raises(InputError, match=r"scalar tensor, got (shape \(3,\)|float|NoneType)"):
        Objective("mine", lambda scores: value).batch_loss({"scores": torch.ones(3)}, {"labels": torch.ones(3)}, 0.5)


def test_classes_are_equal_parts_of_the_range():
    """Fails if a loss of one's own makes other classes of grades 0..5 than --loss sbert: two split them at 2.5."""
    grades = torch.tensor([0, 1, 2, 2.5, 3, 4, 5]) / 5
    assert equal_parts(grades, 2).tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert equal_parts(grades[grades != 0.5], 6).tolist() == [0, 1, 2, 3, 4, 5]


def test_shipped_recipes_run_no_code():
    """Fails if a recipe of the wheel names a file, which would run in the folder of whoever uses it."""
    files = list((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))
    assert len(files) > 20 and not [file for file in files if ".py:" in file.read_text(encoding="utf-8")]
