"""The page in a real browser: every tab answers, nothing of a user runs, and no other host is asked."""

import pytest

from cosent.models.auto import load_model
from cosent.models.student import Student
from cosent.search.index import Index
from tests.conftest import SENTENCES
from tests.jobs.demo.conftest import HOSTILE_ROW

pytestmark = pytest.mark.slow
FIELDS = {"比较": ["句子一", "句子二"], "搜索": ["要找什么"], "改写": ["句子 Sentence"]}
HOSTILE = [
    '<script>window.ran=1</script><img src=x onerror="window.ran=1">',
    "${window.ran=1}{{constructor.constructor('window.ran=1')()}}",
    "[x](javascript:window.ran=1)</textarea><svg onload=window.ran=1>",
]


class User:
    """Somebody with a browser of their own, who notes what must not happen."""

    def __init__(self, page, address: str):
        self.page, self.address, self.wrong = page, address, []
        page.set_default_timeout(60_000)
        page.on("request", self.check_host)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        page.goto(address)
        page.get_by_label("句子一").wait_for()

    def check_host(self, request) -> None:
        """Notes a request to another host."""
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.wrong.append(f"asked for {request.url}")

    def ask(self, tab: str, *texts: str) -> None:
        """Types into the fields of a tab, and presses Enter in the last one."""
        self.page.get_by_role("tab", name=tab).click()
        for label, text in zip(FIELDS[tab], texts, strict=True):
            self.page.get_by_label(label).fill(text)
        self.page.get_by_label(FIELDS[tab][-1]).press("Enter")

    def sees(self, text: str) -> None:
        """Waits for a text that is shown."""
        self.page.get_by_text(text).locator("visible=true").first.wait_for()


@pytest.fixture
def someone(browser, page_address):
    context = browser.new_context(viewport={"width": 1280, "height": 860}, locale="zh-CN")
    user = User(context.new_page(), page_address)
    yield user
    assert not user.page.evaluate("'ran' in window") and user.wrong == []
    context.close()


def test_every_tab_answers(someone, shown):
    """Fails if a tab shows other numbers than the jobs of the command line do, or nothing."""
    bi, cross = load_model(str(shown / "bi")), load_model(str(shown / "cross"))
    pair = SENTENCES[0], SENTENCES[1]
    someone.ask("比较", *pair)
    for model in (bi, cross):
        someone.sees(f"{model.similarity(*pair):.4f}")
    someone.sees("similar: 0.9000 (made_up)")
    someone.ask("搜索", "怎么还款")
    index = Index.of([*SENTENCES, HOSTILE_ROW], bi)
    for hit in index.search(["怎么还款"], 9, reranker=cross, candidates=9)[0]:
        someone.sees(f"{hit.rerank:.4f}")
    someone.sees(HOSTILE_ROW)
    someone.ask("改写", "我喜欢北京")
    student = Student.from_pretrained(str(shown / "student"))
    ((_, cosine), *_) = student.similar_sentences(["我喜欢北京"], num_samples=60, keep=20)[0]
    someone.sees(f"{cosine:.4f}")


def test_hostile_input_is_answered(someone, shown):
    """Fails if what somebody types runs in the browser, shows a trace, or leaves the page without an answer."""
    bi = load_model(str(shown / "bi"))
    for text in HOSTILE:
        someone.ask("比较", text, "你好")
        someone.sees(f"{bi.similarity(text, '你好'):.4f}")
    someone.ask("比较", "  ", "你好")
    someone.sees("It is empty")
    someone.ask("搜索", "长" * 10_000)
    someone.sees("got 10,000")
