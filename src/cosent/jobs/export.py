"""Export a model to a folder that runs without torch: its graph in ONNX, its tokenizer and a script.

cosent export --model runs/faq --output faq.onnx
cosent export --model runs/faq --int8 --corpus faq --output faq.int8
python faq.onnx/run.py 怎么还款 如何还款

The graph includes pooling and head; the folder has the model's threshold and probabilities. Before it is complete, it
has answered like the model, or the export fails: on the validation split of --corpus, which --int8 needs.
"""

import json
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from cosent import __version__
from cosent.atomic import complete_folder, locked, seal
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.flags import option
from cosent.jobs.arguments import MODEL, CorpusSource, OutputFolder

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
PAIRS = 1000  # of validation, on which the export is compared with the model
MOST_CHANGE = 1e-3  # of a float32 score
MOST_POINTS = 1.0  # of Spearman x100 that int8 may lose
LEAST_AGREEMENT = 0.98  # of verdicts in int8


@dataclass(kw_only=True)
class ExportArguments(OutputFolder, CorpusSource):
    """Export options."""

    model: str = option("similar", MODEL)
    int8: bool = option(False, "Matrix products in int8: smaller, faster on CPUs with VNNI, and slightly different.")
    truncate_dim: int | None = option(None, "Keep only the first N numbers of every vector.")


def main(args: ExportArguments) -> None:
    with locked(args.output):
        output = args.new_folder()
        if missing := [name for name in PACKAGES if find_spec(name) is None]:
            raise InputError(f"cosent export needs {', '.join(missing)}. Run pip install -e '.[export]'.")
        if args.int8 and args.corpus is None:
            raise InputError("--int8 changes the scores. Add --corpus: its labelled pairs show by how much.")
        resolve(args.model)  # before imports that take seconds
        from cosent.data.corpus import load_corpus
        from cosent.models import load_model, onnx_reader
        from cosent.models.bi_encoder import SentenceEncoder
        from cosent.models.decision import decision_rules, rule_for, write_rules
        from cosent.models.lookup import LookupModel
        from cosent.models.onnx import write_onnx
        from cosent.record import terms_of

        if args.truncate_dim is None:
            model = load_model(args.model)
        else:
            model = SentenceEncoder.from_pretrained(args.model)
            model.truncate(args.truncate_dim)
        if args.int8 and isinstance(model.backbone, LookupModel):
            raise InputError(f"--int8: {args.model} is a lookup, which has no matrix products. Leave it out.")
        corpus = None if args.corpus is None else load_corpus(args.corpus, args.data_dir)
        prompts = model.prompts.sides()
        name = None if corpus is None else corpus.manifest.name
        rule, _ = rule_for(args.model, prompts, name if name in decision_rules(args.model) else None)
        rule = rule if args.truncate_dim is None else None  # of other vectors
        with complete_folder(args.output) as folder:
            settings = {
                "cosent": __version__,
                "model": args.model,
                "graph": write_onnx(model, folder, args.model, args.int8),
                "max_length": model.max_length,
                "pad_id": model.tokenizer.pad_token_id,
                "pad_token": model.tokenizer.pad_token,
                "prompts": prompts,
                "terms": terms_of([args.model]),
            }
            text = json.dumps(settings, ensure_ascii=False, indent=2)
            Path(folder, "export.json").write_text(text + "\n", encoding="utf-8")
            write_rules(folder, {} if rule is None else {rule.corpus: rule})
            shutil.copy(onnx_reader.__file__, folder / "run.py")
            seal(folder)
            measured = compare(model, onnx_reader.OnnxModel(folder), args.int8, corpus)
        size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
        print(json.dumps({"output": args.output, "int8": args.int8, "mib": round(size / 2**20, 1)} | measured))
        print(f"next: python {output / 'run.py'} 怎么还款 如何还款")


def compare(model, exported, int8: bool, corpus) -> dict:
    """Compares the answers of an export with the model's, and refuses what lies outside the bounds."""
    from cosent.evaluation.significance import spearman
    from cosent.models.onnx import SENTENCES, quiet

    if corpus is None:
        first, second, labels = SENTENCES, [sentence * 9 for sentence in reversed(SENTENCES)], None
    else:
        rows = corpus.split("validation")[:PAIRS]
        first, second, labels = rows["sentence1"], rows["sentence2"], np.array(rows["label"])
    with quiet() if corpus is None else nullcontext():  # sentences of the user's that are too long are worth a warning
        expected = model.similarity(first, second)
    scores = exported.similarity(first, second)
    measured = {"pairs": len(first), "largest_change": float(np.abs(scores - expected).max())}
    wrong = not np.isfinite(scores).all()
    if not int8:
        wrong |= measured["largest_change"] > MOST_CHANGE * max(1.0, float(np.abs(expected).max()))
    if labels is not None:
        before, after = (100 * spearman(values, labels) for values in (expected, scores))
        measured |= {"spearman_of_model": round(before, 2), "spearman": round(after, 2)}
        wrong |= before - after > MOST_POINTS
    if labels is not None and exported.rule:
        measured["same_verdicts"] = float((exported.similar(scores) == exported.similar(expected)).mean())
        wrong |= measured["same_verdicts"] < LEAST_AGREEMENT
    if wrong:
        remedy = "Leave --int8 out." if int8 else "Please report it."
        raise InputError(f"The export answers unlike the model: {json.dumps(measured)}. Nothing was written. {remedy}")
    return measured
