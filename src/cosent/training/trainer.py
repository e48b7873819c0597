"""`PairTrainer`: trains a sentence encoder or a cross-encoder on labelled pairs, with any loss."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from peft import LoraConfig
from torch import Tensor, nn

from cosent import losses
from cosent.data.labels import Labels
from cosent.errors import InputError
from cosent.models import load_model
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder, scored_classes
from cosent.models.folder import refuse_adapter
from cosent.models.lora import add_adapter
from cosent.models.text_model import TextModel
from cosent.training.arguments import PairTrainingArguments
from cosent.training.global_batch import GlobalBatchTrainer
from cosent.training.global_loss import Outputs
from cosent.training.objective import Objective, build_objective
from cosent.training.pairs import TOWER_DATA, Datasets, meanings, rows_by_name, training_pairs

logger = logging.getLogger(__name__)

Loss = str | Callable[..., Tensor]


class PairTrainer(GlobalBatchTrainer):
    """Trains a model on pairs of sentences with labels that rise with similarity.

    Tokenises the pairs, builds the head that the loss reads, and otherwise trains, evaluates, resumes and saves like
    `transformers.Trainer`. `save_model` writes a folder that sentence-transformers, transformers and cosent load.

    Args:
        model: a `SentenceEncoder` or a `CrossEncoder`, or the name or folder of one; instead, `model_init` makes one,
            for `hyperparameter_search`.
        args: `PairTrainingArguments`; the learning rate defaults to one that suits the start.
        loss: name of a loss (`cosent.losses.LOSSES`), `FILE.py:FUNCTION`, or a function as in `cosent.losses.Loss`; a
            dict with one for each dataset.
        loss_args: values for parameters of the loss, e.g. `{"scale": 30.0}`; of a Sentence-BERT head
            `sbert_classes`.
        objectives: instead of `loss` and `loss_args`, what `build_objectives` has made of them.
        train_dataset: columns `sentence1`, `sentence2` and `label`; a dict of several is drawn from in turn, one to a
            batch, so that labels of different kinds are never compared.
        eval_dataset: the same, to select the best epoch, of several by their mean; default: none, the last epoch.
        labels: kind and range of the labels, `Labels(name, "graded", 0, 5)`, by dataset if there are several; default:
            binary if all are 0 or 1, else graded from the least to the greatest.
        corpus_weights: share of the batches of each dataset, a list or a dict; default: equal shares.
        prompt, prompt_name: text in front of every sentence, or a list of two, as of `SentenceEncoder.similarity`,
            which is saved with the model; default: the model's own.
        peft_config: trains a LoRA adapter; `save_model` writes it, and the merged model.
        kwargs: `callbacks`, `optimizers` and others of `transformers.Trainer`; `compute_metrics` adds metrics to ours,
            from the `EvalPrediction` of scores and labels, `(pairs,)`.

    Raises:
        InputError: a `ValueError`, for data or settings that nothing can be learnt from.
    """

    targets = ("labels", "groups", "objective")

    def __init__(
        self,
        model: TextModel | str | None = None,
        args: PairTrainingArguments | None = None,
        *,
        loss: Loss | Mapping[str, Loss] = "cosent",
        loss_args: Mapping[str, Any] | None = None,
        objectives: Mapping[str, Objective] | None = None,
        train_dataset: Datasets,
        eval_dataset: Datasets | None = None,
        labels: Labels | Mapping[str, Labels] | None = None,
        corpus_weights: Sequence[float] | Mapping[str, float] | None = None,
        prompt: str | Sequence[str] | None = None,
        prompt_name: str | Sequence[str] | None = None,
        peft_config: LoraConfig | None = None,
        model_init: Callable[..., TextModel] | None = None,
        **kwargs,
    ):
        args = args if args is not None else PairTrainingArguments(output_dir="runs/pairs")
        if not isinstance(args, PairTrainingArguments):
            raise InputError(f"args is a {type(args).__name__}. Pass PairTrainingArguments, which has the same flags.")
        if (model is None) == (model_init is None):
            raise InputError("PairTrainer takes a model, or model_init instead. Pass one of the two.")
        encoder: Any = model_init() if model_init is not None else model
        encoder = load_model(encoder) if isinstance(encoder, str) else encoder
        if not isinstance(encoder, SentenceEncoder | CrossEncoder):
            raise InputError(f"model is a {type(encoder).__name__}, not a SentenceEncoder or CrossEncoder.")

        refuse_adapter(encoder.state_dict())
        rows, held_out = rows_by_name(train_dataset), rows_by_name(eval_dataset, " validation")
        self.meanings = meanings(labels, rows, held_out)
        trained = {name: self.meanings[name] for name in rows}
        if objectives is None:
            objectives = build_objectives(loss, loss_args or {}, trained, encoder.tower)
        self.objectives = objectives
        check_logits(encoder, self.objectives)
        self.prompt, self.peft_config = (prompt, prompt_name), peft_config
        module = self.prepared(encoder, args.seed)
        _, collator = TOWER_DATA[encoder.tower]
        with args.main_process_first(desc="tokenising"):  # the other processes read its cache
            train_pairs = training_pairs(rows, trained, self.objectives, encoder, self.prefixes)
        super().__init__(
            module,
            args,
            train_dataset=train_pairs,
            held_out=held_out,
            data_collator=collator.from_tokenizer(encoder.tokenizer),
            corpus_weights=check_weights(corpus_weights, self.objectives),
            adapter=self.adapter,
            **kwargs,
        )
        self.model_init = model_init  # Trainer would call it once more
        self.check_batches()

    def check_batches(self) -> None:
        """Refuses batches that compare nothing, and warns about those that compare little."""
        args = self.args
        if any(objective.compares_pairs for objective in self.objectives.values()):
            if self._train_batch_size * args.world_size == 1:
                raise InputError(
                    "--per_device_train_batch_size 1: a batch of one pair has nothing to compare. Raise it."
                )
            if args.gradient_accumulation_steps > 1:
                logger.warning(
                    "--gradient_accumulation_steps %d: this loss never compares pairs of different batches. "
                    "--cached_batch_size compares all of a step in the same memory.",
                    args.gradient_accumulation_steps,
                )

    def prepared(self, encoder: TextModel, seed: int) -> nn.Module:
        """The module to train: an encoder with the prompts of this training, its head and its adapter."""
        self.set_encoder(encoder, *self.prompt)
        module: nn.Module = encoder
        if isinstance(encoder, SentenceEncoder):
            *_, reads_logits = sorted(self.objectives.values(), key=lambda objective: objective.classes)
            module = BiEncoder(encoder, reads_logits.head(encoder.embedding_dimension, seed))
        self.adapter = None
        if self.peft_config is not None:
            inner = encoder.model if isinstance(encoder, CrossEncoder) else encoder.backbone
            self.adapter = add_adapter(module, inner, self.peft_config, seed)
        return module

    @property
    def learnt(self) -> dict[str, dict[str, float]]:
        """Numbers that losses of one's own learn, by dataset."""
        found = {name: objective.learnt for name, objective in self.objectives.items()}
        return {name: numbers for name, numbers in found.items() if numbers is not None}

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        if resume_from_checkpoint is not None and self.learnt:
            raise InputError(
                f"The loss of {next(iter(self.learnt))} learns numbers of its own, which checkpoints do not hold. "
                "Start anew: pass --overwrite_output_dir, or no resume_from_checkpoint."
            )
        return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)

    def call_model_init(self, trial=None) -> nn.Module:
        """The module of a trial of `hyperparameter_search`."""
        return self.prepared(super().call_model_init(trial), self.args.seed)

    def corpus_of(self, targets: dict[str, Tensor]) -> str:
        names = list(self.objectives)
        return names[int(targets["objective"][0])] if "objective" in targets else " or ".join(names)

    def loss_inputs(self, outputs: Outputs) -> Outputs:
        """Outputs that any of the losses reads: every weight then has a gradient in every batch, as DDP requires."""
        return {name: outputs[name] for objective in self.objectives.values() for name in objective.outputs}

    def batch_loss(self, outputs: Outputs, targets: Outputs) -> Tensor:
        objective = list(self.objectives.values())[int(targets["objective"][0]) if "objective" in targets else 0]
        loss = objective.batch_loss(outputs, targets, self.state.global_step / max(1, self.state.max_steps))
        loss = loss + sum(0.0 * values.sum() for name, values in outputs.items() if name not in objective.outputs)
        return loss


