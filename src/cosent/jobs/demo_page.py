"""The page of `cosent demo`, in Chinese and English, and its server, which listens on this machine only."""

import html
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import sleep

import numpy as np

from cosent.data.formats import is_blank
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder, TextModel
from cosent.models.decision import DecisionRule, choose_rule, decision_rules
from cosent.models.student import Student
from cosent.search.index import Index

HOST = "127.0.0.1"
# Before gradio is imported. A proxy of the user is not asked for the page of this machine.
os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}
os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), HOST, "localhost"]))

import gradio as gr  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.middleware.trustedhost import TrustedHostMiddleware  # noqa: E402

LONGEST, MOST_PIECES = 1000, 48  # characters of a sentence, and pieces that are coloured: at most 97 scores a pair
CJK = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
PIECE = re.compile(f"(?:(?![{CJK}])\\w)+|\\S")
NOTHING = "**没有找到相似的句子，只列出最近的几句。Nothing found: none is similar, these are the nearest.**"
LEGEND = "红 red: 使分数升高 raises the score · 蓝 blue: 使分数降低 lowers it"
EXAMPLES = [["怎么还款", "如何还款"], ["我喜欢北京", "我不喜欢北京"], ["他借给我钱", "我借给他钱"]]
VERDICTS = ["模型 model", "分数 score", "概率 prob.", "判定 verdict"]
HITS = ["句子 sentence", "重排 reranker", "余弦 cosine", "判定 verdict", "行 row"]
WRITTEN = ["句子 sentence", "学生 student", "分数 score"]

Parts = list[tuple[str, float]]  # pieces of a sentence and the contribution of each
Rows = list[list[str]]


@dataclass(frozen=True)
class Scorer:
    """A model that scores pairs, its decision rules, and its name on the page."""

    model: TextModel
    rules: Sequence[DecisionRule]
    name: str

    @classmethod
    def of(cls, folder: str, model: TextModel) -> "Scorer":
        """A scorer with the rules of its folder that were found with the prompts it reads here."""
        prompts = model.prompts.sides()
        rules = {name: rule for name, rule in decision_rules(folder).items() if rule.prompts == prompts}
        chosen = choose_rule(rules, None, folder)
        kind = "双塔 bi-encoder" if isinstance(model, SentenceEncoder) else "交互式 cross-encoder"
        return cls(model, [chosen] if chosen else [*rules.values()], f"{kind} {'/'.join(Path(folder).parts[-2:])}")


@dataclass(frozen=True)
class Models:
    """The loaded models, shared by all users of the page: `--model`, then `--cross`; None without its flag."""

    scorers: Sequence[Scorer]
    index: Index | None = None
    student: Student | None = None


def sentence(text: object, name: str) -> str:
    """Typed text as one line, without lone surrogates, which no tokenizer accepts."""
    line = " ".join(str(text or "").encode("utf-8", "replace").decode().replace("\0", " ").split())
    if is_blank(line):
        raise InputError(f"{name}：空的，请先填写。It is empty: write something.")
    if len(line) > LONGEST:
        raise InputError(f"{name}：最多 {LONGEST:,} 个字符。At most {LONGEST:,} characters, got {len(line):,}.")
    return line


