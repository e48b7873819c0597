"""Layout of the page in Gradio, and its server, which listens on this machine only.

Nothing of a user is kept: what somebody typed comes with each question, and the answer goes back.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import sleep

from cosent.demo_page import answers
from cosent.demo_page.answers import Models
from cosent.errors import InputError

HOST = "127.0.0.1"
# Before gradio is imported. A proxy of the user is not asked for the page of this machine.
os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}
os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), HOST, "localhost"]))

import gradio as gr  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.middleware.trustedhost import TrustedHostMiddleware  # noqa: E402

AT_ONCE, QUEUE = 2, 32  # answers computed at a time, and questions that wait
LARGEST_FILE = 2 * 2**20  # bytes
FILE_TYPES = [".tsv", ".csv", ".txt", ".jsonl", ".json"]
EMPTY_ROWS = [["", "", "", ""] for _ in range(3)]  # to write into
EXAMPLES = [["怎么还款", "如何还款"], ["我喜欢北京", "我不喜欢北京"], ["他借给我钱", "我借给他钱"]]
LABEL_HELP = (
    '<p class="note">打开文件或直接填表，改好标签后导出。标签：1 相似，0 不相似，或任意评分，越大越相似。'
    "选中一格，点 ⋮ 增删行。<br>Open a file or fill in the table, correct the labels, export. Label: 1 similar, "
    "0 not similar, or any score, higher for more similar. Select a cell and press ⋮ to add or delete rows.</p>"
)
FOLLOW = "html => document.createRange().createContextualFragment(html).querySelector('a.download')?.click()"
COLUMN_LABELS = ["句子一 sentence1", "句子二 sentence2", "标签 label", "分数 score"]


def build(models: Models) -> gr.Blocks:
    """The page, which `serve` opens."""
    with gr.Blocks(title="cosent", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        loaded = " · ".join(judge.heading for judge in models.judges)
        gr.HTML(f"<h1>句子相似度 Sentence similarity</h1><p>{loaded}</p>", elem_classes="cosent-title")
        with gr.Tabs():
            with gr.Tab("比较 Compare"):
                compare_tab(models)
            with gr.Tab("搜索 Search"):
                if models.index is None:
                    missing("搜索需要句子文件。Search needs a file of sentences.", "--text FILE", "--index VECTORS")
                else:
                    button = f"在 {len(models.index):,} 句中搜索 Search"
                    question_tab("query", "要找什么 What to look for", button, partial(answers.hits, models))
            with gr.Tab("改写 Paraphrase"):
                if models.student is None:
                    missing("改写需要学生模型。Paraphrases need a student.", "--student FOLDER")
                else:
                    question_tab("text", "句子 Sentence", "改写 Paraphrase", partial(answers.paraphrases, models))
            with gr.Tab("标注 Label"):
                label_tab(models)
    return page


def compare_tab(models: Models) -> None:
    one = gr.Textbox(label="句子一 Sentence 1", elem_id="one")
    other = gr.Textbox(label="句子二 Sentence 2", elem_id="other")
    button = gr.Button("比较 Compare", variant="primary")
    with gr.Row():
        examples = [gr.Button(f"例 e.g. {' / '.join(pair)}", size="sm") for pair in EXAMPLES]
    shown = answer("comparison")
    filled = [example.click(partial(list, pair), None, [one, other], api_visibility="private").then
              for example, pair in zip(examples, EXAMPLES, strict=True)]  # fmt: skip
    ask([button.click, one.submit, other.submit, *filled], partial(answers.comparison, models.judges), [one, other],
        [shown])  # fmt: skip


def question_tab(name: str, label: str, words: str, function: Callable) -> None:
    """A tab of one field, a button and an answer."""
    field = gr.Textbox(label=label, elem_id=name)
    button = gr.Button(words, variant="primary")
    ask([button.click, field.submit], function, [field], [answer(f"{name}-answer")])


def label_tab(models: Models) -> None:
    gr.HTML(LABEL_HELP, elem_classes="cosent-answer")
    table = gr.Dataframe(
        EMPTY_ROWS, headers=COLUMN_LABELS, datatype="str", type="array", column_count=4, static_columns=[3], wrap=True,
        interactive=True, buttons=[], label="句子对 Pairs", elem_id="pairs", column_widths=[300, 300, 120, 150],
    )  # fmt: skip
    with gr.Row():
        opened = gr.UploadButton("打开文件 Open", file_types=FILE_TYPES, min_width=90)
        score = gr.Button("打分 Score", min_width=90)
        export = gr.Button("导出 Export", variant="primary", min_width=90)
    shown = answer("export")

    def read(path: str) -> tuple[object, str]:
        rows, more = answers.read_pairs(path)
        note = f"只显示前 {len(rows)} 行。Only the first {len(rows)} rows are shown."
        return [*rows, *EMPTY_ROWS], answers.message(note) if more else ""

    def add_scores(rows: list) -> tuple[object, str]:
        return [*answers.scored(models.judges[0], rows), *EMPTY_ROWS], ""

    ask([opened.upload], read, [opened], [table, shown], EMPTY_ROWS)  # older rows are not taken for an unreadable file
    ask([score.click], add_scores, [table], [table, shown], gr.skip())
    exported = ask([export.click], lambda rows: answers.download(answers.as_tsv(rows)), [table], [shown])
    exported.then(None, [shown], js=FOLLOW)


def missing(what: str, *flags: str) -> None:
    """Names the flag that brings what a tab needs."""
    words = " 或 or ".join(f"<code>{flag}</code>" for flag in flags)
    gr.HTML(f"<p>{what} 启动时加上 Start with: <code>cosent demo …</code> {words}</p>", elem_classes="cosent-answer")


def answer(name: str) -> gr.HTML:
    return gr.HTML("", elem_id=name, elem_classes="cosent-answer")


def ask(triggers: list, function: Callable, inputs: list, outputs: list, *before: object):
    """Calls a function on any of the triggers, `AT_ONCE` at a time over all users, and shows an `InputError`.

    Args:
        before: values of the outputs before the message, then.
    """

    def call(*given: object) -> object:
        try:
            return function(*given)
        except InputError as error:
            return (*before, answers.message(error)) if before else answers.message(error)

    for trigger in triggers:  # `gr.on` takes no `then`
        event = trigger(call, inputs, outputs, api_visibility="private", concurrency_limit=AT_ONCE,
                        concurrency_id="models", show_progress="minimal")  # fmt: skip
    return event


def serve(models: Models, port: int | None = None, share: bool = False) -> None:
    """Opens the page and waits until the process is stopped."""
    page = build(models)
    page.queue(max_size=QUEUE, api_open=False)
    # Without --share, a page of another site cannot pretend to be this host and read the answers.
    hosts = [] if share else [Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])]
    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    try:
        _, address, public = page.launch(
            server_name=HOST, server_port=port, share=share, prevent_thread_lock=True, quiet=True, inbrowser=False,
            max_file_size=LARGEST_FILE, ssr_mode=False, run_history=False, footer_links=[], theme=theme,
            css_paths=Path(__file__).with_name("page.css"), app_kwargs={"middleware": hosts},
        )  # fmt: skip
    except (OSError, OverflowError) as error:
        raise InputError(f"No page can be opened at port {port or '7860 to 7959'} ({error}). Pass another "
                         "--port.") from error  # fmt: skip
    try:
        print(f"{address}  (Ctrl-C ends)", file=sys.stderr, flush=True)
        if share:
            print(public or "no public link: gradio.live was not reached", file=sys.stderr, flush=True)
        while True:  # one endless wait would not hear Ctrl-C on Windows, nor a signal that another thread got
            sleep(1)
    finally:
        page.close(verbose=False)
