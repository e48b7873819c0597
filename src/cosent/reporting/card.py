"""Model card of a finished run: the README.md of its folder, with the front matter that the Hub reads."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from huggingface_hub import EvalResult, HfApi, ModelCardData
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import HFValidationError, validate_repo_id

from cosent.cli import nearest
from cosent.data.manifest import MANIFEST_NAME, Manifest, sha256_of_file
from cosent.encoders import SHIPPED
from cosent.errors import InputError, write_atomically
from cosent.run import UNFINISHED, RunRecord, in_words

# Architectures that Text Embeddings Inference and vLLM both read, see docs/serving.md; the others get no command.
SERVED = ("bert", "roberta", "xlm-roberta", "modernbert")
POOLINGS = {  # that are one line of PyTorch on hidden states `h` (sentences, tokens, width) and a mask `m`
    "pooling_mode_mean_tokens": "(h * m[..., None]).sum(1) / m.sum(1, keepdim=True)",
    "pooling_mode_cls_token": "h[:, 0]",
}


def usage(folder: Path, kind: str) -> str:
    """Markdown with a code block for each library.

    Args:
        kind: one of `model_card.KINDS`.
    """
    name = folder.resolve().name
    blocks = BLOCKS[kind](folder, name)
    lead = f"`{name}` stands for this folder or its id on the Hub."
    return "\n\n".join([lead, *(f"```{language}\n{code}\n```" for language, code in blocks)])


def bi_encoder(folder: Path, name: str) -> list[tuple[str, str]]:
    """Blocks of (language, code)."""
    blocks = [
        ("sh", f"cosent similarity --model {name} 怎么还款 如何还款"),
        (
            "python",
            f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
vectors = model.encode(["怎么还款", "如何还款"])
print(model.similarity(vectors, vectors))""",
        ),
    ]
    pooling = one_line_pooling(folder)
    if pooling:
        blocks.append((
            "python",
            f"""import torch
from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("{name}"), AutoModel.from_pretrained("{name}")
batch = tokenizer(["怎么还款", "如何还款"], padding=True, truncation=True, return_tensors="pt")
with torch.inference_mode():
    h, m = model(**batch).last_hidden_state, batch["attention_mask"]
    vectors = torch.nn.functional.normalize({pooling}, dim=-1)
print(vectors @ vectors.T)""",
        ))  # fmt: skip
    if served(folder):
        blocks.append(("sh", tei(name, "embed", '{"inputs": ["怎么还款", "如何还款"]}')))
    return blocks


def student(folder: Path, name: str) -> list[tuple[str, str]]:
    return [*bi_encoder(folder, name), ("sh", f"cosent generate --model {name} 怎么还款")]


def encoder(folder: Path, name: str) -> list[tuple[str, str]]:
    flags = f"--model_name_or_path {name} --corpus stsb --output_dir runs/tuned"
    return [("sh", f"cosent train --config recipes/bi_encoder/cosent.yaml {flags}")]


def cross_encoder(folder: Path, name: str) -> list[tuple[str, str]]:
    """Blocks of (language, code)."""
    blocks = [
        ("sh", f"cosent similarity --model {name} 怎么还款 如何还款"),
        (
            "python",
            f"""from sentence_transformers import CrossEncoder

model = CrossEncoder("{name}")
print(model.predict([("怎么还款", "如何还款"), ("怎么还款", "怎么借款")]))""",
        ),
        (
            "python",
            f"""import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForSequenceClassification.from_pretrained("{name}")
firsts, seconds = ["怎么还款", "怎么还款"], ["如何还款", "怎么借款"]
batch = tokenizer(firsts, seconds, padding=True, truncation=True, return_tensors="pt")
with torch.inference_mode():
    print(model(**batch).logits)""",
        ),
    ]
    if served(folder):
        query = '{"query": "怎么还款", "texts": ["如何还款", "怎么借款"], "raw_scores": true}'
        blocks.append(("sh", tei(name, "rerank", query)))
    return blocks


def tei(name: str, route: str, data: str) -> str:
    image = "ghcr.io/huggingface/text-embeddings-inference:cpu-1.9"
    return (
        f"docker run -p 8080:80 -v $PWD:/models {image} --model-id /models/{name}\n"
        f"curl localhost:8080/{route} -H 'Content-Type: application/json' -d '{data}'"
    )


