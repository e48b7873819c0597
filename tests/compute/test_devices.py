"""The device of a job that serves: what was asked for, or one that it can use."""

import pytest
import torch

from cosent.compute.onednn import choose_device, has_bfloat16
from cosent.errors import InputError
from cosent.training.arguments import PairTrainingArguments


def test_the_device_is_one_that_the_job_can_use(monkeypatch):
    """If this fails, --int8 cannot be used where there is a GPU, or a GPU is left alone."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = ((None, False), (None, True), ("cpu", False), ("cuda:1", False))
    assert [choose_device(*one) for one in asked] == ["cuda", "cpu", "cpu", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None) == choose_device("cpu", int8=True) == "cpu"
    for refused, message in ((("gpu",), "cuda:N"), (("cuda", True), "--int8"), (("cuda:0",), "no CUDA device")):
        with pytest.raises(InputError, match=message):
            choose_device(*refused)


@pytest.mark.parametrize(
    ("features", "fast"),
    [
        ({"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": False}, True),
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}, False),
        ({"architecture": "aarch64"}, True),  # PyTorch does not say
    ],
)
def test_bfloat16_on_a_cpu_without_it_is_told(monkeypatch, caplog, tmp_path, features, fast):
    """If this fails, a run takes 14 times as long as it must, and nothing says why."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert has_bfloat16() is fast
    for bf16 in (True, False):
        caplog.clear()
        PairTrainingArguments(output_dir=str(tmp_path), bf16=bf16, use_cpu=True)
        assert ("--bf16 false" in caplog.text) is (bf16 and not fast)
