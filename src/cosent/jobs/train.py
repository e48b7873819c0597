"""Fine-tune an encoder on labelled pairs.

cosent train --corpus demo
cosent train --config cosent --model_name_or_path bert-base-chinese --corpus stsb --output_dir runs/stsb

Defaults below are those without --config, of the recipe bi_encoder/default (of a cross-encoder: cross_encoder/default).
Another recipe overrides them, and flags override the recipe.
"""

from typing import Any

from transformers import set_seed

from cosent.models.prompts import PromptArguments
from cosent.training.arguments import (
    DataArguments,
    LossArguments,
    ModelArguments,
    PairTrainingArguments,
)
from cosent.training.corpora import corpora_of_run, defaults_of_run
from cosent.training.job import begin, build_encoder, make_room, run_training
from cosent.training.trainer import PairTrainer, build_objectives


def defaults(flags: dict[str, Any]) -> dict[str, Any]:
    """Recipe and folder of a run that names none, by its model type."""
    tower = flags.get("tower", "bi_encoder")
    return defaults_of_run(flags, f"{tower}/default", f"--tower {tower}")


def main(
    model_args: ModelArguments,
    prompt_args: PromptArguments,
    data_args: DataArguments,
    loss_args: LossArguments,
    args: PairTrainingArguments,
):
    with begin(args) as start:
        if start is None:
            return
        loss, tower = loss_args.by_corpus, model_args.tower
        corpora = corpora_of_run(data_args, loss, args.seed)
        set_seed(args.seed)
        labels = {name: corpora.labels[name] for name in corpora.training_rows}
        objectives = build_objectives(loss, loss_args.parameters(), labels, tower)
        classes = max(objective.classes for objective in objectives.values())
        encoder = build_encoder(model_args, classes, corpora.max_length(tower), args.seed)
        if model_args.max_length is None:
            make_room(encoder, prompt_args)
        trainer = PairTrainer(
            encoder,
            args,
            objectives=objectives,
            train_dataset=corpora.training_rows,
            eval_dataset=corpora.validation_rows,
            labels=corpora.labels,
            corpus_weights=data_args.corpus_weights,
            prompt=prompt_args.prompt,
            prompt_name=prompt_args.prompt_name,
            peft_config=model_args.peft_config(),
        )
        arguments = (model_args, prompt_args, data_args, loss_args)
        run_training(start, trainer, corpora, arguments, code=loss_args.files, learnt=trainer.learnt)
