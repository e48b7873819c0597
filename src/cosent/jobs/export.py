"""Export a model to a folder that runs without torch: its graph in ONNX or OpenVINO, its tokenizer and a script.

cosent export --model runs/faq --output faq.onnx
cosent export --model runs/faq --format openvino --int8 --corpus faq --output faq.ov
cosent export --model runs/lookup --format numpy --output faq.numpy
python faq.onnx/run.py 怎么还款 如何还款

The graph includes pooling and head; the bundle has the model's threshold and calibration. Before the folder
is complete, it has answered like the model, or the export fails: on the validation split of --corpus, which int8 and
bf16 need, and whose threshold is taken.
"""

import io
import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from cosent import __version__
from cosent.atomic import complete_folder, locked
from cosent.cli import option
from cosent.encoders import resolve
from cosent.errors import InputError, system_error
from cosent.jobs.arguments import MODEL, CorpusSource, OutputFolder
from cosent.seal import seal

PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino", "nncf")}
PACKAGES |= {"numpy": ()}
PAIRS = 1000  # of validation, on which the export is compared with the model
CALIBRATION = 300  # sentences that set the ranges of int8 in OpenVINO
LEAST_COSINE = 1 - 1e-4  # of a float32 vector with that of the model
MOST_CHANGE = 1e-3  # of a float32 logit
MOST_POINTS = 1.0  # of Spearman x100 that int8 or bfloat16 may lose
LEAST_AGREEMENT = 0.98  # of verdicts in int8 or bfloat16
SENTENCES = ["怎么还款", "如何还款", "今天天气不错", "我不喜欢北京", "给我推荐一款红色的车", "好", "OPPO R11 多少钱?"]


@dataclass(kw_only=True)
class ExportArguments(OutputFolder, CorpusSource):
    """Export options."""

    model: str = option("similar", MODEL)
    format: str = option(
        "onnx", "Runtime of the graph; numpy: of a lookup, without one.", ("onnx", "openvino", "numpy")
    )
    int8: bool = option(False, "Matrix products in int8: smaller, faster on CPUs with VNNI, and slightly different.")
    bf16: bool = option(False, "openvino: compute in bfloat16 on CPUs that have it (AVX512_BF16 or AMX).")


def main(args: ExportArguments) -> None:
    with locked(args.output):
        output, rounded = args.new_folder(), checked_rounding(args)
        resolve(args.model)  # before imports that take seconds
        from cosent.data.corpus import load_corpus
        from cosent.models import bundle
        from cosent.models.auto import load_model
        from cosent.models.bi_encoder import SentenceEncoder
        from cosent.models.cross_encoder import CrossEncoder
        from cosent.models.decision import choose_rule, decision_rules, write_rules
        from cosent.record import terms_of

        bundle.report_nothing()
        model = load_model(args.model)
        if not isinstance(model, SentenceEncoder | CrossEncoder):
            raise InputError(
                f"{args.model} is a {type(model).__name__}, which has no single graph. Export its members."
            )
        corpus = None if args.corpus is None else load_corpus(args.corpus, args.data_dir)
        rules = decision_rules(args.model)
        rule = choose_rule(rules, args.corpus if args.corpus in rules else None, args.model)
        prompts = model.prompts.sides()
        if rule is not None and rule.prompts != prompts:
            rule = None
        read = bundle.Lookup if args.format == "numpy" else bundle.Bundle
        with complete_folder(args.output) as folder:
            if args.format == "numpy":
                own = write_lookup(model, folder, args)
            else:
                save_around_weights(model, folder)
                own = {
                    "form": bundle.FORM,
                    "files": [*write_graph(model, folder, args, corpus), "tokenizer.json"],
                    "inputs": input_names(model),
                    "precision": "bf16" if args.bf16 else "f32",
                    "pad_id": model.tokenizer.pad_token_id,
                    "pad_token": model.tokenizer.pad_token,
                    "embedding_dimension": getattr(model, "embedding_dimension", None),
                    "nested": isinstance(model, SentenceEncoder) and model.nested,
                }
            settings = own | {
                "cosent": __version__,
                "model": args.model,
                "tower": "cross_encoder" if reads_pairs(model) else "bi_encoder",
                "max_length": model.max_length,
                "prompts": prompts,
                "terms": terms_of([args.model]),
            }
            text = json.dumps(settings, ensure_ascii=False, indent=2)
            Path(folder, read.file).write_text(text + "\n", encoding="utf-8")
            write_rules(folder, {} if rule is None else {rule.corpus: rule})
            shutil.copy(bundle.__file__, folder / "run.py")
            seal(folder)
            proof = prove(model, read(folder), rounded, corpus)
        size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
        form = {"format": args.format, "int8": args.int8, "bf16": args.bf16, "mib": round(size / 2**20, 1)}
        print(json.dumps({"output": args.output} | form | proof))
        print(f"next: python {output / 'run.py'} 怎么还款 如何还款")


