"""Answers as HTML in both languages; whatever a user or a model wrote is escaped."""

from collections.abc import Sequence
from html import escape

from cosent.demo_page.contributions import Parts, contributions
from cosent.demo_page.models import Judge
from cosent.inference.decision import DecisionRule
from cosent.inference.index import Hit

LONGEST_SHOWN = 300  # characters of a sentence that was found
NAMES = {True: "双塔 bi-encoder", False: "交互式 cross-encoder"}
SCORES = {True: "余弦 cosine", False: "分数 score"}
LEGEND = (
    '<p class="legend"><span class="more">蓝 +</span> 使分数升高 raises the score · <span class="less">橙 −</span> '
    "使分数降低 lowers it: 分数减去删掉该字词后的分数，各项之和不等于总分 the score minus the score without it; "
    "these need not add up to the score</p>"
)
NO_RULE = (
    '<p class="note">没有判定阈值和概率 No threshold and no probabilities: 该模型不是在这里用 0/1 标签训练的 '
    "this model was not trained here on labels of 0 and 1 with these prompts</p>"
)


def message(text: object) -> str:
    """What is wrong, for the user."""
    return f'<p class="message" role="alert">{escape(str(text))}</p>'


def heading(judge: Judge) -> str:
    """What kind of model this is, and which."""
    return f"{NAMES[judge.is_cosine]} <code>{escape(judge.name)}</code>"


def comparison(judges: Sequence[Judge], one: str, other: str) -> str:
    """Score, verdicts and contributions of a pair by each model."""
    return "".join(judgement(judge, one, other) for judge in judges) + LEGEND


def judgement(judge: Judge, one: str, other: str) -> str:
    score, *parts = contributions(judge.scores, one, other)
    rules = "".join(verdict(rule, score) for rule in judge.rules) or NO_RULE
    strongest = max((abs(added) for some in parts for _, added in some), default=0.0)
    shown = "".join(coloured(some, strongest) for some in parts)
    return (
        f'<section class="judge"><h3>{heading(judge)}</h3><p class="score">{score:.4f} '
        f"<small>{SCORES[judge.is_cosine]}</small></p>{rules}{shown}</section>"
    )


def verdict(rule: DecisionRule, score: float) -> str:
    similar, probability = bool(rule.similar([score])[0]), float(rule.probabilities([score])[0])
    kind, words = ("similar", "相似 similar") if similar else ("different", "不相似 not similar")
    return (
        f'<p class="verdict {kind}"><strong>{words}</strong> · 阈值 threshold {rule.threshold:.4f} · 概率 probability '
        f"{probability:.4f} ({escape(rule.corpus)})</p>"
    )


def coloured(parts: Parts, strongest: float) -> str:
    """The pieces of a sentence, each above its contribution; the largest of the pair has the deepest colour."""
    shown = []
    for text, added in parts:
        number = f"{added:+.2f}"
        kind = {"+0.00": "", "-0.00": ""}.get(number, "more" if added > 0 else "less")
        depth = 0.75 * abs(added) / strongest if strongest else 0.0
        shown.append(f'<span class="piece {kind}" style="--depth:{depth:.2f}">{escape(text)}'
                     f'<small>{number if kind else "0.00"}</small></span>')  # fmt: skip
    return f'<p class="pieces">{"".join(shown)}</p>'


def hits(found: Sequence[Hit]) -> str:
    """What was found, best first."""
    reranked = any(hit.rerank is not None for hit in found)
    header = ["", "句子 sentence", *([NAMES[False]] if reranked else []), NAMES[True], "行 row"]
    rows = []
    for rank, hit in enumerate(found, start=1):
        judged = [] if hit.rerank is None else [f"{hit.rerank:.4f}"]
        rows.append([str(rank), hit.sentence, *judged, f"{hit.cosine:.4f}", str(hit.row)])
    return table("最近的句子 Nearest sentences", header, rows)


def paraphrases(written: Sequence[tuple[str, float, float]], judge: Judge) -> str:
    """Paraphrases with the student's cosines and another model's scores, so that it does not only judge itself."""
    if not written:
        return message("没有写完的句子，请换一句。No sentence was finished: try another one.")
    rows = [[str(rank), text, f"{cosine:.4f}", f"{score:.4f}"]
            for rank, (text, cosine, score) in enumerate(written, start=1)]  # fmt: skip
    return table("改写 Paraphrases", ["", "句子 sentence", "学生 student", NAMES[judge.is_cosine]], rows)


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls in its own box, which the keyboard can reach; the second column is text."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(shortened(cell))}</td>' for cell in row)}</tr>" for row in rows)
    name = escape(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}"><table class="found">'
        f"<caption>{name}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def download(address: str, labels: Sequence[str]) -> str:
    """A link to the exported pairs, which the page follows, and the command that reads them."""
    kind = "binary" if {*labels} <= {"0", "1"} else "scores"
    return (
        f'<p class="done" role="status">已导出 Exported: <a class="download" download="pairs.tsv" href="{address}">'
        f"pairs.tsv</a> ({len(labels)} 对 pairs)</p>"
        f"<p><code>python -m data_scripts.prepare my_pairs --source pairs.tsv --label_kind {kind}</code></p>"
    )
