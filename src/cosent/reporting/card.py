"""Model card of a finished run: the README.md of its folder, with the front matter that the Hub reads."""

import json
import re
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, HfApi, ModelCardData
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import HFValidationError, validate_repo_id

from cosent.cli import nearest
from cosent.data.manifest import MANIFEST_NAME, Manifest, sha256_of_file
from cosent.encoders import SHIPPED
from cosent.errors import InputError, write_atomically
from cosent.reporting.document import templates
from cosent.run import UNFINISHED, RunRecord, in_words

CARD_NAME, TEMPLATE = "README.md", "card.md.j2"
SENTENCE_TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction"]
KINDS = {  # first sentence, Hub task, tags
    "bi-encoder": (
        "A bi-encoder: it embeds sentences, and the cosine of two vectors says how similar the sentences are.",
        "sentence-similarity",
        SENTENCE_TAGS,
    ),
    "ensemble": (
        "Several bi-encoders as one: the cosine of two sentences is the weighted mean of the members' cosines.",
        "sentence-similarity",
        SENTENCE_TAGS,
    ),
    "student": (
        "A RoFormer-Sim: it embeds sentences, and it writes sentences of the same meaning.",
        "sentence-similarity",
        SENTENCE_TAGS,
    ),
    "cross-encoder": (
        "A cross-encoder: it reads two sentences at once and scores how similar they are.",
        "text-ranking",
        ["sentence-transformers", "cross-encoder", "reranker"],
    ),
    "encoder": ("A pretrained encoder, to be fine-tuned.", "fill-mask", []),
}
METRICS = {"spearman": "Spearman", "accuracy": "accuracy", "f1": "F1", "recall_at_10": "Recall@10"}  # shown, times 100
SETTINGS = ("learning_rate", "num_train_epochs", "per_device_train_batch_size", "cached_batch_size", "max_length",
            "pooling", "loss", "scale", "use_peft", "bf16", "seed")  # fmt: skip
# Architectures that Text Embeddings Inference and vLLM both read, see docs/serving.md; the others get no command.
SERVED = ("bert", "roberta", "xlm-roberta", "modernbert")
POOLINGS = {  # that are one line of PyTorch on hidden states `h` (sentences, tokens, width) and a mask `m`
    "pooling_mode_mean_tokens": "(h * m[..., None]).sum(1) / m.sum(1, keepdim=True)",
    "pooling_mode_cls_token": "h[:, 0]",
}


def write_card(folder: str | Path, record: RunRecord, name: str | None = None) -> None:
    """Writes the card of a finished run into its folder.

    Args:
        name: that the folder will have; default: the one it has.
    """
    write_atomically(Path(folder, CARD_NAME), card_text(Path(folder), record, name))


def card_of(folder: Path, record: RunRecord | None) -> str:
    """The card of a folder: the one it has, or a new one.

    Raises:
        InputError: the folder has neither a card nor the record of a run.
    """
    if (folder / CARD_NAME).is_file():
        return (folder / CARD_NAME).read_text(encoding="utf-8")
    if record is None:
        raise InputError(f"{folder} has neither a {CARD_NAME} nor a run.json to write one from. Write a {CARD_NAME}.")
    return card_text(folder, record)


