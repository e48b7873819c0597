"""The tables of README and docs are those of the committed results."""

import json

import pytest

from benchmarks import students, tables
from benchmarks.kills import kills_table
from cosent.errors import InputError
from cosent.run_record import Environment, Footprint, RunRecord, Written

KILLS = {"kind": "kills", "kills": 10, "kills_while_saving": 5, "torn_checkpoints": 4, "runs": 3, "bit_equal": 2}
KILLS |= {"device": "CPU", "commit": "abc"}


@pytest.fixture
def repository(tmp_path):
    """A repository with one result and two pages that show it, one of them stale and neither of them Chinese."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results/kills.json").write_text(json.dumps(KILLS))
    (tmp_path / "docs").mkdir()
    block = "# Title\n<!-- results:kills -->\n{}\n<!-- end -->\nText\n"
    (tmp_path / "README.md").write_text(block.format(kills_table(KILLS)))
    (tmp_path / "docs/any.md").write_text(block.format("3 times SIGKILL"))
    return tmp_path


def run(root, *argv) -> None:
    tables.main(tables.parser().parse_args([str(argument) for argument in argv]), root)


def test_every_page_is_current():
    """Fails if a result changed and a page still shows the old figure: run `make tables`."""
    texts = {page: page.read_text(encoding="utf-8") for page in tables.pages()}
    assert {"README.md", "README.zh-CN.md"} < {page.name for page in texts} and len(texts) > 5
    assert sum(len(tables.BLOCK.findall(text)) for text in texts.values()) >= 16
    assert [page.name for page, text in texts.items() if tables.fill(text, tables.ROOT / "results") != text] == []


def test_stale_pages_are_filled(repository, capsys):
    """Fails if a page of docs keeps its old figure, text around a block is lost, or a current page is written anew."""
    current = repository / "README.md"
    before = current.stat().st_mtime_ns
    run(repository)
    text = (repository / "docs/any.md").read_text()
    assert text == current.read_text() and text.startswith("# Title\n") and text.endswith("<!-- end -->\nText\n")
    assert "10 times SIGKILL, 5 of them" in text and "2 of 3 runs" in text
    assert current.stat().st_mtime_ns == before
    assert capsys.readouterr().out == f"{repository / 'docs/any.md'}: filled\n"


def test_check_changes_nothing_and_names_what_is_stale(repository, capsys):
    """Fails if continuous integration passes a stale table, or fails a current one."""
    stale = repository / "docs/any.md"
    with pytest.raises(SystemExit) as stopped:
        run(repository, "--check")
    assert stopped.value.code == 1 and "3 times" in stale.read_text()
    out = capsys.readouterr().out
    assert "any.md: not current" in out and "README.md" not in out
    run(repository, "--check", repository / "README.md")
    run(repository, stale)
    run(repository, "--check")
    assert "not current" not in capsys.readouterr().out


def test_a_block_without_a_result_is_an_error(repository):
    """Fails if a misspelt block keeps what somebody typed, or a new kind of result is shown as if it were speed."""
    with pytest.raises(InputError, match="asks for results:nothing.*neither nothing.json nor nothing/"):
        tables.fill("<!-- results:nothing -->\n<!-- end -->", repository / "results")
    (repository / "results/new.json").write_text(json.dumps({"kind": "energy"}))
    kinds = "of kind 'energy', and only backbones, .* speed, spread, student have a table"
    with pytest.raises(InputError, match=kinds):
        tables.fill("<!-- results:new -->\n<!-- end -->", repository / "results")


def test_exactness_kills_and_scaling_are_shown(tmp_path):
    """Fails if a block of the README shows another kind of result as if it were the speed table."""
    cell = {"tower": {"loss": 1.2e-07, "gradient": 0.5}}
    memory = {"plain": {"activations_mib": 12.34, "process_mib": 600.0}}
    shared = {"device": "CPU", "commit": "abc"}
    exact = {"kind": "exactness", "pairs": 32, "corpus": "stsb", "differences": {"2 x 16": cell}, "memory": memory}
    (tmp_path / "exactness.json").write_text(json.dumps(exact | shared))
    counts = {"kills": 10, "kills_while_saving": 5, "torn_checkpoints": 4, "runs": 3, "bit_equal": 2}
    (tmp_path / "kills.json").write_text(json.dumps({"kind": "kills"} | counts | shared))
    speeds = {"one process": 100.0, "two strangers": 160.0, "two processes, DDP": 144.0}
    scaling = {"kind": "scaling", "corpus": "stsb", "pairs_per_second": speeds, "rounds": {"one process": [1, 2, 3]}}
    (tmp_path / "scaling.json").write_text(json.dumps(scaling | shared))
    text = "".join(f"<!-- results:{name} -->\n<!-- end -->\n" for name in ("exactness", "kills", "scaling"))
    filled = tables.fill(text, tmp_path)
    assert "| 2 x 16 | 1e-07 / 5e-01 |" in filled and "| plain | 12.3 | 600 |" in filled
    assert "DDP reaches 90% of that, and 72% of twice one process. Medians of 3 turns" in filled
    assert "10 times SIGKILL, 5 of them" in filled and "2 of 3 runs" in filled


def test_a_teacher_and_its_students_are_shown(tmp_path):
    """Fails if seeds are averaged wrongly, or a model that writes nothing is given the writing of another."""
    samples = {"distinct": 0.9, "similar": 0.8, "overlap": 0.4, "judged": 0.85}
    shared = {"recipe": {}, "environment": Environment({}, None, "CPU", 1), "seconds": 200.0, "history": []}
    small, large = Footprint(3_000_000, 3_000_000, None, None), Footprint(4_000_000, 4_000_000, None, None)
    one, two = (
        RunRecord(**shared, train_seconds=60.0, footprint=small, written_after=Written(perplexity, samples),
                  after={"lcqmc": {"test": {"spearman": value}}})
        for value, perplexity in ((0.6, 10.0), (0.7, 12.0))
    )  # fmt: skip
    after = {"lcqmc": {"test": {"spearman": 0.5}}}
    plain = RunRecord(**shared, train_seconds=120.0, footprint=large, after=after)
    rows = [students.row("teacher", [plain], "lcqmc"), students.row("distilled", [one, two], "lcqmc")]
    result = {"kind": "student", "corpus": "lcqmc", "train_pairs": 40000, "epochs": 2, "rows": rows}
    (tmp_path / "student.json").write_text(json.dumps(result | {"device": "CPU", "commit": None}))
    filled = tables.fill("<!-- results:student -->\n<!-- end -->\n", tmp_path)
    assert "| teacher | 4.0 M | 50.00 |  |  |  |  |  | 2.0 |" in filled
    assert "| distilled | 3.0 M | 65.00 ± 7.07 | 11.0 | 0.900 | 0.800 | 0.400 | 0.850 | 1.0 |" in filled
    assert "40,000 training pairs, 2 epochs a stage" in filled


def test_the_speed_of_writing_is_shown(tmp_path):
    """Fails if seconds are not the medians, or the ratio is that of other rounds than was measured."""
    seconds = {"ours": [1.0, 4.0, 2.0], "theirs": [20.0, 30.0, 10.0]}
    row = {"layers": 4, "seconds": seconds, "ratio": 7.5, "equal": 0.97, "tokens_per_sentence": 9.53}
    result = {"kind": "generation", "sources": 50, "samples": 20, "rows": [row], "device": "CPU", "threads": 2}
    (tmp_path / "generation.json").write_text(json.dumps(result | {"commit": None}))
    filled = tables.fill("<!-- results:generation -->\n<!-- end -->\n", tmp_path)
    assert "| 4 layers | 9.5 | 2.00 | 20.00 | **7.5** | 97% |" in filled
    assert "50 sources x 20 samples, medians of 3 turns; CPU, 2 threads" in filled


def test_architectures_are_shown(tmp_path):
    """Fails if an architecture that fails or is refused looks fine, or a ratio is turned over."""
    way = {"losses": [2.0, 1.0], "reloaded": 0.0, "sentence_transformers": 2e-7}
    fine = {
        "packing": {"packs": True, "outputs": 3e-7, "gradients": 1e-6},
        "full": way,
        "lora": way | {"reloaded": 7e-7},
    }
    worse = {"packing": {"packs": False, "reads_padding": True}, "full": way | {"losses": [1.0, 2.0]}}
    speed = {"train_bi_encoder": 2.0, "train_cross_encoder": 1.5}
    rows = {
        "one": {"bi_encoder": fine, "cross_encoder": fine, "speed": speed},
        "two": {"bi_encoder": worse | {"lora": {"failed": "ValueError: x"}}, "cross_encoder": {"refused": "No."}},
    }
    size, shared = {"layers": 3, "width": 64}, {"device": "CPU", "threads": 1, "corpus": "lcqmc", "pairs": 32}
    result = {"kind": "backbones", "rows": {name: row | {"commit": "abc"} for name, row in rows.items()}, "size": size}
    (tmp_path / "backbones.json").write_text(json.dumps(result | shared))
    seconds = dict.fromkeys(("train_bi_encoder", "train_cross_encoder", "encode"), {"packed": 300.0, "padded": 100.0})
    measured = {"one": {"per_second": seconds, "commit": "abc"}, "two": {"per_second": {}, "commit": "abc"}}
    (tmp_path / "packing.json").write_text(json.dumps({"kind": "packing", "rows": measured, "size": size} | shared))
    text = "".join(f"<!-- results:{name} -->\n<!-- end -->\n" for name in ("backbones", "packing"))
    filled = tables.fill(text, tmp_path)
    assert "| one | yes | yes | yes | 3e-07 / 1e-06 | 0e+00 / 7e-07 | 2e-07 | 2.00 / 1.50 |" in filled
    assert "| two | no / refused | fails / refused | no, reads padding |  | 0e+00 | 2e-07 |  |" in filled
    assert "| one | 300 / 100 | **3.00** | 300 / 100 | **3.00** | 300 / 100 | 3.00 |" in filled
