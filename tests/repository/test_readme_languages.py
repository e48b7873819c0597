"""README.md and README.zh-CN.md say the same, and the numbers in them are those of the results."""

import json
import re
import statistics
from pathlib import Path

import pytest

from benchmarks.claims_table import counts
from cosent.losses import TOWERS
from cosent.reporting.document import times_100
from cosent.results import Result, read_results
from cosent.similarity import line

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")
CHINESE = {
    "What CoSENT is": "CoSENT 是什么",
    "Why this project": "为什么用它",
    "What was measured": "实测结论",
    "Install": "安装",
    "Quickstart": "快速开始",
    "Your own pairs": "用自己的数据",
    "Use the model": "使用模型",
    "Which recipe?": "选哪个配方",
    "Documentation": "文档",
    "Layout": "目录结构",
    "Citing, contributing, licence": "引用、贡献与许可",
}
ONLY_CHINESE = "常见问题"  # the questions that Chinese users ask; README.md has no such section
NO_FIGURES = {"0.1", "0.8"}  # a flag and a cosine in its answers
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


def test_both_readmes_have_the_same_sections():
    """Fails if a section is added, moved or renamed in one language only."""
    assert list(sections("README.md")) == list(CHINESE)
    assert [heading for heading in sections("README.zh-CN.md") if heading != ONLY_CHINESE] == list(CHINESE.values())


def test_sections_have_the_same_code_and_numbers():
    """Fails if a command or a number is changed in one language only."""
    for english, chinese in CHINESE.items():
        one, other = sections("README.md")[english], sections("README.zh-CN.md")[chinese]
        assert code(one) == code(other), english
        assert numbers(one) == numbers(other), english
        rows, others = (len(re.findall(r"^\|", text, re.MULTILINE)) for text in (one, other))
        assert rows == others, english


def test_no_number_is_only_chinese():
    """Fails if a figure in a section that only README.zh-CN.md has is outdated."""
    english, chinese = (set(numbers((ROOT / name).read_text(encoding="utf-8"))) for name in READMES)
    assert chinese - english <= NO_FIGURES


def test_code_is_compared():
    """Fails if the comparison above passes on nothing."""
    assert sum(len(block) for text in sections("README.md").values() for block in code(text)) >= 20
    assert len(numbers((ROOT / "README.md").read_text(encoding="utf-8"))) >= 12


def runs(study: str, method: str, corpus: str) -> list[Result]:
    found = [
        run for run in read_results(ROOT / "results" / study).results if (run.method, run.corpus) == (method, corpus)
    ]
    assert found, f"results/{study} has no {method} on {corpus}"
    return found


def spearman(study: str, method: str, corpus: str, limit: int | None = None) -> str:
    """Test Spearman x100 of a study's cell: mean, and standard deviation over seeds where there are several."""
    found = runs(study, method, corpus)
    assert {run.recipe.get("limit_train") for run in found} == {limit}
    return str(times_100(run.test(corpus) for run in found))


def minutes(study: str, method: str, corpus: str) -> str:
    return f"{statistics.mean(run.train_seconds for run in runs(study, method, corpus)) / 60:.1f}"


def student(file: str, row: str) -> dict:
    rows = json.loads((ROOT / "results" / f"{file}.json").read_text())["rows"]
    return next(entry for entry in rows if entry["name"].startswith(row))


def distilled(file: str) -> str:
    return str(times_100(student(file, "then stage 2")["values"]))


def ratios(file: str, **wanted: str) -> list[float]:
    rows = json.loads((ROOT / "results" / file).read_text())["rows"]
    return [row["ratio"] for row in rows if all(row[key] == value for key, value in wanted.items())]


