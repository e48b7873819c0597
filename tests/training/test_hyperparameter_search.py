"""transformers' own search for parameters, which a user of `PairTrainer` in Python may run."""

import ast
import inspect
from functools import partial
from pathlib import Path

import pytest
from transformers.integrations import integration_utils

from cosent.data.corpus import load_corpus
from cosent.models.bi_encoder import SentenceEncoder
from cosent.training import global_batch, resumable, student, trainer
from cosent.training.arguments import PairTrainingArguments
from cosent.training.trainer import PairTrainer


def assigned(module, owners: tuple[str, ...]) -> set[str]:
    """Names of attributes that a module assigns to variables of these names."""
    nodes = ast.walk(ast.parse(Path(inspect.getfile(module)).read_text(encoding="utf-8")))
    stored = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id in owners}


def test_no_attribute_is_also_one_of_the_integrations():
    """Fails if an integration of transformers replaces what our trainers keep for themselves."""
    theirs = assigned(integration_utils, ("trainer", "local_trainer"))
    ours = set().union(*(assigned(module, ("self",)) for module in (trainer, student, global_batch, resumable)))
    assert "objective" in theirs and "adapter" in ours and not theirs & ours


def test_a_search_of_two_trials(tiny_model, make_corpus, pairs, tmp_path):
    """Fails if a trial of optuna ends in a trace, or trains without the loss."""
    rows = load_corpus(make_corpus({"train": pairs[:16]})).split("train")
    args = PairTrainingArguments(
        **{"output_dir": str(tmp_path), "max_steps": 2, "per_device_train_batch_size": 8, "use_cpu": True},
        **{"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no", "disable_tqdm": True},
        **{"report_to": "none", "logging_steps": 1},
    )
    load = partial(SentenceEncoder.from_pretrained, str(tiny_model), pooling="mean")
    search = PairTrainer(model_init=lambda: load(), args=args, train_dataset=rows, eval_dataset=rows)
    best = search.hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_categorical("learning_rate", [1e-4, 1e-2])},
        **{"n_trials": 2, "direction": "maximize", "backend": "optuna"},
        compute_objective=lambda metrics: metrics["eval_spearman"],
    )
    losses = [entry["loss"] for entry in search.state.log_history if "loss" in entry]
    assert best.objective == pytest.approx(best.objective, abs=2) and len(losses) == 2 and min(losses) > 0
