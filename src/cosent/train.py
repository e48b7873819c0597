"""Fine-tune an encoder on labelled pairs.

accelerate launch --config_file recipes/accelerate/cpu.yaml -m cosent.train \
    --config recipes/bi_encoder/cosent.yaml --corpus stsb --output_dir runs/stsb
"""

import logging
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
from transformers import EarlyStoppingCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint

from cosent import objectives, records
from cosent.arguments import DataArguments, LossArguments, ModelArguments, PairTrainingArguments
from cosent.cli import run
from cosent.data import Corpus, PairCollator, PairDataset, limit, load_corpus
from cosent.metrics import SimilarityMetrics, find_threshold
from cosent.modeling import BiEncoder, SentenceEncoder
from cosent.schema import InputError
from cosent.trainers import BiEncoderTrainer, PairTrainer

logger = logging.getLogger("cosent.train")


def main(model_args: ModelArguments, data_args: DataArguments, loss_args: LossArguments, args: PairTrainingArguments):
    start = time.time()
    checkpoint = find_checkpoint(args)
    corpus = load_corpus(data_args.corpus, data_args.data_dir)
    select_on_validation(corpus, args)
    corpus.splits["train"] = limit(corpus.split("train"), data_args.limit_train)
    objective = objectives.build(*loss_args.split(), corpus.manifest, corpus.labels("train"))

    set_seed(args.seed)
    encoder = SentenceEncoder.from_pretrained(
        model_args.model_name_or_path,
        pooling=model_args.pooling,
        max_length=model_args.max_length or corpus.manifest.max_length[model_args.tower],
        dropout=model_args.dropout,
        seed=args.seed,
    )
    if model_args.no_packing:
        encoder.packing = False
    data = {split: PairDataset(rows, encoder.tokenizer, encoder.max_length) for split, rows in corpus.splits.items()}
    report_truncation(data, encoder.max_length)
    trainer = BiEncoderTrainer(
        model=BiEncoder(encoder, objective.head(encoder.pooling.hidden_size, args.seed)),
        args=args,
        objective=objective,
        train_dataset=data["train"],
        eval_dataset=data.get("validation"),
        data_collator=PairCollator(encoder.tokenizer.pad_token_id),
        compute_metrics=lambda p: SimilarityMetrics().compute(predictions=p.predictions, references=p.label_ids),
    )
    if args.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(args.early_stopping_patience))

    before = measure(score_splits(trainer, data))
    result = trainer.train(resume_from_checkpoint=checkpoint)
    scored = score_splits(trainer, data)
    has_threshold = corpus.manifest.label_kind == "binary" and "validation" in scored
    threshold = find_threshold(*scored["validation"])[0] if has_threshold else None
    after = measure(scored, threshold)
    trainer.save_model()
    if trainer.is_world_process_zero():
        record = {
            "recipe": recipe(model_args, data_args, loss_args, args),
            "corpus": records.corpus_record(corpus.folder),
            "pairs": {split: len(rows) for split, rows in data.items()},
            "truncated_sentences": {split: rows.truncated for split, rows in data.items()},
            "before": before,
            "after": after,
            "threshold": threshold,
            "history": trainer.state.log_history,
            "train_seconds": result.metrics["train_runtime"],
            "seconds": time.time() - start,
            **records.environment(),
        }
        records.save_record(args.output_dir, record)
        print(summary(record, args.output_dir))


def find_checkpoint(args: PairTrainingArguments) -> str | None:
    """The checkpoint to continue from: none, the one named, or with `auto` the newest under the output folder."""
    wanted = args.resume_from_checkpoint
    if wanted == "auto":
        return get_last_checkpoint(args.output_dir) if Path(args.output_dir).is_dir() else None
    if wanted is None:
        records.refuse_finished(args.output_dir, args.overwrite_output_dir)
    elif not Path(wanted, "trainer_state.json").is_file():
        raise InputError(
            f"--resume_from_checkpoint {wanted} is not a checkpoint: it has no trainer_state.json. Pass a folder "
            "checkpoint-<step> of an earlier run, or `auto` for the newest one in --output_dir."
        )
    return wanted


def select_on_validation(corpus: Corpus, args: PairTrainingArguments) -> None:
    """Turns selection off, and says so, where the corpus has nothing to select on."""
    if "train" not in corpus.splits:
        raise InputError(
            f"{corpus.folder} has no train split, only {', '.join(corpus.splits)}: nothing to train on. "
            "Train on another corpus and use this one with `python -m cosent.evaluate`."
        )
    if "validation" not in corpus.splits:
        logger.warning(
            "%s has no validation split: the last epoch is kept, whether or not it is the best.", corpus.folder
        )
        args.eval_strategy, args.load_best_model_at_end, args.metric_for_best_model = "no", False, None


def report_truncation(data: dict[str, PairDataset], max_length: int) -> None:
    for split, rows in data.items():
        if rows.truncated:
            logger.warning(
                "%s: %d of %d sentences are longer than %d tokens and lose their end (--max_length).",
                split,
                rows.truncated,
                2 * len(rows),
                max_length,
            )


def score_splits(trainer: PairTrainer, data: dict[str, PairDataset]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Scores and labels of every split that training never sees."""
    return {split: trainer.predict(data[split])[:2] for split in ("validation", "test") if split in data}


def measure(scored: dict[str, tuple[np.ndarray, np.ndarray]], threshold: float | None = None) -> dict[str, dict]:
    """Metrics by split; accuracy and F1 at a threshold that was found elsewhere."""
    return {
        split: SimilarityMetrics().compute(predictions=scores, references=labels, threshold=threshold)
        for split, (scores, labels) in scored.items()
    }


def recipe(model_args, data_args, loss_args, args) -> dict:
    """Everything that was set, flags and defaults alike, in the form a recipe has."""
    return asdict(model_args) | asdict(data_args) | asdict(loss_args) | args.to_sanitized_dict()


def summary(record: dict, output_dir: str) -> str:
    lines = [f"{'Spearman':<12}{'before':>8}{'after':>8}"]
    for split, after in record["after"].items():
        lines.append(f"{split:<12}{record['before'][split]['spearman']:8.4f}{after['spearman']:8.4f}")
    for split, after in record["after"].items():
        if record["threshold"] is not None:
            lines.append(
                f"{split}: accuracy {after['accuracy']:.4f}, F1 {after['f1']:.4f} "
                f"at the validation threshold {record['threshold']:.4f}"
            )
    lines.append(f"model in {output_dir} ({record['train_seconds']:.0f} s of training)")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main, ModelArguments, DataArguments, LossArguments, PairTrainingArguments)