def served(folder: Path) -> bool:
    return json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type") in SERVED


def one_line_pooling(folder: Path) -> str | None:
    """PyTorch expression of the pooling; None if there is more to do: several poolings, a Dense, a prompt."""
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    settings = folder / "config_sentence_transformers.json"
    prompts = settings.is_file() and json.loads(settings.read_text(encoding="utf-8")).get("default_prompt_name")
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or prompts:
        return None
    config = json.loads((folder / modules[1]["path"] / "config.json").read_text(encoding="utf-8"))
    chosen = [key for key, value in config.items() if key.startswith("pooling_mode") and value]
    return POOLINGS.get(chosen[0]) if len(chosen) == 1 else None


BLOCKS: dict[str, Callable[[Path, str], list[tuple[str, str]]]] = {
    "bi-encoder": bi_encoder,
    "student": student,
    "cross-encoder": cross_encoder,
    "encoder": encoder,
}


CARD_NAME = "README.md"
KINDS = {  # first sentence, Hub task, tags
    "bi-encoder": (
        "A bi-encoder: it embeds sentences, and the cosine of two vectors says how similar the sentences are.",
        "sentence-similarity",
        ["sentence-transformers", "sentence-similarity", "feature-extraction"],
    ),
    "student": (
        "A RoFormer-Sim: it embeds sentences, and it writes sentences of the same meaning.",
        "sentence-similarity",
        ["sentence-transformers", "sentence-similarity", "feature-extraction"],
    ),
    "cross-encoder": (
        "A cross-encoder: it reads two sentences at once and scores how similar they are.",
        "text-ranking",
        ["sentence-transformers", "cross-encoder", "reranker"],
    ),
    "encoder": ("A pretrained encoder, to be fine-tuned.", "fill-mask", []),
}
METRICS = {"spearman": "Spearman", "accuracy": "accuracy", "f1": "F1", "recall_at_10": "Recall@10"}  # shown, times 100


@dataclass(frozen=True)
class CardSource:
    """What a card is written from.

    Args:
        folder: the model.
        record: of the run that made it.
        report: a report that compares this run with others, if it belongs to a study.
    """

    folder: Path
    record: RunRecord
    report: str = ""

    @cached_property
    def config(self) -> dict:
        return json.loads((self.folder / "config.json").read_text(encoding="utf-8"))

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        if self.record.pretraining is not None:
            return "encoder"
        if (self.config.get("architectures") or [""])[0].endswith("ForSequenceClassification"):
            return "cross-encoder"
        return "student" if self.record.written_after is not None else "bi-encoder"

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        """Manifests of the corpora of the run; without those that have been prepared anew since."""
        found = {}
        for name, corpus in self.record.corpora.items():
            file = Path(corpus.folder, MANIFEST_NAME)
            if file.is_file() and sha256_of_file(file) == corpus.manifest_sha256:
                found[name] = Manifest.load(corpus.folder)
        return found

    def interval(self, corpus: str, split: str, metric: str) -> str:
        """95% bootstrap interval of a metric x100, in brackets; empty where the record has none."""
        ends = self.record.intervals.get(corpus, {}).get(split, {}).get(metric)
        return "" if ends is None else f" [{100 * ends[0]:.2f}, {100 * ends[1]:.2f}]"


def write_card(folder: str | Path, record: RunRecord, report: str = "") -> None:
    """Writes the card of a finished run into its folder.

    Args:
        report: path or address of the report of the study that the run belongs to.
    """
    write_atomically(Path(folder, CARD_NAME), card_text(CardSource(Path(folder), record, report)))


def card_text(source: CardSource) -> str:
    """The card: front matter, then Markdown."""
    sections = [
        ("", introduction(source)),
        ("Results", results(source)),
        ("Scores", scores(source)),
        ("Use", usage(source.folder, source.kind)),
        ("Training", training(source)),
        ("Limits", limits(source)),
        ("Citation", citation(source)),
    ]
    body = "\n\n".join(f"## {title}\n\n{text}" if title else text for title, text in sections if text)
    return f"---\n{front_matter(source)}\n---\n\n# {source.folder.resolve().name}\n\n{body}\n"