def pieces(text: str) -> list[tuple[int, int]]:
    """Spans of single Chinese characters, words of other scripts and marks, grouped in a long sentence."""
    spans = [match.span() for match in PIECE.finditer(text)]
    size = -(-len(spans) // MOST_PIECES) or 1
    groups = [spans[start : start + size] for start in range(0, len(spans), size)]
    return [(group[0][0], group[-1][1]) for group in groups]


def contributions(score: Callable[..., np.ndarray], one: str, other: str) -> tuple[float, Parts, Parts]:
    """The score of a pair, and the score minus that without each piece of either sentence; one call of `score`."""
    spans = pieces(one), pieces(other)
    first = [one, *(one[:start] + one[stop:] for start, stop in spans[0]), *[one] * len(spans[1])]
    second = [other, *[other] * len(spans[0]), *(other[:start] + other[stop:] for start, stop in spans[1])]
    total, *without = (float(value) for value in score(first, second))
    rest = iter(without)
    parts = [(one[start:stop], total - next(rest)) for start, stop in spans[0]]
    return total, parts, [(other[start:stop], total - next(rest)) for start, stop in spans[1]]


def comparison(scorers: Sequence[Scorer], first: object, second: object) -> list[Rows | Parts]:
    """Score and verdicts of a pair by each model, and by model its contributions, of which the largest one is 1."""
    pair = sentence(first, "句子一 Sentence 1"), sentence(second, "句子二 Sentence 2")
    rows: Rows = []
    coloured: list[Rows | Parts] = []
    for scorer in scorers:
        score, one, other = contributions(scorer.model.similarity, *pair)
        strongest = max((abs(added) for _, added in [*one, *other]), default=0.0) or 1.0
        coloured.append([(piece, added / strongest) for piece, added in [*one, ("\n", 0.0), *other]])
        for rule in scorer.rules:
            verdict = "相似 similar" if rule.similar([score])[0] else "不相似 not similar"
            verdict += f": {rule.threshold:.4f} ({rule.corpus})"
            rows.append([scorer.name, f"{score:.4f}", f"{rule.probabilities([score])[0]:.4f}", verdict])
        if not scorer.rules:
            rows.append([scorer.name, f"{score:.4f}", "", "没有阈值 no threshold"])
    return [rows, *coloured]


def hits(index: Index, scorers: Sequence[Scorer], query: object) -> tuple[str, Rows]:
    """A message if the model that orders them calls none similar, and the sentences nearest to a query.

    A line at the threshold separates similar ones from the others, and the other columns of a table follow the row.
    """
    scorer = scorers[-1]
    reranker = scorer.model if len(scorers) > 1 else None
    top, candidates = min(10, len(index)), min(50, len(index))  # sentences shown, and read by the cross-encoder
    queries = [sentence(query, "要找的 The query")]
    rule = scorer.rules[0] if len(scorer.rules) == 1 else None
    found = index.search(queries, top, reranker=reranker, candidates=candidates, rule=rule)[0]
    none = scorer.rules and not any(rule.similar([hit.score])[0] for rule in scorer.rules for hit in found)
    rows, above = [], False
    for hit in found:
        if rule is not None and above and hit.verdict == "not similar":
            rows.append([f"── 阈值 threshold {rule.threshold:.4f} ──", *[""] * 4])
        above = hit.verdict == "similar"
        verdict = (
            "" if hit.verdict is None else f"{hit.probability:.4f} {'相似 similar' if above else '不相似 not similar'}"
        )
        others = [f"{name}: {value}" for name, value in hit.columns.items() if value not in (None, "", hit.sentence)]
        rerank = "" if hit.rerank is None else f"{hit.rerank:.4f}"
        rows.append([hit.sentence, rerank, f"{hit.cosine:.4f}", verdict, " · ".join([str(hit.row), *others])])
    return NOTHING if none else "", rows


def paraphrases(student: Student, scorer: Scorer, text: object) -> Rows:
    """Paraphrases with the student's cosines and the scores of `--model`, which is harder to please."""
    source = sentence(text, "句子 Sentence")
    written = student.similar_sentences([source], num_samples=60, keep=20)[0]
    if not written:
        raise InputError("没有写完的句子，请换一句。No sentence was finished: try another one.")
    scores = scorer.model.similarity([source] * len(written), [one for one, _ in written])
    return [[one, f"{cosine:.4f}", f"{score:.4f}"] for (one, cosine), score in zip(written, scores, strict=True)]


def tab(function: Callable, labels: list[str], outputs: list, button: str, examples: list | None = None):
    """A form of text fields, whose `InputError` is shown as a message."""

    def call(*given: object) -> object:
        try:
            return function(*given)
        except InputError as error:
            raise gr.Error(html.escape(str(error)), duration=None, print_exception=False) from error

    return gr.Interface(
        call,
        [gr.Textbox(label=label) for label in labels],
        outputs,
        examples,
        cache_examples=False,
        submit_btn=button,
        clear_btn=None,
        flagging_mode="never",
        api_visibility="private",
        concurrency_limit=2,
    )


def build_page(models: Models) -> gr.Blocks:
    """The page, which `serve` opens, with the tabs that the models allow."""

    def table(headers: list[str]) -> gr.Dataframe:
        widths = ["24%"] * 4 if headers is not HITS else ["28%", "14%", "14%", "18%", "26%"]
        return gr.Dataframe(headers=headers, wrap=True, column_widths=widths, interactive=False, show_label=False)

    coloured = [gr.HighlightedText(label=f"{scorer.name} · {LEGEND}") for scorer in models.scorers]
    pair, compare = ["句子一 Sentence 1", "句子二 Sentence 2"], partial(comparison, models.scorers)
    tabs = {"比较 Compare": tab(compare, pair, [table(VERDICTS), *coloured], "比较 Compare", EXAMPLES)}
    if models.index is not None:
        button, shown = f"在 {len(models.index):,} 句中搜索 Search", [gr.Markdown(), table(HITS)]
        tabs["搜索 Search"] = tab(
            partial(hits, models.index, models.scorers), ["要找什么 What to look for"], shown, button
        )
    if models.student is not None:
        write, shown = partial(paraphrases, models.student, models.scorers[0]), [table(WRITTEN)]
        tabs["改写 Paraphrase"] = tab(write, ["句子 Sentence"], shown, "改写 Paraphrase")
    return gr.TabbedInterface(
        [*tabs.values()], [*tabs], title="句子相似度 Sentence similarity", analytics_enabled=False
    )


def serve(models: Models, port: int | None = None, share: bool = False) -> None:
    """Opens the page and waits until the process is stopped."""
    page = build_page(models).queue(max_size=32, api_open=False)
    # Without --share, other host names are refused: a site whose name comes to mean this machine cannot read the page.
    hosts = [] if share else [Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])]
    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    try:
        _, address, public = page.launch(
            server_name=HOST,
            server_port=port,
            share=share,
            prevent_thread_lock=True,
            quiet=True,
            inbrowser=False,
            ssr_mode=False,
            run_history=False,
            footer_links=[],
            theme=theme,
            app_kwargs={"middleware": hosts},
        )
    except (OSError, OverflowError) as error:
        raise InputError(f"No page at port {port or '7860 to 7959'} ({error}). Pass another --port.") from error
    try:
        print(f"{address}  (Ctrl-C ends)", file=sys.stderr, flush=True)
        if share:
            print(public or "no public link: gradio.live was not reached", file=sys.stderr, flush=True)
        while True:  # one endless wait would not hear Ctrl-C on Windows, nor a signal that another thread got
            sleep(1)
    finally:
        page.close(verbose=False)
