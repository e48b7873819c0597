"""An index of files that grow: what is found before, while and after a file changes."""

import logging
from functools import partial
from itertools import chain
from threading import Thread

import pytest

from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import growing_vectors
from cosent.search import live as module
from cosent.search.index import Hit, open_index
from cosent.search.live import LiveIndex

LINES = ["怎么还款", "如何借款", "今天天气很好"]


def found(live: LiveIndex, query: str) -> str:
    """The sentence that is nearest to a query."""
    ((hit,),) = live.answers([(query, 1, ())])
    return hit.sentence


@pytest.fixture
def live(tiny_bi, tmp_path):
    """A live index of `faq.csv`, with a column of answers."""
    encoder, file = SentenceEncoder.from_pretrained(str(tiny_bi)), tmp_path / "faq.csv"
    write(file, LINES)
    embed = partial(growing_vectors, cache=tmp_path / "cache")
    return LiveIndex(lambda: open_index(None, [str(file)], encoder, embed, "question"), [str(file)])


def write(file, lines):
    rows = "".join(f"{line},答{number}\n" for number, line in enumerate(lines))
    file.write_text("question,answer\n" + rows, encoding="utf-8")


def test_a_file_that_grows(live, tmp_path, monkeypatch):
    """Fails if a new line is not found without a restart, all lines are embedded again for it, its answer is that of
    another row, or a file that did not change is read again."""
    embedded, stock = [], SentenceEncoder.encode
    monkeypatch.setattr(
        SentenceEncoder, "encode", lambda *args, **options: embedded.append(list(args[1])) or stock(*args, **options)
    )
    before = live.index
    live.refresh()
    assert live.index is before and not embedded
    write(tmp_path / "faq.csv", [*LINES, "红色的苹果"])
    assert found(live, "红色的苹果") in LINES, "the old index answers until the new one is there"
    embedded.clear()
    live.refresh()
    assert list(chain(*embedded)) == ["红色的苹果"]
    ((hit,),) = live.answers([("红色的苹果", 1, ())])
    assert (hit.row, hit.sentence, hit.columns["answer"]) == (3, "红色的苹果", "答3")
    assert len(live.answers([("苹果", 100, ())])[0]) == 4, "fewer sentences than asked for"


@pytest.mark.parametrize(
    "content", [None, b"", b"question,answer\n \xff", b"question,answer\na,b,c\n", b"question,answer\n"]
)
def test_a_file_that_is_broken_for_a_moment(live, tmp_path, caplog, content):
    """Fails if a file that is being replaced or half written ends the search, if nobody is told, if it is read over and
    over, or if the file is not picked up once it is whole."""
    caplog.set_level(logging.WARNING)
    file = tmp_path / "faq.csv"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    live.refresh()
    live.refresh()
    assert found(live, LINES[0]) == LINES[0]
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "faq.csv" in caplog.text
    write(file, ["红色的苹果"])
    live.refresh()
    assert found(live, LINES[0]) == "红色的苹果"


def test_the_watch(live, tmp_path, monkeypatch):
    """Fails if nobody looks at the files, or the thread lives on after the server."""
    monkeypatch.setattr(module, "SECONDS", 0.01)
    thread = Thread(target=live.watch, daemon=True)
    thread.start()
    write(tmp_path / "faq.csv", ["红色的苹果"])
    for _ in range(6000):
        if len(live.index) == 1 or live.stopped.wait(0.01):
            break
    live.stopped.set()
    thread.join(60)
    assert len(live.index) == 1 and not thread.is_alive()


def test_questions_of_several_clients():
    """Fails if clients that ask alike are not searched in one call, one gets the hits of another, or a limit that
    cannot be kept fails its neighbours."""
    calls = []

    class Fixed:
        def search(self, queries, top, reranker, rule, precision=None):
            calls.append((queries, top, precision))
            if precision == 0.99:
                raise InputError("too high")
            return [[Hit(0, query, 1.0)] * top for query in queries]

    live = LiveIndex(Fixed, [])
    high, low = (("precision", 0.99),), (("precision", 0.5),)
    answers = live.answers([("a", 2, ()), ("b", 1, high), ("c", 2, ()), ("d", 1, low)])
    assert calls == [(["a", "c"], 2, None), (["b"], 1, 0.99), (["d"], 1, 0.5)]
    assert isinstance(answers.pop(1), InputError)
    assert [[hit.sentence for hit in some] for some in answers] == [["a"] * 2, ["c"] * 2, ["d"]]
