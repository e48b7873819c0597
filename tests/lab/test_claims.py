"""Every claim of the sources has a verdict that its runs bear out, or says why it has none."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy import stats

from cosent.errors import InputError
from cosent.evaluation.significance import Difference
from lab import RESULTS, ROOT
from lab.claims import __main__ as claims
from lab.claims import facts
from lab.claims.__main__ import benjamini_hochberg, holm, p_within
from lab.claims.measures import (
    departures,
    gaps_of_source,
    mean_of,
    of_row,
    of_studies,
    published_rows,
    right_rows,
    study_of,
    two_sided,
)
from lab.claims.table import write_csv
from lab.tables import pictures
from lab.tables.studies import published
from tests.support.studies import runs_of

NAMED = {"claim": "a claim", "source": "kexue.fm 8847"}


def test_probabilities_on_paper():
    """Fails if p is that of a normal tail, "within a margin" follows from noise, or 0.02 decides among three by Holm.

    With 2 degrees of freedom t = 3.46 has 0.074; 0.2 from 1 in steps of 0.1 is 8 errors, from an error of 1 nothing is
    known, and 3 is not within 1. Holm asks for 0.05 / 3, then 0.05 / 2, and stops at the first above; Benjamini and
    Hochberg ask for 0.05 / 3, 0.05 * 2 / 3 and 0.05, and take all up to the last that passes.
    """
    assert two_sided(Difference(2.0, 1 / 3**0.5, 2)) == pytest.approx(0.0742, abs=1e-4)
    assert p_within(Difference(0.2, 0.1, 1000), 1) < 1e-9
    assert p_within(Difference(0.0, 1.0, 1000), 1) == pytest.approx(stats.t.sf(1, 1000))
    assert p_within(Difference(3.0, 0.1, 1000), 1) == 1
    assert holm([0.03, 0.01, 0.04], 0.05) == [False, True, False]
    assert holm([0.02, 0.01, 0.04], 0.05) == [True, True, True]
    assert holm([0.02, 0.03, 0.04], 0.05) == [False] * 3 and benjamini_hochberg([0.02, 0.03, 0.04], 0.05) == [True] * 3
    assert benjamini_hochberg([0.02, 0.04, 0.06], 0.05) == [False] * 3


def ended(method, start, end):
    """A run of the study of collapses, with its validation scores before and after."""
    before, after = ({"stsb": {"validation": {"spearman": value}}} for value in (start, end))
    return SimpleNamespace(method=method, corpus="stsb", before=before, after=after)


def test_a_collapse_is_an_end_below_the_start_of_the_same_run(monkeypatch):
    """Fails if runs are held against the start of others.

    1 of 2 is between 1.3 and 98.7%, by Clopper and Pearson, which decides nothing.
    """
    runs = [ended("sbert 5e-4", 0.40, 0.39), ended("sbert 5e-4", 0.30, 0.35), ended("cosent 5e-4", 0.4, 0.6)]
    monkeypatch.setattr(facts, "results_of", lambda name: runs)
    text = "1 of 2 runs: 50% [1%, 99%]; CoSENT 0 of 1"
    assert facts.collapse_share() == (text, "unresolved at this size")


def test_a_limit_departs_from_the_source_where_a_corpus_has_more():
    """Of 62,477 pairs of ATEC, 62,477 are all and 20,000 are not; 20,000 are more than STS-B has."""
    for corpus, limit, part in (("atec", 62477, False), ("atec", 20000, True), ("stsb", 20000, False)):
        run = SimpleNamespace(corpus=corpus, recipe={"limit_train": limit})
        assert ("pairs" in departures({"source": "a paper", "corpus": corpus}, [run])) == part


def both(claim, study):
    """The difference of two rows of one study."""
    return of_studies(claim, (study, study))


def ends(study, names):
    """A run of each of two rows."""
    return [next(iter(of_row(study, name, "stsb").values())) for name in names]


def test_published_tables_are_those_of_studies():
    """Fails if a published table names a study that does not ship, no method of it, or an unknown quantity."""
    assert len(published()) >= 6
    for table in published():
        assert table["measure"] in claims.QUANTITIES
        for study in table["studies"]:
            runs = [SimpleNamespace(method=run.method, recipe=run.settings) for run in runs_of(study)]
            rows = [row for run in runs for row in published_rows(table, run)]
            assert {"method", "encoder"} < set(rows[0]), study


@pytest.mark.slow
def test_the_page_has_the_claims_and_results_of_today(recipe, tmp_path):
    """Fails if a claim or a result changed and the page has the old verdict: run `python -m lab.claims`.

    Or if a claim names a study, method or corpus that is not there, so that no run could ever decide it.
    """
    with pytest.raises(InputError, match="not complete"):
        claims.read_claims(Path(recipe("a theme:\n- {claim: a, source: b}\n")))
    listed, kept = claims.read_claims(), json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))["rows"]
    assert len(listed) >= 80 and len({claim["claim"] for claim in listed}) == len(listed)
    assert 10 <= sum(claim.get("family") == "primary" for claim in listed) <= 16
    assert [row for row in kept if "study" in row and "mean" not in row] == []
    for claim, row in zip(listed, kept, strict=True):
        assert all(row[key] == value for key, value in claim.items() if key not in {"differs", *claims.TEXTS}), claim
    compared = 0
    for row in kept:
        names = row.get("study") if isinstance(row.get("study"), list) else [row.get("study")] * 2
        if "mean" not in row or None in names or "of_score" in row or row.get("quantity", "spearman") != "spearman":
            continue
        studies = [study_of(name) for name in names]
        first, second = (of_row(s, name, row["corpus"]) for s, name in zip(studies, row["compared"], strict=True))
        gaps = [first[seed].test(row["corpus"]) - second[seed].test(row["corpus"]) for seed in first if seed in second]
        assert len(gaps) == row["seeds"], row
        mean = 100 * sum(gaps) / len(gaps) - row.get("beyond", 0.0)
        assert mean == pytest.approx(row["mean"], abs=0.01), row
        compared += 1
    assert compared >= 30
    write_csv(kept, file := tmp_path / "claims.csv")
    assert file.read_text(encoding="utf-8") == (ROOT / "lab/claims.csv").read_text(encoding="utf-8")


def measured(mean, error, freedom=1000.0, expected="above", seeds=3, **more):
    return {"mean": mean, "error": error, "freedom": freedom, "expected": expected, "seeds": seeds} | more


def test_verdicts_on_paper():
    """Fails if a verdict is not that of its interval: 3 errors from 0 decide, 2 seeds never do, and half a point with
    an error of 0.1 is within a point."""
    rows = [measured(3.0, 1.0), measured(-3.0, 1.0), measured(1.0, 1.0), measured(30.0, 1.0, seeds=2)]
    rows += [measured(0.05, 0.1, expected="equal"), measured(3.0, 0.1, expected="equal"), measured(0.1, 0.15)]
    claims.add_verdicts(rows)
    words = [claims.AGREES, claims.DISAGREES, claims.OPEN, claims.OPEN, claims.AGREES, claims.DISAGREES, claims.WITHIN]
    assert [row["verdict"] for row in rows] == words
    few = [measured(3.0, 1.0, freedom=2.0), measured(0.4, 0.01) | {"one_model": "one", "low": 0.38, "high": 0.42}]
    claims.add_verdicts(few)
    assert few[0]["verdict"] == claims.OPEN, "3 errors on 2 degrees of freedom are p = 0.095"
    assert few[1]["verdict"] == claims.WITHIN, "a positive difference of a hundredth of a point is no gain"


def test_one_collapse_leaves_no_verdict_open_that_all_seeds_share():
    """Fails if ten seeds more than a point apart stay unresolved since one of them is 69 apart, or nine of ten decide.

    All of ten on one side have 2 / 1024 by the sign test, nine 22 / 1024; twice that must be below 0.04 of one claim.
    """
    gaps = [2.5, 3, 4, 4, 5, 5, 6, 7, 8, 69.0]
    rows = [measured(11.4, 6.5, 9.0, "equal", 10, gaps=gaps, family="primary")]
    claims.add_verdicts(rows)
    assert rows[0]["verdict"] == claims.DISAGREES and rows[0]["p"] == pytest.approx(4 / 1024)
    rows = [measured(11.2, 6.5, 9.0, "equal", 10, gaps=[0.5, *gaps[1:]], family="primary")]
    claims.add_verdicts(rows)
    assert rows[0]["verdict"] == claims.OPEN and rows[0]["p_of_sign"] == pytest.approx(22 / 1024)


def test_the_mean_of_several_corpora_is_of_seeds():
    """Fails if five tests of three models count as fifteen runs, or if one corpus alone decides.

    By seed 2, 3 and 4: an error of 1 / sqrt(3), with 2 degrees of freedom. Without the first corpus it is -1.
    """
    of = {"study": "one", "seeds": 3, "differs": [], "error": 0.1, "freedom": 99.0}
    rows = [
        of | {"claim": c, "corpus": c, "mean": m, "gaps": g}
        for c, m, g in (("a", 7, [6, 7, 8]), ("b", -1, [-2, -1, 0]))
    ]
    found = mean_of(rows, 0)
    assert found["mean"] == 3 and found["error"] == pytest.approx(3**-0.5) and found["freedom"] == 2
    assert found["without"] == {"a": -1} and found["divided"]
    claims.add_verdicts([row := found | {"expected": "above", "beyond": 0}])
    assert row["verdict"] == claims.OPEN


def test_the_primary_family_is_judged_by_itself():
    """Fails if claims outside make the primary ones harder, or the primary ones are judged one by one."""
    for primary, others, verdict in ((3, 9.0, claims.OPEN), (1, 0.1, claims.AGREES)):  # p = 0.028: not below 0.05 / 3
        rows = [measured(2.2, 1.0, family="primary") for _ in range(primary)]
        claims.add_verdicts([*rows, *(measured(others, 1.0) for _ in range(50))])
        assert {row["verdict"] for row in rows} == {verdict}


@pytest.mark.matrix
def test_the_pictures_are_those_of_the_results():
    """Fails if a study was run again and a picture has the old intervals: run `python -m lab.tables.pictures`."""
    assert [file for file, svg in pictures.pictures().items() if file.read_text(encoding="utf-8") != svg] == []


@pytest.mark.slow
def test_a_claim_has_the_difference_of_its_source():
    """Fails if a claim stands next to the difference of another table, corpus or direction, or of one method alone.

    kexue.fm 8847 has 80.14 - 66.41 on STS-B with BERT; table 2, trained on NLI, has 28.93 - 28.19 on ATEC.
    """
    claim = {"compared": ["cosent", "sbert"], "corpus": "stsb"} | NAMED
    found = both(claim, study_of("losses_stsb"))
    assert found["published"]["BERT"] == pytest.approx(13.73) and "trained_on" not in found
    assert found["published"]["RoBERTa"] == pytest.approx(81.13 - 72.42)
    transfer = both(claim | {"corpus": "atec"}, study_of("nli_transfer_mini"))
    assert transfer["published"]["BERT"] == pytest.approx(0.74) and transfer["trained_on"] == "nli"
    few = claim | {"compared": ["sbert", "cosent"], "corpus": "pawsx_few", "published_corpus": "pawsx"}
    assert both(few, study_of("pawsx_few"))["published"]["BERT"] == pytest.approx(46.86 - 60)
    study = study_of("losses_stsb")
    for first, second in (("cosent", "cosine_linear"), ("cosent before training", "sbert"), ("angle", "cosent")):
        gaps = gaps_of_source(claim | {"compared": [first, second]}, study, *ends(study, (first, second)))
        assert gaps == {}, "of another table, or of an untrained model"
    assert gaps_of_source(claim | {"share": 0.8}, study, *ends(study, claim["compared"])) == {}


def test_accuracy_is_that_of_the_record():
    """Fails if rows are classified by another threshold than the one that validation gave."""
    runs = study_of("towers").results
    assert len(runs) == 9
    for run in runs:
        assert right_rows(run, "lcqmc").mean() == pytest.approx(run.test("lcqmc", "accuracy"), abs=1e-6), run.name
