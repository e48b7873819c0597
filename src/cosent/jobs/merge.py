"""Average the weights of trained models, or shorten the vectors of one: one JSON line on stdout.

cosent merge --models runs/seed1 runs/seed2 --output runs/soup       runs from one start: the mean of their weights
cosent merge --models runs/faq --pca_dim 64 --corpus faq --output runs/faq64     one model, with shorter vectors
cosent merge --models other/bge --pooling cls --output runs/bge                  a folder that does not say how it pools
"""

import json
import time
from dataclasses import asdict, dataclass

from cosent.atomic import complete_folder, locked
from cosent.cli import REQUIRED, option
from cosent.data.manifest import DataFolder
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.jobs.arguments import Device, OutputFolder

PAIRS = [("今天天气不错", "今天天气很好"), ("我喜欢北京", "我不喜欢北京"), ("怎么还款", "如何还款")]  # of the proof


@dataclass(kw_only=True)
class MergeArguments(OutputFolder, DataFolder, Device):
    """Merge options."""

    models: list[str] = option(REQUIRED, "Folders of trained models, shipped models or Hub ids.")
    weights: list[float] | None = option(None, "Positive weight of each model; default: equal weights.")
    corpus: list[str] | None = option(
        None, "Prepared corpora whose validation splits give threshold and probabilities; default: neither."
    )
    dtype: str = option(
        "float32",
        "Type of the saved weights; float16 halves the folder, int8 quarters that of a lookup.",
        ("float32", "float16", "int8"),
    )
    pooling: str | None = option(
        None, "cls, mean, lasttoken, linear_cls; default: the model's, else mean (students: linear_cls)."
    )
    truncate_dim: int | None = option(None, "Keep only the first N numbers of every vector.")
    pca_dim: int | None = option(
        None, "Project vectors on the first N principal directions of the training sentences of --corpus."
    )


def main(args: MergeArguments) -> None:
    with locked(args.output):
        from cosent.compute.distributed import choose_device
        from cosent.data.corpus import load_corpus
        from cosent.models.bi_encoder import SentenceEncoder
        from cosent.models.decision import write_rules
        from cosent.models.merging import common_start, shares
        from cosent.record import CorpusRecord, RunRecord, terms_of
        from cosent.search.precision import with_answers
        from cosent.training.card import write_card
        from cosent.training.job import environment, footprint
        from cosent.training.proof import SAME_WEIGHTS, FolderProof

        start, output = time.time(), args.new_folder()
        weights = shares(args.weights, len(args.models))
        shorter = [name for name in ("truncate_dim", "pca_dim") if getattr(args, name) is not None]
        if len(shorter) > 1 or ("pca_dim" in shorter and not args.corpus):
            raise InputError("--pca_dim needs the sentences of --corpus NAME, and takes the place of --truncate_dim.")
        corpora = [load_corpus(name, args.data_dir) for name in args.corpus or []]
        terms = terms_of(args.models, [corpus.manifest for corpus in corpora if args.pca_dim is not None])
        model = merged(args).to(choose_device(args.device))
        if shorter:
            shorten(model, args, corpora)
        saved = {}
        if args.dtype == "float16":
            saved["state_dict"] = model.half().state_dict()
            model.float()  # scored as it will be loaded
        elif args.dtype == "int8":
            saved["state_dict"] = rounded_rows(model)
        evaluation = evaluate(model, corpora)
        rules = evaluation.rules
        if isinstance(model, SentenceEncoder):
            rules = with_answers(rules, model, corpora)
        record = RunRecord(
            recipe=asdict(args) | {"model_name_or_path": common_start(args.models)},
            environment=environment(),
            train_seconds=0.0,
            seconds=time.time() - start,
            history=[],
            footprint=footprint(model, None),
            corpora={corpus.manifest.name: CorpusRecord.of(corpus.folder) for corpus in corpora},
            after=evaluation.metrics,
            prompts=model.prompts.sides(),
            terms=terms,
        )
        with complete_folder(args.output) as folder:
            model.save_pretrained(folder, **saved)
            record.proof = FolderProof(model, PAIRS, SAME_WEIGHTS).check(folder)
            write_rules(folder, rules)
            write_card(folder, record, output.name)
            record.save(folder)
        result = {"output": args.output, "weights": [round(weight, 4) for weight in weights]}
        print(json.dumps(result | {"validation": evaluation.metrics, "seconds": round(time.time() - start, 1)}))


def merged(args: MergeArguments):
    """The merged model."""
    from cosent.models.auto import load_model
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.models.merging import average
    from cosent.models.student import Student, is_student

    if args.pooling is not None:
        pooled = [SentenceEncoder.from_pretrained(name, pooling=args.pooling) for name in args.models]
        return average(pooled, args.models, args.weights)
    students = all(is_student(resolve(name)) for name in args.models)
    models = [(Student.from_pretrained if students else load_model)(name) for name in args.models]
    return average(models, args.models, args.weights)


def rounded_rows(model) -> dict:
    """Rounds the rows of a lookup to int8, all else to float16, and returns the weights to save."""
    from cosent.models.lookup import LookupModel, int8_state

    lookup = model.backbone
    if not isinstance(lookup, LookupModel):
        raise InputError(f"--dtype int8 is for lookups, not for a {model.backbone.config.model_type}. Take float16.")
    rows = int8_state({name: weight.clone() for name, weight in lookup.state_dict().items()})
    state = model.half().state_dict() | {f"backbone.{name}": weight for name, weight in rows.items()}
    model.float()
    lookup.table.weight.data = rows["table.weight"] * rows["scale"]
    return state


def shorten(model, args: MergeArguments, corpora: list) -> None:
    """Applies --truncate_dim or --pca_dim."""
    from cosent.models.bi_encoder import SentenceEncoder

    if not isinstance(model, SentenceEncoder):
        raise InputError(f"A {type(model).__name__} has no vectors to shorten. Leave out --truncate_dim and --pca_dim.")
    if args.truncate_dim is not None:
        return model.truncate(args.truncate_dim)
    assert args.pca_dim is not None
    splits = [corpus.split("train") for corpus in corpora]
    texts = (text for rows in splits for name in ("sentence1", "sentence2") for text in rows[name][:])
    model.truncate(args.pca_dim, list(dict.fromkeys(texts)))


def evaluate(model, corpora):
    """Scores the validation splits; for labels of 0 and 1 also finds a `DecisionRule`.

    Nothing is found without a corpus, since the thresholds of members mean nothing for their mean.
    """
    from cosent.evaluation.metrics import can_rank, evaluate_scores
    from cosent.models.decision import DecisionRule
    from cosent.training.evaluation import Evaluation

    evaluation = Evaluation()
    for corpus in corpora:
        name, rows, labels = corpus.manifest.name, corpus.split("validation"), corpus.labels("validation")
        scores = model.similarity(rows["sentence1"][:], rows["sentence2"][:], show_progress_bar=True)
        evaluation.scores[name] = {"validation": {"labels": labels, "scores": scores}}
        binary = corpus.manifest.label_kind == "binary" and can_rank(labels)
        if binary:
            evaluation.rules[name] = DecisionRule.of(name, scores, labels, model.prompts.sides())
        evaluation.metrics[name] = {"validation": evaluate_scores(scores, labels)}
    evaluation.decide_jointly(evaluation.scores)
    return evaluation
