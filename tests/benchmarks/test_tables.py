"""The tables of README and docs are those of the committed results."""

import json
import re
from dataclasses import replace
from statistics import mean, stdev

import numpy as np
import pytest

from benchmarks import claim_measures, figures, tables
from benchmarks.quickstart import quickstart_table, wrong_orders
from cosent.errors import InputError
from cosent.evaluation import significance
from cosent.results import read_results
from cosent.run import Footprint, QueryMetrics

RUNS = [{"seed": 2, "scores": [0.5, 0.9], "test_spearman": 0.25, "device": "CPU", "commit": "abc"},
        {"seed": 1, "scores": [0.9, 0.4], "test_spearman": 0.75, "device": "CPU", "commit": "abc"}]  # fmt: skip
SHOWN = {"pairs": [["甲", "乙"], ["丙", "丁"]], "published": [0.977, 0.624], "runs": RUNS}


@pytest.fixture
def repository(tmp_path):
    """A repository with one result and two pages that show it, one of them stale and neither of them Chinese."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results/quickstart.json").write_text(json.dumps(SHOWN))
    (tmp_path / "docs").mkdir()
    block = "# Title\n<!-- results:quickstart -->\n{}\n<!-- end -->\nText\n"
    (tmp_path / "README.md").write_text(block.format(quickstart_table(SHOWN)))
    (tmp_path / "docs/any.md").write_text(block.format("0.333"))
    return tmp_path


def run(root, *argv) -> None:
    tables.main(tables.parser().parse_args([str(argument) for argument in argv]), root)


# `+1.2 [0.3, 2.1]`, with its brackets escaped or not, `(+0.1 to +0.5)`, and the bold type of what is significant.
INTERVAL = re.compile(r"\\?\[[-+]?[\d.]+, [-+]?[\d.]+\\?\]|\([-+][\d.]+ to [-+][\d.]+\)|\*\*")


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_every_page_is_current(monkeypatch, whole):
    """Fails if a result changed and a page still shows the old figure: run `make tables`. Ends of intervals take a
    minute of resampling: they are compared at night."""
    if not whole:
        monkeypatch.setattr(claim_measures, "RESAMPLES", 100)
        for resampled in (significance.resampled_spearman, significance.resampled_means):
            monkeypatch.setattr(resampled, "__defaults__", (100, *resampled.__defaults__[1:]))
    figures.figure.cache_clear()
    texts = {page: page.read_text(encoding="utf-8") for page in tables.pages()}
    assert {"README.md", "README.zh-CN.md"} < {page.name for page in texts} and len(texts) > 5
    assert sum(len(tables.BLOCK.findall(text)) for text in texts.values()) >= 12
    both = {page.name: (tables.filled(page, text), text) for page, text in texts.items()}
    figures.figure.cache_clear()
    assert [name for name, (now, kept) in both.items() if whole and now != kept] == []
    assert [name for name, texts in both.items() if len({INTERVAL.sub("", text) for text in texts}) > 1] == []


def test_stale_pages_are_named_and_filled(repository, capsys):
    """Fails if `--check` passes a stale page or changes it, text around a block is lost, or a current page is written
    anew."""
    current, stale = repository / "README.md", repository / "docs/any.md"
    before = current.stat().st_mtime_ns
    with pytest.raises(SystemExit, match="1"):
        run(repository, "--check")
    out = capsys.readouterr().out
    assert "any.md: not current" in out and "README.md" not in out and "0.333" in stale.read_text()
    run(repository)
    text = stale.read_text()
    assert text == current.read_text() and text.startswith("# Title\n") and text.endswith("<!-- end -->\nText\n")
    assert "| 甲 / 乙 | 0.977 | 0.900 | 0.500 |" in text
    assert current.stat().st_mtime_ns == before
    assert capsys.readouterr().out == f"{stale}: filled\n"
    run(repository, "--check")


def test_the_table_of_quickstart_on_paper():
    """Fails if a score is in the column of another seed, a pair of equal scores counts as ordered, or published scores
    are compared with one another."""
    lines = quickstart_table(SHOWN).splitlines()
    assert lines[0] == "| pair | published | seed 1 | seed 2 |" and lines[3] == "| 丙 / 丁 | 0.624 | 0.400 | 0.900 |"
    for line, end in zip(lines[4:7], ("|  | 0 | 1 |", "|  | 1.00 | -1.00 |", "|  | 75.00 | 25.00 |"), strict=True):
        assert line.endswith(end)
    published = [0.95, 0.6, 0.99, 0.7]  # similar, other, similar, other
    assert wrong_orders([0.9, 0.8, 0.85, 0.1], published) == 0
    assert wrong_orders([0.9, 0.85, 0.85, 0.95], published) == 3  # only the first is above the second


def test_a_block_without_a_result_is_an_error(repository):
    """Fails if a misspelt block keeps what somebody typed, or a new kind of result is shown as if it were speed."""
    (repository / "results/towers").mkdir()
    for block in ("nothing", "towers nothing"):
        with pytest.raises(InputError, match=f"results:{block}"):
            tables.fill(f"<!-- results:{block} -->\n<!-- end -->", repository / "results")


def test_exactness_is_shown(tmp_path):
    """Fails if a block of a page shows another kind of result, or memory of another case."""
    cell = {"tower": {"loss": 1.2e-07, "gradient": 0.5}}
    memory = {"plain": {"activations_mib": 12.34, "process_mib": 600.0}}
    exact = {"pairs": 32, "corpus": "stsb", "differences": {"2 x 16": cell}, "memory": memory}
    (tmp_path / "exactness.json").write_text(json.dumps(exact | {"device": "CPU", "commit": "abc"}))
    filled = tables.fill("<!-- results:exactness -->\n<!-- end -->\n", tmp_path)
    assert "| 2 x 16 | 1e-07 / 5e-01 |" in filled and "| plain | 12.3 | 600 |" in filled


def test_the_speed_of_writing_is_shown(tmp_path):
    """Fails if seconds are not the medians, or the ratio is that of other rounds than was measured."""
    seconds = {"ours": [1.0, 4.0, 2.0], "theirs": [20.0, 30.0, 10.0]}
    row = {"layers": 4, "seconds": seconds, "ratio": 7.5, "equal": 0.97, "tokens_per_sentence": 9.53}
    result = {"kind": "generation", "sources": 50, "samples": 20, "rows": [row], "device": "CPU", "threads": 2}
    (tmp_path / "generation.json").write_text(json.dumps(result | {"commit": None}))
    filled = tables.fill("<!-- results:generation -->\n<!-- end -->\n", tmp_path)
    assert "| 4 layers | 9.5 | 2.00 | 20.00 | **7.5** | 97% |" in filled
    assert "50 sources x 20 samples, medians of 3 turns; CPU, 2 threads" in filled


def test_a_study_on_paper(make_study):
    """Fails if mean, deviation or floor are wrong, or a table of LoRA runs hides what was trained: 1 of 4 is 25%."""
    footprint = Footprint(400, 100, 1.0, 640.0)
    text = tables.study_table(read_results(make_study({"cosent": 0.8}, corpora=("stsb",), footprint=footprint)))
    lines = text.splitlines()
    header = "| test Spearman x100, mean ± std | stsb | seeds | minutes per run | weights trained | peak MiB |"
    assert lines[0] == header and lines[2] == "| character overlap, no model | 58.68 |  |  |  |  |"
    values = [100 * run.test("stsb") for run in read_results(make_study({"cosent": 0.8}, ("stsb",), name="b")).results]
    assert lines[3] == f"| cosent | {mean(values):.2f} ± {stdev(values):.2f} | 2 | 1.5 | 25.0% | 640 |"
    assert lines[-1].startswith("`mini` encoder, mean pooling, batch 32, learning rate 0.0005, 6 epochs, best")
    assert lines[-1].endswith("CPU, commit cccccccccc.")


def test_retrieval_next_to_the_first_method(make_study, change_study):
    """Fails if a method is compared with itself, or a difference has the wrong sign."""
    folder, rates = make_study({"good": 0.5, "same": 0.5, "bad": 3.0}), {"good": 0.8, "same": 0.8, "bad": 0.2}

    def with_queries(run):
        drawn = np.random.default_rng(run.seed).random(200) < rates[run.method]
        return replace(run, queries={"lcqmc": QueryMetrics("t", {"after": {"recall_at_10": drawn.astype(np.float32)}})})

    change_study(folder, with_queries)
    header, _, before, good, same, bad = tables.retrieval_table(read_results(folder)).split("\n\n")[0].splitlines()
    assert header.startswith("| lcqmc | Spearman | Recall@1 | Recall@10 | seeds |") and "less that of good" in header
    assert before.startswith("| before training | 50.00 |") and good.endswith("| 2 |  |  |")
    assert bad.count("[-") == 2 and same.endswith(r"+0.00 \[+0.00, +0.00\] |")


def test_figures_of_a_page_on_paper():
    """Fails if a figure in a sentence keeps its old value, a line break is lost, or a full stop is a decimal point."""
    values = {"a": "9.6", "b": "3.0 ± 0.1", "c": "13.97"}
    text = "By 9.1 on\nATEC, 3.0 ±\n0.1 on BQ and 24.75. 12 seeds | 9.1 on BQ"
    filled = figures.fill_figures(text, ["By {a} on ATEC, {b} on BQ", "and {c}."], values.__getitem__)
    assert filled == "By 9.6 on\nATEC, 3.0 ±\n0.1 on BQ and 13.97. 12 seeds | 9.1 on BQ"
    for passage in ("By {a} in", "a {a} on"):  # nowhere, and twice
        with pytest.raises(InputError, match=r"times"):
            figures.fill_figures("By 1.0 on a 2 on, a 3 on", [passage], values.__getitem__)


def test_no_result_is_typed_by_hand():
    """Fails if docs/results.md says what a run measured and benchmarks/figures.yaml does not know where it is found."""
    page = tables.ROOT / "docs/results.md"
    text = tables.BLOCK.sub("", page.read_text(encoding="utf-8"))
    text = figures.fill_figures(text, figures.passages(page), lambda query: "N").split("\n## Published figures")[0]
    assert text.count(" N ") > 20 and re.findall(r".*\d\.\d.*", text.replace("A cosine of 0.8 means", "")) == []


def test_options_are_compared_with_what_they_add_to(make_study, change_study):
    """Fails if a verdict has the wrong sign, or an option is not compared with its own loss, or with as few pairs."""
    noise = {"plain": 0.5, "good": 0.1, "bad": 3.0, "masked_bad": 3.0, "fewer": 0.5, "groups": 0.5}
    options = {"bad": {"loss": "bad"}, "masked_bad": {"loss": "bad", "mask_margin": 0.1}, "good": {"dims": [8, 16]}}
    options |= {"fewer": {"limit_train": 50}, "groups": {"compare_within": "query"}}
    pairs = {"fewer": 50, "groups": 50}
    folder = make_study(noise, seeds=(1, 2, 3, 4))

    def with_options(run):
        hits = np.ones(200, dtype=np.float32)
        queries = {"lcqmc": QueryMetrics("t", {"after": {"recall_at_10": hits}})}
        settings = {"loss": "plain"} | options.get(run.method, {})
        return replace(run, queries=queries, settings=settings, train_pairs=pairs.get(run.method, 100))

    change_study(folder, with_options)
    lines = tables.fill(f"<!-- results:{folder.name} options -->\n<!-- end -->", folder.parent).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")][1:]
    assert [(row[0], row[3]) for row in rows] == [
        ("good", "plain"), ("bad", "plain"), ("masked_bad", "plain"), ("", "bad"),
        ("fewer", "plain"), ("groups", "plain"), ("", "fewer"),
    ]  # fmt: skip
    assert [row[1] for row in rows[:3]] == ["--dims 8 16", "--loss bad", "--loss bad --mask_margin 0.1"]
    assert rows[0][-1] == "better in Spearman" and rows[1][-1] == "worse in Spearman"
    assert rows[4][-1] == "not significant" and rows[4][2] == "50"
