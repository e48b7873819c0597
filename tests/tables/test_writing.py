"""Tables that are written: complete or absent, and nothing lost on the way."""

import pytest

from cosent.data.files import SENTENCE, check_output, open_table, table_writer
from cosent.errors import InputError


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl", ".parquet", ".xlsx", ".csv.gz"])
def test_a_table_that_is_not_finished_is_not_there(tmp_path, ending):
    """Fails if a job that stops leaves half a table under the name of a whole one."""
    with pytest.raises(KeyboardInterrupt), table_writer(tmp_path / f"a{ending}", ("text",)) as write:
        write([{"text": "好"}])
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_tabs_become_spaces_where_nothing_is_quoted(tmp_path):
    """Fails if a line break in a sentence tears a row of TSV in two."""
    with table_writer(tmp_path / "a.tsv", ("text", "n")) as write:
        write([{"text": "甲\t乙\r\n丙", "n": None}])
    assert (tmp_path / "a.tsv").read_bytes() == "text\tn\n甲 乙 丙\t\n".encode()


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".parquet", ".xlsx"])
def test_a_column_that_the_first_row_did_not_have_is_refused(tmp_path, ending):
    """Fails if a key that only some JSON lines have disappears in silence."""
    with (
        pytest.raises(InputError, match="one with more too"),
        table_writer(tmp_path / f"a{ending}", ("text",)) as write,
    ):
        write([{"text": "好"}, {"text": "好", "more": 1}])
    assert not list(tmp_path.iterdir())


def test_parquet_says_where_types_change(tmp_path):
    """Fails if numbers that become text after the first rows end in a stack trace; None has no type yet."""
    wrong_type = pytest.raises(InputError, match="a column of Parquet has one type")
    with wrong_type, table_writer(tmp_path / "a.parquet", ("text", "n")) as write:
        write([{"text": "好", "n": 1}])
        write([{"text": "好", "n": "一"}])
    with table_writer(tmp_path / "b.parquet", ("text", "n")) as write:
        write([{"text": "好", "n": None}])
        write([{"text": "好", "n": "一"}])
    rows = open_table(tmp_path / "b.parquet", None, SENTENCE, "--text_column").rows()
    assert [row["n"] for row in rows] == [None, "一"]


def test_an_output_that_cannot_be_is_refused_before_the_work(tmp_path):
    """Fails if hours of scoring end at a file that is there already, or at a format that nobody writes."""
    there = tmp_path / "a.csv"
    there.write_text("text\n", encoding="utf-8")
    for path, source, message in (
        (there, "b.csv", r"a.csv exists.*--overwrite"),
        (there, there, "is the input"),
        (tmp_path / "a.txt", "b.csv", r"a.txt: .*\.csv"),
        (tmp_path / "nowhere/a.csv", "b.csv", "does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            check_output(path, source, overwrite=False)
    check_output(there, "b.csv", overwrite=True)
