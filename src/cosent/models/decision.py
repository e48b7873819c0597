"""Decision rules of a model folder: the thresholds and probabilities that were found on validation, by corpus."""

from pathlib import Path

from cosent.errors import InputError
from cosent.evaluation.calibration import JOINT, DecisionRule
from cosent.record import read_record


def decision_rules(model: str | Path) -> dict[str, DecisionRule]:
    """Thresholds and probabilities of a model folder by corpus; empty if it was not trained here on binary labels."""
    record = read_record(model)
    if record is None:
        return {}
    return {
        name: DecisionRule(name, record.thresholds[name], calibration, record.prompts)
        for name, calibration in record.calibrations.items()
    }


def choose_rule(rules: dict[str, DecisionRule], corpus: str | None, model: str) -> DecisionRule | None:
    """The rule of a corpus; without one, that of all corpora together, or the only one, or None."""
    if corpus is not None and corpus not in rules:
        raise InputError(
            f"--corpus {corpus}: {model} has a threshold for {' '.join(rules) or 'no corpus'}. Name another."
        )
    return rules.get(corpus or (next(iter(rules)) if len(rules) == 1 else JOINT))


def needed_rule(model: str, corpus: str | None, instead: str) -> DecisionRule:
    """As `choose_rule`; where there is none, an error that says what to give instead."""
    rules = decision_rules(model)
    rule = choose_rule(rules, corpus, model)
    if rule is None:
        known = [f"{rule.threshold:.4f} for {name}" for name, rule in rules.items()]
        raise InputError(f"{model} has {', '.join(known) or 'no threshold'}. {instead}")
    return rule
