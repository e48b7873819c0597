"""Pages in English and in Chinese say the same."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")
CHINESE = {
    "Start": "开始",
    "From labelled pairs to a search": "从标注句对到检索",
    "From Python": "用 Python",
    "Which recipe?": "选哪个配方",
    "Why CoSENT": "为什么用 CoSENT",
    "Documentation": "文档",
}
MIRRORS = ("PIP_INDEX_URL", "HF_ENDPOINT")


def sections(name: str) -> dict[str, str]:
    """Text by second-level heading, in order; headings inside code blocks do not count."""
    text = (ROOT / name).read_text(encoding="utf-8")
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def code(text: str) -> list[list[str]]:
    """Lines of every code block, without comments, descriptions of folders and lines about mirrors."""
    found = []
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        lines = [re.sub(r"\s+#.*$|(?<=/)\s{3,}\S.*$", "", line).rstrip() for line in block.splitlines()]
        found.append([line for line in lines if line and not any(mirror in line for mirror in MIRRORS)])
    return found


def numbers(text: str) -> list[str]:
    """Every number outside code blocks and link targets, in order; 240,000 and 24 万 are words, not results."""
    prose = re.sub(r"^```.*?^```|\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE)
    return sorted(re.findall(r"\d+\.\d+(?: ± \d+\.\d+)?", prose))


def test_both_readmes_say_the_same():
    """Fails if a section, a command or a number is added or changed in one language only."""
    assert list(sections("README.md")) == list(CHINESE)
    assert list(sections("README.zh-CN.md")) == list(CHINESE.values())
    for english, chinese in CHINESE.items():
        one, other = sections("README.md")[english], sections("README.zh-CN.md")[chinese]
        assert code(one) == code(other), english
        assert numbers(one) == numbers(other), english
        rows, others = (len(re.findall(r"^\|", text, re.MULTILINE)) for text in (one, other))
        assert rows == others, english
    english, chinese = (numbers((ROOT / name).read_text(encoding="utf-8").partition("\n## ")[0]) for name in READMES)
    assert english == chinese and len(english) >= 4
    assert sum(len(block) for text in sections("README.md").values() for block in code(text)) >= 12


@pytest.mark.parametrize("name", ["data", "faq", "search", "serving", "tutorial"])
def test_both_languages_of_a_page_say_the_same(name):
    """Fails if a command, an output or a number of a page is changed in one language only, or a section is missing."""
    one, other = ((ROOT / f"docs/{name}{end}.md").read_text(encoding="utf-8") for end in ("", ".zh-CN"))
    assert code(one) == code(other) and (code(one) or name == "faq")
    assert numbers(one) == numbers(other)
    flags, others = (set(re.findall(r"(?<!`)`([^`\n]+)`", text)) for text in (one, other))
    assert flags == others and flags
    for start in ("## ", "### ", "|"):
        assert len({len(re.findall(rf"^{re.escape(start)}", text, re.MULTILINE)) for text in (one, other)}) == 1, start


def test_the_first_vector_comes_early():
    """Fails if a reader has to scroll to learn what the package does."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 110
    assert next(place for place, line in enumerate(lines, 1) if "not similar" in line) <= 45
