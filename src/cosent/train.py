"""Fine-tune an encoder on labelled pairs.

accelerate launch -q --config_file recipes/accelerate/cpu.yaml -m cosent.train \
    --config recipes/bi_encoder/cosent.yaml --corpus stsb --output_dir runs/stsb
"""

import logging
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
from torch import nn
from torch.utils.data import ConcatDataset
from transformers import set_seed

from cosent.cli import run
from cosent.data.pairs import Corpus, PairDataset, labels_of, limit, load_corpus, random_negatives
from cosent.evaluation.metrics import SimilarityMetrics
from cosent.modeling import lora
from cosent.modeling.bi_encoder import BiEncoder, SentenceEncoder
from cosent.modeling.cross_encoder import CrossEncoder
from cosent.run_record import SCORES_NAME, Scores, save_scores
from cosent.schema import NLI_CLASSES, InputError
from cosent.training import environment as records
from cosent.training import objective as objectives
from cosent.training.arguments import (
    DataArguments,
    LossArguments,
    ModelArguments,
    PairTrainingArguments,
    refuse_changed,
)
from cosent.training.checkpoints import find_checkpoint, has_finished, make_room
from cosent.training.collapse_guard import CollapseGuard
from cosent.training.held_out import can_rank, measure, table, validation_sets
from cosent.training.towers import TOWERS

logger = logging.getLogger("cosent.train")


def main(model_args: ModelArguments, data_args: DataArguments, loss_args: LossArguments, args: PairTrainingArguments):
    start = time.time()
    if has_finished(args):
        return
    checkpoint = find_checkpoint(args)
    corpora, selecting = load_corpora(data_args)
    everything = {corpus.manifest.name: corpus for corpus in [*corpora, *selecting]}
    select_on_validation(selecting, args)
    manifests = [corpus.manifest for corpus in corpora]
    tower = TOWERS[model_args.tower]
    objective = objectives.build(loss_args.loss, loss_args.parameters(), manifests, model_args.tower)

    set_seed(args.seed)
    lengths = [corpus.manifest.max_length[model_args.tower] for corpus in everything.values()]
    max_length = max(lengths) if model_args.max_length is None else model_args.max_length
    model = build_model(model_args, loss_args.features, objective, max_length, args.seed)
    encoder = model.encoder if isinstance(model, BiEncoder) else model
    with args.main_process_first(desc="tokenising"):  # the other processes read its cache
        train = training_set(corpora, tower.dataset, encoder, loss_args.loss, data_args)
        held = {
            name: {
                split: tokenised(corpus, split, tower.dataset, encoder) for split in corpus.splits if split != "train"
            }
            for name, corpus in everything.items()
        }
    trainer = tower.trainer(
        model=model,
        args=args,
        objective=objective,
        corpus_weights=weights(data_args.corpus_weights, len(corpora), loss_args.loss),
        adapter=adapter(model_args, model, args.seed),
        train_dataset=train,
        eval_dataset=validation_sets(held, [corpus.manifest.name for corpus in selecting]),
        data_collator=tower.collator.of(encoder.tokenizer),
        compute_metrics=lambda p: SimilarityMetrics().compute(predictions=p.predictions, references=p.label_ids),
    )
    if args.on_collapse is not None:
        trainer.add_callback(CollapseGuard(trainer, args.on_collapse, args.collapse_drop, args.rollback_factor))

    make_room(args, checkpoint, asdict(model_args) | asdict(data_args) | asdict(loss_args))
    scores: Scores = {}
    before, _ = measure(trainer, held, [], scores, "before")
    if isinstance(model, BiEncoder) and trainer.is_world_process_zero():
        keep_distances(encoder, everything, scores)
    result = trainer.train(resume_from_checkpoint=checkpoint)
    binary = [name for name, corpus in everything.items() if corpus.manifest.label_kind == "binary"]
    after, thresholds = measure(trainer, held, binary, scores, "after")
    trainer.save_model()
    if trainer.is_world_process_zero():
        record = {
            "recipe": recipe(model_args, data_args, loss_args, args),
            "corpora": {name: records.corpus_record(corpus.folder) for name, corpus in everything.items()},
            "train_pairs": len(train),
            "before": before,
            "after": after,
            "thresholds": thresholds,
            "history": trainer.state.log_history,
            "processes": args.world_size,
            "footprint": records.footprint(model, trainer.optimizer),
            "train_seconds": result.metrics["train_runtime"],
            "seconds": time.time() - start,
            **records.environment(),
        }
        save_scores(Path(args.output_dir, SCORES_NAME), scores)
        records.save_record(args.output_dir, record)  # last: where it stands, the run has finished
        print(table(before, after, thresholds))
        print(footprint_line(record["footprint"]))
        print(f"model in {args.output_dir} ({record['train_seconds']:.0f} s of training)")


