import pytest

from cosent.errors import InputError
from cosent.similarity import pair_up, read_pairs


def test_pairs_of_a_file(tmp_path):
    """Fails if pairs are cut elsewhere than at the first two tabs, or a byte order mark is part of a sentence."""
    file = tmp_path / "pairs.tsv"
    file.write_bytes("\ufeff好\t坏\t1\r\n一\t二\n".encode())
    assert read_pairs(str(file)) == [("好", "坏"), ("一", "二")]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        ("好\t坏\n好\n".encode(), "line 2: expected `sentence1 TAB sentence2`, got '好'"),
        ("好\t\n".encode(), "line 1: expected"),
        ("好\t坏\n".encode("gb18030"), "line 1: expected UTF-8"),
    ],
)
def test_a_file_without_pairs_is_named(tmp_path, content, message):
    """Fails if scores are printed for other pairs than the user wrote."""
    file = tmp_path / "pairs.tsv"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_pairs(str(file))


def test_sentences_come_two_by_two():
    """Fails if the last of three sentences is compared with nothing."""
    assert pair_up(["甲", "乙", "丙", "丁"]) == [("甲", "乙"), ("丙", "丁")]
    with pytest.raises(InputError, match="in pairs"):
        pair_up(["甲", "乙", "丙"])
