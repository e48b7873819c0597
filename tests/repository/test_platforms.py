"""The package starts where there is no fork, no terminal control and no process group: on Windows."""

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
    print(len(names), "modules without fcntl")
"""


@pytest.mark.slow
def test_every_module_is_imported_without_posix():
    """Fails if a module, and with it a job, needs what only Linux and macOS have."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_POSIX], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, *simulated = done.stdout.split()
    assert int(count) > 60 and simulated == ["modules", "without", "fcntl"]