@pytest.mark.parametrize("name", READMES)
def test_the_numbers_of_the_readmes_are_measured(name):
    """Fails if a headline number or a row of the recipe table is not that of the results any more."""
    text = (ROOT / name).read_text(encoding="utf-8")
    cosent, sbert = (float(spearman("losses_stsb", method, "stsb").split()[0]) for method in ("cosent", "sbert"))
    training, writing = ratios("speed.json", task="train"), ratios("generation.json")
    assert f"{cosent:.1f}" in text and f"{sbert:.1f}" in text
    assert f"{min(training):.1f}" in text and f"{max(training):.1f}" in text
    assert "**10" in text and round(min(writing)) == 10
    for value in (
        spearman("encoders", "cosent_mini mini", "stsb"),
        minutes("encoders", "cosent_mini mini", "stsb"),
        spearman("towers_full", "bi_encoder cosent_mini 2-epochs", "lcqmc"),
        minutes("towers_full", "bi_encoder cosent_mini 2-epochs", "lcqmc"),
        distilled("student_stsb"),
        f"{100 * student('student_stsb', 'teacher')['values'][0]:.2f}",
        " + ".join(f"{student('student_stsb', stage)['minutes']:.1f}" for stage in ("student", "then stage 2")),
    ):
        assert f" {value}" in text, value


@pytest.mark.parametrize(("name", "section"), zip(READMES, ("What was measured", "实测结论"), strict=True))
def test_what_was_measured_is_what_the_claims_say(name, section):
    """Fails if a difference or a count of verdicts in the READMEs is not that of the claims any more."""
    text, rows = sections(name)[section], json.loads((ROOT / "results/claims.json").read_text(encoding="utf-8"))["rows"]
    measured = [row for row in rows if row.get("seeds", 0) >= 3]
    known = {f"{row[key]:+.2f}" for row in measured for key in ("mean", "low", "high")}
    known |= {f"{gap:+.2f}" for row in measured for gap in row.get("published", {}).values()}
    said = re.findall(r"[+-]\d+\.\d+", text)
    assert len(said) >= 8 and set(said) <= known
    every = [len(rows), sum("mean" in row for row in rows), *counts(rows).values()]
    line = next(line for line in text.splitlines() if "](docs/claims.md)" in line)
    assert [int(number) for number in re.findall(r"\d+", line)] == every


@pytest.mark.parametrize("name", READMES)
def test_quickstart_prints_what_the_readme_shows(name):
    """Fails if the ten pairs and their scores are not those of a kept run with the default seed."""
    kept = json.loads((ROOT / "results/quickstart.json").read_text(encoding="utf-8"))
    (run,) = [run for run in kept["runs"] if run["seed"] == 42]
    rows = zip(kept["pairs"], kept["published"], run["scores"], strict=True)
    names = ("sentence1", "sentence2")
    expected = [line(dict(zip(names, pair, strict=True)) | {"published": known, "score": score}, names, "published")
                for pair, known, score in rows]  # fmt: skip
    assert len(expected) == 10
    assert "\n".join(expected) in (ROOT / name).read_text(encoding="utf-8")


def test_the_numbers_of_the_model_cards_are_measured():
    """Fails if a card promises what the results do not show."""
    cards = ROOT / "src/cosent/encoders"
    mini = (cards / "mini/README.md").read_text(encoding="utf-8")
    for value in (
        spearman("encoders", "cosent_mini mini", "stsb"),
        *(spearman("towers", f"{tower} cosent_mini", "lcqmc", limit=20_000) for tower in TOWERS),
        *(spearman("towers_full", f"{tower} cosent_mini 2-epochs", "atec") for tower in TOWERS),
        *(spearman("towers_full", f"{tower} cosent_mini 1-epoch", "lcqmc") for tower in TOWERS),
        spearman("towers_full", "bi_encoder cosent_mini 2-epochs", "lcqmc"),
        *(spearman("teach_lcqmc", f"cross_encoder round_{number}", "lcqmc", 40_000) for number in (0, 1)),
        spearman("native_mini", "cosent", "lcqmc", limit=40_000),
        spearman("towers_stsb", "cross_encoder cosent_mini", "stsb"),
    ):
        assert value in mini, value
    roformer = (cards / "mini-roformer/README.md").read_text(encoding="utf-8")
    first = [f"{100 * student(file, 'student')['values'][0]:.2f}" for file in ("student_stsb", "student_stsb_equal")]
    teacher = f"{100 * student('student_stsb', 'teacher')['values'][0]:.2f}"
    for value in (*map(distilled, ("student", "student_stsb", "student_stsb_equal")), *first, teacher):
        assert value in roformer, value
