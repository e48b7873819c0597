"""Typical mistakes in using a model, reproduced to find the cause of other vectors or scores."""

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from functools import cache, partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import gelu as gelu_function
from transformers.activations import GELUActivation

from cosent.compute.distributed import run_tokenizer
from cosent.compute.packed_backbone import plain_forward
from cosent.data.tokens import NO_EXTRAS, frame
from cosent.errors import InputError
from cosent.evaluation.calibration import sigmoid as logistic
from cosent.evaluation.similarity import row_differences
from cosent.models.cross_encoder import WITHOUT_SEGMENTS, CrossEncoder
from cosent.models.embedding import quantized, score_pairs

POOLINGS: dict[str, Callable] = {  # of token vectors `(tokens, hidden)`, of which `b` and `a` are of special tokens
    "cls": lambda tokens, b, a: tokens[0],
    "mean": lambda tokens, b, a: tokens.mean(dim=0),
    "lasttoken": lambda tokens, b, a: tokens[-1],
    "max": lambda tokens, b, a: tokens.amax(dim=0),
    "mean without special tokens": lambda tokens, b, a: tokens[b : max(b + 1, len(tokens) - a)].mean(dim=0),
}


def right(b: list[int], ids: list[int], a: list[int], room: int) -> list[int]:
    """Token ids of a text between the special ones, cut to `room` tokens in all."""
    return [*b, *ids[: max(0, room - len(b + a))], *a]


SPECIAL: dict[str, Callable] = {
    "the last special token is missing": lambda b, ids, a, room: right(b, ids, [], room),
    "the first special token is missing": lambda b, ids, a, room: right([], ids, a, room),
    "the special tokens are missing": lambda b, ids, a, room: ids[:room],
    "the special tokens are added twice": lambda b, ids, a, room: right(b + b, ids, a + a, room),
    "long texts lose their last special token": lambda b, ids, a, room: [*b, *ids, *a][:room],
    "long texts lose their beginning": lambda b, ids, a, room: [*b, *ids[max(0, len(b + ids + a) - room) :], *a],
}
PRECISIONS: dict[str, Callable] = {
    "float16": lambda model: model.to(torch.float16),
    "bfloat16": lambda model: model.to(torch.bfloat16),
    "int8": quantized,
}
Item = tuple[str, ...]  # a text alone, or the two of a pair
ENDS = 1e-4  # distance from 0 and 1 up to which float32 tells probabilities apart
TOKENIZER = "Use tokenizer.json of the folder there, as it is."
FREE = {"pooling", "modules", "width", "sigmoid"}  # options of what comes after the backbone


def usual_mistakes(model, cuts: Sequence[int], width: int) -> list[tuple[str, str, str, Any]]:
    """The name of each mistake, its cure, and the option of `recomputed` that makes it, with its value.

    Args:
        cuts: lengths that may be read.
        width: that of the other vectors.
    """
    prompt, length = model.prompts.text(), model.max_length
    others = {name: text for name, text in model.prompts.texts.items() if text not in ("", prompt)}
    prompts = {f"the prompt {name!r} is added": text for name, text in others.items()}
    prompts |= {"the prompt is missing": "", "the prompt is added twice": 2 * prompt} if prompt else {}
    lengths = {f"texts are read up to {cut} tokens, not {length}": cut for cut in cuts}
    table: list[tuple[str, str, dict[str, Any]]] = [
        ("Send each text behind its prompt (here --send_prompt), or set it there.", "prompt", prompts),
        (f"Set the maximum length there to {length}.", "room", lengths),
        (TOKENIZER, "text", {"texts are lower-cased": str.lower}),
        ("Turn it off there.", "text", {"line breaks become spaces": lambda text: text.replace("\n", " ")}),
        (TOKENIZER, "normalizer", {"the tokenizer's normaliser is left out": False}),
        ("TEI does; accept it by --tolerance.", "gelu", {"gelu is approximated by tanh": gelu_by_tanh}),
    ]
    if isinstance(model, CrossEncoder):
        table += [
            ("Send the query as the first text.", "swapped", {"the pair is swapped": True}),
            ("Pass token_type_ids to the model there.", "segments", {"the segment ids are missing": False}),
            ("Ask for raw scores (raw_scores).", "sigmoid", {"the sigmoid is applied twice": True}),
        ]
    else:
        own, after = model.pooling.mode, [*model.after_pooling]
        poolings = {f"pooled by {name}, not by {own}": name for name in POOLINGS if name != own}
        kinds = list(dict.fromkeys(map(type, after)))
        modules = {f"{kind.__name__} is left out": [one for one in after if type(one) is not kind] for kind in kinds}
        modules |= {"all modules after the pooling are left out": []} if len(kinds) > 1 else {}
        table += [
            (f"Set the pooling there to {own}.", "pooling", poolings),
            ("Apply all of modules.json there.", "modules", modules),
            (TOKENIZER, "special", SPECIAL),
            ("Ask for no `dimensions`.", "width", {f"vectors are cut to {width} numbers": width}),
        ]
    return [(name, cure, option, value) for cure, option, values in table for name, value in values.items()]


