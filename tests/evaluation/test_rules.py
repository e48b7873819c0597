"""Decision rules: the threshold for merging, on paper, and the rule of several corpora."""

import numpy as np
import pytest

from cosent.evaluation.rules import JOINT, DecisionRule, find_merge_threshold, joint_rule


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
