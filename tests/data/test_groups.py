"""Which sentences are known to be similar; if these fail, synonyms are pushed apart as in-batch negatives."""

from cosent.data.corpus import load_corpus
from cosent.data.groups import pair_groups, sentence_groups
from cosent.data.pairs import simcse_pairs


def test_groups_are_equal_or_connected_sentences(make_corpus):
    """a ~ b and b ~ c, so a, b and c are one group, on either side; d is only labelled as different from them."""
    rows = [("a", "b", 1.0), ("c", "b", 1.0), ("d", "a", 0.0), ("c", "e", 0.0), ("d", "d", 0.0)]
    groups = sentence_groups(load_corpus(make_corpus({"train": rows})).split("train"), 1.0).tolist()
    names = {name: groups[row][side] for row, pair in enumerate(rows) for side, name in enumerate(pair[:2])}
    assert [[names[name] for name in pair[:2]] for pair in rows] == groups, "one sentence has one group"
    assert names["a"] == names["b"] == names["c"] and len({names["a"], names["d"], names["e"]}) == 3


def test_groups_of_chosen_rows(make_corpus):
    """Fails if a subset of the rows has the groups of others, which `select` keeps in memory only."""
    rows = [(f"x{i}", f"x{i + 1}", float(i % 2)) for i in range(50)]
    chosen = load_corpus(make_corpus({"train": rows})).split("train").select([1, 7, 2, 3])
    groups = sentence_groups(chosen, 1.0)
    assert (groups[:, 0] == groups[:, 1]).tolist() == [True, True, False, True]
    assert groups[0, 1] == groups[2, 0] and groups[2, 1] == groups[3, 0] and groups[1, 0] != groups[0, 0]


def test_pairs_that_share_a_sentence_are_one_group(make_corpus):
    """Fails if an interval takes pairs of one question for independent: a, b and c are one group."""
    rows = [("a", "b", 1.0), ("d", "e", 0.0), ("b", "c", 0.0), ("f", "f", 0.0), ("e", "g", 1.0)]
    assert pair_groups(load_corpus(make_corpus({"test": rows})).split("test")).tolist() == [0, 1, 0, 2, 1]


def test_simcse_pairs_are_distinct_sentences():
    rows = simcse_pairs(["b", "a", "b"], label=5.0)
    assert rows.to_dict() == {"sentence1": ["b", "a"], "sentence2": ["b", "a"], "label": [5.0, 5.0]}
    assert sentence_groups(rows, 4.0).tolist() == [[0, 0], [1, 1]]
