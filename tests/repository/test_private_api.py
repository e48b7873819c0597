"""docs/architecture.md lists what the package touches of other libraries without their promise to keep it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTED = {"_exit"}  # of os, whose documentation says when to call it
# getattr(model, "_name"), vars(model).pop("_name")
BY_STRING = {"getattr", "setattr", "hasattr", "delattr", "pop", "get"}


def names_of(node: ast.AST) -> set[str]:
    """What a node reads, sets or overrides by name."""
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.keyword):
        return {node.arg or ""}
    if isinstance(node, ast.ClassDef):
        return {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in BY_STRING:
        return {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
    return set()


def private_names(source: str) -> set[str]:
    """Private names that a file uses and does not define itself, outside of classes."""
    tree = ast.parse(source)
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    used = {name for node in ast.walk(tree) for name in names_of(node)}
    return {name for name in used - own - DOCUMENTED if re.fullmatch(r"_[a-z]\w*", name)}


def rows() -> dict[str, str]:
    """Rows of the tables in docs/architecture.md by the name in their first column."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*$", text, re.MULTILINE)}


def test_every_private_name_is_listed():
    """Fails if an upgrade breaks something private that no maintainer knew of, or the list names what is gone."""
    files = sorted((ROOT / "src").rglob("*.py"))
    used = {name: file.name for file in files for name in private_names(file.read_text(encoding="utf-8"))}
    assert {"_save_checkpoint", "_set_sync_gradients", "_load_scaler", "_fingerprint"} <= set(used)
    assert {name: file for name, file in used.items() if name not in rows()} == {}, "list them in docs/architecture.md"
    assert sorted(set(rows()) - set(used)) == [], "no longer used: remove them from docs/architecture.md"


def test_no_module_needs_what_windows_lacks():
    """Fails if importing a module needs one of POSIX alone, so that no job starts on Windows."""
    lines = [line for file in (ROOT / "src").rglob("*.py") for line in file.read_text(encoding="utf-8").splitlines()]
    assert not [line for line in lines if re.match(r"(import|from) (fcntl|grp|pwd|resource|termios)\b", line)]
    assert any(re.match(r" +import resource\b", line) for line in lines), "inside a function it may"
