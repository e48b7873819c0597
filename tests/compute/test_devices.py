"""The device of a job that serves: what was asked for, or one that it can use."""

import pytest
import torch

from cosent.compute.onednn import choose_device
from cosent.errors import InputError


def test_the_device_is_one_that_the_job_can_use(monkeypatch):
    """If this fails, --int8 cannot be used where there is a GPU, or a GPU is left alone."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = ((None, False), (None, True), ("cpu", False), ("cuda:1", False))
    assert [choose_device(*one) for one in asked] == ["cuda", "cpu", "cpu", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None) == choose_device("cpu", int8=True) == "cpu"


@pytest.mark.parametrize(
    ("asked", "int8", "message"),
    [("gpu", False, "is cpu, cuda or cuda:N"), ("cuda", True, "is for the CPU"), ("cuda:0", False, "no CUDA device")],
)
def test_a_device_that_cannot_be_is_refused(monkeypatch, asked, int8, message):
    """If this fails, a typing error ends in a stack trace of PyTorch."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=message):
        choose_device(asked, int8)
