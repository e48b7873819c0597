"""The generate job as a user types it."""

import json

from cosent.cli import parse
from cosent.data.files import SENTENCE, open_table, table_writer
from cosent.generate import GenerateArguments, main
from cosent.models.student import Student


def test_sentences_of_a_sheet_are_written_to_a_sheet(tiny_student, tmp_path, capsys):
    """Fails if a user's xlsx is not read by the name of its column, or what is written is not what was generated."""
    with table_writer(tmp_path / "in.xlsx", ("id", "question")) as write:
        write([{"id": 1, "question": "怎么还款"}, {"id": 2, "question": "我"}])
    words = ["--model", str(tiny_student), "--text", str(tmp_path / "in.xlsx"), "--text_column", "question"]
    words += ["--max_length", "6", "--num", "3"]
    output = tmp_path / "out.xlsx"
    main(*parse([*words, "--output", str(output)], GenerateArguments))
    written = json.loads(capsys.readouterr().out)
    similar = Student.from_pretrained(str(tiny_student)).similar_sentences(["怎么还款", "我"], max_length=6, keep=3)
    both = zip(("怎么还款", "我"), similar, strict=True)
    expected = [(text, *found) for text, some in both for found in some or [(None, None)]]
    rows = open_table(output, ["text"], SENTENCE, "--text_column").rows()
    assert [(row["text"], row["similar"], row["score"]) for row in rows] == expected
    assert written["texts"] == 2 and written["sentences"] == sum(map(len, similar))
