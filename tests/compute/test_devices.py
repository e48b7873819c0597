"""The device of a job that serves: what was asked for, or one that it can use."""

import pytest
import torch

from cosent.compute.onednn import choose_device
from cosent.errors import InputError


@pytest.mark.parametrize(
    ("gpu", "asked", "int8", "expected"),
    [
        (True, None, False, "cuda"),
        (True, None, True, "cpu"),
        (True, "cpu", False, "cpu"),
        (True, "cuda:1", False, "cuda:1"),
        (False, None, False, "cpu"),
        (False, "cpu", True, "cpu"),
    ],
)
def test_the_device_is_one_that_the_job_can_use(monkeypatch, gpu, asked, int8, expected):
    """If this fails, --int8 cannot be used where there is a GPU, or a GPU is left alone."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert choose_device(asked, int8) == expected


@pytest.mark.parametrize(
    ("asked", "int8", "message"),
    [("gpu", False, "is cpu, cuda or cuda:N"), ("cuda", True, "is for the CPU"), ("cuda:0", False, "no CUDA device")],
)
def test_a_device_that_cannot_be_is_refused(monkeypatch, asked, int8, message):
    """If this fails, a typing error ends in a stack trace of PyTorch."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=message):
        choose_device(asked, int8)