def checked_rounding(args: ExportArguments) -> str | None:
    """The precision that scores are rounded to, if any.

    Raises:
        InputError: the format needs a package that is missing, has no such precision, or is not measured.
    """
    if missing := [name for name in PACKAGES[args.format] if find_spec(name) is None]:
        raise InputError(f"--format {args.format} needs {', '.join(missing)}. Run pip install -e '.[export]'.")
    if args.bf16 and args.format != "openvino":
        raise InputError("--bf16 needs --format openvino: onnxruntime has no bfloat16 on a CPU. Take it, or --int8.")
    rounded = "int8" if args.int8 else "bf16" if args.bf16 else None
    if rounded and args.corpus is None:
        raise InputError(f"--{rounded} changes the scores. Add --corpus: its labelled pairs show by how much.")
    return rounded


def reads_pairs(model) -> bool:
    """Whether a model is a cross-encoder."""
    from cosent.models.cross_encoder import CrossEncoder

    return isinstance(model, CrossEncoder)


def input_names(model) -> list[str]:
    """Inputs of the graph; a bi-encoder reads single sentences, whose segment ids are all 0."""
    segments = reads_pairs(model) and "token_type_ids" in model.tokenizer.model_input_names
    return ["input_ids", "attention_mask", *(["token_type_ids"] if segments else [])]


def save_around_weights(model, folder: Path) -> None:
    """Writes the folder of a model without its weights, as optimum, transformers.js and sentence-transformers read."""
    from cosent.models.folder import add_server_keys
    from cosent.models.modules import save_classifier_prompts

    inner = model.model if reads_pairs(model) else model.backbone
    inner.config.architectures = [type(inner).__name__]
    add_server_keys(inner.config)
    inner.config.save_pretrained(folder)
    if reads_pairs(model):
        model.save_tokenizer(folder)
        save_classifier_prompts(folder, model.prompts)
    else:
        model.save_around_backbone(folder, model.state_dict())


