"""Code blocks of a model card: how to load a folder in cosent, sentence-transformers, transformers and a server."""

import json
from collections.abc import Callable
from pathlib import Path

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