def build_objectives(
    loss: Loss | Mapping[str, Loss],
    loss_args: Mapping[str, Any],
    labels: Mapping[str, Labels],
    tower: str,
) -> dict[str, Objective]:
    """The objective of every dataset: one for all, or one for each.

    Of several losses, each gets the options that it has; one that none of them has is refused.
    """
    if not isinstance(loss, Mapping):
        return dict.fromkeys(labels, build_objective(resolved(loss), loss_args, list(labels.values()), tower))
    if set(loss) != set(labels):
        raise InputError(
            f"--loss names {', '.join(loss)}, and the datasets are {', '.join(labels)}. Give one for each."
        )
    by_name = {name: resolved(loss[name]) for name in labels}
    accepted = {option for option in loss_args if any(takes(loss, option, tower) for loss in by_name.values())}
    objectives = {}
    for name, function in by_name.items():
        options = {
            option: value
            for option, value in loss_args.items()
            if option not in accepted or takes(function, option, tower)
        }
        objectives[name] = build_objective(function, options, [labels[name]], tower)
    heads = {name: objective.classes for name, objective in objectives.items() if objective.classes}
    if len(heads) > 1 and (tower == "bi_encoder" or len(set(heads.values())) > 1):
        raise InputError(f"The losses of {' and '.join(heads)} read logits of their own, and a model has one head.")
    return objectives


