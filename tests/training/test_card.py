"""The card of a run, and --push_to_hub against repositories in memory."""

import contextlib
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import filter_repo_objects
from markdown_it import MarkdownIt

from cosent import decision_rules
from cosent.data.corpus import Manifest
from cosent.encoders import resolve
from cosent.models import load_model
from cosent.record import lineage, read_record, terms_of, trained_on_pairs
from cosent.training.card import CARD_NAME, base_model, card_text


@pytest.fixture
def hub(monkeypatch) -> dict[str, dict]:
    """Repositories in the place of the Hub's: `{"private": bool, "files": {path: bytes}, "commits": [title]}` by id."""
    repositories: dict[str, dict] = {}

    def create_repo(api, repository, *, token=None, private=None, exist_ok=False):
        repositories.setdefault(repository, {"private": private, "files": {}, "commits": []})
        return SimpleNamespace(repo_id=repository)

    def upload_folder(api, *, repo_id, folder_path, ignore_patterns, commit_message):
        files = {str(path.relative_to(folder_path)): path for path in Path(folder_path).rglob("*") if path.is_file()}
        for name in filter_repo_objects(files, ignore_patterns=ignore_patterns):
            repositories[repo_id]["files"][name] = files[name].read_bytes()
        repositories[repo_id]["commits"].append(commit_message)
        return SimpleNamespace(commit_url=f"{api.endpoint}/{repo_id}/commit/0")

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    return repositories


def test_foreign_text_stays_text(bi_run):
    """Fails if a folder, corpus, prompt or file puts a tag, a heading or code of its own into the card on the Hub."""
    record, bad = read_record(bi_run.folder), "<img src=x onerror=alert(1)>``\n# x [y](javascript:z)"
    record.prompts = bad, "`"
    record.recipe |= {"loss": [bad], "models": [bad], "corpus": [bad], "model_name_or_path": bad}
    record.after, record.before = {bad: record.after["made_up"]}, {}
    record.thresholds, record.corpora = {bad: 0.5}, {bad: record.corpora["made_up"]}
    body = card_text(bi_run.folder, record, f'{bad}"); import os').split("---\n", 2)[2]
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(body)
    inline = [child for token in tokens for child in token.children or ()]
    assert {token.type for token in (*tokens, *inline)}.isdisjoint({"html_block", "html_inline", "image"})
    targets = [child.attrs["href"] for child in inline if child.type == "link_open"]
    assert targets and all(target.startswith("https://") for target in targets)
    assert sum(token.type == "heading_open" for token in tokens) == body.count("\n## ") + 1
    for code in (token.content for token in tokens if token.info == "python"):
        compile(code, "card", "exec")
        assert len(code.splitlines()) == 5


@pytest.mark.parametrize("kind", ["bi", "cross"])
def test_the_card_of_a_run(kind, request, monkeypatch):
    """Fails if the Hub cannot read the card, a figure is not that of the run, or its code block gives other scores."""
    run = request.getfixturevalue(f"{kind}_run")
    card, record = ModelCard.load(run.folder / CARD_NAME), json.loads((run.folder / "run.json").read_text())
    expected = record["after"]["made_up"]["test"]
    assert card.data.pipeline_tag == {"bi": "sentence-similarity", "cross": "text-ranking"}[kind]
    assert card.data.base_model is None, "a folder of this machine is no model of the Hub"
    row = next(line for line in card.text.splitlines() if line.startswith("made_up test"))
    assert row in run.printed and float(row.split()[3]) == pytest.approx(expected["spearman"], abs=6e-5)
    assert f"{decision_rules(run.folder)['made_up'].threshold:.4f}" in card.text
    assert f"{record['leaks']['made_up test']:,} pairs of made_up test" in card.text
    monkeypatch.chdir(run.folder.parent)
    (block,) = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(block, {})
    printed = [float(number) for number in re.findall(r"-?\d+\.\d+", out.getvalue())]
    ours = load_model(str(run.folder)).similarity("怎么还款", "如何还款")
    assert printed[1 if kind == "bi" else 0] == pytest.approx(ours, abs=2e-4)


def test_terms_travel_with_the_weights(train, bi_run, made_up, pairs, make_corpus, job, tmp_path):
    """Fails if a model made of others' corpora hides what their publishers allow, also at second hand, or a card of
    one's own pairs claims terms, or a licence."""
    prepared = make_corpus({"train": pairs}, name="bought")
    manifest = Manifest.load(prepared)
    manifest.terms = "research use only"
    manifest.save(prepared)
    first = train(prepared, "--max_steps", "1", "--eval_corpora", str(made_up), output="first")
    job("cosent.jobs.calibrate", "--model", first, "--corpus", made_up, "--output", tmp_path / "second")
    for name in ("first", "second"):
        card = ModelCard.load(tmp_path / name / CARD_NAME)
        assert read_record(tmp_path / name).terms == {"bought": "research use only"}
        assert card.data.license == "other" and "bought (research use only)" in card.text
    (checkpoint := first / "checkpoint-1").mkdir(exist_ok=True)  # of a run whose record is above it
    assert terms_of([str(checkpoint)]) == {"bought": "research use only"} and trained_on_pairs(lineage(str(checkpoint)))
    assert ModelCard.load(bi_run.folder / CARD_NAME).data.license is None
    assert "not known here: those of made" in (bi_run.folder / CARD_NAME).read_text(encoding="utf-8")


def test_terms_and_base_models_of_shipped_models():
    """Fails if terms of a shipped model are lost, or its card names another base model."""
    assert set(terms_of(["similar-lookup", None])) == {"lcqmc", "bq", "atec", "stsb", "nli"}
    assert terms_of(["mini"]) == {}
    assert [base_model(start) for start in ("similar", "a/b", "", "runs/no")] == ["similar", "a/b", None, None]


def test_the_card_of_a_pretrained_encoder():
    """Fails if a run without pairs has no card."""
    folder = Path(resolve("mini"))
    text = card_text(folder, read_record(folder))
    assert ModelCard(text).data.pipeline_tag == "fill-mask" and "## Results" not in text and "## Use" in text


def test_training_publishes_at_its_end(train, made_up, hub):
    """Fails if --push_to_hub shows a run to everyone, sends a checkpoint, or sends what is not the finished folder."""
    flags = ("--max_steps", "2", "--push_to_hub", "true", "--hub_model_id", "me/run")
    folder, published = train(made_up, *flags), hub["me/run"]
    assert published["private"] is True and published["commits"] == ["End of training"]
    assert published["files"]["run.json"] == (folder / "run.json").read_bytes()
    assert not any("checkpoint" in name for name in published["files"])
