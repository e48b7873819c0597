"""Decision rules of a model folder, in `decision.json`: what jobs read, and `cosent calibrate` and training write."""

import json
import logging
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from cosent.atomic import write_atomically
from cosent.encoders import local
from cosent.errors import InputError, reading
from cosent.evaluation.calibration import Calibration
from cosent.evaluation.rules import JOINT, AnswerRule, DecisionRule

DECISION_NAME = "decision.json"
FEW_PAIRS = 100  # fewer leave isotonic probabilities in a few steps

logger = logging.getLogger(__name__)


def write_rules(folder: str | Path, rules: dict[str, DecisionRule]) -> None:
    """Writes the rules of a model by corpus; removes those of an earlier model if there are none."""
    file = Path(folder, DECISION_NAME)
    if not rules:
        return file.unlink(missing_ok=True)
    text = json.dumps({name: asdict(rule) for name, rule in rules.items()}, ensure_ascii=False, indent=1)
    write_atomically(file, text + "\n")


def rule_of(stored: dict[str, Any]) -> DecisionRule:
    """A rule from plain values."""
    calibration = stored["calibration"] and Calibration(**stored["calibration"])
    answers = tuple(AnswerRule(**answer) for answer in stored["answers"])
    return DecisionRule(
        **stored | {"calibration": calibration, "prompts": tuple(stored["prompts"]), "answers": answers}
    )


def decision_rules(model: str | Path) -> dict[str, DecisionRule]:
    """Rules of a model folder or a bundle by corpus; empty without labels of 0 and 1, see `cosent calibrate`."""
    file = local(model) / DECISION_NAME
    if not file.is_file():
        return {}
    with reading(file, advice="Run cosent calibrate, which makes it again."):
        return {name: rule_of(stored) for name, stored in json.loads(file.read_text(encoding="utf-8")).items()}


def choose_rule(rules: dict[str, DecisionRule], corpus: str | None, model: str) -> DecisionRule | None:
    """The rule of a corpus; without one, that of all corpora together, or the only one, or None."""
    if corpus is not None and corpus not in rules:
        raise InputError(
            f"--corpus {corpus}: {model} has a threshold for {' '.join(rules) or 'no corpus'}. Name another, or find "
            f"one: cosent calibrate --model {model} --corpus {corpus}."
        )
    rule = rules.get(corpus or (next(iter(rules)) if len(rules) == 1 else JOINT))
    if rule and rule.calibration and rule.calibration.pairs < FEW_PAIRS:
        warn_of_few(str(model), rule.calibration.pairs)
    return rule


@cache  # a service chooses the same rule for its index, its pairs and its page
def warn_of_few(model: str, pairs: int) -> None:
    logger.warning(
        "Probabilities of %s come from %d validation pairs and are coarse. Label more, then cosent calibrate.",
        model,
        pairs,
    )


def needed_rule(model: str, corpus: str | None, instead: str) -> DecisionRule:
    """As `choose_rule`; where there is none, an error that says what to give instead."""
    rules = decision_rules(model)
    rule = choose_rule(rules, corpus, model)
    if rule is None:
        known = [f"{rule.threshold:.4f} for {name}" for name, rule in rules.items()]
        raise InputError(f"{model} has {', '.join(known) or 'no threshold'}. {instead}")
    return rule
