"""Compare sentences with this bundle, in Python or by `python run.py 怎么还款 如何还款`.

bundle = Bundle("faq.onnx")    # or Lookup("faq.numpy")
scores, vectors = bundle.similarity(["怎么还款"], ["如何还款"]), bundle.encode(["怎么还款"])
bundle.probabilities(scores), bundle.similar(scores)

Needs numpy; and tokenizers, with onnxruntime or openvino, unless it is a lookup. `cosent export` wrote this file.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np

FORM = 3  # of the folder


class Bundle:
    """A bi-encoder or a cross-encoder in a folder; `settings` is its `bundle.json`."""

    file = "bundle.json"

    def __init__(self, folder=Path(__file__).parent):
        folder = Path(folder)
        check(folder)
        self.settings = json.loads((folder / self.file).read_text(encoding="utf-8"))
        rules = folder / "decision.json"
        self.rule = next(iter(json.loads(rules.read_text(encoding="utf-8")).values())) if rules.is_file() else None
        self.load(folder)

    def load(self, folder):
        """Loads the tokenizer and the graph."""
        if self.settings.get("form") != FORM:
            raise ValueError(f"{folder} has form {self.settings.get('form')}, expected {FORM}. Export it again.")
        from tokenizers import Tokenizer

        try:
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self.compute = compiled(folder / self.settings["files"][0], self.settings["precision"])
        except ImportError:
            raise
        except Exception as error:  # tokenizers and onnxruntime have no narrower class for a damaged file
            raise ValueError(f"{folder} cannot be read: {error}. Copy it again, or export the model again.") from error
        self.tokenizer.enable_truncation(self.settings["max_length"])
        self.tokenizer.enable_padding(pad_id=self.settings["pad_id"], pad_token=self.settings["pad_token"])

    @property
    def embedding_dimension(self):
        """Width of a vector; None for a cross-encoder."""
        return self.settings["embedding_dimension"]

    @property
    def nested(self):
        """Whether a vector may be cut."""
        return self.settings.get("nested", False)

    @property
    def max_length(self):
        """Most tokens of a text, or of a pair, that it reads."""
        return self.settings["max_length"]

    def token_ids(self, texts):
        """What the model reads of each text, of a pair of long ones half of each: two of equal ids are one to it."""
        encoded = self.tokenizer.encode_batch(texts)
        end = self.settings["max_length"] if self.embedding_dimension else (self.settings["max_length"] + 1) // 2 - 1
        return [one.ids[: min(end, sum(one.attention_mask))] for one in encoded]

    def outputs(self, texts, batch_size=32):
        """Vectors `(texts, width)`, zeros without tokens, or scores `(pairs,)` of pairs of texts; in their order."""
        rows = sorted(range(len(texts)), key=lambda row: len("".join(texts[row])))
        shape = (self.embedding_dimension,) if self.embedding_dimension else ()
        outputs = np.zeros((len(texts), *shape), np.float32)
        columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        for start in range(0, len(rows), batch_size):
            some = rows[start : start + batch_size]
            encoded = self.tokenizer.encode_batch([texts[row] for row in some])
            batch = [(row, one) for row, one in zip(some, encoded, strict=True) if any(one.attention_mask)]
            if len(batch) < len(some) and not shape:
                raise ValueError("Expected a token in every pair. Drop the pairs of empty texts.")
            if batch:
                inputs = {name: [getattr(one, columns[name]) for _, one in batch] for name in self.settings["inputs"]}
                computed = self.compute({name: np.array(values) for name, values in inputs.items()})
                outputs[[row for row, _ in batch]] = computed.reshape(len(batch), *shape)
        return outputs

    def encode(self, sentences, normalize_embeddings=True, prompt=None):
        """Vectors `(sentences, width)` of a bi-encoder, of length 1 unless `normalize_embeddings` is False."""
        prompt = self.settings["prompts"][0] if prompt is None else prompt
        vectors = self.outputs([prompt + sentence for sentence in sentences])
        lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors / lengths if normalize_embeddings else vectors

    def similarity(self, first, second):
        """Scores `(pairs,)`: cosines of a bi-encoder, logits of a cross-encoder."""
        prompts = self.settings["prompts"]
        if self.settings["tower"] == "cross_encoder":
            return self.outputs([(prompts[0] + one, other) for one, other in zip(first, second, strict=True)])
        one, other = self.encode(first, prompt=prompts[0]), self.encode(second, prompt=prompts[1])
        cosines = 1 - ((one - other) ** 2).sum(axis=1) / 2  # as `pair_cosines` of cosent: exactly 1 for equal vectors
        return cosines * (one.any(axis=1) & other.any(axis=1))

    def probabilities(self, scores):
        """Probability that each pair is similar, by the map that was fitted on validation."""
        fit, scores = self.rule["calibration"], np.asarray(scores, dtype=np.float64)
        if fit["method"] == "platt":
            curve = 1 / (1 + np.exp(-fit["slope"] * scores - fit["intercept"]))
        else:
            curve = np.interp(scores, fit["scores"], fit["fitted"])
        least = 1 / (fit["pairs"] + 2)
        return np.clip(curve, least, 1 - least)

    def similar(self, scores):
        """Whether each score reaches the threshold of validation."""
        return np.asarray(scores) >= self.rule["threshold"]


class Lookup(Bundle):
    """The table of a folder that `cosent export --format numpy` wrote; `settings` is its `lookup.json`."""

    file = "lookup.json"

    def load(self, folder):
        """Loads the table, and the tokens of every character."""
        with np.load(folder / "lookup.npz") as arrays:
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

    def outputs(self, texts):
        """Vectors `(texts, width)`."""
        vectors = np.zeros((len(texts), self.rows.shape[1]), np.float32)
        for vector, ids in zip(vectors, self.token_ids(texts), strict=True):
            keys = np.array([ids, np.array([0, *ids[:-1]]) * self.settings["vocab_size"] + ids]).ravel()
            place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            hashed = (keys * 0x9E3779B1 >> 15) % self.settings["hashed_rows"] + len(self.keys)
            rows = self.rows[np.where(self.keys[place] == keys, place, hashed)]
            vector[:] = self.step * rows.sum(axis=0, dtype=np.float32) / len(ids)
        return vectors


def check(folder):
    """Refuses a folder in which a file is missing or not the one that was exported."""
    try:
        sealed = json.loads((folder / "whole.json").read_text(encoding="utf-8"))
        files = {name: entry["sha256"] for name, entry in sealed.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{folder} has no whole.json that can be read: {error}. Export it again.") from error
    for name, sha256 in files.items():
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name} is missing. Copy the whole folder, or export the model again.")
        with open(folder / name, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise ValueError(f"{folder / name} is damaged or was changed. Copy the folder, or export again.")


def report_nothing():
    """Keeps onnxruntime, openvino and nncf, before they are imported, from telling their makers about this machine."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    sys.modules.setdefault("openvino_telemetry", None)  # they do without it


def compiled(file, precision):
    """The graph, as a function of its named inputs."""
    report_nothing()
    if file.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        first = [session.get_outputs()[0].name]
        return lambda inputs: session.run(first, inputs)[0]
    import openvino

    model = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": precision})
    return lambda inputs: model(inputs)[0].copy()


def main():
    sentences = sys.argv[1:]
    if not sentences or len(sentences) % 2:
        sys.exit("Give sentences in pairs: python run.py 怎么还款 如何还款")
    try:
        bundle = Lookup() if Path(__file__).with_name(Lookup.file).is_file() else Bundle()
    except ValueError as error:
        sys.exit(f"error: {error}")
    first, second = sentences[::2], sentences[1::2]
    scores = bundle.similarity(first, second)
    for one, other, score in zip(first, second, scores, strict=True):
        row = {"sentence1": one, "sentence2": other, "score": round(float(score), 6)}
        if bundle.rule:
            row["probability"] = round(float(bundle.probabilities([score])[0]), 6)
            row["verdict"] = "similar" if bundle.similar([score])[0] else "not similar"
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