def as_graph(model):
    """A module of two outputs: the vectors and the tokens of sentences, or the scores `(pairs, 1)` and the logits."""
    import torch

    from cosent.compute.packed_backbone import plain_forward

    class Graph(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            if reads_pairs(model):
                output = self.model(*inputs)
                return output["scores"][:, None], output["logits"]
            input_ids, attention_mask = inputs
            tokens = plain_forward(self.model.backbone, {"input_ids": input_ids, "attention_mask": attention_mask})
            vectors = self.model.after_pooling(self.model.pooling(tokens, attention_mask))
            return torch.where(attention_mask.any(dim=1, keepdim=True), vectors, 0.0), tokens

    return Graph()


def write_graph(model, folder: Path, args: ExportArguments, corpus) -> list[str]:
    """Writes the graph; returns the names of its files, the one to load first."""
    import torch

    file = folder / "onnx" / ("model_quantized.onnx" if args.int8 else "model.onnx")
    file.parent.mkdir()
    model.packing = False
    model.eval()
    graph = as_graph(model)
    names = input_names(model)
    outputs = ["scores", "logits"] if reads_pairs(model) else ["sentence_embedding", "last_hidden_state"]
    sample = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    inputs = tuple(sample.get(name, torch.zeros_like(sample["input_ids"])) for name in names)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=model.max_length)}
    shapes = (tuple(axes for _ in names),)
    try:
        with quiet():
            # By itself, torch.onnx falls back to a graph of one batch size and length.
            program = torch.export.export(graph, inputs, dynamic_shapes=shapes)
            torch.onnx.export(
                program,
                f=file,
                input_names=names,
                output_names=outputs,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # of many kinds, by architecture
        if system_error(error) is not None:  # of the disk
            raise
        cause = error.__cause__ or error
        reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        kind = model.backbone.config.model_type
        raise InputError(f"torch.onnx cannot export the {kind} of {args.model}: {reason}") from error
    if args.format == "onnx":
        if args.int8:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            with quiet():
                quantize_dynamic(
                    file, file, per_channel=True, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"]
                )
        return [f"onnx/{file.name}"]
    import openvino

    converted = openvino.Core().read_model(file)
    if args.int8:
        converted = quantized(converted, model, corpus)
    openvino.save_model(converted, folder / "openvino" / "openvino_model.xml", compress_to_fp16=False)
    del converted
    shutil.rmtree(file.parent)
    return ["openvino/openvino_model.xml", "openvino/openvino_model.bin"]


def write_lookup(model, folder: Path, args: ExportArguments) -> dict:
    """Writes the table of a lookup and the tokens of every character to lookup.npz; returns what else reads them."""
    from cosent.models.lookup import BYTES, Characters, LookupModel, int8_state

    table, tokenizer = model.backbone, model.tokenizer
    if not isinstance(table, LookupModel) or model.pooling.mode != "mean" or len(model.after_pooling):
        raise InputError(
            f"--format numpy is for lookups of mean pooling, and {args.model} is none. Take --format onnx."
        )
    state = {name: weight.detach() for name, weight in table.state_dict().items()}
    state = int8_state(state) if args.int8 else state
    points, tokens, counts = Characters.of(tokenizer).unlike_bytes(tokenizer)
    keys, rows, step = (state[name].numpy() for name in ("keys", "table.weight", "scale"))
    file = folder / "lookup.npz"
    np.savez_compressed(file, keys=keys, rows=rows, step=step, points=points, tokens=tokens, counts=counts)
    ids = {"first": tokenizer.cls_token_id, "last": tokenizer.sep_token_id, "byte": tokenizer.vocab[BYTES[0]]}
    return ids | {"vocab_size": table.config.vocab_size, "hashed_rows": table.config.hashed_rows}


def quantized(graph, model, corpus):
    """The OpenVINO graph with static int8 ranges, from sentences of a validation split."""
    import nncf

    rows = corpus.split("validation")[:CALIBRATION]
    pairs = [rows["sentence1"], rows["sentence2"]] if reads_pairs(model) else [rows["sentence1"]]

    def inputs(row: int) -> dict[str, np.ndarray]:
        tokens = model.tokenizer(*(column[row] for column in pairs), truncation=True, max_length=model.max_length)
        return {name: np.array([tokens[name]]) for name in input_names(model)}

    with quiet():
        samples = nncf.Dataset(range(len(rows["label"])), inputs)
        return nncf.quantize(graph, samples, model_type=nncf.ModelType.TRANSFORMER, subset_size=CALIBRATION)


def prove(model, bundle, rounded: str | None, corpus) -> dict:
    """Compares the answers of a bundle with those of the model, and refuses what lies outside the bounds."""
    if corpus is None:
        first, second, labels = SENTENCES, [sentence * 9 for sentence in reversed(SENTENCES)], None
    else:
        rows = corpus.split("validation")[:PAIRS]
        first, second, labels = rows["sentence1"], rows["sentence2"], np.array(rows["label"])
    with quiet() if corpus is None else nullcontext():  # that some are too long is a part of the proof
        expected = model.similarity(first, second)
    scores = bundle.similarity(first, second)
    measured = {"pairs": len(first), "largest_change": float(np.abs(scores - expected).max())}
    if bundle.settings["tower"] == "bi_encoder":
        prompt = bundle.settings["prompts"][0]
        vectors = model.encode(first, normalize_embeddings=True, prompt=prompt), bundle.encode(first)
        measured["least_cosine"] = float((vectors[0] * vectors[1]).sum(axis=1).min())
    wrong = not np.isfinite(scores).all()
    if not rounded:
        allowed = MOST_CHANGE * max(1.0, float(np.abs(expected).max()))
        wrong |= measured["largest_change"] > allowed or measured.get("least_cosine", 1.0) < LEAST_COSINE
    if labels is not None:
        from cosent.evaluation.significance import spearman

        before, after = (100 * spearman(values, labels) for values in (expected, scores))
        measured |= {"spearman_of_model": round(before, 2), "spearman": round(after, 2)}
        wrong |= before - after > MOST_POINTS
        if bundle.rule:
            measured["same_verdicts"] = float((bundle.similar(scores) == bundle.similar(expected)).mean())
            wrong |= measured["same_verdicts"] < LEAST_AGREEMENT
    if wrong:
        remedy = f"Leave --{rounded} out, or try the other --format." if rounded else "Please report it."
        raise InputError(f"The export answers unlike the model: {json.dumps(measured)}. Nothing was written. {remedy}")
    return measured


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps the exporters' notes and bars off the terminal; some of them log to the root logger."""
    loggers = [logging.getLogger(name) for name in (None, "cosent", "torch.onnx", "nncf", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
