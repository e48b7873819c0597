"""Compare sentences with this lookup, in Python or by `python run.py 怎么还款 如何还款`: needs numpy and nothing else.
scores = Lookup("faq.numpy").similarity(["怎么还款"], ["如何还款"])
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np


class Lookup:
    """The table of a folder that `cosent export --format numpy` wrote; `settings` is its `lookup.json`."""

    def __init__(self, folder=Path(__file__).parent):
        check(Path(folder))
        self.settings = json.loads(Path(folder, "lookup.json").read_text(encoding="utf-8"))
        rules = Path(folder, "decision.json")
        self.rule = next(iter(json.loads(rules.read_text(encoding="utf-8")).values())) if rules.is_file() else None
        with np.load(Path(folder, "lookup.npz")) as arrays:
            self.keys, self.rows, self.step, points, tokens, counts = (arrays[name] for name in arrays.files)
        ids = (one.tolist() for one in np.split(tokens, np.cumsum(counts)[:-1]))
        self.tokens = dict(zip(map(chr, points), ids, strict=True))

    def token_ids(self, texts):
        """Token ids of each text; a character without a token of its own is the bytes of its UTF-8 form."""
        first, last, byte, room = (self.settings[name] for name in ("first", "last", "byte", "max_length"))
        new = set("".join(texts)) - self.tokens.keys()
        self.tokens |= {character: [byte + code for code in character.encode()] for character in new}
        every = ([token for character in text for token in self.tokens[character]] for text in texts)
        return [[first, *ids[: room - 2], last] for ids in every]

    def encode(self, sentences, normalize_embeddings=True, prompt=None):
        """Vectors `(sentences, width)`, of length 1 unless `normalize_embeddings` is False."""
        prompt, size = self.settings["prompts"][0] if prompt is None else prompt, self.settings["vocab_size"]
        vectors = np.zeros((len(sentences), self.rows.shape[1]), np.float32)
        for vector, ids in zip(vectors, self.token_ids([prompt + text for text in sentences]), strict=True):
            keys = np.array([ids, np.array([0, *ids[:-1]]) * size + ids]).ravel()
            place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            hashed = (keys * 0x9E3779B1 >> 15) % self.settings["hashed_rows"] + len(self.keys)
            rows = self.rows[np.where(self.keys[place] == keys, place, hashed)]
            vector[:] = self.step * rows.sum(axis=0, dtype=np.float32) / len(ids)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize_embeddings else vectors

    def similarity(self, first, second):
        """The cosine of each pair; exactly 1 for equal vectors."""
        one, other = map(self.encode, (first, second), (True, True), self.settings["prompts"])
        return 1 - ((one - other) ** 2).sum(axis=1) / 2

    def probabilities(self, scores):
        """Probability that each pair is similar, by the map that was fitted on validation."""
        fit, scores = self.rule["calibration"], np.asarray(scores, dtype=np.float64)
        curve = 1 / (1 + np.exp(-fit["slope"] * scores - fit["intercept"]))
        curve = np.interp(scores, fit["scores"], fit["fitted"]) if fit["method"] == "isotonic" else curve
        return np.clip(curve, 1 / (fit["pairs"] + 2), 1 - 1 / (fit["pairs"] + 2))

    def similar(self, scores):
        """Whether each score reaches the threshold of validation."""
        return np.asarray(scores) >= self.rule["threshold"]


def check(folder):
    """Refuses a folder in which a file is missing or not the one that was exported."""
    try:
        sealed = json.loads((folder / "whole.json").read_text(encoding="utf-8"))
        files = {name: entry["sha256"] for name, entry in sealed.items()}
        found = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{folder} cannot be read: {error}. Copy the whole folder, or export again.") from error
    if changed := [name for name in files if found[name] != files[name]]:
        raise ValueError(f"{folder / changed[0]} is damaged or was changed. Copy the folder, or export again.")


def main():
    try:
        scores = Lookup().similarity(sys.argv[1::2], sys.argv[2::2])
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(*scores.round(6).tolist(), sep="\n")


if __name__ == "__main__":
    main()
