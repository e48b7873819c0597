"""From raw samples to a ranked list."""

import numpy as np

from cosent.student.candidates import distinct, rank_candidates, remove_token_spaces


def test_distinct():
    """Fails if the source comes back in other spacing, case or punctuation, an empty sample counts, or a required
    string lacks."""
    samples = [
        "我 用 wifi 上 网",
        "我 用 WiFi 上 网",
        "",
        "怎 么 上 网",
        "怎 么 上 网 ？",
        "？",
        "我 用 wifi 上 网",
        "上 网 用 wifi 吗",
    ]
    assert distinct("怎么上网", samples, []) == ["我用wifi上网", "上网用wifi吗"]
    assert distinct("怎么上网", samples, ["我用"]) == ["我用wifi上网"]
    assert distinct("怎么上网", ["网 速 3.5 兆", "网 速 35 兆"], ["3.5"]) == ["网速3.5兆"]


def test_spaces():
    """Fails if Latin words run together or Chinese keeps the spaces of a tokenizer."""
    assert remove_token_spaces(" 苹 果 iphone 13 pro 多 少 钱 ? ") == "苹果iphone 13 pro多少钱?"


def test_ranking_by_hand():
    """Fails if candidates are scored against another text, cut before sorting, or come out in another order."""
    vectors = {"a": [1, 0], "b": [0, 1], "p": [0.6, 0.8], "q": [0.8, 0.6], "r": [1, 0]}

    class Encoder:
        def encode(self, sentences, normalize):
            return np.array([vectors[sentence] for sentence in sentences], dtype=np.float32)

    ranked = rank_candidates(Encoder(), ["a", "b"], [["p", "q", "r", "q"], ["q", "p"]], 2, [])
    assert [[sentence for sentence, _ in group] for group in ranked] == [["r", "q"], ["p", "q"]]
    np.testing.assert_allclose([score for group in ranked for _, score in group], [1, 0.8, 0.8, 0.6], rtol=1e-6)
