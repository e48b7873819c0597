"""Model card of a finished run: the README.md of its folder, with the front matter that the Hub reads."""

import json
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cosent.atomic import sha256_of_file, write_atomically
from cosent.comparing.report import plain
from cosent.data.corpus import MANIFEST_NAME, Manifest
from cosent.encoders import SHIPPED
from cosent.models.decision import decision_rules
from cosent.record import RunRecord, lineage
from cosent.training.verdict import final_table

UNSET = (None, False, "None")  # values of settings that a card leaves out
FREE = {"nothing stated", "Apache-2.0"}  # terms that any licence agrees with
CARD_NAME, TEMPLATE = "README.md", "card.md.j2"
EMBEDDING_TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction"]
KINDS: dict[str, tuple[str, str, list[str]]] = {  # first sentence, Hub task, tags
    "bi-encoder": (
        "A bi-encoder: it embeds sentences, and the cosine of two vectors says how similar the sentences are.",
        "sentence-similarity",
        EMBEDDING_TAGS,
    ),
    "student": (
        "A RoFormer-Sim: it embeds sentences, and it writes sentences of the same meaning.",
        "sentence-similarity",
        EMBEDDING_TAGS,
    ),
    "cross-encoder": (
        "A cross-encoder: it reads two sentences at once and scores how similar they are.",
        "text-ranking",
        ["sentence-transformers", "cross-encoder", "reranker"],
    ),
    "encoder": ("A pretrained encoder, to be fine-tuned.", "fill-mask", []),
}
CARD_SETTINGS = (
    *("learning_rate", "num_train_epochs", "per_device_train_batch_size", "cached_batch_size", "max_length"),
    *("pooling", "loss", "scale", "use_peft", "bf16", "seed"),
)


def base_model(start: str) -> str | None:
    """Shipped or Hub model behind a start, also through earlier runs of cosent; None if unknown."""
    for model in [start, *(str(record.recipe.get("model_name_or_path") or "") for record in lineage(start))]:
        if not Path(model).exists():
            is_hub_id = model.count("/") == 1 and not model.startswith((".", "/", "runs/"))
            return model if model in SHIPPED or is_hub_id else None
    return None


def write_card(folder: str | Path, record: RunRecord, name: str | None = None) -> None:
    """Writes the card of a finished run into its folder, which will have this name."""
    write_atomically(Path(folder, CARD_NAME), card_text(Path(folder), record, name))


def card_text(folder: Path, record: RunRecord, name: str | None = None) -> str:
    """The card: front matter, then Markdown."""
    name = name or folder.resolve().name
    kind, recipe, rules = kind_of(folder, record), record.recipe, decision_rules(folder)
    corpora = [Path(corpus).name for key in ("corpus", "text") for corpus in as_list(recipe.get(key))]
    start = str(recipe.get("model_name_or_path") or "")
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters |= {"plain": plain, "code": code_span, "literal": partial(json.dumps, ensure_ascii=False)}
    templates.filters["word"] = lambda text: shlex.quote(" ".join(text.split()))
    text = templates.get_template(TEMPLATE).render(
        front_matter=front_matter(record, kind).to_yaml(),
        name=name,
        record=record,
        rules=rules,
        kind=kind,
        sentence=KINDS[kind][0],
        start=Path(start).name if Path(start).is_dir() else start,
        corpora=corpora,
        results=final_table(record, rules) if record.after else [],
        losses=losses(recipe),
        settings=[f"{key} {' '.join(as_list(recipe[key]))}" for key in CARD_SETTINGS if recipe.get(key) not in UNSET],
        manifests=manifests(record),
        unknown_terms=[corpus for corpus in corpora if corpus not in record.terms],
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def code_span(text: str) -> str:
    """Text as code of Markdown, between more backticks than it has in a row."""
    ticks, line = "`" * (1 + max(map(len, re.findall("`+", text)), default=0)), re.sub(r"[\r\n]+", " ", text) or " "
    return f"{ticks} {line} {ticks}" if "`" in line else f"{ticks}{line}{ticks}"


def as_list(value: Any) -> list[str]:
    return [] if value is None else list(map(str, value if isinstance(value, list) else [value]))


def losses(recipe: dict[str, Any]) -> list[str]:
    """The distinct losses of a recipe."""
    return list(dict.fromkeys(word.rpartition("=")[2] for word in as_list(recipe.get("loss"))))


def kind_of(folder: Path, record: RunRecord) -> str:
    """One of `KINDS`."""
    if record.pretraining is not None:
        return "encoder"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = (config.get("architectures") or [""])[0]
    if architecture.endswith("ForSequenceClassification"):
        return "cross-encoder"
    return "student" if architecture == "RoFormerForMaskedLM" else "bi-encoder"


def manifests(record: RunRecord) -> dict[str, Manifest]:
    """Manifests of the run's corpora, except corpora that have been prepared again since."""
    files = {name: Path(corpus.folder, MANIFEST_NAME) for name, corpus in record.corpora.items()}
    return {
        name: Manifest.load(file.parent)
        for name, file in files.items()
        if file.is_file() and sha256_of_file(file) == record.corpora[name].manifest_sha256
    }


def front_matter(record: RunRecord, kind: str) -> ModelCardData:
    """Metadata of the Hub: task, tags, and the base model if the Hub has it."""
    _, task, tags = KINDS[kind]
    restricted = any(not FREE.issuperset(terms.split(" and ")) for terms in record.terms.values())
    return ModelCardData(
        language="zh",
        library_name="transformers" if kind == "encoder" else "sentence-transformers",
        pipeline_tag=task,
        tags=[*tags, "cosent", *(f"loss:{loss}" for loss in losses(record.recipe))],
        license="other" if restricted else None,
        base_model=base_model(str(record.recipe.get("model_name_or_path") or "")),
    )
