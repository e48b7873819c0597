"""From training to an answer: probabilities and verdicts of a saved model, on the command line and in Python."""

import json
import re
from functools import partial

import numpy as np
import pytest

from cosent import CrossEncoder, decision_rules, load_model
from cosent.errors import InputError
from cosent.evaluation.calibration import (
    Calibration,
    at_base_rate,
    fit_calibration,
    probability_metrics,
)
from cosent.jobs.similarity import answers, line
from cosent.models.decision import (
    JOINT,
    DecisionRule,
    find_merge_threshold,
    joint_rule,
    rule_for,
    write_rules,
)
from cosent.record import read_record


def columns(part):
    first, second, labels = zip(*part, strict=True)
    return list(first), list(second), np.array(labels)


def test_few_validation_pairs_are_said_once(tmp_path, caplog):
    """Fails if a probability of 0.93 that rests on 31 pairs looks like one of 8,000."""
    for pairs in (31, 31, 8000):
        rule = DecisionRule("faq", 0.5, Calibration(method="platt", pairs=pairs, slope=10.0, intercept=-7.0))
        folder = tmp_path / str(pairs)
        folder.mkdir(exist_ok=True)
        write_rules(folder, {"faq": rule})
        assert rule_for(str(folder), ("", "")) == (rule, "")
    (message,) = caplog.messages
    assert f"{tmp_path}/31 come from 31 validation pairs" in message


def test_a_trained_model_answers_with_probabilities(bi_run, made_up, pairs, job):
    """Fails if probabilities are not those of validation, or `similarity`, `evaluate`, Python and run.json disagree."""
    folder = bi_run.folder
    model, rule = load_model(str(folder)), decision_rules(folder)["made_up"]
    first, second, labels = columns(pairs[:32])
    expected = fit_calibration(model.similarity(first, second), labels)
    assert rule.probabilities([0.1, 0.9]) == pytest.approx(expected.probabilities([0.1, 0.9]), abs=1e-4)

    first, second, labels = columns(pairs[32:])
    scores = model.similarity(first, second)
    probabilities = rule.probabilities(scores)
    assert 0 < probabilities.min() < probabilities.max() < 1
    result = json.loads(job("cosent.jobs.evaluate", "--model", folder, "--corpus", made_up)[0])
    calibrated = probability_metrics(probabilities, labels)
    stored = read_record(folder).after["made_up"]["test"]
    for name, value in calibrated.items():
        assert result[name] == pytest.approx(value, abs=1e-4) == stored[name]
    assert result["calibration"] == rule.calibration.method
    assert result["threshold_from"] == "made_up validation, by decision.json of the model"

    similarity = partial(job, "cosent.jobs.similarity", "--model", folder, first[1], second[1])
    out, err = similarity()
    verdict = "similar" if scores[1] >= rule.threshold else "not similar"
    names, values = (re.split("  +", text.strip())[:3] for text in out.splitlines())
    assert names == ["cosine", "probability", "verdict"]
    assert values == [f"{scores[1]:.4f}", f"{probabilities[1]:.4f}", verdict]
    assert "as on made_up validation" in err and "though" not in err
    rare = at_base_rate(probabilities[1], rule.calibration.base_rate, 0.001)
    verdict = "similar" if rare >= 0.5 else "not similar"
    assert f"{rare:.4f}  {verdict}" in similarity("--base_rate", "0.001")[0]
    with pytest.raises(InputError, match="--base_rate .*1.5"):
        similarity("--base_rate", "1.5")
    with pytest.raises(InputError, match="--base_rate .*prompt"):
        similarity("--base_rate", "0.1", "--prompt", "问：")


def test_rules_read_back_as_they_were(tmp_path):
    """Fails if a field of a rule is lost, comes back as another type than it went, or rules stay that a later model
    does not have."""
    isotonic = Calibration(method="isotonic", pairs=9, log_loss={"platt": 0.5}, scores=[0.1, 0.2], fitted=[0.25, 0.5])
    platt = Calibration(method="platt", pairs=9, slope=1.5, intercept=-1.0)
    rules = {
        "stsb": DecisionRule("stsb", 0.5, platt, ("query: ", ""), 0.75),
        "lcqmc": DecisionRule("lcqmc", 0.5, isotonic),
        "one": DecisionRule("one", 0.5, None),
    }
    write_rules(tmp_path, rules)
    assert decision_rules(tmp_path) == rules
    (tmp_path / "decision.json").write_text('{"stsb": {"threshold": 1}}')
    with pytest.raises(InputError, match=r"decision\.json.*cosent calibrate"):
        decision_rules(tmp_path)
    write_rules(tmp_path, {})
    assert decision_rules(tmp_path) == {}


