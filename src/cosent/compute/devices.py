"""Which device a job that serves runs on."""

import re

import torch

from cosent.errors import InputError


def choose_device(device: str | None, int8: bool = False) -> str:
    """Returns the device that was asked for, or the default.

    Raises:
        InputError: no such device, or a GPU for int8, which is for the CPU.
    """
    if device is None:
        return "cuda" if torch.cuda.is_available() and not int8 else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise InputError(f"--device is cpu, cuda or cuda:N, got {device}.")
    if device != "cpu" and int8:
        raise InputError(f"--int8 is for the CPU, got --device {device}. Drop one of the two.")
    if device != "cpu" and not torch.cuda.is_available():
        raise InputError(f"--device {device}: this PyTorch sees no CUDA device. Install a CUDA build, or use the CPU.")
    return device
