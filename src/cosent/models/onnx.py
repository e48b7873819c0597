"""The graph of a model in ONNX, in a folder of Hugging Face's layout without the model's weights."""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import torch
from torch import nn

from cosent.compute.packing import plain_forward
from cosent.errors import InputError, errors_only
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.folder import add_server_keys

# A batch from which the graph is traced, in which texts differ in length.
SENTENCES = ["怎么还款", "如何还款", "今天天气不错", "我不喜欢北京", "给我推荐一款红色的车", "好", "OPPO R11 多少钱?"]


class Graph(nn.Module):
    """Two outputs: the vectors and the tokens of sentences, or the scores `(pairs, 1)` and the logits."""

    def __init__(self, model: SentenceEncoder | CrossEncoder):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        if isinstance(self.model, CrossEncoder):
            output = self.model(*inputs)
            return output["scores"][:, None], output["logits"]
        input_ids, attention_mask = inputs
        tokens = plain_forward(self.model.backbone, {"input_ids": input_ids, "attention_mask": attention_mask})
        vectors = self.model.after_pooling(self.model.pooling(tokens, attention_mask))
        return torch.where(attention_mask.any(dim=1, keepdim=True), vectors, 0.0), tokens


def write_onnx(model: SentenceEncoder | CrossEncoder, folder: Path, name: str, int8: bool = False) -> str:
    """Writes config, tokenizer, modules and graph of a model, as optimum, transformers.js and fastembed read them.

    Args:
        name: of the model, for messages.
        int8: round the weights of matrix products, and their inputs as they come.

    Returns:
        the path of the graph in the folder.
    """
    inner = model.model if isinstance(model, CrossEncoder) else model.backbone
    inner.config.architectures = [type(inner).__name__]
    add_server_keys(inner.config)
    inner.config.save_pretrained(folder)
    model.save_around_backbone(folder, model.state_dict())
    file = folder / "onnx" / ("model_quantized.onnx" if int8 else "model.onnx")
    file.parent.mkdir()
    try:
        with quiet():
            write_graph(model, file)
    except Exception as error:  # of many kinds, by architecture
        cause = error.__cause__ or error
        reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        kind = model.backbone.config.model_type
        raise InputError(f"torch.onnx cannot export the {kind} of {name}: {reason}") from error
    if int8:
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before onnxruntime is imported
        from onnxruntime.quantization import QuantType, quantize_dynamic

        with quiet():
            quantize_dynamic(file, file, per_channel=True, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])
    return f"onnx/{file.name}"


def write_graph(model: SentenceEncoder | CrossEncoder, file: Path) -> None:
    """Traces the graph for any batch size and length; a bi-encoder reads single texts, whose segment ids are all 0."""
    classifier = isinstance(model, CrossEncoder)
    segments = classifier and "token_type_ids" in model.tokenizer.model_input_names
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if segments else [])]
    outputs = ["scores", "logits"] if classifier else ["sentence_embedding", "last_hidden_state"]
    sample = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    inputs = tuple(sample.get(name, torch.zeros_like(sample["input_ids"])) for name in names)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=model.max_length)}
    model.packing = False
    # By itself, torch.onnx falls back to a graph of one batch size and length.
    program = torch.export.export(Graph(model.eval()), inputs, dynamic_shapes=(tuple(axes for _ in names),))
    options = {"dynamo": True, "external_data": False, "verbose": False}
    torch.onnx.export(program, f=file, input_names=names, output_names=outputs, **options)


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps the exporters' notes and bars off the terminal; some of them log to the root logger."""
    silent = errors_only(None, "cosent", "torch.onnx", "onnxscript", "onnx_ir")
    with silent, warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
