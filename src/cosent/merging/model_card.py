"""README.md of a merged model: what it is made of, and what is needed to load it."""

from collections.abc import Sequence

WHAT = {
    "vectors": "Several bi-encoders as one: the cosine of two sentences is the weighted mean of the members' cosines.",
    "scores": "Several cross-encoders as one: the score of a pair is the weighted mean of the members' scores.",
    "weights": "One model whose weights are the weighted mean of those of several. It loads wherever they do.",
}
CALLS = {
    "vectors": ("SentenceTransformer", 'encode(["怎么还款"])', 'encode(["怎么还款"])'),
    "scores": ("CrossEncoder", 'similarity("怎么还款", "如何还款")', 'predict([("怎么还款", "如何还款")])'),
}
LOADING = """To load it, `cosent` must be installed; sentence-transformers then has to be told to import a class
from there. No code is in this folder.

```python
from cosent import load_model
load_model("FOLDER").{ours}

from sentence_transformers import {kind}
{kind}("FOLDER", trust_remote_code=True).{theirs}
```

Servers with code of their own (Text Embeddings Inference, vLLM) do not load it. The folders in `0_...` are the members;
each loads alone."""


def model_card(by: str, names: Sequence[str], weights: Sequence[float], facts: Sequence[str]) -> str:
    """The text.

    Args:
        weights: of the members, with a sum of 1.
        facts: further sentences about the model.
    """
    members = "\n".join(f"* {weight:.4g} of `{name}`" for name, weight in zip(names, weights, strict=True))
    parts = [f"# Merged by {by}", WHAT[by], members, *facts]
    if by in CALLS:
        kind, ours, theirs = CALLS[by]
        parts.append(LOADING.format(kind=kind, ours=ours, theirs=theirs))
    return "\n\n".join(parts) + "\n"