def load_corpora(args: DataArguments) -> tuple[list[Corpus], list[Corpus]]:
    """The corpora to train on, and those that select the best epoch and are tested.

    Raises:
        InputError: a training corpus without training pairs, or two corpora of one name, whose results would overwrite
            each other.
    """
    training, selecting = (
        [load_corpus(name.strip(), args.data_dir) for name in names.split(",")]
        for names in (args.corpus, args.eval_corpora or args.corpus)
    )
    for corpus in training:
        if "train" not in corpus.splits:
            raise InputError(
                f"{corpus.folder} has no train split, only {', '.join(corpus.splits)}: nothing to train on. "
                "Train on another corpus and use this one with `python -m cosent.evaluate`."
            )
    for flag, corpora in (("--corpus", training), ("--eval_corpora", selecting)):
        for corpus in corpora:
            name = corpus.manifest.name
            others = [other for other in training if other.manifest.name == name and other.folder != corpus.folder]
            if others or [other.manifest.name for other in corpora].count(name) > 1:
                raise InputError(
                    f"{flag} names {name} more than once, and results are kept by name. "
                    "Name each corpus once, or prepare one of them under another name."
                )
    return training, selecting


def select_on_validation(corpora: list[Corpus], args: PairTrainingArguments) -> None:
    """Turns selection off, and says so, where there is nothing to select on or nobody asked for evaluation."""
    usable = [c for c in corpora if "validation" in c.splits and can_rank(c.labels("validation"))]
    idle = ", ".join(str(corpus.folder) for corpus in corpora if corpus not in usable)
    if args.eval_strategy != "no" and usable:
        if idle:
            logger.warning("%s selects nothing: it has no validation split with two different labels.", idle)
        return
    if not usable:
        logger.warning(
            "%s has no validation split with two different labels: the last epoch is kept, best or not.", idle
        )
    args.eval_strategy, args.load_best_model_at_end, args.metric_for_best_model = "no", False, None


def build_model(
    args: ModelArguments, features: str | None, objective: objectives.Objective, max_length: int, seed: int
) -> nn.Module:
    """The model that a trainer wraps, with the head that its objective needs.

    Raises:
        InputError: a flag of the other tower.
    """
    other = {"pooling": args.pooling, "features": features} if args.tower == "cross_encoder" else {}
    if args.tower == "bi_encoder" and args.segment_ids != "tokenizer":
        other = {"segment_ids": args.segment_ids}
    for flag, value in other.items():
        if value is not None:
            raise InputError(f"--{flag} {value} does nothing for --tower {args.tower}. Leave it out.")
    if args.load_in_4bit and not args.use_peft:
        raise InputError("--load_in_4bit keeps the weights frozen: add --use_peft true, or leave it out.")
    same = {"max_length": max_length, "dropout": args.dropout, "attn_implementation": args.attn_implementation}
    same["quantization_config"] = lora.four_bit_config() if args.load_in_4bit else None
    if args.tower == "cross_encoder":
        encoder = model = CrossEncoder.from_pretrained(
            args.model_name_or_path, objective.classes, segment_ids=args.segment_ids, seed=seed, **same
        )
        if objective.classes == len(NLI_CLASSES):  # what pipelines call the classes
            encoder.model.config.id2label = dict(enumerate(NLI_CLASSES))
            encoder.model.config.label2id = {name: number for number, name in enumerate(NLI_CLASSES)}
    else:
        encoder = SentenceEncoder.from_pretrained(args.model_name_or_path, pooling=args.pooling, seed=seed, **same)
        model = BiEncoder(encoder, objective.head(encoder.pooling.hidden_size, features, seed))
    encoder.packing = not args.no_packing
    return model


