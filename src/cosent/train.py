"""Fine-tune an encoder on labelled pairs.

cosent train --config recipes/bi_encoder/cosent.yaml --corpus stsb --output_dir runs/stsb
"""

from functools import partial

from transformers import set_seed

from cosent.cli import run
from cosent.data.retrieval import MeasuringArguments
from cosent.models.bi_encoder import BiEncoder
from cosent.models.prompts import PromptArguments
from cosent.training.arguments import (
    TRAIN_ARGUMENTS,
    DataArguments,
    LossArguments,
    ModelArguments,
    PairTrainingArguments,
)
from cosent.training.callbacks import CollapseGuard
from cosent.training.evaluation import add_retrieval, evaluate_splits, set_selection
from cosent.training.job import begin, output_folder, run_training
from cosent.training.objective import build_objective
from cosent.training.setup import (
    TOWERS,
    adapter,
    build_model,
    corpora_of_run,
    training_set,
    use_prompts,
    warn_of_missing_prompts,
)
from cosent.training.trainer import PairTrainer


def main(
    model_args: ModelArguments,
    prompt_args: PromptArguments,
    data_args: DataArguments,
    measuring_args: MeasuringArguments,
    loss_args: LossArguments,
    args: PairTrainingArguments,
):
    start = begin(args)
    if start is None:
        return
    tower, loss = model_args.tower, loss_args.loss
    corpora = corpora_of_run(data_args, loss, args.seed)
    manifests = [corpus.manifest for corpus in corpora.training]
    parameters = loss_args.parameters() | {"label_smoothing_factor": args.label_smoothing_factor or None}
    objective = build_objective(loss, parameters, manifests, tower, loss_args.sbert_classes)

    set_seed(args.seed)
    model = build_model(model_args, loss_args.features, objective, corpora.max_length(tower), args.seed)
    encoder = model.encoder if isinstance(model, BiEncoder) else model
    args.choose_learning_rate(encoder.backbone.config.hidden_size, model_args.use_peft)
    prefixes = use_prompts(encoder, prompt_args, make_room=model_args.max_length is None)
    warn_of_missing_prompts(corpora, tower, prefixes)

    with args.main_process_first(desc="tokenising"):  # the other processes read its cache
        train_pairs = training_set(
            corpora.training, TOWERS[tower].dataset, encoder, prefixes, loss, data_args, objective.classes
        )
        sets = corpora.evaluation_sets(TOWERS[tower].dataset, encoder, prefixes)
        if measuring_args.retrieval and tower == "bi_encoder":
            add_retrieval(sets, corpora, encoder, prefixes)
    selecting = set_selection(args, sets, corpora)

    with output_folder(args):
        trainer = PairTrainer(
            model=model,
            args=args,
            objective=objective,
            corpus_weights=data_args.corpus_weights,
            adapter=adapter(model_args, model, args.seed),
            train_dataset=train_pairs,
            eval_dataset=selecting,
            data_collator=TOWERS[tower].collator.from_tokenizer(encoder.tokenizer),
        )
    watched = "warn" if tower == "cross_encoder" and args.eval_strategy != "no" else "off"
    if (args.on_collapse or watched) != "off":
        trainer.add_callback(CollapseGuard(args, args.on_collapse or watched))
    evaluate = partial(evaluate_splits, trainer, sets, tower, corpora)
    arguments = (args, model_args, prompt_args, data_args, measuring_args, loss_args)
    run_training(start, trainer, corpora, prefixes, evaluate, arguments)


ARGUMENTS = TRAIN_ARGUMENTS

if __name__ == "__main__":
    run(main, *ARGUMENTS)
