"""Compare the vectors or scores of other software with a model's, and name the cause of a difference.

cosent check --model runs/faq --against http://127.0.0.1:8000      endpoint of OpenAI's, TEI's or Ollama's shape
cosent check --model runs/cross --against http://127.0.0.1:8000    /rerank of TEI's, Jina's or Cohere's
cosent check --model runs/faq --against faq.onnx                   bundle, graph, or folder for sentence-transformers
cosent check --model runs/faq --against theirs.npy --text texts.txt

Both answer some forty texts: short, long and empty ones, other scripts, full-width letters, line breaks, emoji. If the
answers differ, the usual mistakes are made here too until they give the same, and the exit status is 1. An endpoint
gets the key of OPENAI_API_KEY, if it is set.
"""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cosent.cli import REQUIRED, option, refuse_negative
from cosent.errors import InputError
from cosent.evaluation.similarity import row_differences, unit
from cosent.jobs.arguments import ModelSource, open_model

SHORT = [
    *("怎么还款", "如何还款", "我不喜欢北京", "今天天气很好", "好", "a", ".", "？！", "OPPO R11多少钱?", "增长12.5%"),
    *("1234567890", "Hello World", "HELLO", "iPhone 15 Pro Max", "Café à Zürich", "ＡＢＣ１２３，（全角）", "請問", ""),
    *("ありがとうございます", "감사합니다", "Как дела?", "شكرا جزيلا", "สวัสดีครับ", "太好了😀👍🏽", "𠮷野家", "龘靐"),
    *("  前后 空格  ", "换\n行", "制表\t符", "全角\u3000空格", "微信WeChat支付", "https://example.com/a?b=1"),
]
PASSAGE = "银行卡还款可以在手机应用的首页点还款，然后选择金额和日期，确认后资金会在两小时内到账。没有请联系客服。"
PROMPTS = ("query: ", "Instruct: Find similar questions.\nQuery: ")  # for a model without any
LONGEST = 2048  # characters
BATCH = 8  # texts in the request that shows whether they are padded right
NOT_FINITE = "nan or inf"
PADDED = "padding changes the answers", "Pass the attention mask to the model there."
MOVED = "answers to several texts at once are those of others among them", "Keep their order there."
SAME = 1e-6  # relative difference of answers to a text and to what is read of it
COMMON_LENGTHS = (32, 64, 128, 256, 384, 512, 1024)  # tokens; tried where the length cannot be asked for


@dataclass(kw_only=True)
class CheckArguments(ModelSource):
    """Other software to compare with."""

    against: str = option(REQUIRED, "Address, folder, bundle, graph (.onnx), or vectors (.npy) of the rows of --text.")
    text: str | None = option(None, "File of texts of your own instead of the built-in ones.")
    name: str | None = option(None, "Name of the model at an endpoint that serves several.")
    send_prompt: bool = option(False, "Send the texts behind the prompt of --model, to a server that adds none.")
    tolerance: float = option(1e-4, "Largest difference of equal answers, relative to the largest number of --model.")
    json: bool = option(False, "Print JSON.")


def main(args: CheckArguments) -> int:
    refuse_negative(args, "tolerance")
    if args.text is None and args.against.endswith(".npy"):
        raise InputError("--text is missing: name the file of texts that the vectors of --against were made from.")
    model = open_model(args)
    from cosent.data.files import SENTENCE, open_table
    from cosent.models.elsewhere import elsewhere
    from cosent.training.proof import without_warnings

    if args.text is None:
        texts = usual_texts(model)
    else:
        texts = list(open_table(args.text, None, SENTENCE, "", "--text").texts(keep_empty=True))
    pairs = model.library_class == "CrossEncoder"
    items: list[Any] = [(texts[0], text) for text in texts[1:]] if pairs else [(text,) for text in texts]
    if len(items) < 2:
        raise InputError(f"--text {args.text} holds {len(texts)} texts. Give three or more.")
    prompt = model.prompts.text() if args.send_prompt else ""
    sent = [(prompt + first, *second) for first, *second in items]
    where, ask = elsewhere(args.against, model, sent, args.model, args.name)
    with without_warnings():
        report = {"model": args.model, "against": where} | compared(model, args, items, sent, ask)
    print(json.dumps(report, ensure_ascii=False) if args.json else in_words(report))
    return 0 if report["equal"] else 1


