"""Fine-tune an encoder on labelled pairs.

accelerate launch -q --config_file recipes/accelerate/cpu.yaml -m cosent.train \\
    --config recipes/bi_encoder/cosent.yaml --corpus stsb --output_dir runs/stsb
"""

import logging
import time
from pathlib import Path

from transformers import set_seed

from cosent.cli import run
from cosent.evaluation.metrics import SimilarityMetrics
from cosent.modeling.bi_encoder import BiEncoder
from cosent.run_record import CorpusRecord, RunRecord
from cosent.run_scores import SCORES_NAME, Scores, save_scores
from cosent.training.arguments import (
    TRAIN_ARGUMENTS,
    DataArguments,
    LossArguments,
    ModelArguments,
    PairTrainingArguments,
)
from cosent.training.checkpoints import claim_output_folder, find_checkpoint, has_finished, run_settings
from cosent.training.collapse_guard import CollapseGuard
from cosent.training.environment import environment, footprint, recipe
from cosent.training.held_out import evaluate_splits, keep_distances, select_on_validation, table, validation_sets
from cosent.training.mixture import check_corpus_weights, load_corpora, tokenised, training_set
from cosent.training.objective import build_objective
from cosent.training.pair_trainer import PairTrainer
from cosent.training.towers import TOWERS, adapter, build_model

logger = logging.getLogger("cosent.train")


def main(model_args: ModelArguments, data_args: DataArguments, loss_args: LossArguments, args: PairTrainingArguments):
    start = time.time()
    if has_finished(args):
        return
    checkpoint, here = find_checkpoint(args), environment()
    corpora, selecting = load_corpora(data_args)
    everything = {corpus.manifest.name: corpus for corpus in [*corpora, *selecting]}
    select_on_validation(selecting, args)
    manifests = [corpus.manifest for corpus in corpora]
    tower = TOWERS[model_args.tower]
    objective = build_objective(loss_args.loss, loss_args.parameters(), manifests, model_args.tower)

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
    trainer = PairTrainer(
        model=model,
        args=args,
        objective=objective,
        corpus_weights=check_corpus_weights(data_args.corpus_weights, len(corpora), loss_args.loss),
        adapter=adapter(model_args, model, args.seed),
        train_dataset=train,
        eval_dataset=validation_sets(held, [corpus.manifest.name for corpus in selecting]),
        data_collator=tower.collator.from_tokenizer(encoder.tokenizer),
        compute_metrics=lambda p: SimilarityMetrics().compute(predictions=p.predictions, references=p.label_ids),
    )
    if args.on_collapse is not None:
        trainer.add_callback(CollapseGuard(trainer, args.on_collapse, args.collapse_drop, args.rollback_factor))

    claim_output_folder(args.output_dir, checkpoint, run_settings(args, model_args, data_args, loss_args))
    scores: Scores = {}
    before, _ = evaluate_splits(trainer, held, [], scores, "before")
    if isinstance(model, BiEncoder) and trainer.is_world_process_zero():
        keep_distances(encoder, everything, scores)
    result = trainer.train(resume_from_checkpoint=checkpoint)
    binary = [name for name, corpus in everything.items() if corpus.manifest.label_kind == "binary"]
    after, thresholds = evaluate_splits(trainer, held, binary, scores, "after")
    trainer.save_model()
    if trainer.is_world_process_zero():
        record = RunRecord(
            recipe=recipe(args, model_args, data_args, loss_args),
            environment=here,
            processes=args.world_size,
            footprint=footprint(model, trainer.optimizer),
            corpora={name: CorpusRecord.of(corpus.folder) for name, corpus in everything.items()},
            train_pairs=len(train),
            before=before,
            after=after,
            thresholds=thresholds,
            history=trainer.state.log_history,
            train_seconds=result.metrics["train_runtime"],
            seconds=time.time() - start,
        )
        save_scores(Path(args.output_dir, SCORES_NAME), scores)
        record.save(args.output_dir)  # last: from here on the run has finished
        print(table(before, after, thresholds), record.footprint, sep="\n")
        print(f"model in {args.output_dir} ({record.train_seconds:.0f} s of training)")


ARGUMENTS = TRAIN_ARGUMENTS

if __name__ == "__main__":
    run(main, *ARGUMENTS)
