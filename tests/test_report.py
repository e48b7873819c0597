"""What a report says is what the runs measured, and no number of the README is typed by hand."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats

from benchmarks import students, tables
from cosent import report
from cosent.errors import InputError
from cosent.reporting.differences import compare
from cosent.reporting.ensemble import ensemble
from cosent.run_record import Environment, Footprint, RunRecord, Written
from cosent.run_scores import read_scores, save_scores
from cosent.studies.results import read_results

ROOT = Path(__file__).parents[1]


@pytest.fixture
def make_study(tmp_path):
    """Returns a function that leaves the results of a study, as `cosent.study` does, and gives back its folder."""

    def make(noise: dict[str, float], corpora=("lcqmc",), seeds=(1, 2), name="made_up", keep_scores=True, rows=300):
        folder = tmp_path / name
        folder.mkdir()
        for corpus in corpora:
            labels = np.random.default_rng(len(corpus)).integers(0, 2, rows).astype(float)
            before = np.random.default_rng(0).random(rows)
            for method, spread in noise.items():
                for seed in seeds:
                    rng = np.random.default_rng([seed, len(method)])
                    after = labels + spread * rng.normal(size=rows)
                    test = {"spearman": stats.spearmanr(after, labels).statistic, "accuracy": 0.8 + 0.01 * seed}
                    record = {
                        "study": {"method": method, "corpus": corpus, "seed": seed, "flags": {}},
                        "recipe": {"seed": seed, "model_name_or_path": "mini", "pooling": "mean", "loss": method}
                        | {"learning_rate": 5e-4, "num_train_epochs": 6.0, "per_device_train_batch_size": 32},
                        "corpora": {corpus: {"folder": corpus, "manifest_sha256": ""}},
                        "before": {corpus: {"test": {"spearman": 0.5}}},
                        "after": {corpus: {"test": test | {"oracle_accuracy": 0.9}}},
                        **{"train_seconds": 90, "device": "CPU", "commit": "c" * 40, "threads": 1, "versions": {}},
                        "speed": {"train_pairs_per_second": 200.0, "score_pairs_per_second": 500.0},
                        "validation_curve": [[1.0, 0.5], [2.0, 0.58], [3.0, 0.6]],
                    }
                    stem = re.sub(r"\W+", "-", f"{method}-{corpus}-{seed}")
                    (folder / f"{stem}.json").write_text(json.dumps(record))
                    if keep_scores:
                        arrays = {"labels": labels, "before": before, "after": after, "distances": 1 - before}
                        save_scores(folder / f"{stem}.npz", {corpus: {"test": arrays}})
        asked = {"methods": list(noise), "corpora": list(corpora), "seeds": list(seeds)}
        (folder / "study.yaml").write_text(yaml.safe_dump(asked))
        return folder

    return make


def test_the_documentation_is_up_to_date():
    """Fails if a result changed and a page still shows the old figure: run `make tables`."""
    pages = {page: page.read_text(encoding="utf-8") for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}
    shown = [name for text in pages.values() for _, name, *_ in tables.BLOCK.findall(text)]
    assert len(shown) >= 16 and len(set(shown)) == len(shown)
    for page, text in pages.items():
        assert tables.fill(text, ROOT / "results") == text, page.name


def test_a_study_on_paper(tmp_path):
    """Fails if mean, deviation or floor of the README are wrong: 0.6 and 0.7 give 65.00 ± 7.07.

    The results are those of a version that counted neither processes nor parameters, and scores were not kept.
    """
    recipe = {"model_name_or_path": "mini", "pooling": "mean", "per_device_train_batch_size": 32}
    recipe |= {"learning_rate": 5e-4, "num_train_epochs": 6}
    (tmp_path / "study").mkdir()
    for seed, spearman in ((1, 0.6), (2, 0.7)):
        run = {"after": {"stsb": {"test": {"spearman": spearman}}}, "train_seconds": 90, "before": {}}
        run |= {
            "recipe": recipe | {"seed": seed},
            "device": "CPU",
            "commit": "c" * 40,
            "threads": 1,
            "versions": {},
            "corpora": {},
        }
        run |= {"study": {"method": "cosent", "corpus": "stsb", "seed": seed, "flags": {}}}
        run |= {"speed": {}, "validation_curve": [[1.0, spearman]]}
        (tmp_path / "study" / f"cosent-stsb-{seed}.json").write_text(json.dumps(run))
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "stsb.json").write_text(json.dumps({"splits": {"test": {"overlap_spearman": 58.68}}}))
    filled = tables.fill("<!-- results:study -->\nold\n<!-- end -->", tmp_path)
    assert "| cosent | 65.00 ± 7.07 | 2 | 1.5 |" in filled and "| 58.68 |" in filled and "old" not in filled
    assert tables.fill(filled, tmp_path) == filled
    with pytest.raises(InputError, match="asks for results:nothing"):
        tables.fill("<!-- results:nothing -->\n<!-- end -->", tmp_path)
    markdown, _ = report.write(tmp_path / "study")
    assert "| cosent | 65.00 ± 7.07 |" in markdown.read_text()


def test_tables_say_what_was_measured(make_study):
    """Fails if the page's numbers are not those of the runs, or the published ones are missing or taken for ours.

    Accuracies of 0.81 and 0.82 give 81.50 ± 0.71; 90% of the best (0.6) is 0.54, first reached in epoch 2.
    """
    folder = make_study({"cosent": 0.8, "sbert": 2.0}, name="native-limit_train=9")
    table = {"source": "kexue.fm 1", "studies": ["native"], "measure": "spearman"}
    rows = [{"method": "cosent", "encoder": "BERT", "lcqmc": 78.69, "atec": 1.0}, {"method": "x", "encoder": "BERT"}]
    (folder.parent / "published.yaml").write_text(yaml.safe_dump([table | {"rows": rows}]))
    text = report.write(folder)[0].read_text()
    values = [100 * r.test("lcqmc") for r in read_results(folder).rows["cosent"]]
    assert f"| cosent | **{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}** |  | 2 |" in text
    assert "| published: cosent, BERT (kexue.fm 1) | 78.69 |  | 1 |" in text and "published: x" not in text
    assert "81.50 ± 0.71" in text and "90.00 ± 0.00" in text and "oracle threshold" in text
    assert "| cosent, lcqmc | 50.00 ± 0.00 | 60.00 ± 0.00 | 2.0 |" in text
    assert "| cosent, lcqmc | 1.5 | 200 | 500 | 2.00 |" in text


def test_intervals_are_those_of_the_scores(make_study):
    """Fails if a difference is not that of the means, a clear one is missed, or equal methods are told apart."""
    study = read_results(make_study({"good": 0.5, "bad": 3.0, "poor": 3.0}))
    scored = {row: {r.seed: r for r in runs} for row, runs in study.rows.items()}
    found = compare(scored, "lcqmc")
    gain, seeds = found["good", "bad"]
    means = {row: np.mean([r.test("lcqmc") for r in runs]) for row, runs in study.rows.items()}
    assert gain.mean == pytest.approx(means["good"] - means["bad"]) and seeds == 2
    assert 0 < gain.low < gain.mean < gain.high
    same, _ = compare({"a": scored["good"], "b": scored["good"]}, "lcqmc")["a", "b"]
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    file = study.folder / "bad-lcqmc-1.npz"
    other = read_scores(file)
    other["lcqmc"]["test"]["labels"][:2] = 1 - other["lcqmc"]["test"]["labels"][:2]
    save_scores(file, other)
    again = {row: {r.seed: r for r in runs} for row, runs in read_results(study.folder).rows.items()}
    with pytest.raises(InputError, match="bad-lcqmc-1.json was tested on other rows of lcqmc"):
        compare(again, "lcqmc")
    del scored["bad"][1]
    assert compare(scored, "lcqmc")["good", "bad"][1] == 1, "a seed that one method lacks is no pair"


def test_a_cross_of_corpora_keeps_them_apart(make_study):
    """Fails if runs that were trained on different corpora and tested on the same one are averaged."""
    folder = make_study({"cosent": 1.0}, corpora=("atec", "stsb"), seeds=(1,))
    for file in folder.glob("*.json"):
        record = json.loads(file.read_text())
        record["after"] = {corpus: {"test": {"spearman": 0.1}} for corpus in ("atec", "stsb")}
        file.write_text(json.dumps(record))
    study = read_results(folder)
    assert list(study.rows) == ["cosent, trained on atec", "cosent, trained on stsb"] and len(study.corpora) == 2
    report.write(folder)


def test_each_tower_has_its_own_score_before_training(make_study):
    """Fails if the untrained scores of a bi-encoder and of a cross-encoder's fresh head are averaged."""
    folder = make_study({"bi": 1.0, "cross": 1.0}, seeds=(1,))
    file = folder / "cross-lcqmc-1.json"
    record = json.loads(file.read_text())
    record["recipe"] |= {"tower": "cross_encoder", "pooling": None}
    record["before"]["lcqmc"]["test"]["spearman"] = 0.0
    file.write_text(json.dumps(record))
    text = report.write(folder)[0].read_text()
    assert re.search(r"before training: mini.* mean \| 50.00 \|", text)
    assert re.search(r"before training: mini.*cross_encoder \| 0.00 \|", text)