def usual_texts(model) -> list[str]:
    """Short texts, one behind each prompt, and long ones around the most that the model reads."""
    most, prompts = model.max_length, [text for text in model.prompts.texts.values() if text] or PROMPTS
    lengths = {min(length, LONGEST) for length in (most // 4, most // 2, most - 4, most, most + 4, 2 * most, 640)}
    passage = PASSAGE * (1 + LONGEST // len(PASSAGE))
    return [*SHORT, *(prompt + SHORT[0] for prompt in prompts), *(passage[:length] for length in sorted(lengths))]


def answered(ask: Callable, items: list) -> tuple[list[int], np.ndarray, Counter[str]]:
    """Indices of answered items, their answers, and the number of failures by message.

    An answer with nan or inf is none, and `NOT_FINITE` counts it.
    """
    from cosent.models.elsewhere import Refused

    answers, refusals = {}, Counter[str]()
    for place, item in enumerate(items):
        try:
            answer = ask([item])[0]
            if not np.isfinite(answer).all():
                raise Refused(NOT_FINITE)
            answers[place] = answer
        except Refused as error:
            refusals[str(error)] += 1
    if len(answers) < max(2, len(items) / 2):
        said = refusals.most_common(1)[0][0]
        raise InputError(f"Only {len(answers)} of {len(items)} texts got an answer: {said}. Look at the server's log.")
    return list(answers), np.array(list(answers.values()), np.float64), refusals


def lengths_read(model, ask: Callable, item: tuple[str, ...]) -> set[int]:
    """Number of tokens of a long text that the other software reads, without our prompt and with it.

    The shortest beginning of the text that is answered as all of it has so many.
    """
    from cosent.models.elsewhere import Refused

    *query, text = item
    try:
        whole = ask([item])
        ends = range(1, len(text))
        end = 1 + bisect_left(
            ends, True, key=lambda end: row_differences(whole, ask([(*query, text[:end])])).max() < SAME
        )
    except Refused:
        return set(COMMON_LENGTHS)
    first, *second = *query, text[:end]
    prompts = {"", model.prompts.text()}
    return {len(model.tokenizer(prompt + first, *second, verbose=False)["input_ids"]) for prompt in prompts}


def of_several(ask: Callable, items: list, alone: np.ndarray, tolerance: float) -> tuple[str, str] | None:
    """What is wrong with the answers to several texts in one request, and the cure; `alone` are those to each."""
    together = ask(items)
    if row_differences(alone, together).max() <= tolerance:
        return None
    moved = together.shape == alone.shape and all(
        row_differences(alone, np.broadcast_to(row, alone.shape)).min() <= tolerance for row in together
    )
    return MOVED if moved else PADDED


def compared(model, args: CheckArguments, items: list, sent: list, ask: Callable) -> dict[str, Any]:
    """Differences of the answers, and their causes."""
    from cosent.compute.packed_backbone import max_tokens
    from cosent.evaluation.calibration import sigmoid
    from cosent.models.decision import choose_rule, decision_rules
    from cosent.models.elsewhere import Refused
    from cosent.models.mistakes import Form, answers, as_probabilities, compare, explain

    places, theirs, refusals = answered(ask, sent)
    items, sent = ([texts[place] for place in places] for texts in (items, sent))
    forms = {"as ours": Form(), "of length 1": Form(unit)}
    if theirs.ndim == 1:
        rule = choose_rule(decision_rules(args.model), None, args.model)
        forms = {"as ours": Form(), "as sigmoid": as_probabilities(sigmoid)}
        forms |= {} if rule is None else {"as probability": as_probabilities(rule.probabilities)}
    ours = answers(model, items)
    if not np.isfinite(ours).all():
        raise InputError(f"--model {args.model} returns {NOT_FINITE} itself. Take float32 weights of it.")
    rows, form = compare(ours, theirs, forms)
    causes, left = list[tuple[str, str]](), rows
    if rows.max() > args.tolerance:
        cuts = lengths_read(model, ask, max(sent, key=lambda item: len(item[-1])))
        cuts = {cut for cut in cuts if 3 <= cut <= max_tokens(model.backbone.config)} - {model.max_length}
        causes, left = explain(model, items, theirs, forms, sorted(cuts), args.tolerance)
    if count := refusals[NOT_FINITE]:
        causes.append((f"{NOT_FINITE} for {count}", "Ask for float32 there."))
    try:
        wrong = of_several(ask, sent[-BATCH:], theirs[-BATCH:], max(args.tolerance, 10 * left.max()))
        causes += [] if wrong is None else [wrong]
    except Refused as error:  # which may take one text at a time
        refusals[f"{error} ({len(sent[-BATCH:])} at once)"] += 1
    most = items[int(rows.argmax())]
    return {
        "items": len(items),
        "refused": dict(refusals),
        "form": form,
        "difference": float(rows.max()) if np.isfinite(rows).all() else None,
        "differ": int((rows > args.tolerance).sum()),
        "most": most if theirs.ndim == 1 else most[0],
        **correlations(ours, theirs),
        "equal": not causes,
        "causes": [{"name": name, "cure": cure} for name, cure in causes],
        "left": float(left.max()),
    }


def correlations(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """Pearson's correlation of scores, or of the pairwise cosines of all texts with their largest difference."""
    found = {}
    if ours.ndim == 2:
        every = np.triu_indices(len(ours), 1)
        ours, theirs = ((vectors @ vectors.T)[every] for vectors in (unit(ours), unit(theirs)))
        found["cosines"] = float(np.abs(ours - theirs).max())
    with np.errstate(invalid="ignore", divide="ignore"):  # where all are equal, it counts as 0
        return found | {"correlation": float(np.nan_to_num(np.corrcoef(ours, theirs)[0, 1]))}


def in_words(report: dict[str, Any]) -> str:
    """The report, in lines."""
    lines = [f"{report['model']} and {report['against']}: {report['items']} answers"]
    lines += [f"refused {count} times: {said}" for said, count in report["refused"].items()]
    if report["equal"]:
        return "\n".join([*lines, f"equal, {report['form']}: largest difference {report['difference']:.1e}"])
    size = "another width" if report["difference"] is None else f"{report['difference']:.1e}"
    most = repr(report["most"])[:60]
    lines.append(f"largest difference {size}, over the tolerance for {report['differ']}, most for {most}")
    if "cosines" in report:
        lines.append(f"largest difference of cosines {report['cosines']:.4f}, correlation {report['correlation']:.4f}")
    lines += [f"cause: {cause['name']}. {cause['cure']}" for cause in report["causes"]]
    return "\n".join([*lines, f"left without that: {report['left']:.1e}"])