def test_verdicts_agree_with_the_threshold():
    """Fails if rounding calls a score similar that `evaluate` calls different: 0.7 in float32 is below 0.7."""
    rule = DecisionRule("lcqmc", 0.7, Calibration(method="platt", pairs=98, slope=10.0, intercept=-7.0))
    scores = np.array([0.7, 0.71, -1.0], dtype=np.float32)
    assert rule.similar(scores).tolist() == [False, True, False]
    assert rule.probabilities(scores) == pytest.approx([0.5, 0.525, 0.01], abs=1e-3)
    pairs = [{"a": "甲", "b": "乙"}, {"a": "丙", "b": "丁"}, {"a": "戊", "b": "己"}]
    printed = [line(pair | new, ("a", "b")) for pair, new in zip(pairs, answers(scores, rule), strict=True)]
    assert printed[1] == " 0.7100       0.5250  similar      丙  |  丁"
    assert printed[2] == "-1.0000       0.0100  not similar  戊  |  己"
    assert line(pairs[0] | answers(scores[:1], None)[0], ("a", "b")) == " 0.7000  甲  |  乙"


def test_the_highest_probability_of_scores_that_mean_nothing():
    """Fails if a cross-encoder whose map is flat is said to reach `nan`."""
    assert Calibration(method="platt", pairs=8).probabilities([CrossEncoder.highest_score]) == 0.5
    assert Calibration(method="platt", pairs=8, slope=2.0).probabilities([CrossEncoder.highest_score]) == 0.9


def test_a_rule_belongs_to_its_prompts(tmp_path):
    """Fails if scores of texts behind one prompt get probabilities that were found behind another, or nothing says why
    there are none."""
    faq, other = ("问：", "答："), ("", "")
    rules = {"faq": DecisionRule("faq", 0.5, None, faq), "a": DecisionRule("a", 0.5, None, other)}
    write_rules(tmp_path, rules)
    assert rule_for(str(tmp_path), faq, "faq") == (rules["faq"], "")
    rule, reason = rule_for(str(tmp_path), other, "faq")
    assert rule is None and "'问：' and '答：'" in reason
    assert rule_for(str(tmp_path), other)[0] is None and "faq, a" in rule_for(str(tmp_path), other)[1]
    assert rule_for(str(tmp_path / "none"), other)[0] is None
    with pytest.raises(InputError, match="--corpus other"):
        rule_for(str(tmp_path), other, "other")


def test_the_merge_threshold_on_paper():
    """Fails if labelled pairs, half of them similar, decide about the pairs of a file, of which most are not, if an
    error that was not seen counts as impossible, or half of equal scores are merged.

    With a share of 0.1, nine of ten are right if s >= 81 d: all 100 similar pairs may go with one of 99 others
    unseen, s = 1 and d = 1 / 100, but not with one seen, d = 2 / 100.
    """
    scores = np.r_[np.full(100, 0.9), np.full(99, 0.5)]
    labels = np.r_[np.ones(100), np.zeros(99)]
    assert find_merge_threshold(scores, labels) == 0.9
    assert find_merge_threshold(np.r_[scores, 0.95], np.r_[labels, 0.0]) is None
    assert find_merge_threshold(scores[:110], labels[:110]) is None, "ten others prove no share below a hundredth"
    mixed = np.r_[np.full(90, 0.9), np.full(10, 0.8), 0.8, np.full(98, 0.5)]
    assert find_merge_threshold(mixed, np.r_[np.ones(100), np.zeros(99)]) == 0.9


def test_several_corpora_have_a_rule_of_all_their_pairs():
    """Fails if the joint rule is that of one corpus, or a corpus without a rule takes part."""
    scored = {name: (np.array([0.1, 0.4, top]), np.array([0.0, 0.0, 1.0])) for name, top in (("a", 0.9), ("b", 0.5))}
    rules = {name: DecisionRule.of(name, *both) for name, both in scored.items()}
    joint = joint_rule(rules, scored | {"graded": scored["a"]})
    assert list(joint) == ["a", "b", JOINT] and joint[JOINT].threshold == pytest.approx(0.45)
    assert joint[JOINT].calibration.pairs == 6
    assert list(joint_rule({"a": rules["a"]}, scored)) == ["a"]
