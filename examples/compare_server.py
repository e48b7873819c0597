"""Compare the vectors of any server, or of a file, with those of a model folder: equal, or the largest difference.

python examples/compare_server.py runs/faq texts.txt http://127.0.0.1:8000/v1       endpoint of OpenAI's shape
python examples/compare_server.py runs/faq texts.txt theirs.npy                     vectors of the lines

If they differ, the settings that servers get wrong are tried: pooling, prompt, length. OPENAI_API_KEY is the key.
"""

import json
import os
import sys
from itertools import product
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np

from cosent import SentenceEncoder

SAME, LENGTHS = 1e-4, (512, 256, 128, 64, 32)  # largest difference of equal vectors, relative to ours; tokens


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)


def served(url: str, texts: list[str]) -> np.ndarray:
    """Vectors of texts by an endpoint, in requests of 32."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '-')}"}
    rows = []
    for start in range(0, len(texts), 32):
        body = json.dumps({"input": texts[start : start + 32], "model": "any"}).encode()
        rows += json.load(urlopen(Request(f"{url.rstrip('/')}/embeddings", body, headers), timeout=120))["data"]
    return np.array([row["embedding"] for row in rows])


def compared(folder: str, texts: list[str], theirs: np.ndarray) -> str:
    """The result in a line, which starts with "equal" or with what is wrong."""
    model = SentenceEncoder.from_pretrained(folder)
    ours = model.encode(texts)
    if theirs.shape != ours.shape:
        return f"other shape: {theirs.shape}, but {folder} makes {ours.shape} of {len(texts)} texts"
    if len(wrong := np.flatnonzero(~np.isfinite(theirs).all(axis=1))):
        return f"nan or inf in row {wrong[0] + 1}: {texts[wrong[0]]!r}"
    if (difference := np.abs(ours - theirs).max() / np.abs(ours).max()) < SAME:
        return f"equal: largest difference {difference:.1e} of {len(texts)} texts"
    rows = np.abs(unit(ours) - unit(theirs)).max(axis=1)
    if rows.max() < SAME:
        return f"equal but for length: largest difference {rows.max():.1e} after scaling both to length 1"
    line = f"different by {rows.max():.1e}, {(rows > SAME).sum()} of {len(texts)}, most {texts[rows.argmax()]!r}"
    for pooling, prompt, length in product((None, "cls", "mean", "lasttoken"), (None, ""), (None, *LENGTHS)):
        if length is None or length < model.max_length:
            other = SentenceEncoder.from_pretrained(folder, pooling, length).encode(texts, prompt=prompt)
            if other.shape == theirs.shape and np.abs(unit(other) - unit(theirs)).max() < SAME:
                return f"{line}; equal with {pooling=}, {prompt=}, {length=}, where None is the folder's"
    return f"{line}; no other pooling, prompt or length gives these: other weights or another tokenizer"


folder, file, against = sys.argv[1:]
lines = list(filter(str.strip, Path(file).read_text(encoding="utf-8").splitlines()))
print(result := compared(folder, lines, np.load(against) if against.endswith(".npy") else served(against, lines)))
sys.exit(not result.startswith("equal"))
