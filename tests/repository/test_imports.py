"""What `make imports` cannot say of imports: how heavy they are, and which systems they work on."""

import subprocess
import sys

import pytest

# Imported twice, since the builds of torch and psutil for this system need what others have no equivalent of.
WITHOUT_POSIX = """
import importlib, os, pkgutil, sys
import cosent

names = [module.name for module in pkgutil.walk_packages(cosent.__path__, "cosent.")]
for name in names:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.split(".")[0] == "cosent"]:
    del sys.modules[name]
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "getpgid", "killpg", "setsid"):
    if hasattr(os, name):
        delattr(os, name)
for name in names:
    importlib.import_module(name)
try:
    import fcntl
except ImportError:
    print(len(names))
"""


def printed(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_models_load_without_what_trains_them():
    """Fails if whoever only encodes waits for datasets, peft or the Trainer, or cannot do without them."""
    heavy = ("datasets", "peft", "pandas", "transformers.trainer", "cosent.training", "accelerate")
    source = f"import sys, cosent.models.auto; print([name for name in {heavy} if name in sys.modules])"
    assert printed(source) == "[]"


@pytest.mark.matrix
def test_every_module_is_imported_without_posix():
    """Fails if a module, and with it a job, needs what only Linux and macOS have: fork, terminals, process groups.

    The workflow that tests on Windows says the same of the imports of its tests.
    """
    assert int(printed(WITHOUT_POSIX)) > 60