def recomputed(model, items: Sequence[Item]) -> Callable[..., np.ndarray]:
    """The vectors of texts, or the scores of pairs, as a function of options; without any they are the model's own."""
    own, length = model.prompts.text(), model.max_length

    def tokenizer(normalizer: bool, segments: bool = True):
        changed = deepcopy(model.tokenizer)
        if not normalizer:
            changed.backend_tokenizer.normalizer = None
        if not segments:
            changed.model_input_names = WITHOUT_SEGMENTS
        return changed

    @cache
    def logits(prompt=own, room=length, text=str, normalizer=True, gelu=copy, segments=True, swapped=False):
        other = gelu(model)
        other.tokenizer, other.max_length = tokenizer(normalizer, segments), room
        first, second = ([text(one) for one in side] for side in zip(*items, strict=True))
        first, second = (second, first) if swapped else (first, second)
        return score_pairs(other, first, second, 32, prefixes=(prompt, ""))[0]

    def scores(sigmoid: bool = False, **reading) -> np.ndarray:
        return logistic(logits(**reading)) if sigmoid else logits(**reading)

    @cache
    def states(prompt=own, room=length, text=str, normalizer=True, gelu=copy, special=right):
        changed, backbone = tokenizer(normalizer), gelu(model).backbone
        texts = [prompt + text(one) for (one,) in items]
        read = run_tokenizer(changed, texts, add_special_tokens=False, **NO_EXTRAS)["input_ids"]
        before, after = frame(run_tokenizer(changed, ["a"], **NO_EXTRAS).encodings[0])
        output = [torch.zeros(1, model.pooling.hidden_size, device=model.device)] * len(read)  # without tokens
        for place, ids in enumerate(special(before, ids, after, room) for ids in read):
            if ids:
                row = torch.tensor([ids], device=model.device)
                output[place] = plain_forward(backbone, {"input_ids": row, "attention_mask": torch.ones_like(row)})[0]
        return output, len(before), len(after)

    @torch.inference_mode()
    def vectors(pooling: str = "", modules: Sequence[nn.Module] | None = None, width: int | None = None, **reading):
        tokens, *special = states(**reading)
        pooled = torch.stack([POOLINGS[pooling or model.pooling.mode](one, *special) for one in tokens])
        after = model.after_pooling if modules is None else modules
        return nn.Sequential(*after)(pooled)[:, :width].float().cpu().numpy()

    return scores if isinstance(model, CrossEncoder) else vectors


def gelu_by_tanh(model: nn.Module) -> nn.Module:
    """A copy of a model with the tanh approximation of GELU."""
    changed = deepcopy(model)
    for module in changed.modules():
        if isinstance(module, GELUActivation):
            module.act = partial(gelu_function, approximate="tanh")
    return changed


def answers(model, items: Sequence[Item]) -> np.ndarray:
    """The model's own answers: vectors of texts, scores of pairs."""
    return (model.similarity if len(items[0]) == 2 else model.encode)(*map(list, zip(*items, strict=True)))


class Form(NamedTuple):
    """What makes numbers that can be compared of our answers and of theirs; differences are relative to `least`."""

    ours: Callable = np.asarray
    theirs: Callable = np.asarray
    least: float = 1e-12  # or to the largest number of ours


