"""Where things are: tests next to what they test, one package on the path, and commands that start from anywhere."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = {path.name for path in (ROOT / "src/cosent").iterdir() if path.is_dir()} | {"data_scripts", "lab"}


def test_tests_lie_in_the_rooms_of_the_code():
    """Fails if the test of a module is not found by its path, or two files answer to one name."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(files) > 60
    twice = [name for name, count in Counter(path.name for path in files).items() if count > 1]
    assert not twice, f"more than one {twice}"
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in files if path.parent != ROOT / "tests"}
    assert folders <= ROOMS | {"repository", "golden"}


def test_python_can_be_started_next_to_the_clone():
    """Fails if the folder of the clone, which has the name of the package, hides the installed package."""
    command = [sys.executable, "-c", "import cosent.cli, cosent.data_scripts.prepare; print(cosent.__version__)"]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_one_entry_for_every_way_to_start():
    """Fails if `python -m cosent JOB`, which accelerate launches, is another program than `cosent JOB`."""
    command = [sys.executable, "-m", "cosent"]
    listed = subprocess.run([*command, "--help"], cwd=ROOT.parent, capture_output=True, text=True)
    assert listed.returncode == 0 and "  train  " in listed.stdout
    wrong = subprocess.run([*command, "trainn"], cwd=ROOT.parent, capture_output=True, text=True)
    assert wrong.returncode == 2 and "'train'" in wrong.stderr
