"""Settings and quality of the methods of a study, as its report shows them."""

import json
import re

import numpy as np
import yaml

from cosent.reporting import comparison
from cosent.reporting.document import Section, to_markdown
from cosent.reporting.readme_tables import study_table
from cosent.studies.results import read_results


def markdown(*sections: Section) -> str:
    return to_markdown("t", list(sections), "report.html")


def test_tables_say_what_was_measured(make_study):
    """Fails if the numbers are not those of the runs, or the published ones are missing or taken for ours.

    Accuracies of 0.81 and 0.82 give 81.50 ± 0.71.
    """
    folder = make_study({"cosent": 0.8, "sbert": 2.0}, name="native-limit_train=9")
    table = {"source": "kexue.fm 1", "studies": ["native"], "measure": "spearman"}
    rows = [{"method": "cosent", "encoder": "BERT", "lcqmc": 78.69, "atec": 1.0}, {"method": "x", "encoder": "BERT"}]
    (folder.parent / "published.yaml").write_text(yaml.safe_dump([table | {"rows": rows}]))
    study = read_results(folder)
    text = markdown(comparison.quality(study), comparison.accuracy(study))
    values = [100 * r.test("lcqmc") for r in study.rows["cosent"]]
    assert f"| cosent | **{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}** |  | 2 |" in text
    assert "| published: cosent, BERT (kexue.fm 1) | 78.69 |  | 1 |" in text and "published: x" not in text
    assert "81.50 ± 0.71" in text and "90.00 ± 0.00" in text and "oracle threshold" in text


def test_the_best_are_those_with_the_highest_printed_mean(make_study):
    """Fails if the bold number is not the highest of its column, or of two that look equal only one is bold."""
    study = read_results(make_study({"good": 0.5, "bad": 3.0}, seeds=(1,)))
    [table, _] = comparison.quality(study).blocks
    assert table.strong == {(0, 1)} and table.rows[0][0] == "good"
    [accuracy, _] = comparison.accuracy(study).blocks
    assert accuracy.strong == {(0, 1), (1, 1)}, "both have 0.81"
    alone = read_results(make_study({"good": 0.5}, name="alone"))
    assert not comparison.quality(alone).blocks[0].strong, "the only one is not the best one"


def test_a_cross_of_corpora_keeps_them_apart(make_study):
    """Fails if runs that were trained on different corpora and tested on the same one are averaged."""
    folder = make_study({"cosent": 1.0}, corpora=("atec", "stsb"), seeds=(1,))
    for file in folder.glob("*.json"):
        record = json.loads(file.read_text())
        record["after"] = {corpus: {"test": {"spearman": 0.1}} for corpus in ("atec", "stsb")}
        file.write_text(json.dumps(record))
    study = read_results(folder)
    assert list(study.rows) == ["cosent, trained on atec", "cosent, trained on stsb"] and len(study.corpora) == 2
    [table, _] = comparison.quality(study).blocks
    assert [row[0] for row in table.rows[:2]] == list(study.rows)


def test_each_tower_has_its_own_score_before_training(make_study):
    """Fails if the untrained scores of a bi-encoder and of a cross-encoder's fresh head are averaged."""
    folder = make_study({"bi": 1.0, "cross": 1.0}, seeds=(1,))
    file = folder / "cross-lcqmc-1.json"
    record = json.loads(file.read_text())
    record["recipe"] |= {"tower": "cross_encoder", "pooling": None}
    record["before"]["lcqmc"]["test"]["spearman"] = 0.0
    file.write_text(json.dumps(record))
    text = markdown(comparison.quality(read_results(folder)))
    assert re.search(r"before training: mini.* mean \| 50.00 \|", text)
    assert re.search(r"before training: mini.*cross_encoder \| 0.00 \|", text)


def test_missing_runs_are_named(make_study):
    """Fails if a report of half a study looks like one of a whole study."""
    folder = make_study({"cosent": 1.0, "sbert": 1.0})
    (folder / "sbert-lcqmc-2.json").unlink()
    assert "Not finished, 1 runs: sbert on lcqmc, seed 2." in markdown(comparison.overview(read_results(folder)))


def test_runs_of_different_data_are_named(make_study):
    """Fails if methods are compared on two versions of a corpus without a word."""
    folder = make_study({"cosent": 0.8, "sbert": 2.0}, seeds=(1,))
    assert "prepared anew" not in markdown(comparison.overview(read_results(folder)))
    file = folder / "sbert-lcqmc-1.json"
    result = json.loads(file.read_text())
    result["corpora"]["lcqmc"]["manifest_sha256"] = "b" * 64
    file.write_text(json.dumps(result))
    assert f"{'b' * 10} of sbert-lcqmc-1" in markdown(comparison.overview(read_results(folder)))


def test_the_grid_is_shown(make_study):
    """Fails if a reader cannot see what was tried, or that a method has not tried everything: 0.7 beats 0.6."""
    folder = make_study({"good": 0.5, "bad": 3.0})
    asked = yaml.safe_load((folder / "study.yaml").read_text())
    (folder / "study.yaml").write_text(yaml.safe_dump(asked | {"tune": {"learning_rate": [2e-4, 5e-4]}}))
    for rate, reached in (("0.0002", {"good": 0.6, "bad": 0.5}), ("0.0005", {"good": 0.7})):
        point = folder / "tuning" / f"learning_rate={rate}"
        point.mkdir(parents=True)
        for method, validation in reached.items():
            record = json.loads((folder / f"{method}-lcqmc-1.json").read_text())
            record["validation_curve"] = [[1.0, validation], [2.0, 0.1]]
            (point / f"{method}-lcqmc-1.json").write_text(json.dumps(record))
    study = read_results(folder)
    lines = markdown(comparison.tuning(study)).splitlines()
    assert "| method, trained on | learning_rate=0.0002 | learning_rate=0.0005 |" in lines
    assert "| good, lcqmc | 60.00 | **70.00** |" in lines and "| bad, lcqmc | 50.00 |  |" in lines
    table = study_table(study)
    assert "| lcqmc | learning_rate | seeds |" in table and "learning rate chosen on validation, 6 epochs" in table
    assert comparison.tuning(read_results(make_study({"good": 0.5}, name="alone"))).blocks == []
