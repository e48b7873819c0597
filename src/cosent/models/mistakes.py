"""Mistakes that other software makes with a model, made here too: which of them give its vectors or scores."""

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers.activations import GELUActivation

from cosent.compute.devices import run_tokenizer
from cosent.compute.packed_backbone import plain_forward
from cosent.data.tokens import NO_EXTRAS, frame
from cosent.errors import InputError
from cosent.evaluation.calibration import sigmoid
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
    """What is read of a text: its ids between special ones, cut to `room` tokens in all."""
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
PROBABILITIES = {"as sigmoid", "as probability"}  # forms of scores
ENDS = 1e-4  # distance from 0 and 1 up to which float32 tells probabilities apart
FREE = {"pooling", "modules", "width", "sigmoid"}  # options of what comes after the backbone


class Mistake(NamedTuple):
    """A mistake by name, what to do about it, and the option of `recomputed` that makes it."""

    name: str
    cure: str
    option: str = ""
    value: Any = None


def usual_mistakes(model, cuts: Sequence[int], width: int) -> list[Mistake]:
    """Those that can be made with a model; `cuts` are lengths that may be read, `width` that of the other vectors."""
    prompt, length = model.prompts.text(), model.max_length
    prompts = {"the prompt is missing": "", "the prompt is added twice": 2 * prompt} if prompt else {}
    others = {name: text for name, text in model.prompts.texts.items() if text not in ("", prompt)}
    prompts |= {f"the prompt {name!r} is added": text for name, text in others.items()}
    behind = "Send each text behind its prompt (here --send_prompt), or set it there."
    read = {f"texts are read up to {cut} tokens, not {length}": cut for cut in cuts}
    tokenizer = "Use tokenizer.json of the folder there, as it is."
    table = [
        *(Mistake(name, behind, "prompt", text) for name, text in prompts.items()),
        *(Mistake(name, f"Set the maximum length there to {length}.", "room", cut) for name, cut in read.items()),
        Mistake("texts are lower-cased", tokenizer, "text", str.lower),
        Mistake("line breaks become spaces", "Turn it off there.", "text", lambda text: text.replace("\n", " ")),
        Mistake("the tokenizer's normaliser is left out", tokenizer, "normalizer", False),
        Mistake("gelu is approximated by tanh", "TEI does; accept it by --tolerance.", "gelu", gelu_by_tanh),
    ]
    if isinstance(model, CrossEncoder):
        return [
            *table,
            Mistake("the pair is swapped", "Send the query as the first text.", "swapped", True),
            Mistake("the segment ids are missing", "Pass token_type_ids to the model there.", "segments", False),
            Mistake("the sigmoid is applied twice", "Ask for raw scores (raw_scores).", "sigmoid", True),
        ]
    own, after = model.pooling.mode, [*model.after_pooling]
    poolings = {f"pooled by {name}, not by {own}": name for name in POOLINGS if name != own}
    kinds = list(dict.fromkeys(map(type, after)))
    modules = {f"{kind.__name__} is left out": [one for one in after if type(one) is not kind] for kind in kinds}
    modules |= {"all modules after the pooling are left out": []} if len(kinds) > 1 else {}
    return [
        *table,
        *(Mistake(name, f"Set the pooling there to {own}.", "pooling", value) for name, value in poolings.items()),
        *(Mistake(name, "Apply all of modules.json there.", "modules", value) for name, value in modules.items()),
        *(Mistake(name, tokenizer, "special", value) for name, value in SPECIAL.items()),
        Mistake(f"vectors are cut to {width} numbers", "Ask for no `dimensions`.", "width", width),
    ]


def recomputed(model, items: Sequence[Any]) -> Callable[..., np.ndarray]:
    """The vectors of texts, or the scores of pairs, as a function of options; without any they are the model's own."""
    usual = {"prompt": model.prompts.text(), "room": model.max_length, "text": str, "normalizer": True, "gelu": copy}
    if pairs := isinstance(model, CrossEncoder):
        usual |= {"segments": True, "swapped": False, "sigmoid": False}
    else:
        usual |= {"special": right, "pooling": model.pooling.mode, "modules": model.after_pooling, "width": None}

    def tokenizer(normalizer: bool, segments: bool = True):
        changed = deepcopy(model.tokenizer)
        if not normalizer:
            changed.backend_tokenizer.normalizer = None
        if not segments:
            changed.model_input_names = WITHOUT_SEGMENTS
        return changed

    @cache
    def scores(prompt, room, text, normalizer, gelu, segments, swapped) -> np.ndarray:
        other = gelu(model)
        other.tokenizer, other.max_length = tokenizer(normalizer, segments), room
        first, second = ([text(one) for one in side] for side in zip(*items, strict=True))
        first, second = (second, first) if swapped else (first, second)
        return score_pairs(other, first, second, 32, prefixes=(prompt, ""))[0]

    @cache
    @torch.inference_mode()
    def tokens(prompt, room, text, normalizer, gelu, special) -> tuple[list[torch.Tensor], int, int]:
        changed, backbone = tokenizer(normalizer), gelu(model.backbone)
        texts = [prompt + text(one) for one in items]
        read = run_tokenizer(changed, texts, add_special_tokens=False, **NO_EXTRAS)["input_ids"]
        before, after = frame(run_tokenizer(changed, ["a"], **NO_EXTRAS).encodings[0])
        output = [torch.zeros(1, model.pooling.hidden_size, device=model.device)] * len(read)  # without tokens
        for place, ids in enumerate(special(before, ids, after, room) for ids in read):
            if ids:
                row = torch.tensor([ids], device=model.device)
                inputs = {"input_ids": row, "attention_mask": torch.ones_like(row)}
                output[place] = plain_forward(backbone, inputs)[0]
        return output, len(before), len(after)

    def recompute(**changes) -> np.ndarray:
        options = usual | changes
        output = (scores if pairs else tokens)(*(value for name, value in options.items() if name not in FREE))
        if pairs:
            return sigmoid(output) if options["sigmoid"] else output
        vectors, *special = output
        with torch.inference_mode():
            pooled = torch.stack([POOLINGS[options["pooling"]](one, *special) for one in vectors])
            return nn.Sequential(*options["modules"])(pooled)[:, : options["width"]].float().cpu().numpy()

    return recompute


