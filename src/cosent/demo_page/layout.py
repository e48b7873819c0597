"""The layout of the page, in Gradio: tabs, what is typed, and where its answer appears.

Nothing of a user is kept here: what they typed comes with each question, and its answer goes back. Labels are in both
languages, so that there is no choice to make or to remember.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import gradio as gr
from gradio.events import Dependency

from cosent.demo_page import pair_table, rendering
from cosent.demo_page.models import Models
from cosent.demo_page.reports import frame
from cosent.demo_page.sentences import sentence
from cosent.errors import InputError

AT_ONCE = 2  # answers that are computed at a time; others wait in the queue
EMPTY_ROWS = [["", "", "", ""] for _ in range(3)]  # to write into
EXAMPLES = [["怎么还款", "如何还款"], ["我喜欢北京", "我不喜欢北京"], ["他借给我钱", "我借给他钱"]]
LABEL_HELP = (
    '<p class="note">打开文件或直接填表，改好标签后导出。标签：1 相似，0 不相似，或任意评分，越大越相似。'
    "选中一格，点 ⋮ 增删行。<br>Open a file or fill in the table, correct the labels, export. Label: 1 similar, "
    "0 not similar, or any score, higher for more similar. Select a cell and press ⋮ to add or delete rows.</p>"
)
FOLLOW = "html => document.createRange().createContextualFragment(html).querySelector('a.download')?.click()"
COLUMN_LABELS = ["句子一 sentence1", "句子二 sentence2", "标签 label", "分数 score"]


def build(models: Models, reports: dict[str, Path]) -> gr.Blocks:
    """The page, which `serving.serve` opens."""
    with gr.Blocks(title="cosent", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        loaded = " · ".join(map(rendering.heading, models.judges))
        gr.HTML(f"<h1>句子相似度 Sentence similarity</h1><p>{loaded}</p>", elem_classes="cosent-title")
        with gr.Tabs():
            with gr.Tab("比较 Compare", id="compare"):
                compare_tab(models)
            with gr.Tab("搜索 Search", id="search"):
                search_tab(models)
            with gr.Tab("改写 Paraphrase", id="paraphrase"):
                paraphrase_tab(models)
            with gr.Tab("标注 Label", id="label"):
                label_tab(models)
            if reports:
                with gr.Tab("报告 Reports", id="reports"):
                    reports_tab(reports)
    return page


def compare_tab(models: Models) -> None:
    one = gr.Textbox(label="句子一 Sentence 1", elem_id="one")
    other = gr.Textbox(label="句子二 Sentence 2", elem_id="other")
    button = gr.Button("比较 Compare", variant="primary")
    with gr.Row(elem_id="examples"):
        examples = [gr.Button(f"例 e.g. {' / '.join(pair)}", size="sm") for pair in EXAMPLES]
    shown = answer("comparison")

    def compare(first: object, second: object) -> str:
        pair = sentence(first, "句子一 Sentence 1"), sentence(second, "句子二 Sentence 2")
        return rendering.comparison(models.judges, *pair)

    filled = [example.click(partial(list, pair), None, [one, other], api_visibility="private").then
              for example, pair in zip(examples, EXAMPLES, strict=True)]  # fmt: skip
    ask([button.click, one.submit, other.submit, *filled], told(compare), [one, other], [shown])


def search_tab(models: Models) -> None:
    if models.index is None:
        missing("搜索需要句子文件。Search needs a file of sentences.", "--text sentences.txt", "--index vectors.npy")
        return
    query = gr.Textbox(label="要找什么 What to look for", placeholder="例如 e.g. 怎么还款", elem_id="query")
    button = gr.Button(f"在 {len(models.index):,} 句中搜索 Search", variant="primary")
    shown = answer("hits")

    def find(text: object) -> str:
        return rendering.hits(models.find(sentence(text, "要找的 The query")))

    ask([button.click, query.submit], told(find), [query], [shown])


def paraphrase_tab(models: Models) -> None:
    if models.student is None:
        missing("改写需要学生模型。Paraphrases need a student.", "--student runs/student")
        return
    text = gr.Textbox(label="句子 Sentence", placeholder="例如 e.g. 微信和支付宝哪个好", elem_id="text")
    button = gr.Button("改写 Paraphrase", variant="primary")
    shown = answer("paraphrases")

    def write(given: object) -> str:
        return rendering.paraphrases(models.write(sentence(given, "句子 Sentence")), models.judges[0])

    ask([button.click, text.submit], told(write), [text], [shown])


def label_tab(models: Models) -> None:
    judge = models.judges[0]
    gr.HTML(LABEL_HELP, elem_classes="cosent-answer")
    table = gr.Dataframe(
        EMPTY_ROWS, headers=COLUMN_LABELS, datatype="str", type="array", column_count=4, static_columns=[3], wrap=True,
        interactive=True, buttons=[], label="句子对 Pairs", elem_id="pairs", column_widths=[300, 300, 120, 150],
    )  # fmt: skip
    with gr.Row():
        opened = gr.UploadButton("打开文件 Open", file_types=[*pair_table.FILE_TYPES], min_width=90)
        score = gr.Button("打分 Score", min_width=90)
        export = gr.Button("导出 Export", variant="primary", min_width=90)
    shown = answer("export")

    def read(path: str) -> tuple[object, str]:
        rows, more = pair_table.read_pairs(path)
        note = f"只显示前 {len(rows)} 行。Only the first {len(rows)} rows are shown." if more else ""
        return [*rows, *EMPTY_ROWS], rendering.message(note) if note else ""

    def add_scores(rows: list) -> tuple[object, str]:
        return [*pair_table.scored(judge, rows), *EMPTY_ROWS], ""

    def export_pairs(rows: list) -> str:
        text = pair_table.as_tsv(rows)
        labels = [line.rpartition("\t")[2] for line in text.splitlines()[1:]]
        return rendering.download(pair_table.data_address(text), labels)

    ask([opened.upload], told(read, EMPTY_ROWS), [opened], [table, shown])
    ask([score.click], told(add_scores, gr.skip()), [table], [table, shown])
    ask([export.click], told(export_pairs), [table], [shown]).then(None, [shown], js=FOLLOW)


def reports_tab(reports: dict[str, Path]) -> None:
    names = list(reports)
    choice = gr.Dropdown(names, value=names[0], label="报告 Report", elem_id="report")
    shown = answer("report-page")
    shown.value = frame(reports[names[0]])
    ask([choice.change], told(lambda name: frame(reports[name])), [choice], [shown])


def missing(what: str, *flags: str) -> None:
    """Says what a tab needs, and which flag brings it."""
    words = " 或 or ".join(f"<code>{flag}</code>" for flag in flags)
    gr.HTML(f"<p>{what} 启动时加上 Start with: <code>cosent demo …</code> {words}</p>", elem_classes="cosent-answer")


def answer(name: str) -> gr.HTML:
    """Where an answer appears; told to those who hear the page."""
    return gr.HTML("", elem_id=name, elem_classes="cosent-answer")


def told(function: Callable, *before: object) -> Callable:
    """The same function, which answers what a user did wrong with a message.

    Args:
        before: values of the outputs before the message, then.
    """

    def call(*given: object) -> object:
        try:
            return function(*given)
        except InputError as error:
            message = rendering.message(error)
            return (*before, message) if before else message

    return call


def ask(triggers: list, function: Callable, inputs: list, outputs: list) -> Dependency:
    """Calls a function on any of the triggers, `AT_ONCE` at a time over all users and tabs."""
    for trigger in triggers:  # `gr.on` takes no `then`
        event = trigger(function, inputs, outputs, api_visibility="private", concurrency_limit=AT_ONCE,
                        concurrency_id="models", show_progress="minimal")  # fmt: skip
    return event
