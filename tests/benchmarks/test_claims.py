"""Every claim of the sources has a verdict that its runs bear out, or says why it has none."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from benchmarks import claims, forest
from benchmarks.claim_measures import (
    UNTRAINED,
    elsewhere,
    gaps_of_source,
    mean_of,
    of_result,
    of_row,
    of_study,
    over_seeds,
    published_rows,
    right_rows,
    setting,
)
from cosent.errors import InputError
from cosent.results import read_results
from cosent.study import expand, read_study

ROOT = Path(__file__).parents[2]


def test_every_claim_can_be_measured_or_says_why_not(monkeypatch):
    """Fails if a claim names a study, method or corpus that is not there, so that no run could ever decide it."""
    monkeypatch.chdir(ROOT)
    listed = claims.read_claims()
    assert len(listed) >= 51 and len({claim["claim"] for claim in listed}) == len(listed)
    for claim in (claim for claim in listed if "study" in claim):
        runs = expand(read_study(f"recipes/studies/{claim['study']}.yaml"), {})
        names = {run.method for run in runs} | {f"{run.method}, trained on {run.corpus}" for run in runs}
        assert {name.removesuffix(UNTRAINED) for name in claim["compared"]} <= names, claim
        assert claim["corpus"] in {c for run in runs for c in [*run.corpora, *run.flags.get("eval_corpora", [])]}, claim


def test_the_page_has_the_claims_and_results_of_today():
    """Fails if a claim or a result changed and the page has the old verdict: run `python -m benchmarks.claims`."""
    listed, kept = claims.read_claims(), json.loads((ROOT / "results/claims.json").read_text(encoding="utf-8"))["rows"]
    assert [{key: row[key] for key in claim} for claim, row in zip(listed, kept, strict=True)] == listed
    compared = 0
    for row in kept:
        if "study" in row and (ROOT / "results" / row["study"]).is_dir():
            study = read_results(ROOT / "results" / row["study"])
            first, second = (of_row(study, name, row["corpus"]) for name in row["compared"])
            seeds = first.keys() & second.keys()
            assert len(seeds) == row.get("seeds", 0), row
            if seeds:
                runs = [side[seed] for side in (first, second) for seed in seeds]
                assert row.get("trained_on") == elsewhere(runs, row["corpus"]), row
                assert row.get("published", {}) == pytest.approx(gaps_of_source(row, study)), row
            quantity, share = row.get("quantity", "spearman"), row.get("share", 1.0)
            if seeds and quantity in ("spearman", "recall_at_10"):
                ours, theirs = ([side[s].test(row["corpus"], quantity) for s in seeds] for side in (first, second))
                gaps = [one - share * other for one, other in zip(ours, theirs, strict=True)]
                assert 100 * sum(gaps) / len(gaps) == pytest.approx(row["mean"], abs=0.01), row
                compared += 1
        if "mean_of" in row:
            parts = [other for other in kept if other["claim"] in row["mean_of"]]
            assert row["mean"] == pytest.approx(mean_of(parts, row["beyond"])["mean"]), row
            assert len(parts) == len(row["mean_of"])
    assert compared >= 5


def test_verdicts_on_paper():
    """Fails if a difference within its noise decides, or "level" is concluded from noise alone.

    A standard error of 1 (interval ± 1.96) around 4 is 4 errors from 0; around 1 it is one; an error of 0.1 around 0.2
    leaves no doubt that the difference is below a point; and around 0 an error of 1 says nothing of it.
    """

    def row(expected, mean, error, seeds=3):
        return {
            "expected": expected,
            "mean": mean,
            "low": mean - 1.96 * error,
            "high": mean + 1.96 * error,
            "seeds": seeds,
        }

    rows = [row("above", 4, 1), row("above", -4, 1), row("above", 1, 1), row("equal", 0.2, 0.1), row("equal", 3, 0.2),
            row("equal", 0, 1), row("above", 4, 1, seeds=1), {"unmeasured": "no data"}]  # fmt: skip
    claims.judge(rows)
    open_ = claims.OPEN
    assert [row["verdict"] for row in rows] == [
        "holds", "does not hold", open_, "holds", "does not hold", open_, f"{open_}: 1 of 3 seeds",
        "not measured: no data"]  # fmt: skip
    assert rows[2]["p"] == pytest.approx(2 * 0.1587, abs=1e-3)


def test_many_claims_need_more_evidence():
    """Fails if 0.02 decides among three: Holm asks for 0.05 / 3, then 0.05 / 2, and stops at the first that fails."""
    assert claims.holm([0.03, 0.01, 0.04]) == [False, True, False]
    assert claims.holm([0.02, 0.01, 0.04]) == [True, True, True]
    assert claims.holm([0.02, 0.03, 0.04]) == [False] * 3


def test_a_mean_over_corpora_on_paper():
    """Fails if intervals of several corpora are added up as if they had one cause: 3 and 4 are 5, of two means 2.5."""
    rows = [{"mean": mean, "low": mean - half, "high": mean + half, "seeds": seeds, "corpus": corpus, "published": gaps}
            for mean, half, seeds, corpus, gaps in (
                (8, 3, 3, "a", {"BERT": 7, "RoBERTa": 1}), (4, 4, 5, "b", {"BERT": 9}))]  # fmt: skip
    found = mean_of(rows, 5)
    assert found == {"mean": 1, "low": -1.5, "high": 3.5, "seeds": 3, "setting": "the rows of a, b",
                     "published": {"BERT": 3}}  # fmt: skip
    assert mean_of([rows[0] | {"claim": "c", "low": None}, rows[1]], 5) == {"unmeasured": "no interval for c"}


def test_a_mean_of_no_claim_is_refused(tmp_path):
    """Fails if a misspelt claim falls out of a mean without a word, which then has another verdict."""
    file = tmp_path / "claims.yaml"
    file.write_text("- {claim: a, source: b, compared: [c, d], corpus: e, expected: above, mean_of: [f], beyond: 6}\n")
    with pytest.raises(InputError, match="a mean of"):
        claims.read_claims(file)


def test_a_claim_without_a_reason_is_refused(tmp_path):
    """Fails if a row of the table has neither numbers nor a reason."""
    file = tmp_path / "claims.yaml"
    file.write_text("- {claim: a, source: b}\n")
    with pytest.raises(InputError, match="nor `unmeasured`"):
        claims.read_claims(file)


def test_a_share_of_the_second_side_on_paper():
    """Fails if "80% of its quality" is read as 80% of the difference, or of both sides."""
    study = read_results(ROOT / "results/towers_stsb")
    claim = {"compared": ["bi_encoder cosent_mini", "cross_encoder cosent_mini"], "corpus": "stsb", "share": 0.8}
    bi, cross = (of_row(study, name, "stsb") for name in claim["compared"])
    gap = sum(bi[seed].test("stsb") - 0.8 * cross[seed].test("stsb") for seed in bi) / len(bi)
    found = of_study(claim, study)
    assert found["mean"] == pytest.approx(100 * gap, abs=0.01) and found["low"] < found["mean"] < found["high"]


def test_the_untrained_model_can_be_a_side():
    """Fails if "before training" compares the trained scores with themselves, or the difference has the wrong sign."""
    claim = next(
        claim for claim in claims.read_claims() if claim.get("compared") == ["cosent", "cosent before training"]
    )
    corpus, study = claim["corpus"], read_results(ROOT / "results" / claim["study"])
    found, runs = of_study(claim, study), study.cell("cosent", claim["corpus"])
    gaps = [run.test(corpus) - run.test(corpus, moment="before") for run in runs]
    assert found["mean"] == pytest.approx(100 * sum(gaps) / len(gaps), abs=0.01) and found["low"] < found["high"]


def test_the_queries_of_the_untrained_model_can_be_a_side():
    """Fails if retrieval before training is that after it: Recall@10 rose by six points on STS-B."""
    study = read_results(ROOT / "results/retrieval_stsb")
    claim = {"compared": ["cosent_mini before training", "cosent_mini"], "corpus": "stsb", "quantity": "recall_at_10"}
    found, runs = of_study(claim, study), study.cell("cosent_mini", "stsb")
    gaps = [run.test("stsb", "recall_at_10", "before") - run.test("stsb", "recall_at_10") for run in runs]
    assert found["mean"] == pytest.approx(100 * sum(gaps) / len(gaps), abs=1e-3) and found["high"] < -3


def test_models_trained_elsewhere_are_said_to_be():
    """Fails if a reader takes a transfer for training on the corpus; rows that name their corpora need no word more."""
    runs = read_results(ROOT / "results/mined").results
    ours = [run for run in runs if run.corpus == "bq_own"]
    assert ", trained on bq_own, 1 epoch" in setting(ours, elsewhere(ours, "bq"))
    assert elsewhere(runs, "bq") is None and "trained on" not in setting(runs, None)
    assert elsewhere([replace(run, corpus="bq") for run in ours], "bq") is None


def test_the_pairs_of_a_setting_are_those_that_were_read():
    """Fails if a corpus of fewer pairs than --limit_train is said to have as many: BQ has 27,810 here."""
    runs = read_results(ROOT / "results/native_mini").results
    for corpus, pairs in (("bq", "27810"), ("atec", "40000")):
        assert f"mini, {pairs} pairs, 1 epoch" in setting([run for run in runs if run.corpus == corpus], None)


def test_a_claim_has_the_difference_of_its_source():
    """Fails if a claim stands next to the difference of another table, corpus or direction, or of one method alone.

    kexue.fm 8847 has 80.14 - 66.41 on STS-B with BERT; table 2, trained on NLI, has 28.93 - 28.19 on ATEC.
    """
    claim = {"compared": ["cosent", "sbert"], "corpus": "stsb"}
    found = of_study(claim, read_results(ROOT / "results/losses_stsb"))
    assert found["published"]["BERT"] == pytest.approx(13.73) and "trained_on" not in found
    assert found["published"]["RoBERTa"] == pytest.approx(81.13 - 72.42)
    transfer = of_study(claim | {"corpus": "atec"}, read_results(ROOT / "results/nli_transfer_mini"))
    assert transfer["published"]["BERT"] == pytest.approx(0.74) and transfer["trained_on"] == "nli"
    few = claim | {"compared": ["sbert", "cosent"], "corpus": "pawsx_few", "published_corpus": "pawsx"}
    assert of_study(few, read_results(ROOT / "results/pawsx_few"))["published"]["BERT"] == pytest.approx(46.86 - 60)
    study = read_results(ROOT / "results/losses_stsb")
    for others in (
        ["cosent", "cosine_linear"],
        ["cosent before training", "sbert"],
        ["angle", "cosent"],
        ["cosent", "cosent"],
    ):
        assert gaps_of_source(claim | {"compared": others}, study) == {}, "of another table, or of an untrained model"
    assert gaps_of_source(claim | {"share": 0.8}, study) == {}


def test_accuracy_is_that_of_the_record():
    """Fails if rows are classified by another threshold than the one that validation gave."""
    runs = read_results(ROOT / "results/towers").results
    assert len(runs) == 9
    for run in runs:
        assert right_rows(run, "lcqmc").mean() == pytest.approx(run.test("lcqmc", "accuracy"), abs=1e-6), run.name


def test_accuracy_where_nothing_is_predicted_similar():
    """Fails if a model whose threshold is above all its scores, with a precision of 0, stops all claims."""
    run = next(run for run in read_results(ROOT / "results/towers").results if run.scores)
    similar = run.scores["lcqmc"]["labels"] == 1
    metrics = {"precision": 0.0, "recall": 0.0, "accuracy": 1 - similar.mean()}
    never = replace(run, after={"lcqmc": {"test": metrics}})
    assert right_rows(never, "lcqmc").tolist() == (~similar).tolist()


def test_seeds_alone_on_paper():
    """Fails if three seeds get the interval of many: of 1, 2 and 3 it is 2 ± 4.303 / sqrt(3), and one has none."""
    found = over_seeds([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found["mean"] == 2 and found["high"] - 2 == pytest.approx(4.302653 / 3**0.5) and found["freedom"] == 2
    assert over_seeds([2.0], [1.0]) == {"mean": 1.0, "low": None, "high": None}
    p, likely = claims.p_value("above", found)
    assert p == pytest.approx(0.0742, abs=1e-4) and likely  # t = 3.46 with 2 degrees of freedom


def test_results_without_a_study_have_their_own_rows():
    """Fails if a claim about students, merged or fused models gets the number of another row."""
    student = json.loads((ROOT / "results/student.json").read_text(encoding="utf-8"))["rows"]
    distilled, teacher = (next(r["values"] for r in student if r["name"].startswith(n)) for n in ("then s", "tea"))
    claim = {"compared": ["then stage 2", "teacher"], "corpus": "lcqmc"}
    found = of_result(claim, ROOT / "results/student.json")
    assert found["mean"] == pytest.approx(100 * (sum(distilled) / 3 - teacher[0])) and found["seeds"] == 3
    gain = of_result({"compared": ["bi_encoder vectors"], "corpus": "stsb"}, ROOT / "results/merged.json")
    assert gain["mean"] == pytest.approx(1.43, abs=0.005)
    fused = {"compared": ["ce_mini + cross_encoder cosent_mini"], "corpus": "lcqmc"}
    assert of_result(fused, ROOT / "results/fusion.json")["mean"] < 0


def test_published_tables_are_those_of_studies(monkeypatch):
    """Fails if a published table names a study that does not ship, no method of it, or an unknown quantity."""
    monkeypatch.chdir(ROOT)
    tables = yaml.safe_load(Path("results/published.yaml").read_text(encoding="utf-8"))
    assert len(tables) >= 6
    for table in tables:
        assert table["measure"] in claims.QUANTITIES
        for study in table["studies"]:
            runs = expand(read_study(f"recipes/studies/{study}.yaml"), {})
            stand_ins = [
                SimpleNamespace(method=run.method, tower=run.settings.get("tower", "bi_encoder")) for run in runs
            ]
            found = [row for run in stand_ins for row in published_rows(table, run)]
            assert {"method", "encoder"} < set(found[0]), study


def test_published_rows_are_those_of_the_method():
    """Fails if the number of another encoder, loss or tower stands beside ours."""
    rows = [{"method": m, "encoder": e} for m in ("cosent", "sbert") for e in ("BERT", "RoBERTa")]

    def of(method, tower="bi_encoder", about="bi_encoder"):
        return published_rows({"rows": rows, "tower": about}, SimpleNamespace(method=method, tower=tower))

    assert of("cosent RoBERTa") == [rows[1]] and of("bi_encoder sbert BERT") == [rows[2]]
    assert of("own sbert") == rows[2:], "a variant that sets another loss"
    assert of("cosent_mini mini") == rows[:2] and of("angle BERT") == []
    assert of("cosent_mini", "cross_encoder") == []
    assert of("cosent_mini", "cross_encoder", "cross_encoder") == rows[:2]


def test_the_picture_is_that_of_the_claims():
    """Fails if a study was run again and the picture of the READMEs has the old intervals: `python -m
    benchmarks.forest`; or if a difference of another pair of methods, encoder or quantity, or of one seed, is in it."""
    assert forest.draw(ROOT / "results") == forest.FILE.read_text(encoding="utf-8")
    row = {"compared": ["bi_encoder cosent_mini", "sbert"], "corpus": "stsb", "study": "s", "setting": "mini, 1 epoch"}
    row |= {"mean": 9.0, "low": 8.0, "high": 10.0, "seeds": 3, "published": {"RoBERTa": 8.71, "BERT": 13.73}}
    others = [{"seeds": 1}, {"compared": ["sbert", "cosent"]}, {"compared": ["cosent a", "cosent b"]},
              {"quantity": "first_epoch"}, {"setting": "runs/mini, 1 epoch"}, {"trained_on": "nli"}]  # fmt: skip
    drawn = forest.rows_of([row, row, *(row | other for other in others), {"claim": "a"}])
    assert drawn == [("Sentence-BERT, STS-B (source: +13.73)", 9.0, 8.0, 10.0)]