def as_probabilities(change: Callable) -> Form:
    """The form of scores of which `change` makes probabilities: about their logits, as what differs near 0 shows."""

    def logit(p: np.ndarray) -> np.ndarray:
        inside = np.where((p >= 0) & (p <= 1), p, np.nan)
        return np.log((inside + ENDS) / (1 - inside + ENDS))

    return Form(lambda scores: logit(change(scores)), logit, 1.0)


def compare(ours: np.ndarray, theirs: np.ndarray, forms: dict[str, Form]) -> tuple[np.ndarray, str]:
    """Relative differences of answers, row by row, in the form in which they are least."""
    every = [(row_differences(form.ours(ours), form.theirs(theirs), form.least), name) for name, form in forms.items()]
    return min(every, key=lambda one: one[0].mean())


def explain(
    model, items: Sequence[Item], theirs: np.ndarray, forms: dict[str, Form], cuts: Sequence[int], tolerance: float
) -> tuple[list[tuple[str, str]], np.ndarray]:
    """The causes of a difference, each with its cure, and the differences that are left without them.

    One mistake after another is taken: the one that leaves least, or two together that leave less than half of that.
    What is left may be rounding, or a few texts; otherwise nothing is explained.
    """
    recompute, table = recomputed(model, items), usual_mistakes(model, cuts, theirs.shape[-1])
    attempts = [*combinations(table, 1), *combinations(table, 2)]
    ours = made = answers(model, items)
    first, form = compare(ours, theirs, forms)
    rows, causes, changes = first, list[tuple[str, str]](), dict[str, Any]()
    while rows.max() > tolerance:
        least, better = 0.9 * rows.mean(), None
        for some in attempts:
            options = {option: value for _, _, option, value in some}
            if len(options | changes) < len(some) + len(changes) or (len(some) == 2 and FREE.isdisjoint(options)):
                continue
            again = recompute(**options, **changes)
            left, form_left = compare(again, theirs, forms)
            if (mean := max(left.mean(), tolerance / 10) * len(some)) < least:
                least, better = mean, (some, options, again, left, form_left)
        if better is None:
            break
        some, options, made, rows, form = better
        causes, changes = causes + [(name, cure) for name, cure, *_ in some], changes | options
    if rows.max() <= tolerance:
        return causes, rows
    if not np.isfinite(rows).all():
        widths = f"{theirs.shape[-1]} numbers, ours {ours.shape[-1]}"
        raise InputError(f"Vectors there have {widths}, and no usual mistake does that. Check which model answers.")
    change, gaps = forms[form].ours, forms[form].theirs(theirs) - forms[form].ours(made)
    if name := rounding(model, items, change(ours), gaps, change):
        return [*causes, (f"rounded as in {name}", "Ask for float32 there, or accept it by --tolerance.")], rows
    if (other := rows > tolerance).mean() <= 0.5:
        name = f"{other.sum()} of {len(rows)} texts are read otherwise, as {items[int(rows.argmax())][-1]!r}"
        return [*causes, (name, TOKENIZER)], rows
    return [("other weights", "No usual mistake gives these answers. Check which model answers.")], first


def rounding(model, items: Sequence[Item], ours: np.ndarray, gaps: np.ndarray, change: Callable) -> str:
    """Precisions in which the answers would differ from `ours` about as `gaps` do, nearest first; or empty.

    Rounding moves all numbers of a vector; a weight of another value moves some much more than the others.
    """
    near = {}
    gap, most, spread = sizes(gaps)
    for name, rounded in PRECISIONS.items():
        usual_gap, usual_most, usual_spread = sizes(change(answers(rounded(deepcopy(model).cpu()), items)) - ours)
        ratio = abs(np.log(gap / usual_gap))
        if ratio < np.log(4) and most < 4 * usual_most and spread < 2 * usual_spread:
            near[name] = ratio
    return " or ".join(sorted(near, key=near.__getitem__))


def sizes(gaps: np.ndarray) -> tuple[float, float, float]:
    """The usual difference of a row, the largest, and how many times the usual one of a column that is."""
    gaps = np.abs(gaps.reshape(len(gaps), -1)) + 1e-12
    rows, columns = gaps.max(axis=1), gaps.max(axis=0)
    return np.median(rows), rows.max(), rows.max() / np.median(columns)
