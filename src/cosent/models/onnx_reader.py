"""Compare sentences by the graph of this folder, in Python or by `python run.py 怎么还款 如何还款`.

model = OnnxModel("faq.onnx")
scores, vectors = model.similarity(["怎么还款"], ["如何还款"]), model.encode(["怎么还款"])
model.probabilities(scores), model.similar(scores)         # if the folder has a decision.json

Needs numpy, tokenizers and onnxruntime. `cosent export` wrote this file.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

COLUMNS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}  # of an encoding


class OnnxModel:
    """A bi-encoder or a cross-encoder; `settings` is the `export.json` of its folder, `rule` its decision rule or None.

    Attributes:
        embedding_dimension: width of a vector; None for a cross-encoder.
    """

    def __init__(self, folder=Path(__file__).parent):
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before onnxruntime is imported
        import onnxruntime
        from tokenizers import Tokenizer

        folder = Path(folder)
        self.settings = json.loads((folder / "export.json").read_text(encoding="utf-8"))
        rules = folder / "decision.json"
        self.rule = next(iter(json.loads(rules.read_text(encoding="utf-8")).values())) if rules.is_file() else None
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(self.settings["max_length"])
        self.tokenizer.enable_padding(pad_id=self.settings["pad_id"], pad_token=self.settings["pad_token"])
        self.session = onnxruntime.InferenceSession(folder / self.settings["graph"], providers=["CPUExecutionProvider"])
        self.inputs = [node.name for node in self.session.get_inputs()]
        output = self.session.get_outputs()[0]
        self.embedding_dimension = output.shape[1] if output.name == "sentence_embedding" else None

    def outputs(self, texts, batch_size=32):
        """Vectors `(texts, width)`, zeros without tokens, or scores `(pairs,)` of pairs of texts; in their order."""
        rows = sorted(range(len(texts)), key=lambda row: len("".join(texts[row])))
        shape = (self.embedding_dimension,) if self.embedding_dimension else ()
        outputs = np.zeros((len(texts), *shape), np.float32)
        for start in range(0, len(rows), batch_size):
            part = rows[start : start + batch_size]
            encodings = self.tokenizer.encode_batch([texts[row] for row in part])
            batch = [
                (row, encoding) for row, encoding in zip(part, encodings, strict=True) if any(encoding.attention_mask)
            ]
            if len(batch) < len(part) and not shape:
                raise ValueError("Expected a token in every pair. Drop the pairs of empty texts.")
            if batch:
                inputs = {name: np.array([getattr(row, COLUMNS[name]) for _, row in batch]) for name in self.inputs}
                computed = self.session.run(None, inputs)[0]
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
        if not self.embedding_dimension:
            return self.outputs([(prompts[0] + a, b) for a, b in zip(first, second, strict=True)])
        u, v = self.encode(first, prompt=prompts[0]), self.encode(second, prompt=prompts[1])
        cosines = 1 - ((u - v) ** 2).sum(axis=1) / 2  # as `pair_cosines` of cosent: exactly 1 for equal vectors
        return cosines * (u.any(axis=1) & v.any(axis=1))

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


def main():
    sentences = sys.argv[1:]
    if not sentences or len(sentences) % 2:
        sys.exit("Give sentences in pairs: python run.py 怎么还款 如何还款")
    model = OnnxModel()
    for pair in zip(sentences[::2], sentences[1::2], strict=True):
        (score,) = model.similarity(pair[:1], pair[1:])
        row = {"sentence1": pair[0], "sentence2": pair[1], "score": round(float(score), 6)}
        if model.rule:
            row["probability"] = round(float(model.probabilities(score)), 6)
            row["verdict"] = "similar" if model.similar(score) else "not similar"
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
