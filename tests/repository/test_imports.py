"""What `make imports` cannot say of imports; the layers are contracts in pyproject.toml."""

import subprocess
import sys

import pytest


# A student names a class of transformers, whose own modules import accelerate.
@pytest.mark.parametrize("module, also", [("models.auto", ("accelerate",)), ("models.student", ())])
def test_models_load_without_what_trains_them(module, also):
    """Fails if whoever only encodes waits for peft or the Trainer, or cannot do without them."""
    heavy = ("peft", "transformers.trainer", "cosent.training", *also)
    source = f"import sys, cosent.{module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, encoding="utf-8")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
