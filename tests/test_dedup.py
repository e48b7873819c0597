"""Near-duplicates: groups and pairs of sentences, and the file without them."""

import json

import numpy as np
import pytest

from cosent.cli import parse
from cosent.dedup import ARGUMENTS, main, threshold_of
from cosent.encode import EncodeArguments
from cosent.encode import main as encode
from cosent.errors import InputError
from cosent.evaluation.calibration import DecisionRule, Platt
from cosent.models.bi_encoder import SentenceEncoder

LINES = ["怎么还款", "今天天气很好", "怎么还款？", "红色的苹果", "今天天气很好。", "怎么还款", "推荐一辆红车"]


@pytest.fixture
def dedup(tiny_model, tmp_path, capsys, monkeypatch):
    """A function that runs the job on `LINES` and returns its lines of stdout, and stderr."""
    monkeypatch.setattr("cosent.inference.index.DEFAULT_CACHE", tmp_path / "cache")
    SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean").save_pretrained(tmp_path / "bi")
    (tmp_path / "faq.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")

    def run(*flags, text="faq.txt"):
        words = ["--model", tmp_path / "bi", *(["--text", tmp_path / text] if text else []), "--device", "cpu", *flags]
        main(*parse([str(word) for word in words], *ARGUMENTS))
        printed = capsys.readouterr()
        return printed.out.splitlines(), printed.err

    return run


def cosines(folder) -> np.ndarray:
    vectors = SentenceEncoder.from_pretrained(str(folder)).encode(LINES, normalize=True)
    return vectors @ vectors.T


def test_pairs_are_all_above_the_threshold(dedup, tmp_path):
    """Fails if a pair is missed, shown twice, or not in the order of the cosines."""
    products = cosines(tmp_path / "bi")
    threshold = float(np.median(products[np.triu_indices(7, 1)])) + 1e-4
    lines, said = dedup("--threshold", threshold, "--pairs")
    found = [line.split()[:3] for line in lines]
    assert {(int(a), int(b)) for _, a, b in found} == set(
        zip(*np.where(np.triu(products >= threshold, 1)), strict=True)
    )
    scores = [float(score) for score, _, _ in found]
    assert scores == sorted(scores, reverse=True) and 5 < len(found) < 21 and f"{len(found)} pairs" in said


def test_groups_and_the_file_without_duplicates(dedup, tmp_path):
    """Fails if a sentence that is like no other is lost, or a duplicate stays."""
    lines, said = dedup("--threshold", 0.99999)
    assert lines == ["group 1: 2 sentences", "       0  怎么还款", "       5  怎么还款"]
    assert "7 sentences: 6 groups by a cosine of at least 1.0000, 1 of several sentences" in said
    dedup("--threshold", 0.99999, "--output", tmp_path / "unique.txt")
    assert (tmp_path / "unique.txt").read_text(encoding="utf-8").splitlines() == [*LINES[:5], LINES[6]]
    with pytest.raises(InputError, match="exists, and nothing was written"):
        dedup("--threshold", 0.99999, "--output", tmp_path / "unique.txt")
    lines, _ = dedup("--threshold", -1.0)
    assert lines[0] == "group 1: 7 sentences"
    assert dedup("--min_cluster_size", 2)[1].count("by HDBSCAN") == 1


def test_the_output_has_a_line_per_sentence(dedup, tmp_path):
    """Fails if a sentence with a line break is read as two when the output is read again."""
    (tmp_path / "faq.jsonl").write_text('{"text": "第一行\\n第二行"}\n{"text": "另一句"}\n', encoding="utf-8")
    (said,) = dedup("--threshold", 1, "--output", tmp_path / "unique.txt", text="faq.jsonl")[0]
    assert (tmp_path / "unique.txt").read_text(encoding="utf-8") == "第一行 第二行\n另一句\n"
    assert json.loads(said)["kept"] == 2


def test_the_input_is_never_replaced(dedup, tmp_path):
    """Fails if --overwrite costs the other columns of a table, the text of an index, or its vectors."""
    (tmp_path / "faq.csv").write_text("id,text\n1,怎么还款\n2,如何还款\n", encoding="utf-8")
    flags = ("--threshold", 0.9, "--overwrite", "--output")
    with pytest.raises(InputError, match=r"--output .*faq\.csv is an input"):
        dedup(*flags, tmp_path / "faq.csv", text="faq.csv")
    encode(EncodeArguments(str(tmp_path / "bi"), [str(tmp_path / "faq.csv")], str(tmp_path / "v.npy"), normalize=True))
    for name in ("faq.csv", "v.npy"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(InputError, match=f"--output .*{name} is an input"):
            dedup(*flags, tmp_path / name, "--index", tmp_path / "v.npy", text=None)
        assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize("threshold", ["nan", "95", "-2"])
def test_thresholds_that_are_no_cosine(dedup, threshold):
    """Fails if a slip finds nothing, or everything, without a word."""
    with pytest.raises(InputError, match=f"--threshold {threshold}"):
        dedup("--threshold", threshold)


def test_the_threshold_of_the_model(dedup, tmp_path):
    """Fails if the threshold of the training is not the default, or a model without one gets a made-up one."""
    with pytest.raises(InputError, match="no threshold, since it was not trained here on labels of 0 and 1"):
        dedup("--pairs")
    with pytest.raises(InputError, match="leave --output and --min_cluster_size out"):
        dedup("--pairs", "--min_cluster_size", 3)
    with pytest.raises(InputError, match="without a threshold"):
        dedup("--threshold", 0.9, "--min_cluster_size", 3)
    with pytest.raises(InputError, match="either --index, vectors of `cosent encode`, or --text"):
        dedup("--threshold", 0.9, "--index", tmp_path)


def test_a_trained_model_needs_no_threshold(monkeypatch):
    """Fails if the threshold that training found on validation is not the default, or one of several is chosen."""
    rules = {name: DecisionRule(name, 0.75, Platt(pairs=9, slope=1.0, intercept=0.0)) for name in ("faq", "lcqmc")}
    monkeypatch.setattr("cosent.run_record.decision_rules", lambda model: rules)
    with pytest.raises(InputError, match=r"has 0\.7500 \(faq\), 0\.7500 \(lcqmc\)"):
        threshold_of("runs/faq", None)
    del rules["lcqmc"]
    assert threshold_of("runs/faq", None) == 0.75
    assert threshold_of("runs/faq", 0.5) == 0.5


def test_json_for_scripts(dedup, tmp_path):
    """Fails if a script cannot read what is printed, or reads other rows than a person sees."""
    shown, _ = dedup("--threshold", "0.99")
    groups = [json.loads(line) for line in dedup("--threshold", "0.99", "--json")[0]]
    assert groups and [len(group["rows"]) for group in groups] == [
        int(line.split()[2]) for line in shown if line.startswith("group ")
    ]
    assert all([LINES[row] for row in group["rows"]] == group["sentences"] for group in groups)
    found = [json.loads(line) for line in dedup("--threshold", "-1", "--pairs", "--json")[0]]
    assert len(found) == 21 and found[0]["cosine"] == pytest.approx(1) and found[0]["sentences"] == ["怎么还款"] * 2
    (written,) = dedup("--threshold", "0.99", "--output", tmp_path / "unique.txt")[0]
    kept = len((tmp_path / "unique.txt").read_text(encoding="utf-8").splitlines())
    assert json.loads(written) == {"output": str(tmp_path / "unique.txt"), "sentences": 7, "kept": kept}
    with pytest.raises(InputError, match="--json prints"):
        dedup("--threshold", "0.99", "--json", "--output", tmp_path / "other.txt")
