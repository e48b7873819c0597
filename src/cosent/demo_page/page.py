"""The page of `cosent demo`, in Chinese and English, and its server, which listens on this machine only.

`answers.html.j2` has the HTML. Nothing of a user is kept: what somebody typed comes with each question.
"""

import os
import re
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cosent.data.files import LABEL_NAMES, PAIR, is_label, open_table, value_of
from cosent.data.formats import is_blank
from cosent.errors import InputError
from cosent.evaluation.calibration import DecisionRule
from cosent.inference.index import Index
from cosent.models.bi_encoder import SentenceEncoder, TextModel
from cosent.models.student import Student
from cosent.run import choose_rule, decision_rules

HOST = "127.0.0.1"
# Before gradio is imported. A proxy of the user is not asked for the page of this machine.
os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}
os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), HOST, "localhost"]))

import gradio as gr  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.middleware.trustedhost import TrustedHostMiddleware  # noqa: E402

TOP, CANDIDATES = 10, 50  # sentences shown, and read again by the cross-encoder
SAMPLES, KEPT = 60, 20  # paraphrases drawn, and shown
LONGEST, LONGEST_SHOWN = 1000, 300  # characters of a sentence that is typed, and of one in a table
MOST_PIECES = 48  # coloured per sentence: a pair takes at most 97 scores
MOST_ROWS = 200  # pairs to label
CJK = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
PIECE = re.compile(f"(?:(?![{CJK}])\\w)+|\\S")
NOTHING = "没有找到相似的句子，下面只是最近的几句。Nothing found: none of these is similar, they are only the nearest."
AT_ONCE, QUEUE = 2, 32  # answers computed at a time, and questions that wait
LARGEST_FILE = 2 * 2**20  # bytes
FILE_TYPES = [".tsv", ".csv", ".txt", ".jsonl", ".json"]
EMPTY_ROWS = [["", "", "", ""] for _ in range(3)]  # to write into
EXAMPLES = [["怎么还款", "如何还款"], ["我喜欢北京", "我不喜欢北京"], ["他借给我钱", "我借给他钱"]]
COLUMN_LABELS = ["句子一 sentence1", "句子二 sentence2", "标签 label", "分数 score"]

Score = Callable[[list[str], list[str]], np.ndarray]  # scores of pairs
Parts = list[tuple[str, float]]  # pieces of a sentence and the contribution of each
Row = Sequence[object]

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
HTML: Any = TEMPLATES.get_template("answers.html.j2").module  # its macros escape what they are given


@dataclass(frozen=True)
class Judge:
    """A model that scores pairs, its decision rules, and its name on the page."""

    model: TextModel
    rules: Sequence[DecisionRule]
    name: str

    @classmethod
    def of(cls, folder: str, model: TextModel) -> "Judge":
        """A judge with the rules of its folder that were found with the prompts it reads here."""
        prompts = model.prompts.sides()
        rules = {name: rule for name, rule in decision_rules(folder).items() if rule.prompts == prompts}
        chosen = choose_rule(rules, None, folder)
        return cls(model, [chosen] if chosen else [*rules.values()], "/".join(Path(folder).parts[-2:]))

    @property
    def is_cosine(self) -> bool:
        return isinstance(self.model, SentenceEncoder)

    def scores(self, first: list[str], second: list[str]) -> np.ndarray:
        return np.asarray(self.model.similarity(first, second))


@dataclass(frozen=True)
class Models:
    """The loaded models, shared by all users of the page; None without the flag that brings one.

    Args:
        judges: `--model`, then `--cross`.
    """

    judges: Sequence[Judge]
    index: Index | None = None
    student: Student | None = None


def sentence(text: object, name: str) -> str:
    """What somebody typed, as one line without lone surrogates, which no tokenizer or file takes."""
    line = " ".join(str(text or "").encode("utf-8", "replace").decode().replace("\0", " ").split())
    if is_blank(line):
        raise InputError(f"{name}：空的，请先填写。It is empty: write something.")
    if len(line) > LONGEST:
        raise InputError(
            f"{name}：{len(line):,} 个字符，最多 {LONGEST:,} 个，请缩短。"
            f"It has {len(line):,} characters, at most {LONGEST:,} are read: shorten it."
        )
    return line


