"""The page in a real browser: every tab answers, nothing of a user runs, and a phone is enough."""

from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cosent.inference.index import Index
from cosent.models.auto import load_model
from cosent.models.student import Student
from tests.conftest import SENTENCES
from tests.demo_page.conftest import HOSTILE_ROW

pytestmark = pytest.mark.slow
DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
TABS = {"比较": "#one", "搜索": "#query", "改写": "#text", "标注": "#pairs"}
HOSTILE = [
    '<script>window.ran=1</script><img src=x onerror="window.ran=1">',
    "${window.ran=1}{{constructor.constructor('window.ran=1')()}}",
    "[x](javascript:window.ran=1)</textarea><svg onload=window.ran=1>",
    "👩‍👩‍👧👍🏽\u202eabc\u200b",
    "e" * 300 + "\u0301" * 300,
]


class User:
    """Somebody with a browser of their own, who notes what must not happen."""

    def __init__(self, page, address: str):
        self.page, self.address, self.wrong = page, address, []
        page.set_default_timeout(60_000)
        page.on("requestfinished", self.check_host)
        page.on("requestfailed", self.check_host)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        page.goto(address)
        page.locator("#one textarea, #one input").first.wait_for()

    def check_host(self, request) -> None:
        """Notes a request to another host."""
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.wrong.append(f"asked for {request.url}: {request.failure}")

    def open(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()
        self.page.locator(TABS[name]).first.wait_for(state="visible")

    def field(self, name: str):
        return self.page.locator(f"#{name} :is(textarea, input)").first

    def compare(self, one: str, other: str) -> str:
        """Types two sentences, presses Enter, and returns what appears."""
        self.field("one").fill(one)
        self.field("other").fill(other)
        return self.answer("comparison", lambda: self.field("other").press("Enter"))

    def answer(self, name: str, act) -> str:
        """What appears in an answer after an action, which must replace what was there."""
        self.page.evaluate("name => document.querySelectorAll(`#${name} > *`).forEach(e => e.dataset.old = 1)", name)
        shown = self.page.locator(f"#{name}")
        shown.evaluate("e => { e.querySelectorAll('section, table, p, a').forEach(x => x.classList.add('old')) }")
        act()
        shown.locator(":is(section, table, .message, .done):not(.old)").first.wait_for()
        return shown.inner_text()

    def upload(self, file: Path) -> None:
        with self.page.expect_file_chooser() as asked:
            self.page.get_by_role("button", name="打开文件").click()
        asked.value.set_files(file)

    def fits(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@contextmanager
def user(browser, address, size=DESKTOP):
    context = browser.new_context(viewport=size, locale="zh-CN", accept_downloads=True)
    try:
        someone = User(context.new_page(), address)
        yield someone
        assert not someone.page.evaluate("'ran' in window")
        assert someone.wrong == []
    finally:
        context.close()


def test_every_tab_answers(browser, page_address, shown):
    """Fails if a tab shows other numbers than the jobs of the command line do, or nothing."""
    bi, cross = load_model(str(shown / "bi")), load_model(str(shown / "cross"))
    with user(browser, page_address) as someone:
        pair = SENTENCES[0], SENTENCES[1]
        found = someone.compare(*pair)
        for model in (bi, cross):
            assert f"{model.similarity(*pair):.4f}" in found
        assert ("不相似 not similar" in found) == (bi.similarity(*pair) < 0.9) and "made_up" in found
        assert someone.page.locator("#comparison section").first.locator(".piece").count() == len("".join(pair))

        example = someone.page.get_by_role("button", name="怎么还款 / 如何还款")
        found = someone.answer("comparison", example.click)
        assert someone.field("one").input_value() == "怎么还款"
        assert f"{bi.similarity('怎么还款', '如何还款'):.4f}" in found

        someone.open("搜索")
        someone.field("query").fill("怎么还款")
        found = someone.answer("query-answer", lambda: someone.page.get_by_role("button", name="在 9 句中搜索").click())
        sentences = [*SENTENCES, HOSTILE_ROW]
        index = Index.of(sentences, bi)
        best = index.search(["怎么还款"], 9, reranker=cross, candidates=9)[0]
        rows = someone.page.locator("#query-answer tbody tr td:nth-child(2)").all_inner_texts()
        assert rows == [hit.sentence for hit in best] and f"{best[0].rerank:.4f}" in found

        someone.open("改写")
        someone.field("text").fill("我喜欢北京")
        someone.answer("text-answer", lambda: someone.field("text").press("Enter"))
        student = Student.from_pretrained(str(shown / "student"))
        written = student.similar_sentences(["我喜欢北京"], num_samples=60, keep=20)[0]
        rows = someone.page.locator("#text-answer tbody tr td:nth-child(2)").all_inner_texts()
        assert rows and [row.split() for row in rows] == [text.split() for text, _ in written]


def test_labels_are_corrected_by_keyboard_and_exported(browser, page_address, tmp_path):
    """Fails if a file that was opened, corrected in the table and exported is not the corrected one."""
    rows = ["sentence1,sentence2,label", "我喜欢北京,我爱北京,0", f"{HOSTILE[3]},好,1"]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    with user(browser, page_address) as someone:
        page = someone.page
        someone.open("标注")
        someone.upload(tmp_path / "mine.csv")
        page.locator("#pairs [role=gridcell]", has_text="我爱北京").wait_for()
        label = page.locator("#pairs [role=gridcell][data-row='0'][data-col='2']")
        editor = label.locator("textarea, input").first
        for _ in range(20):  # the table is drawn once more after an upload, which forgets what was selected
            label.click()
            page.keyboard.press("Enter")
            with suppress(pytest.importorskip("playwright.sync_api").TimeoutError):
                editor.wait_for(timeout=2000)
                break
        editor.fill("1")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="打分").click()
        page.wait_for_function("/[0-9]\\.[0-9]{4}/.test(document.querySelector('#pairs').innerText)")
        someone.answer("export", lambda: page.get_by_role("button", name="导出").click())
        with page.expect_download() as started:
            page.locator("#export a.download").click()
        started.value.save_as(tmp_path / "pairs.tsv")
        (tmp_path / "bad.csv").write_bytes("sentence1,sentence2\n我喜欢北京,我爱北京\n".encode("gbk"))
        assert "bad.csv" in someone.answer("export", lambda: someone.upload(tmp_path / "bad.csv"))
        page.locator("#pairs [role=gridcell]", has_text="我爱北京").wait_for(state="detached")
        someone.answer("export", lambda: page.get_by_role("button", name="导出").click())
        assert page.locator("#export a").count() == 0, "old rows are exported as the file that could not be read"
    lines = (tmp_path / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    assert lines == ["sentence1\tsentence2\tlabel", "我喜欢北京\t我爱北京\t1", f"{HOSTILE[3]}\t好\t1"]


def test_hostile_input_is_answered(browser, page_address):
    """Fails if what somebody types runs in the browser, shows a trace, or leaves the page without an answer."""
    with user(browser, page_address) as someone:
        for text in HOSTILE:
            found = someone.compare(text, "你好")
            assert "余弦 cosine" in found and "你" in found, text
        assert "It is empty" in someone.compare("  ", "你好")
        assert "10,000 characters" in someone.compare("你好", "长" * 10_000)
        someone.field("one").evaluate(
            "e => { e.value = '好\\ud83d'; e.dispatchEvent(new Event('input', {bubbles: true})) }"
        )
        someone.field("other").fill("好")
        found = someone.answer("comparison", lambda: someone.field("other").press("Enter"))
        assert "余弦 cosine" in found and "?" in found
        for tab, name, shown in (("搜索", "query", "query-answer"), ("改写", "text", "text-answer")):
            someone.open(tab)
            for text, expected in ((HOSTILE[0], ""), ("", "It is empty"), ("长" * 10_000, "10,000 characters")):
                someone.field(name).fill(text)
                found = someone.answer(shown, lambda name=name: someone.field(name).press("Enter"))
                assert expected in found and "Traceback" not in found


def test_a_phone_is_enough(browser, page_address):
    """Fails if a tab or an answer is wider than a phone, so that reading means scrolling to the side."""
    with user(browser, page_address, PHONE) as someone:
        someone.compare("我喜欢北京的秋天和冬天以及很多别的东西", "incomprehensibilities" * 5)
        assert someone.fits()
        for tab, name, shown in (("搜索", "query", "query-answer"), ("改写", "text", "text-answer")):
            someone.open(tab)
            someone.field(name).fill("我喜欢北京")
            someone.answer(shown, lambda name=name: someone.field(name).press("Enter"))
            assert someone.fits(), tab
            borders = "all => all.map(e => ['Left', 'Top', 'Right'].map(s => getComputedStyle(e)[`border${s}Width`]))"
            frames = someone.page.locator(f"#{shown} :is(table, tr)").evaluate_all(borders)
            assert frames and {width for frame in frames for width in frame} == {"0px"}
        someone.open("标注")
        assert someone.fits()
        cells = [someone.page.locator(f"#pairs [data-row='0'][data-col='{column}']") for column in range(4)]
        boxes = [cell.bounding_box() for cell in cells]
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"] for box in boxes)
        assert boxes[1]["y"] >= boxes[0]["y"] + boxes[0]["height"] - 1  # sentences one above the other
