"""No folder grows unseen: its lines of Python are within the budget in docs/architecture.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_folder_is_within_its_budget():
    """Fails if a folder grows: whoever needs more lines raises its budget in the same commit, and says why."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    budgets = {
        name: int(lines.replace(",", "")) for name, lines in re.findall(r"^\| `(\S+)` \| ([\d,]+) \|", page, re.M)
    }
    package = ROOT / "src/cosent"
    folders = {f"src/cosent/{file.name}" for file in package.iterdir() if any(file.glob("*.py"))}
    assert budgets.keys() == folders | {"src/cosent/*.py", "data_scripts", "lab", "tests"}
    lines = {}
    for name in budgets:
        files = package.glob("*.py") if name.endswith("*.py") else (ROOT / name).rglob("*.py")
        lines[name] = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert {name: count for name, count in lines.items() if count > budgets[name]} == {}