def test_missing_runs_are_named(make_study):
    """Fails if a report of half a study looks like one of a whole study."""
    folder = make_study({"cosent": 1.0, "sbert": 1.0})
    (folder / "sbert-lcqmc-2.json").unlink()
    assert "Not finished, 1 runs: sbert on lcqmc, seed 2." in report.write(folder)[0].read_text()


def test_without_scores_there_are_tables_alone(make_study):
    """Fails if results from before scores were kept stop the report, or their missing intervals go unmentioned."""
    text = report.write(make_study({"cosent": 1.0, "sbert": 1.0}, keep_scores=False))[0].read_text()
    assert "No interval for cosent, sbert: the scores of these runs were not kept." in text


class Page(HTMLParser):
    """Tags that are open at the end, all tags, ids, and what is linked or loaded."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.links = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in ("meta", "path", "circle", "polygon", "polyline"):
            self.open.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_alone(make_study):
    """Fails if the page loads anything, runs a script, repeats an id, or a figure says nothing to a screen reader."""
    text = report.write(make_study({"cosent": 0.8, "sbert": 2.0}, corpora=("lcqmc", "atec")))[1].read_text()
    page = Page()
    page.feed(text)
    assert not page.open and len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags and page.links and {link.lstrip("#") for link in page.links} <= set(page.ids)
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    figures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    # Dots, intervals, curves, two histograms per method and one of distances: for either corpus.
    assert len(figures) == 2 * (1 + 1 + 1 + 2 * 2 + 1)
    assert all('role="img"' in figure and "<desc" in figure and "nan" not in figure for figure in figures)


def test_a_users_text_stays_text(make_study):
    """Fails if the name of a method, a corpus or a device can run code in the page, or break a Markdown table."""
    folder = make_study({"<script>alert(1)</script>": 1.0, "a|b *c*": 1.0}, name="study", corpora=("<b>x",))
    markdown, html = (file.read_text() for file in report.write(folder))
    assert "<script>" not in html and "<b>" not in html and "&lt;script&gt;alert(1)" in html
    assert "<script>" not in markdown and "<b>" not in markdown and r"a\|b \*c\*" in markdown


def test_an_ensemble_of_two_runs(make_study, tmp_path):
    """Fails if the fusion is not the mean of ranks, or its gain is not tested on the rows of both."""
    folder = make_study({"one": 1.0, "other": 1.0}, seeds=(1,))
    text = ensemble(str(folder / "one-lcqmc-1.json"), str(folder / "other-lcqmc-1.npz"))
    study = read_results(folder)
    runs = [study.rows[name][0].scores["lcqmc"]["test"] for name in ("one", "other")]
    fused = stats.rankdata(runs[0]["after"]) + stats.rankdata(runs[1]["after"])
    expected = [stats.spearmanr(s, runs[0]["labels"]).statistic for s in (*(run["after"] for run in runs), fused)]
    assert f"| lcqmc | {' | '.join(f'{100 * value:.2f}' for value in expected)} |" in text
    gains = re.findall(r"([+-][\d.]+) \\\[", text)
    assert gains == [f"{100 * (expected[2] - single):+.2f}" for single in expected[:2]]
    low = float(re.findall(r"\\\[([+-][\d.]+),", text)[0])
    assert 0 < low < 100 * (expected[2] - expected[0]), "two independent runs of equal quality gain from each other"
    with pytest.raises(InputError, match="has no scores"):
        ensemble(str(folder), str(tmp_path))
    save_scores(tmp_path / "scores.npz", {"lcqmc": {"test": {"labels": np.zeros(300), "after": np.zeros(300)}}})
    with pytest.raises(InputError, match="other rows of lcqmc"):
        ensemble(str(folder / "one-lcqmc-1.json"), str(tmp_path))


def test_what_is_no_result_is_named(tmp_path):
    """Fails if a stray or torn file ends in a traceback, or an empty folder in an empty report."""
    with pytest.raises(InputError, match="holds no results"):
        report.write(tmp_path)
    (tmp_path / "torn.json").write_text('{"recipe": ')
    with pytest.raises(InputError, match="torn.json is not the result of a run"):
        report.write(tmp_path)


def test_report_answers_at_once():
    """Fails if a table of numbers first loads torch."""
    code = "import sys, cosent.report; sys.exit(any(name in sys.modules for name in ('torch', 'datasets')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


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