def front_matter(source: CardSource) -> str:
    """YAML of the Hub: task, tags, base model if the Hub has it, and the test results as `model-index`."""
    _, task, tags = KINDS[source.kind]
    loss = source.record.recipe.get("loss")
    data = ModelCardData(
        language="zh",
        library_name="transformers" if source.kind == "encoder" else "sentence-transformers",
        pipeline_tag=task,
        tags=[*tags, "cosent", *([f"loss:{loss}"] if loss else [])],
        base_model=base_on_hub(source.record),
        model_name=source.folder.resolve().name,
        metrics=["spearmanr", "accuracy"] if measured(source.record) else None,
        eval_results=eval_results(source.record) or None,
    )
    return data.to_yaml()


def base_on_hub(record: RunRecord) -> str | None:
    """The starting model if it was named as on the Hub, `owner/name`, and is no folder here."""
    start = str(record.recipe.get("model_name_or_path") or "")
    on_hub = start.count("/") == 1 and start not in SHIPPED and not Path(start).exists()
    return start if on_hub and not start.startswith((".", "/", "runs/")) else None


def measured(record: RunRecord) -> list[tuple[str, str]]:
    """Corpora and held-out splits with metrics."""
    return [(corpus, split) for corpus, splits in record.after.items() for split in splits]


def eval_results(record: RunRecord) -> list[EvalResult]:
    """Test metrics as the Hub's `model-index`."""
    return [
        EvalResult(
            task_type="semantic-similarity",
            task_name="Semantic Similarity",
            dataset_type=corpus,
            dataset_name=f"{corpus} {split}",
            metric_type={"spearman": "spearmanr"}.get(metric, metric),
            metric_name=shown,
            metric_value=record.after[corpus][split][metric],
        )
        for corpus, split in measured(record)
        for metric, shown in METRICS.items()
        if split == "test" and metric in record.after[corpus][split]
    ]


def introduction(source: CardSource) -> str:
    record = source.record
    words = [KINDS[source.kind][0]]
    start = record.recipe.get("model_name_or_path")
    if start and record.train_pairs:
        corpora = training_corpora(record)
        words.append(
            f"Fine-tuned from `{Path(str(start)).name if Path(str(start)).is_dir() else start}` on "
            f"{record.train_pairs:,} pairs of {' and '.join(corpora)}"
            + (f" with the loss `{record.recipe['loss']}`." if record.recipe.get("loss") else ".")
        )
    if source.report:
        words.append(f"One run of a study: [report]({source.report}), with all seeds and methods.")
    return " ".join(words)


def training_corpora(record: RunRecord) -> list[str]:
    """Names of the corpora and files of text that a model was trained on."""
    given = [record.recipe.get(key) or [] for key in ("corpus", "text")]
    return [Path(str(name)).name for names in given for name in ([names] if isinstance(names, str) else names)]


def results(source: CardSource) -> str:
    """Table of metrics x100 by corpus and split."""
    record, rows = source.record, []
    shown = [metric for metric in METRICS if any(metric in record.after[c][s] for c, s in measured(record))]
    for corpus, split in measured(record):
        after, before = record.after[corpus][split], record.before.get(corpus, {}).get(split, {})
        cells = [f"{100 * before['spearman']:.2f}" if "spearman" in before else ""]
        for metric in shown:
            value = f"{100 * after[metric]:.2f}" if metric in after else ""
            cells.append(value + (source.interval(corpus, split, metric) if split == "test" else ""))
        rows.append(f"| {corpus} {split} | {' | '.join(cells)} |")
    if not rows:
        return ""
    header = f"| x100 | Spearman before | {' | '.join(METRICS[metric] for metric in shown)} |"
    chosen = " Accuracy and F1 at the threshold that validation chose." if record.thresholds else ""
    return "\n".join([
        f"One run with seed {record.recipe.get('seed')}. In brackets: 95% bootstrap interval over pairs or queries; "
        f"other seeds vary beyond it.{chosen}",
        "",
        header,
        "|---" * (len(shown) + 2) + "|",
        *rows,
    ])  # fmt: skip


