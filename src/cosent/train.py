"""Fine-tune an encoder on labelled pairs.

cosent train --config recipes/bi_encoder/cosent.yaml --corpus stsb --output_dir runs/stsb
"""

import logging
import time
from functools import partial
from pathlib import Path

from transformers import set_seed

from cosent.cli import run
from cosent.data.corpus import leaks
from cosent.data.manifest import sha256_of_file
from cosent.data.retrieval import RetrievalArguments
from cosent.evaluation.metrics import SimilarityMetrics
from cosent.models.bi_encoder import BiEncoder
from cosent.models.prompts import SavedPromptArguments
from cosent.run import (
    QUERIES_NAME,
    SCORES_NAME,
    CorpusRecord,
    Queries,
    RunRecord,
    Scores,
    manifest_hashes,
    save_queries,
    save_scores,
)
from cosent.training import evaluation as verdict
from cosent.training.arguments import (
    TRAIN_ARGUMENTS,
    DataArguments,
    LossArguments,
    ModelArguments,
    PairTrainingArguments,
)
from cosent.training.checkpoints import claim_output_folder, find_checkpoint, has_finished, run_settings
from cosent.training.evaluation import (
    add_retrieval,
    check_metric,
    evaluate_splits,
    metric_prefixes,
    retrieval_table,
    select_on_validation,
    table,
    validation_sets,
)
from cosent.training.guard import CollapseGuard
from cosent.training.load import TOWERS, Mixture, TokenisedMixture, adapter, build_model, load_mixture, use_prompts
from cosent.training.objective import Objective, build_objective
from cosent.training.plan import output_folder, show_plan, truncation
from cosent.training.proof import FolderProof, sample_pairs
from cosent.training.record import environment, finish, footprint, model_line, recipe
from cosent.training.trainer import PairTrainer

logger = logging.getLogger("cosent.train")


def main(
    model_args: ModelArguments,
    prompt_args: SavedPromptArguments,
    data_args: DataArguments,
    retrieval_args: RetrievalArguments,
    loss_args: LossArguments,
    args: PairTrainingArguments,
):
    start = time.time()
    if has_finished(args):
        return
    checkpoint, here = find_checkpoint(args), environment()
    mixture = load_mixture(data_args, loss_args.loss)
    select_on_validation(mixture.selecting, args)
    tower, manifests = TOWERS[model_args.tower], mixture.training_manifests
    records = {name: CorpusRecord.of(corpus.folder) for name, corpus in mixture.corpora.items()}
    objective = build_objective(loss_args.loss, loss_args.parameters(), manifests, model_args.tower)

    set_seed(args.seed)
    max_length = mixture.max_length(model_args.tower)
    model = build_model(model_args, loss_args.features, objective, max_length, args.seed)
    encoder = model.encoder if isinstance(model, BiEncoder) else model
    args.choose_learning_rate(encoder.backbone.config.hidden_size, model_args.use_peft)
    prefixes = use_prompts(encoder, prompt_args, make_room=model_args.max_length is None)
    with args.main_process_first(desc="tokenising"):  # the other processes read its cache
        data = mixture.tokenise(tower.dataset, encoder, prefixes, loss_args.loss, data_args)
        if retrieval_args.retrieval and model_args.tower == "bi_encoder":
            add_retrieval(data.held_out, mixture.corpora, retrieval_args, encoder, prefixes)
    check_metric(data.held_out, mixture.selecting_names, args)
    collator = tower.collator.from_tokenizer(encoder.tokenizer, prefixes)
    trainer = pair_trainer(model, objective, mixture, data, collator, model_args, args)
    every = (args, model_args, prompt_args, data_args, retrieval_args, loss_args)
    texts = {file: sha256_of_file(file) for file in data_args.text or []}
    settings = run_settings(*every, data=manifest_hashes(records) | texts)
    if args.dry_run:
        corpora = mixture.training, list(mixture.corpora.values())
        return show_plan(trainer, model, *corpora, truncation(data.train, encoder.max_length), checkpoint, settings)
    proof = FolderProof(model, sample_pairs([*mixture.selecting, *mixture.training]))
    claim_output_folder(args.output_dir, checkpoint, settings)
    scores: Scores = {}
    queries: Queries = {}
    evaluate = partial(evaluate_splits, trainer, data.held_out, model_args.tower)

    def at_start():
        proof.begin()
        found = evaluate([], scores, queries, "before")
        if trainer.board is not None:
            trainer.board.add_start(metric_prefixes(trainer.eval_dataset, data.held_out), found.metrics, scores)
        return found

    result = trainer.train(checkpoint, at_start=at_start)
    before, after = trainer.before.metrics, evaluate(mixture.binary, scores, queries, "after")
    trainer.save_model()
    proven = proof.check(args.output_dir)
    if trainer.is_world_process_zero():
        record = RunRecord(
            recipe=recipe(*every),
            environment=here,
            processes=args.world_size,
            footprint=footprint(model, trainer.optimizer),
            corpora=records,
            cached_part_size=trainer.cached_parts and trainer.cached_parts.pairs,
            train_pairs=len(data.train),
            before=before,
            after=after.metrics,
            thresholds=after.thresholds,
            calibrations=after.calibrations,
            intervals=after.intervals,
            prompts=(prefixes[0].text, prefixes[1].text),
            history=trainer.state.log_history,
            train_seconds=result.metrics["train_runtime"],
            seconds=time.time() - start,
            proof=proven,
            leaks=leaks(mixture.training, list(mixture.corpora.values())),
        )
        floor = verdict.judge(record, mixture.corpora.values(), mixture.training)
        save_scores(Path(args.output_dir, SCORES_NAME), scores)
        save_queries(Path(args.output_dir, QUERIES_NAME), queries)
        finish(trainer, record)
        found = retrieval_table(before, after)
        print(table(floor, before, after), *found, *verdict.lines(record), record.footprint, sep="\n")
        print(model_line(args.output_dir, record))


def pair_trainer(
    model, objective: Objective, mixture: Mixture, data: TokenisedMixture, collator, model_args: ModelArguments, args
) -> PairTrainer:
    """The trainer of a model on tokenised corpora, with the guard against collapse."""
    tower = TOWERS[model_args.tower]
    with output_folder(args):
        trainer = PairTrainer(
            model=model,
            args=args,
            objective=objective,
            corpus_weights=mixture.weights,
            adapter=adapter(model_args, model, args.seed),
            train_dataset=data.train,
            eval_dataset=validation_sets(data.held_out, mixture.selecting_names, args.metric_for_best_model),
            data_collator=collator,
            compute_metrics=lambda p: SimilarityMetrics().compute(
                predictions=p.predictions["scores"], references=p.label_ids
            ),
        )
    on_collapse = args.on_collapse or (tower.on_collapse if args.eval_strategy != "no" else "off")
    if on_collapse != "off":
        trainer.add_callback(CollapseGuard(trainer, on_collapse, args.collapse_drop, args.rollback_factor))
    return trainer


ARGUMENTS = TRAIN_ARGUMENTS

if __name__ == "__main__":
    run(main, *ARGUMENTS)
