"""The tokenizer of a lookup: one token per character, and characters that are read as others, all in tokenizer.json."""

import struct
from collections.abc import Iterable, Mapping
from itertools import count
from string import ascii_lowercase, digits
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from cosent.models.lookup import BYTES

SPECIAL = {"pad_token": "␀", "unk_token": "␚", "cls_token": "␂", "sep_token": "␃"}  # ids 0 to 3
FULL_WIDTH = 0xFEE0  # distance of a full-width letter or digit from the ASCII one
IGNORED = r"[\s\p{Cc}\p{Cf}\p{Mn}\p{Me}]"  # spaces, control and format characters, combining marks


def character_tokenizer(characters: Iterable[str], forms: Mapping[str, str] | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per character, whose rules all lie in tokenizer.json.

    Letters are lowered, full-width letters and digits become ASCII, and `IGNORED` characters are left out; punctuation
    stays as it is, full-width or not. A character outside the vocabulary becomes the bytes of its UTF-8 form, so that
    two such characters differ.

    Args:
        characters: the vocabulary, as the normaliser leaves it; repetitions count once.
        forms: Chinese characters that are read as others, e.g. traditional ones.
    """
    tokens = [*SPECIAL.values(), *BYTES, *dict.fromkeys(characters)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token=SPECIAL["unk_token"], byte_fallback=True))
    narrow = {chr(ord(form) + FULL_WIDTH): form for form in ascii_lowercase + digits}
    mapped = normalizers.Precompiled(charsmap(narrow | dict(forms or {})))
    ignored = normalizers.Replace(Regex(IGNORED), "")
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), ignored, mapped])
    first, last = SPECIAL["cls_token"], SPECIAL["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, vocabulary[token]) for token in (first, last)],
    )
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=512, **SPECIAL)


def charsmap(forms: Mapping[str, str]) -> bytes:
    """A map of characters in the form of SentencePiece, of which tokenizer.json needs a single pass over a text.

    A double array of 32-bit units, its size in bytes first: the child of a node by a byte is at the node's base XOR the
    byte, where the unit's label is that byte; a key that ends at a node has the place of its target at the base itself.
    The targets follow, each ended by a zero.
    """
    text = b""
    root: dict[int, Any] = {}
    for source, target in sorted(forms.items()):
        node = root
        for byte in source.encode():
            node = node.setdefault(byte, {})
        node[0] = len(text)
        text += target.encode() + b"\0"
    units, bases, places = {0: 0}, set(), [(root, 0)]
    lowest = 1
    for node, place in places:  # which grows
        while lowest in units:
            lowest += 1
        free = (base for base in count(max(1, lowest - 255)) if base not in bases)
        base = next(base for base in free if not any(base ^ label in units for label in node))
        bases.add(base)
        units |= {base ^ label: label for label in node}
        units[place] |= (place ^ base) << 10 | (0 in node) << 8
        places += [(child, base ^ label) for label, child in node.items() if label]
        if 0 in node:
            units[base] = node[0] | 1 << 31
    size = (max(units) // 256 + 1) * 256  # any byte leads to a unit
    return struct.pack(f"<{size + 1}I", 4 * size, *(units.get(place, 0) for place in range(size))) + text