def scores(source: CardSource) -> str:
    """What a score means: threshold and calibration by corpus, and the prompts that they hold for."""
    record, lines = source.record, []
    for corpus, threshold in record.thresholds.items():
        line = f"* {corpus}: similar from {threshold:.4f} on"
        error = record.after.get(corpus, {}).get("test", {}).get("calibration_error")
        line += "" if error is None else f"; calibration error of the probabilities {error:.3f} (test)"
        lines.append(line)
    if lines:
        lines = ["Thresholds and maps to probabilities (`run.json`), found on validation:", "", *lines]
    if any(record.prompts):
        first, second = record.prompts
        lines += ["", f"Prompts in training: first sentence `{first}`, second sentence `{second}`."]
    return "\n".join(lines).strip()


def training(source: CardSource) -> str:
    record, recipe = source.record, source.record.recipe
    keys = ("learning_rate", "num_train_epochs", "per_device_train_batch_size", "cached_batch_size", "max_length",
            "pooling", "loss", "scale", "lora_rank", "bf16", "seed")  # fmt: skip
    settings = ", ".join(f"{key} {recipe[key]}" for key in keys if recipe.get(key) not in (None, False, "None"))
    lines = [f"* settings: {settings}; all of them are in `run.json`"]
    for name, corpus in record.corpora.items():
        manifest = source.manifests.get(name)
        rows = manifest and ", ".join(f"{split} {info['rows']:,}" for split, info in manifest.splits.items())
        origin = f"; source: {manifest.source}" if manifest and manifest.source else ""
        identity = f"manifest SHA-256 {corpus.manifest_sha256[:16]}"
        lines.append(f"* {name}: {rows or 'prepared anew since'}{origin}; {identity}")
    place, minutes = record.environment, record.train_seconds / 60
    versions = ", ".join(f"{name} {version}" for name, version in place.versions.items())
    lines.append(f"* {minutes:.1f} minutes on {place.device}, commit {place.short_commit}; {versions}")
    if record.footprint:
        lines.append(f"* {record.footprint.parameters:,} parameters, {record.footprint.trainable_parameters:,} trained")
    return "\n".join(lines)


def limits(source: CardSource) -> str:
    lines = ["* Measured on these corpora and nothing else; other domains need a test and a threshold of their own."]
    lines += [f"* {name}: {warning}" for name, manifest in source.manifests.items() for warning in manifest.warnings]
    leaked = source.record.leaks.items()
    lines += [f"* {count:,} pairs of {where} occur in the training pairs." for where, count in leaked]
    lines += [f"* {line}" for line in in_words(source.record.shortfalls)]
    return "\n".join(lines)


def citation(source: CardSource) -> str:
    if source.record.recipe.get("loss") != "cosent":
        return "Made with [cosent](https://kexue.fm/archives/8847)."
    return (
        "CoSENT: Su Jianlin, 2022, [kexue.fm 8847](https://kexue.fm/archives/8847) and "
        "[9341](https://kexue.fm/archives/9341); Huang et al. 2024, [IEEE/ACM TASLP](https://doi.org/10.1109/TASLP.2024.3402087)."
    )


def card_of(folder: str | Path, record: RunRecord | None) -> str:
    """The card of a folder: the one it has, or a new one.

    Raises:
        InputError: the folder has neither a card nor the record of a run.
    """
    file = Path(folder, CARD_NAME)
    if file.is_file():
        return file.read_text(encoding="utf-8")
    if record is None:
        raise InputError(
            f"{folder} has no {CARD_NAME}, and no run.json to write one from: nobody would know what it is. Write a "
            f"{CARD_NAME}, or publish the folder of a finished run."
        )
    return card_text(CardSource(Path(folder), record))


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
            f"{folder} holds a run that has not finished: others would load weights of some step. Let it finish "
            "(--resume_from_checkpoint auto continues it), then publish it."
        )
    api = HfApi(token=token)
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=str(folder), ignore_patterns=list(LEFT_OUT), commit_message=message
        )
    except HfHubHTTPError as error:
        raise InputError(
            f"The Hub at {api.endpoint} refused {repository}: {error.server_message or error}. Nothing was published. "
            "Log in with `hf auth login` (a token with write access), and check the owner's name."
        ) from error
    return str(commit.commit_url)