def check_logits(encoder: TextModel, objectives: Mapping[str, Objective]) -> None:
    """Refuses a cross-encoder whose logits are not as many as its loss reads, or not in the order of the labels."""
    for objective in objectives.values():
        if isinstance(encoder, CrossEncoder) and "logits" in objective.outputs:
            names, classes = encoder.model.config.id2label, objective.classes
            if len(names) != classes or (classes > 1 and scored_classes(names) != (classes - 1, 0)):
                raise InputError(
                    f"--loss {objective.name} reads {classes} logits, in the order of the labels; the cross-encoder "
                    f"has {len(names)}: {', '.join(names.values())}. Load it with num_labels={classes}."
                )


def takes(loss: losses.Loss, option: str, tower: str) -> bool:
    """Whether a loss, or its head, has this parameter."""
    has_head = tower == "bi_encoder" and "logits" in loss.inputs
    return option in loss.hyper_parameters or (has_head and option == "sbert_classes")


def resolved(loss: Loss) -> losses.Loss:
    return losses.find_loss(loss) if isinstance(loss, str) else losses.own_loss(loss, "this function")


def check_weights(
    weights: Sequence[float] | Mapping[str, float] | None, objectives: Mapping[str, Objective]
) -> list[float] | None:
    """The shares of the datasets in their order, positive numbers; None for equal shares."""
    if weights is None:
        return None
    if "sbert_joint" in (objective.name for objective in objectives.values()):
        raise InputError("--loss sbert_joint draws similarity pairs and NLI pairs 1:1. Leave --corpus_weights out.")
    if isinstance(weights, Mapping):
        if set(weights) != set(objectives):
            raise InputError(
                f"corpus_weights names {', '.join(weights)}, and the datasets are {', '.join(objectives)}."
            )
        weights = [weights[name] for name in objectives]
    count = len(objectives)
    if len(weights) != count or count < 2 or not all(0 < value < float("inf") for value in weights):
        raise InputError(f"--corpus_weights takes a positive number per corpus, as 2 1; got {weights} for {count}.")
    return list(weights)
