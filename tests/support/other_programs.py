"""What programs of others make of an exported folder, as JSON: `python other_programs.py FOLDER bi|cross|int8`.

It needs fastembed, optimum-onnx and sentence-transformers, whose pins no environment of cosent fulfils.
"""

import json
import sys

from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from fastembed.rerank.cross_encoder import TextCrossEncoder
from optimum.onnxruntime import ORTModelForSequenceClassification
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoTokenizer

folder, tower = sys.argv[1:]
asked = json.load(sys.stdin)
texts, others = asked["texts"], asked["others"]
file = "model_quantized.onnx" if tower == "int8" else "model.onnx"
own = {"model": "me/model", "sources": ModelSource(hf="me/model"), "model_file": f"onnx/{file}"}
place = {"subfolder": "onnx", "file_name": file}
if tower == "cross":
    scores = CrossEncoder(folder, backend="onnx").predict(list(zip(texts, others, strict=True)))
    tokens = AutoTokenizer.from_pretrained(folder)(texts, others, padding=True, return_tensors="pt")
    logits = ORTModelForSequenceClassification.from_pretrained(folder)(**tokens).logits[:, 0]
    TextCrossEncoder.add_custom_model(**own)
    encoder = TextCrossEncoder("me/model", specific_model_path=folder)
    ranked = [next(iter(encoder.rerank(one, [other]))) for one, other in zip(texts, others, strict=True)]
    answers = {"sentence-transformers": scores.tolist(), "optimum": logits.tolist(), "fastembed": ranked}
else:
    encoder = SentenceTransformer(folder, backend="onnx", model_kwargs=place)
    vectors = encoder.encode(texts, normalize_embeddings=True)
    TextEmbedding.add_custom_model(**own, pooling=PoolingType.DISABLED, normalization=True, dim=vectors.shape[1])
    embedded = TextEmbedding("me/model", specific_model_path=folder).embed(texts)
    answers = {"sentence-transformers": vectors.tolist(), "fastembed": [one.tolist() for one in embedded]}
print(json.dumps(answers))
