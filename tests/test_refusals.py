"""Command lines that cannot work: each ends in one message that names the flag, and writes nothing."""

import json
import shlex

import pytest

from cosent.cli import PACKAGES
from cosent.data.files import table_writer
from cosent.errors import InputError
from tests.conftest import prepare

# Job, flags, and what the message names; {name} is a file of the fixture below.
REFUSED = [
    ("search", "--index {vectors} --query 还款 --top 8", "--top 8: .* 2 sentences"),
    ("search", "--index {vectors} --query 还款 ' '", "--query: .* empty"),
    ("search", "--index {vectors} --query 还款 --queries q.txt", "--query or --queries"),
    ("search", "--index {vectors} --query 还款 --top 0", "--top .* 0"),
    ("search", "--index {vectors} --text {faq} --query 还款", "--index.* or --text"),
    ("search", "--index {vectors} --query 还款 --top 1 --min_probability 0.5", "no threshold.*--min_score"),
    (
        "search",
        "--index {vectors} --query 还款 --min_score 1 --min_probability 0.5",
        "--min_score and --min_probability",
    ),
    ("search", "--index {vectors} --query 还款 --precision 0.9", "--precision needs --corpus"),
    ("search", "--index {vectors} --query 还款 --precision 1.5 --corpus a", "--precision .* 1.5"),
    ("search", "--index {vectors} --query 还款 --corpus a", "--corpus does nothing"),
    ("dedup", "--text {faq} --threshold nan", "--threshold nan"),
    ("dedup", "--text {faq} --threshold 95", "--threshold 95"),
    ("dedup", "--text {faq} --threshold -2", "--threshold -2"),
    ("dedup", "--text {faq}", "no threshold.* --threshold"),
    ("dedup", "--text {faq} --index {vectors} --threshold 0.9", "--index.* or --text"),
    ("dedup", "--text {faq} --threshold 0.9 --json --output {new}", "--json .*--output"),
    ("dedup", "--text {faq} --threshold 0.9 --output {gold}", "--output .*gold.csv exists.*--overwrite"),
    ("similarity", "--pairs {gold} --output {new}", "gold.csv .* score"),
    ("similarity", "甲 乙 --output {new}", "--output"),
    ("similarity", "甲 乙 --pairs {gold}", "--pairs"),
    ("similarity", "甲 乙 丙", "丙"),
    ("similarity", "甲 乙 --sheet 数据", "--sheet"),
    ("generate", "--text {gap}", "line 2"),
    ("generate", "--text nowhere.txt", "nowhere.txt"),
    ("generate", "一 --text {faq}", "--text FILE"),
    ("generate", "好 --top_p 2", "top_p"),
    ("evaluate", "", "--corpus NAME"),
    ("evaluate", "--pairs {gold} --find_threshold", "validation"),
    ("evaluate", "--pairs {grades} --find_threshold", "graded labels"),
    ("evaluate", "--pairs {gold} --predictions nowhere/p.tsv", "--predictions .*nowhere"),
    ("evaluate", "--pairs {words}", "words.csv, pair 1: .* score, got 'perhaps'"),
    ("evaluate", "--pairs {gold} --label_column same", "same"),
    ("evaluate", "--pairs {gold} --text_columns sentence1", "--text_columns"),
    ("evaluate", "--pairs {faq}", "--text_columns and --label_column"),
    ("evaluate", "--corpus {corpus} --retriever similar", "--retriever"),
    ("evaluate", "--corpus {corpus} --retrieval false --retrieval_from 2", "--retrieval_from"),
    ("evaluate", "--corpus {corpus} --retrieval_from 0", "above 0, got 0"),
    ("evaluate", "--queries {gold} --documents {gold}", "belong together"),
    ("evaluate", "--queries {gold} --documents {gold} --qrels {gold} --corpus stsb", "--corpus NAME"),
    ("evaluate", "--queries {gold} --documents {gold} --qrels {gold} --split train", "--split"),
    ("evaluate", "--mteb sts --corpus atec", "--corpus NAME"),
    ("evaluate", "--mteb ATEC --find_threshold", "--find_threshold"),
    ("evaluate", "--mteb ATEC --no_retrieval", "--retrieval"),
    ("demo", "--index v.npy --text a.txt", "--index and --text"),
    ("report", "nowhere", "holds no results"),
    ("audit", "lcqmc", "cosent prepare"),
    ("audit", ".", "cosent prepare"),
]


@pytest.fixture
def files(tmp_path, tiny_bi, job) -> dict:
    """Files by the names of the table; `new` is not there."""
    texts = {"faq": "怎么还款\n如何还款\n", "gap": "一\n\n二\n"}
    found = {"new": tmp_path / "new.csv", "vectors": tmp_path / "v.npy"}
    for name, text in texts.items():
        found[name] = tmp_path / f"{name}.txt"
        found[name].write_text(text, encoding="utf-8")
    for name, label in (("gold", 1), ("grades", 3), ("words", "perhaps")):
        found[name] = tmp_path / f"{name}.csv"
        with table_writer(found[name], ("sentence1", "sentence2", "score")) as write:
            write([{"sentence1": "甲", "sentence2": "乙", "score": label}])
    job("cosent.encode", "--model", tiny_bi, "--text", found["faq"], "--output", found["vectors"], "--normalize")
    return found | {"corpus": prepare(tmp_path / "faq", {"test": [("甲", "乙", 1.0)]}, "binary", 1.0)}


def test_what_is_refused(files, job, tiny_bi, tiny_student, tmp_path, monkeypatch):
    """Fails if a flag that cannot work is ignored, guessed at, ends in a trace, or is noticed after hours."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    wrong = []
    for name, flags, message in REFUSED:
        words = [word.format(**files) for word in shlex.split(flags)]
        model = [] if name in ("report", "audit") else ["--model", tiny_student if name == "generate" else tiny_bi]
        try:
            with pytest.raises(InputError, match=message):
                job(f"{PACKAGES.get(name, 'cosent')}.{name}", *words, *model)
        except (Exception, pytest.fail.Exception) as error:
            wrong.append(f"{name} {flags}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
    assert sorted(tmp_path.rglob("*")) == before, json.dumps(sorted(map(str, tmp_path.rglob("*"))))
