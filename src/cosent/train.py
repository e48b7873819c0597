"""Fine-tune an encoder on labelled pairs.

accelerate launch --config_file recipes/accelerate/cpu.yaml -m cosent.train \
    --config recipes/bi_encoder/cosent.yaml --corpus stsb --output_dir runs/stsb
"""

import logging
import time
from dataclasses import asdict

import numpy as np
from torch.utils.data import ConcatDataset
from transformers import EarlyStoppingCallback, set_seed

from cosent import objectives, records
from cosent.arguments import DataArguments, LossArguments, ModelArguments, PairTrainingArguments
from cosent.cli import run
from cosent.data import Corpus, PairCollator, PairDataset, labels_of, limit, load_corpus
from cosent.metrics import SimilarityMetrics, find_threshold
from cosent.modeling import BiEncoder, SentenceEncoder
from cosent.schema import InputError
from cosent.trainers import BiEncoderTrainer, PairTrainer

logger = logging.getLogger("cosent.train")

Held = dict[str, dict[str, PairDataset]]  # by corpus and split: what training never sees


def main(model_args: ModelArguments, data_args: DataArguments, loss_args: LossArguments, args: PairTrainingArguments):
    start = time.time()
    checkpoint = records.find_checkpoint(args)
    corpora = [load_corpus(name.strip(), data_args.data_dir) for name in data_args.corpus.split(",")]
    check_splits(corpora)
    select_on_validation(corpora, args)
    manifests = [corpus.manifest for corpus in corpora]
    objective = objectives.build(loss_args.loss, loss_args.parameters(), manifests)

    set_seed(args.seed)
    encoder = SentenceEncoder.from_pretrained(
        model_args.model_name_or_path,
        pooling=model_args.pooling,
        max_length=model_args.max_length or max(manifest.max_length[model_args.tower] for manifest in manifests),
        dropout=model_args.dropout,
        attn_implementation=model_args.attn_implementation,
        seed=args.seed,
    )
    if model_args.no_packing:
        encoder.packing = False
    train, held = tokenised(corpora, encoder, loss_args.loss, data_args.limit_train)
    trainer = BiEncoderTrainer(
        model=BiEncoder(encoder, objective.head(encoder.pooling.hidden_size, loss_args.features, args.seed)),
        args=args,
        objective=objective,
        train_dataset=train,
        eval_dataset=validation_sets(held),
        data_collator=PairCollator(encoder.tokenizer.pad_token_id),
        compute_metrics=lambda p: SimilarityMetrics().compute(predictions=p.predictions, references=p.label_ids),
    )
    if args.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(args.early_stopping_patience))

    before, _ = measure(trainer, held, [])
    result = trainer.train(resume_from_checkpoint=checkpoint)
    binary = [manifest.name for manifest in manifests if manifest.label_kind == "binary"]
    after, thresholds = measure(trainer, held, binary)
    trainer.save_model()
    if trainer.is_world_process_zero():
        record = {
            "recipe": recipe(model_args, data_args, loss_args, args),
            "corpora": {corpus.manifest.name: records.corpus_record(corpus.folder) for corpus in corpora},
            "train_pairs": len(train),
            "before": before,
            "after": after,
            "thresholds": thresholds,
            "history": trainer.state.log_history,
            "train_seconds": result.metrics["train_runtime"],
            "seconds": time.time() - start,
            **records.environment(),
        }
        records.save_record(args.output_dir, record)
        print(summary(record, args.output_dir))


def check_splits(corpora: list[Corpus]) -> None:
    """Refuses corpora without training pairs, and several of one name, whose results would overwrite each other."""
    names = [corpus.manifest.name for corpus in corpora]
    for corpus in corpora:
        if "train" not in corpus.splits:
            raise InputError(
                f"{corpus.folder} has no train split, only {', '.join(corpus.splits)}: nothing to train on. "
                "Train on another corpus and use this one with `python -m cosent.evaluate`."
            )
        if names.count(corpus.manifest.name) > 1:
            raise InputError(
                f"--corpus names {corpus.manifest.name} more than once, and results are kept by name. "
                "Name each corpus once, or prepare one of them under another name."
            )