def pieces(text: str) -> list[tuple[int, int]]:
    """Spans of single Chinese characters, words of other scripts and marks, grouped in a long sentence."""
    spans = [match.span() for match in PIECE.finditer(text)]
    size = -(-len(spans) // MOST_PIECES) or 1
    groups = [spans[start : start + size] for start in range(0, len(spans), size)]
    return [(group[0][0], group[-1][1]) for group in groups]


def contributions(score: Score, one: str, other: str) -> tuple[float, Parts, Parts]:
    """The score of a pair, and the score minus that without each piece of either sentence; one call of `score`."""
    spans = pieces(one), pieces(other)
    first = [one, *(one[:start] + one[stop:] for start, stop in spans[0]), *[one] * len(spans[1])]
    second = [other, *[other] * len(spans[0]), *(other[:start] + other[stop:] for start, stop in spans[1])]
    total, *without = (float(value) for value in score(first, second))
    rest = iter(without)
    parts = [[(text[start:stop], total - next(rest)) for start, stop in some]
             for text, some in zip((one, other), spans, strict=True)]  # fmt: skip
    return total, parts[0], parts[1]


def comparison(judges: Sequence[Judge], first: object, second: object) -> str:
    """Score, verdicts and contributions of a pair by each model; the largest one of a model has the deepest colour."""
    pair = sentence(first, "句子一 Sentence 1"), sentence(second, "句子二 Sentence 2")
    judgements = []
    for judge in judges:
        score, *parts = contributions(judge.scores, *pair)
        verdicts = [(rule, rule.similar([score])[0], rule.probabilities([score])[0]) for rule in judge.rules]
        strongest = max((abs(added) for some in parts for _, added in some), default=0.0)
        judgements.append((judge, score, verdicts, parts, strongest))
    return HTML.comparison(judgements)


def hits(models: Models, query: object) -> str:
    """The sentences nearest to a query, in the order of the cross-encoder if there is one.

    A message says so where the rule of the model that orders them calls none of them similar.
    """
    assert models.index is not None
    judge = models.judges[-1]
    reranker = judge.model if len(models.judges) > 1 else None
    top, candidates = (min(number, len(models.index)) for number in (TOP, CANDIDATES))
    text = sentence(query, "要找的 The query")
    found = models.index.search([text], top, reranker=reranker, candidates=candidates)[0]
    none = judge.rules and not any(rule.similar([hit.score])[0] for rule in judge.rules for hit in found)
    header = ["", "句子 sentence", *([HTML.names[False]] if reranker else []), HTML.names[True], "行 row"]
    rows = []
    for rank, hit in enumerate(found, start=1):
        judged = [] if hit.rerank is None else [f"{hit.rerank:.4f}"]
        rows.append([rank, hit.sentence, *judged, f"{hit.cosine:.4f}", hit.row])
    table = HTML.table("最近的句子 Nearest sentences", header, rows, LONGEST_SHOWN)
    return (HTML.message(NOTHING) if none else "") + table


def paraphrases(models: Models, text: object) -> str:
    """Paraphrases with the student's cosines and the scores of `--model`, which is harder to please."""
    assert models.student is not None
    source, judge = sentence(text, "句子 Sentence"), models.judges[0]
    written = models.student.similar_sentences([source], num_samples=SAMPLES, keep=KEPT)[0]
    if not written:
        return HTML.message("没有写完的句子，请换一句。No sentence was finished: try another one.")
    scores = judge.scores([source] * len(written), [one for one, _ in written])
    rows = [[rank, one, f"{cosine:.4f}", f"{score:.4f}"]
            for rank, ((one, cosine), score) in enumerate(zip(written, scores, strict=True), start=1)]  # fmt: skip
    header = ["", "句子 sentence", "学生 student", HTML.names[judge.is_cosine]]
    return HTML.table("改写 Paraphrases", header, rows, LONGEST_SHOWN)


def read_pairs(path: str) -> tuple[list[list[str]], bool]:
    """The first rows of a file of pairs with an empty score each, and whether it has more."""
    name = Path(path).name
    try:
        file = open_table(path, None, PAIR, "sentence1, sentence2", name)
        label = next((one for one in LABEL_NAMES if one in file.names), None)
        rows = list(islice(file.rows(), MOST_ROWS + 1))
    except InputError as error:
        needed = "读不了：需要 UTF-8 编码、有两列句子的文件，表格已清空"
        raise InputError(f"{needed}。The file cannot be read. {error}".replace(path, name)) from error
    pairs = [[*(row[one] for one in file.sentences), label_text(row.get(label)), ""] for row in rows]
    return pairs[:MOST_ROWS], len(rows) > MOST_ROWS


def label_text(label: object) -> str:
    """A label as a number where it is one of the words for 0 and 1, e.g. 是; other text as it is."""
    return "" if label is None else str(value_of(label, None)).strip()


def filled(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """Name, sentences and label of each row that holds anything besides a score."""
    pairs = []
    for number, (one, other, label, *_) in enumerate(rows, start=1):
        if not all(is_blank(str(cell or "")) for cell in (one, other, label)):
            name = f"第 {number} 行 row {number}"
            texts = [sentence(one, f"{name}, sentence1"), sentence(other, f"{name}, sentence2")]
            pairs.append((name, [*texts, label_text(label)]))
    if not 0 < len(pairs) <= MOST_ROWS:
        raise InputError(f"请填 1 至 {MOST_ROWS} 行。Expected 1 to {MOST_ROWS} rows, got {len(pairs)}.")
    return pairs


def scored(judge: Judge, rows: Sequence[Row]) -> list[list[str]]:
    """The rows that are filled, with the judge's score of each."""
    pairs = [row for _, row in filled(rows)]
    scores = judge.scores([row[0] for row in pairs], [row[1] for row in pairs])
    return [[*row, f"{score:.4f}"] for row, score in zip(pairs, scores, strict=True)]


def as_tsv(rows: Sequence[Row]) -> str:
    """The pairs as TSV with a header, without quotes, as `cosent prepare` reads it."""
    lines = [["sentence1", "sentence2", "label"]]
    for name, row in filled(rows):
        if not is_label(row[2]):
            raise InputError(f"{name}：标签 {row[2]!r} 不是数字，请改正。The label is no number: correct it.")
        lines.append(row)
    return "".join("\t".join(line) + "\n" for line in lines)


def download(text: str) -> str:
    """A link that holds the exported pairs, and the command that reads them."""
    labels = [line.rpartition("\t")[2] for line in text.splitlines()[1:]]
    kind = "binary" if {*map(float, labels)} <= {0, 1} else "scores"
    address = f"data:text/tab-separated-values;charset=utf-8;base64,{b64encode(text.encode()).decode()}"
    return HTML.exported(address, len(labels), kind)


def build(models: Models) -> gr.Blocks:
    """The page, which `serve` opens."""
    with gr.Blocks(title="cosent", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        loaded = " · ".join(map(HTML.heading, models.judges))
        gr.HTML(f"<h1>句子相似度 Sentence similarity</h1><p>{loaded}</p>", elem_classes="cosent-title")
        with gr.Tabs():
            with gr.Tab("比较 Compare"):
                compare_tab(models)
            with gr.Tab("搜索 Search"):
                if models.index is None:
                    note(HTML.missing("搜索需要句子文件。Search needs a file of sentences.",
                                      ["--text FILE", "--index VECTORS"]))  # fmt: skip
                else:
                    button = f"在 {len(models.index):,} 句中搜索 Search"
                    question_tab("query", "要找什么 What to look for", button, partial(hits, models))
            with gr.Tab("改写 Paraphrase"):
                if models.student is None:
                    note(HTML.missing("改写需要学生模型。Paraphrases need a student.", ["--student FOLDER"]))
                else:
                    question_tab("text", "句子 Sentence", "改写 Paraphrase", partial(paraphrases, models))
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
    ask([button.click, one.submit, other.submit, *filled], partial(comparison, models.judges), [one, other],
        [shown])  # fmt: skip


def question_tab(name: str, label: str, words: str, function: Callable) -> None:
    """A tab of one field, a button and an answer."""
    field = gr.Textbox(label=label, elem_id=name)
    button = gr.Button(words, variant="primary")
    ask([button.click, field.submit], function, [field], [answer(f"{name}-answer")])


def label_tab(models: Models) -> None:
    note(HTML.label_help())
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
        rows, more = read_pairs(path)
        cut = f"只显示前 {len(rows)} 行。Only the first {len(rows)} rows are shown."
        return [*rows, *EMPTY_ROWS], HTML.message(cut) if more else ""

    def add_scores(rows: list) -> tuple[object, str]:
        return [*scored(models.judges[0], rows), *EMPTY_ROWS], ""

    ask([opened.upload], read, [opened], [table, shown], EMPTY_ROWS)  # older rows are not taken for an unreadable file
    ask([score.click], add_scores, [table], [table, shown], gr.skip())
    ask([export.click], lambda rows: download(as_tsv(rows)), [table], [shown])


def note(html: str) -> None:
    gr.HTML(html, elem_classes="cosent-answer")


def answer(name: str) -> gr.HTML:
    return gr.HTML("", elem_id=name, elem_classes="cosent-answer")


def ask(triggers: list, function: Callable, inputs: list, outputs: list, *before: object) -> None:
    """Calls a function on any of the triggers, `AT_ONCE` at a time over all users, and shows an `InputError`.

    Args:
        before: values of the outputs before the message, then.
    """

    def call(*given: object) -> object:
        try:
            return function(*given)
        except InputError as error:
            return (*before, HTML.message(error)) if before else HTML.message(error)

    for trigger in triggers:  # `gr.on` takes no `then`
        trigger(call, inputs, outputs, api_visibility="private", concurrency_limit=AT_ONCE, concurrency_id="models",
                show_progress="minimal")  # fmt: skip


def serve(models: Models, port: int | None = None, share: bool = False) -> None:
    """Opens the page and waits until the process is stopped."""
    page = build(models)
    page.queue(max_size=QUEUE, api_open=False)
    # Without --share, other host names are refused: a site whose name comes to mean this machine cannot read the page.
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