def adapter(args: ModelArguments, model: nn.Module, seed: int) -> lora.Adapter | None:
    """Puts the LoRA adapter that the arguments ask for into the model.

    Raises:
        InputError: settings of an adapter, and none is asked for.
    """
    if not args.use_peft:
        names = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")
        refuse_changed(args, names, "--use_peft true")
        return None
    inner = model.encoder.backbone if isinstance(model, BiEncoder) else model.model
    settings = (args.lora_r, args.lora_alpha, args.lora_dropout, args.lora_target_modules)
    return lora.add_adapter(model, inner, *settings, seed)


def tokenised(corpus: Corpus, split: str, dataset: type[PairDataset], encoder, rows=None, labels=None) -> PairDataset:
    """Tokenises a split, or some `rows` of it, and warns of text that is cut off."""
    rows = corpus.splits[split] if rows is None else rows
    data = dataset(rows, encoder.tokenizer, encoder.max_length, labels)
    if data.truncated:
        where = f"{corpus.manifest.name} {split}"
        logger.warning("%s: %d of %d %s are longer than %d tokens and lose their end (--max_length).",
                       where, data.truncated, data.sequences, data.unit, encoder.max_length)  # fmt: skip
    return data


def training_set(
    corpora: list[Corpus], dataset: type[PairDataset], encoder, loss: str, args: DataArguments
) -> PairDataset | ConcatDataset:
    """Training pairs with the targets of the loss.

    Several corpora are drawn from in turn; `sbert_joint` draws from all similarity pairs and all NLI pairs in turn.
    """
    parts = {}
    for corpus in corpora:
        rows = limit(corpus.splits["train"], args.limit_train)
        rows = random_negatives(rows, corpus.manifest) if args.random_negatives else rows
        targets = objectives.targets(loss, labels_of(rows), corpus.manifest)
        data = tokenised(corpus, "train", dataset, encoder, rows, targets)
        group = corpus.manifest.label_kind == "nli" if loss == "sbert_joint" else corpus.manifest.name
        parts.setdefault(group, []).append(data)
    groups = [group[0] if len(group) == 1 else ConcatDataset(group) for group in parts.values()]
    return groups[0] if len(groups) == 1 else ConcatDataset(groups)


def weights(text: str | None, corpora: int, loss: str) -> list[float] | None:
    """The share of the batches of each corpus, from `--corpus_weights`.

    Raises:
        InputError: not one positive number per corpus, or a loss that has shares of its own.
    """
    if text is None:
        return None
    if loss == "sbert_joint":
        raise InputError("--loss sbert_joint draws similarity pairs and NLI pairs 1:1. Leave --corpus_weights out.")
    try:
        values = [float(value) for value in text.split(",")]
    except ValueError:
        values = []
    if len(values) != corpora or corpora < 2 or not all(0 < value < float("inf") for value in values):
        raise InputError(
            f"--corpus_weights needs a positive number for each of several corpora, e.g. 2,1; got {text} for {corpora}."
        )
    return values


def keep_distances(encoder: SentenceEncoder, corpora: dict[str, Corpus], kept: Scores) -> None:
    """Adds |u - v| of the test pairs to `kept`: kexue.fm 8847 explains with them why Sentence-BERT's head works."""
    for name, corpus in corpora.items():
        if "test" in corpus.splits:
            first, second = (encoder.encode(corpus.splits["test"][column][:]) for column in ("sentence1", "sentence2"))
            kept[name]["test"]["distances"] = np.linalg.norm(first - second, axis=1)


def recipe(model_args, data_args, loss_args, args) -> dict:
    """Everything that was set, flags and defaults alike, in the form a recipe has."""
    return asdict(model_args) | asdict(data_args) | asdict(loss_args) | args.to_sanitized_dict()


def footprint_line(footprint: dict) -> str:
    share = footprint["trainable_parameters"] / footprint["parameters"]
    return (
        f"trained {footprint['trainable_parameters']:,} of {footprint['parameters']:,} parameters ({share:.1%}); "
        f"optimizer {footprint['optimizer_mib']:.1f} MiB, peak {footprint['peak_mib']:.0f} MiB"
    )


if __name__ == "__main__":
    run(main, ModelArguments, DataArguments, LossArguments, PairTrainingArguments)