def card_text(folder: Path, record: RunRecord, name: str | None = None) -> str:
    """The card: front matter, then Markdown."""
    name = name or folder.resolve().name
    kind, recipe = kind_of(folder, record), {"loss": None, "by": None, "model_name_or_path": None, **record.recipe}
    weights = recipe.get("weights") or [1.0] * len(recipe.get("models") or [])
    corpora = [name for key in ("corpus", "text") for name in as_list(recipe.get(key))]
    shown = {
        m: name for m, name in METRICS.items() if any(m in split for c in record.after.values() for split in c.values())
    }
    text = (
        templates(autoescape=False)
        .get_template(TEMPLATE)
        .render(
            front_matter=front_matter(name, record, kind).to_yaml(),
            name=name,
            record=record,
            recipe=recipe,
            kind=kind,
            KINDS=KINDS,
            start=start_of(recipe),
            corpora=[Path(name).name for name in corpora],
            weights=[weight / sum(weights) for weight in weights],
            shown=shown,
            measured=result_rows(record, shown),
            settings=[f"{key} {recipe[key]}" for key in SETTINGS if recipe.get(key) not in (None, False, "None")],
            manifests=manifests(record),
            shortfalls=in_words(record.shortfalls),
            pooling=one_line_pooling(folder) if kind in ("bi-encoder", "student") else None,
            served=kind in ("bi-encoder", "student", "cross-encoder") and config(folder).get("model_type") in SERVED,
        )
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def as_list(value: Any) -> list[str]:
    return [] if value is None else [str(one) for one in (value if isinstance(value, list) else [value])]


def config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def kind_of(folder: Path, record: RunRecord) -> str:
    """One of `KINDS`."""
    if record.recipe.get("by") == "vectors":
        return "ensemble"
    if record.pretraining is not None:
        return "encoder"
    architecture = (config(folder).get("architectures") or [""])[0]
    if architecture.endswith("ForSequenceClassification"):
        return "cross-encoder"
    return "student" if architecture == "RoFormerForMaskedLM" else "bi-encoder"


def start_of(recipe: dict) -> str:
    """The starting model as the card names it: of a folder only the last part."""
    start = Path(str(recipe["model_name_or_path"]))
    return start.name if start.is_dir() else str(recipe["model_name_or_path"])


def manifests(record: RunRecord) -> dict[str, Manifest]:
    """Manifests of the corpora of the run; without those that have been prepared anew since."""
    files = {name: Path(corpus.folder, MANIFEST_NAME) for name, corpus in record.corpora.items()}
    return {
        name: Manifest.load(file.parent)
        for name, file in files.items()
        if file.is_file() and sha256_of_file(file) == record.corpora[name].manifest_sha256
    }


def result_rows(record: RunRecord, shown: dict[str, str]) -> list[list[str]]:
    """Cells of the table of results, x100, by corpus and split; test metrics with their interval."""
    rows = []
    for corpus, splits in record.after.items():
        for split, metrics in splits.items():
            before = record.before.get(corpus, {}).get(split, {})
            intervals = record.intervals.get(corpus, {}).get(split, {}) if split == "test" else {}
            cells = [f"{corpus} {split}", f"{100 * before['spearman']:.2f}" if "spearman" in before else ""]
            for metric in shown:
                cell = f"{100 * metrics[metric]:.2f}" if metric in metrics else ""
                if metric in intervals:
                    cell += " [{:.2f}, {:.2f}]".format(*(100 * end for end in intervals[metric]))
                cells.append(cell)
            rows.append(cells)
    return rows


def front_matter(name: str, record: RunRecord, kind: str) -> ModelCardData:
    """Metadata of the Hub: task, tags, base model if the Hub has it, and the test results as `model-index`."""
    _, task, tags = KINDS[kind]
    start, loss = str(record.recipe.get("model_name_or_path") or ""), record.recipe.get("loss")
    on_hub = start.count("/") == 1 and start not in SHIPPED and not Path(start).exists()
    results = [
        EvalResult(
            task_type="semantic-similarity",
            task_name="Semantic Similarity",
            dataset_type=corpus,
            dataset_name=f"{corpus} test",
            metric_type={"spearman": "spearmanr"}.get(metric, metric),
            metric_name=shown,
            metric_value=splits["test"][metric],
        )
        for corpus, splits in record.after.items()
        for metric, shown in METRICS.items()
        if metric in splits.get("test", {})
    ]
    return ModelCardData(
        language="zh",
        library_name="transformers" if kind == "encoder" else "sentence-transformers",
        pipeline_tag=task,
        tags=[*tags, "cosent", *([f"loss:{loss}"] if loss else [])],
        base_model=start if on_hub and not start.startswith((".", "/", "runs/")) else None,
        model_name=name,
        metrics=["spearmanr", "accuracy"] if record.after else None,
        eval_results=results or None,
    )


def one_line_pooling(folder: Path) -> str | None:
    """PyTorch expression of the pooling; None if there is more to do: several poolings, a Dense, a prompt."""
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    settings = folder / "config_sentence_transformers.json"
    prompts = settings.is_file() and json.loads(settings.read_text(encoding="utf-8")).get("default_prompt_name")
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or prompts:
        return None
    pooling = json.loads((folder / modules[1]["path"] / "config.json").read_text(encoding="utf-8"))
    modes = [key for key, value in pooling.items() if key.startswith("pooling_mode") and value]
    return POOLINGS.get(modes[0]) if len(modes) == 1 else None


# What only continues a run here; everything else is published.
LEFT_OUT = ("checkpoint-*", "checkpoint-*/*", "*.partial", ".cache/*", "trainer_state.json", "optimizer.pt")


# As in https://huggingface.co/docs/hub/repositories-licenses; the Hub adds one from time to time.
LICENSES = (  # noqa: SIM905
    "afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0 "
    "bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 "
    "cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 "
    "cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 "
    "cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 "
    "etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community "
    "h-research intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 "
    "lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openmdw-1.0 openmdw-1.1 openrail openrail++ osl-3.0 other "
    "pddl postgresql unknown unlicense wtfpl zlib "
).split()


def check_request(repository: str, license_id: str | None) -> None:
    """Refuses what the Hub would refuse, before anything is sent.

    Raises:
        InputError: a repository that is not OWNER/NAME, or a licence that the Hub does not know.
    """
    try:
        validate_repo_id(repository)
        owner, _, _ = repository.rpartition("/")
    except HFValidationError:
        owner = ""
    if not owner:
        raise InputError(
            f"--repository {repository} is not OWNER/NAME: both of letters, digits, -, _ and ., with one / between."
        )
    if license_id is not None and license_id not in LICENSES:
        raise InputError(
            f"--license {license_id} is none that the Hub knows.{nearest(license_id, LICENSES)} Name one of "
            "https://huggingface.co/docs/hub/repositories-licenses, or `other`."
        )


def upload(folder: str | Path, repository: str, private: bool, message: str, token: str | None = None) -> str:
    """Creates a repository where there is none, and commits a folder to it in one commit.

    A repository that exists keeps its visibility.

    Args:
        token: default: the one of `hf auth login` or HF_TOKEN.

    Returns:
        Address of the commit.

    Raises:
        InputError: the folder holds an unfinished run, or the Hub refuses.
    """
    if Path(folder, UNFINISHED).exists():
        raise InputError(
            f"{folder} holds an unfinished run. Finish it with --resume_from_checkpoint auto, then publish."
        )
    api = HfApi(token=token)
    try:
        created = api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=created.repo_id, folder_path=str(folder), ignore_patterns=list(LEFT_OUT), commit_message=message
        )
    except (HfHubHTTPError, ValueError) as error:  # of an id, or of the front matter, which the Hub checks
        reason = getattr(error, "server_message", None) or error
        raise InputError(
            f"The Hub at {api.endpoint} refused {repository}: {reason}. Log in with `hf auth login` (a token with "
            "write access), and check the owner's name, OWNER/NAME, and --license."
        ) from error
    return str(commit.commit_url)
