"""The layout of the page, in Gradio: tabs, what is typed, and where its answer appears.

Nothing of a user is kept here: what they typed comes with each question, and its answer goes back. Labels are in both
languages, so that there is no choice to make or to remember.
"""

from collections.abc import Callable
from pathlib import Path

import gradio as gr

from cosent.demo_page import pair_table, rendering
from cosent.demo_page.models import Models
from cosent.demo_page.reports import frame
from cosent.demo_page.sentences import sentence
from cosent.errors import InputError

AT_ONCE = 2  # answers that are computed at a time; others wait in the queue
EMPTY_ROWS = [["", "", "", ""] for _ in range(3)]  # to write into
COLUMN_LABELS = ["句子一 sentence1", "句子二 sentence2", "标签 label", "分数 score"]


def build(models: Models, reports: dict[str, Path]) -> gr.Blocks:
    """The page, which `serving.serve` opens."""
    with gr.Blocks(title="cosent", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.HTML("<h1>句子相似度 Sentence similarity</h1>", elem_classes="cosent-title")
        with gr.Tabs():
            with gr.Tab("比较 Compare", id="compare"):
                compare_tab(models)
            with gr.Tab("搜索 Search", id="search"):
                search_tab(models)
            with gr.Tab("改写 Paraphrase", id="paraphrase"):
                paraphrase_tab(models)
            with gr.Tab("标注 Label", id="label"):
                label_tab(models)
            with gr.Tab("报告 Reports", id="reports"):
                reports_tab(reports)
    return page


def compare_tab(models: Models) -> None:
    one = gr.Textbox(label="句子一 Sentence 1", placeholder="我喜欢北京", elem_id="one")
    other = gr.Textbox(label="句子二 Sentence 2", placeholder="我不喜欢北京", elem_id="other")
    button = gr.Button("比较 Compare", variant="primary")
    shown = answer("comparison")

    def compare(first: object, second: object) -> str:
        pair = sentence(first, "句子一 Sentence 1"), sentence(second, "句子二 Sentence 2")
        return rendering.comparison(models.judges, *pair)

    ask([button.click, one.submit, other.submit], told(compare), [one, other], [shown])


def search_tab(models: Models) -> None:
    if models.index is None:
        missing("--input sentences.txt", "--index vectors.npy")
        return
    query = gr.Textbox(label="要找什么 What to look for", placeholder="怎么还款", elem_id="query")
    button = gr.Button(f"搜索 Search ({len(models.index):,})", variant="primary")
    shown = answer("hits")

    def find(text: object) -> str:
        return rendering.hits(models.find(sentence(text, "要找的 The query")))

    ask([button.click, query.submit], told(find), [query], [shown])


def paraphrase_tab(models: Models) -> None:
    if models.student is None:
        missing("--student runs/student")
        return
    text = gr.Textbox(label="句子 Sentence", placeholder="微信和支付宝哪个好", elem_id="text")
    button = gr.Button("改写 Paraphrase", variant="primary")
    shown = answer("paraphrases")

    def write(given: object) -> str:
        return rendering.paraphrases(models.write(sentence(given, "句子 Sentence")), models.judges[0])

    ask([button.click, text.submit], told(write), [text], [shown])


def label_tab(models: Models) -> None:
    judge = models.judges[0]
    table = gr.Dataframe(
        EMPTY_ROWS, headers=COLUMN_LABELS, datatype="str", type="array", column_count=4, static_columns=[3], wrap=True,
        interactive=True, buttons=[], label="句子对 Pairs", elem_id="pairs", column_widths=[300, 300, 120, 150],
    )  # fmt: skip
    with gr.Row():
        opened = gr.UploadButton("打开文件 Open a file", file_types=[*pair_table.FILE_TYPES])
        score = gr.Button("打分 Score")
        export = gr.Button("导出 Export", variant="primary")
    shown = answer("export")

    def read(path: str) -> tuple[object, str]:
        rows, more = pair_table.read_pairs(path)
        note = f"只显示前 {len(rows)} 行。Only the first {len(rows)} rows are shown." if more else ""
        return [*rows, *EMPTY_ROWS], rendering.message(note) if note else ""

    def add_scores(rows: list) -> tuple[object, str]:
        return [*pair_table.scored(judge, rows), *EMPTY_ROWS], ""

    def export_pairs(rows: list) -> str:
        text = pair_table.as_tsv(rows)
        return rendering.download(pair_table.data_address(text), text.count("\n") - 1)

    ask([opened.upload], told(read, kept=1), [opened], [table, shown])
    ask([score.click], told(add_scores, kept=1), [table], [table, shown])
    ask([export.click], told(export_pairs), [table], [shown])


def reports_tab(reports: dict[str, Path]) -> None:
    if not reports:
        missing("--runs results/NAME")
        return
    names = list(reports)
    choice = gr.Dropdown(names, value=names[0], label="报告 Report", elem_id="report")
    shown = answer("report-page")
    shown.value = frame(reports[names[0]])
    ask([choice.change], told(lambda name: frame(reports[name])), [choice], [shown])


def missing(*flags: str) -> None:
    """Says which flag brings a tab to life."""
    words = " 或 or ".join(f"<code>{flag}</code>" for flag in flags)
    gr.HTML(f"<p>这里需要 This needs: <code>cosent demo …</code> {words}</p>", elem_classes="cosent-answer")


def answer(name: str) -> gr.HTML:
    """Where an answer appears; told to those who hear the page."""
    return gr.HTML("", elem_id=name, elem_classes="cosent-answer")


def told(function: Callable, kept: int = 0) -> Callable:
    """The same function, which answers what a user did wrong with a message.

    Args:
        kept: outputs before the last one, which stay as they are then.
    """

    def call(*given: object) -> object:
        try:
            return function(*given)
        except InputError as error:
            message = rendering.message(error)
            return (*[gr.skip()] * kept, message) if kept else message

    return call


def ask(triggers: list, function: Callable, inputs: list, outputs: list) -> None:
    """Calls a function on any of the triggers, `AT_ONCE` at a time over all users and tabs."""
    gr.on(triggers, function, inputs, outputs, api_visibility="private", concurrency_limit=AT_ONCE,
          concurrency_id="models", show_progress="minimal")  # fmt: skip