def select_on_validation(corpora: list[Corpus], args: PairTrainingArguments) -> None:
    """Turns selection off, and says so, where there is nothing to select on or nobody asked for evaluation."""
    usable = [c for c in corpora if "validation" in c.splits and can_rank(c.labels("validation"))]
    if args.eval_strategy != "no" and usable:
        return
    if not usable:
        folders = ", ".join(str(corpus.folder) for corpus in corpora)
        logger.warning(
            "%s has no validation split with two different labels: the last epoch is kept, best or not.",
            folders,
        )
    if args.early_stopping_patience is not None:
        raise InputError("--early_stopping_patience needs a validation split and --eval_strategy epoch or steps.")
    args.eval_strategy, args.load_best_model_at_end, args.metric_for_best_model = "no", False, None


def can_rank(labels: np.ndarray) -> bool:
    """Whether a Spearman or a threshold means anything: there are two different labels."""
    return len(np.unique(labels)) > 1


def tokenised(corpora: list[Corpus], encoder: SentenceEncoder, loss: str, limit_train: int | None):
    """Training pairs with the targets of the loss, and the other splits by corpus with their own labels.

    Several corpora are drawn from in turn; `sbert_joint` draws from all similarity pairs and all NLI pairs in turn.
    """
    parts, held = {}, {}
    for corpus in corpora:
        held[corpus.manifest.name] = {}
        for split, rows in corpus.splits.items():
            targets = None
            if split == "train":
                rows = limit(rows, limit_train)
                targets = objectives.targets(loss, labels_of(rows), corpus.manifest)
            data = PairDataset(rows, encoder.tokenizer, encoder.max_length, targets)
            if data.truncated:
                where = f"{corpus.manifest.name} {split}"
                logger.warning("%s: %d of %d sentences are longer than %d tokens and lose their end (--max_length).",
                               where, data.truncated, 2 * len(data), encoder.max_length)  # fmt: skip
            if split == "train":
                group = corpus.manifest.label_kind == "nli" if loss == "sbert_joint" else corpus.manifest.name
                parts.setdefault(group, []).append(data)
            else:
                held[corpus.manifest.name][split] = data
    groups = [group[0] if len(group) == 1 else ConcatDataset(group) for group in parts.values()]
    return groups[0] if len(groups) == 1 else ConcatDataset(groups), held


def validation_sets(held: Held) -> PairDataset | dict[str, PairDataset] | None:
    """What Trainer evaluates on: one set, or a dict whose mean Spearman selects the best epoch."""
    sets = {
        name: splits["validation"]
        for name, splits in held.items()
        if "validation" in splits and can_rank(splits["validation"].labels)
    }
    return next(iter(sets.values()), None) if len(sets) < 2 else sets


def measure(trainer: PairTrainer, held: Held, find_thresholds: list[str]) -> tuple[dict, dict[str, float]]:
    """Metrics by corpus and split, and the validation threshold of the corpora for which one is to be found.

    Accuracy and F1 of both splits are taken at the threshold that is most accurate on validation.
    """
    metrics, thresholds = {}, {}
    for name, splits in held.items():
        scored = {split: trainer.predict(data)[:2] for split, data in splits.items()}
        if name in find_thresholds and "validation" in scored and can_rank(scored["validation"][1]):
            thresholds[name] = find_threshold(*scored["validation"])[0]
        metrics[name] = {
            split: SimilarityMetrics().compute(predictions=scores, references=labels, threshold=thresholds.get(name))
            for split, (scores, labels) in scored.items()
        }
    return metrics, thresholds


def recipe(model_args, data_args, loss_args, args) -> dict:
    """Everything that was set, flags and defaults alike, in the form a recipe has."""
    return asdict(model_args) | asdict(data_args) | asdict(loss_args) | args.to_sanitized_dict()


def summary(record: dict, output_dir: str) -> str:
    lines = [f"{'Spearman':<24}{'before':>8}{'after':>8}"]
    for name, splits in record["after"].items():
        threshold = record["thresholds"].get(name)
        for split, after in splits.items():
            before = record["before"][name][split]["spearman"]
            line = f"{name + ' ' + split:<24}{before:8.4f}{after['spearman']:8.4f}"
            if threshold is not None:
                line += (
                    f"   accuracy {after['accuracy']:.4f}, F1 {after['f1']:.4f} at {threshold:.4f} (from validation)"
                )
            lines.append(line)
    lines.append(f"model in {output_dir} ({record['train_seconds']:.0f} s of training)")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main, ModelArguments, DataArguments, LossArguments, PairTrainingArguments)