def gelu_by_tanh(model: nn.Module) -> nn.Module:
    """A copy of a model with an approximation of its activation function."""
    changed = deepcopy(model)
    for module in list(changed.modules()):
        for name, child in module.named_children():
            if isinstance(child, GELUActivation):
                setattr(module, name, nn.GELU("tanh"))
    return changed


def answers(model, items: Sequence[Any]) -> np.ndarray:
    """What the model itself answers: vectors of texts, scores of pairs."""
    if isinstance(model, CrossEncoder):
        return model.similarity(*map(list, zip(*items, strict=True)))
    return model.encode(list(items))


def compare(ours: np.ndarray, theirs: np.ndarray, forms: dict[str, Callable]) -> tuple[np.ndarray, str]:
    """Relative differences of answers, row by row, in the form in which they are least."""
    every = [(differences(change(ours), theirs, name), name) for name, change in forms.items()]
    return min(every, key=lambda one: one[0].mean())


def differences(ours: np.ndarray, theirs: np.ndarray, form: str) -> np.ndarray:
    """`row_differences`; of probabilities about those of their logits, so that what differs near 0 or 1 shows."""
    if form not in PROBABILITIES or ours.shape != theirs.shape:
        return row_differences(ours, theirs)
    inside = np.where((theirs >= 0) & (theirs <= 1), theirs, np.nan)
    one, other = (np.log((p + ENDS) / (1 - p + ENDS)) for p in (ours, inside))
    return np.nan_to_num(np.abs(one - other) / max(1.0, np.abs(one).max()), nan=np.inf)


def explain(
    model, items: Sequence[Any], theirs: np.ndarray, forms: dict[str, Callable], cuts: Sequence[int], tolerance: float
) -> tuple[list[Mistake], np.ndarray]:
    """The causes of a difference, and the differences that are left without them.

    One mistake after another is taken: the one that leaves least, or two together that leave less than half of that.
    What is left may be rounding, or a few texts; otherwise nothing is explained.
    """
    recompute, table = recomputed(model, items), usual_mistakes(model, cuts, theirs.shape[-1])
    ours = answers(model, items)
    first, form = compare(ours, theirs, forms)
    rows, found, changes = first, list[Mistake](), dict[str, Any]()
    while rows.max() > tolerance:
        least, better = rows.mean(), None
        for number, share in ((1, 0.9), (2, 0.5)):
            least *= share
            for some in combinations(table, number):
                options = {one.option: one.value for one in some}
                if len(options | changes) < number + len(changes) or (number == 2 and FREE.isdisjoint(options)):
                    continue
                left, form_left = compare(recompute(**options, **changes), theirs, forms)
                if (mean := max(left.mean(), tolerance / 10)) < least:
                    least, better = mean, (some, options, left, form_left)
        if better is None:
            break
        some, options, rows, form = better
        found, changes = [*found, *some], changes | options
    if rows.max() <= tolerance:
        return found, rows
    if not np.isfinite(rows).all():
        widths = f"{theirs.shape[-1]} numbers, ours {ours.shape[-1]}"
        raise InputError(f"Vectors there have {widths}, and no usual mistake does that. Check which model answers.")
    change = forms[form]
    if name := rounding(model, items, ours, rows, lambda one, other: differences(change(one), change(other), form)):
        cure = "Ask for float32 there, or accept it by --tolerance."
        return [*found, Mistake(f"rounded as in {name}", cure)], rows
    if (other := rows > tolerance).mean() <= 0.5:
        name = f"{other.sum()} of {len(rows)} texts are read otherwise, as {items[int(rows.argmax())]!r}"
        return [*found, Mistake(name, "Use tokenizer.json of the folder there, as it is.")], rows
    return [Mistake("other weights", "No usual mistake gives these answers. Check which model answers.")], first


def rounding(model, items: Sequence[Any], ours: np.ndarray, rows: np.ndarray, apart: Callable) -> str:
    """Precisions in which the answers would differ from `ours` about as much as `rows`, nearest first; or empty."""
    near = {}
    for name, change in PRECISIONS.items():
        rounded = answers(change(deepcopy(model).cpu()), items)
        sizes = apart(ours, rounded)
        ratio = abs(np.log(np.median(rows) + 1e-12) - np.log(np.median(sizes) + 1e-12))
        if ratio < np.log(4) and rows.max() < 4 * sizes.max():
            near[name] = ratio
    return " or ".join(sorted(near, key=near.__getitem__))
