"""A lookup: no layers, only a table with a row for each character and for frequent pairs of neighbouring characters.

The vector of a token is the row of the token plus the row of the pair that ends there, that of a sentence their mean.
An entry is found by binary search among sorted keys; characters and pairs without one share `hashed_rows` rows.
`BertLookupModel` adds such a table, of its own tokens, to the output of a BERT.

Registered with transformers when this module is imported, so that `AutoModel` and `SentenceEncoder` load its folders.
"""

import struct
from collections.abc import Iterable, Mapping
from itertools import count
from string import ascii_lowercase, digits
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, processors
from torch import nn
from torch.nn.functional import embedding_bag
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    BertModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutput

from cosent.errors import InputError

SPECIAL = {"pad_token": "␀", "unk_token": "␚", "cls_token": "␂", "sep_token": "␃"}  # ids 0 to 3
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  # of characters outside the vocabulary
FULL_WIDTH = 0xFEE0  # distance of a full-width letter or digit from the ASCII one
IGNORED = r"[\s\p{Cc}\p{Cf}\p{Mn}\p{Me}]"  # spaces, control and format characters, combining marks
CODE_POINTS = 0x110000
MOST_TOKENS = 46340  # of a vocabulary, so that a key, below its square, fits 32 bits


class LookupConfig(PreTrainedConfig):
    """Sizes of a lookup.

    Args:
        entries: characters and pairs with a row of their own.
        hashed_rows: rows that all others share.
        entry_dropout: probability in training that the row of a pair is left out.
        initializer_range: standard deviation of fresh rows.
    """

    model_type = "lookup"

    def __init__(
        self,
        vocab_size: int = MOST_TOKENS,
        hidden_size: int = 256,
        entries: int = 0,
        hashed_rows: int = 1024,
        entry_dropout: float = 0.0,
        initializer_range: float = 0.1,
        pad_token_id: int = 0,
        **settings,
    ):
        self.vocab_size, self.hidden_size, self.entries = vocab_size, hidden_size, entries
        self.hashed_rows, self.entry_dropout, self.initializer_range = hashed_rows, entry_dropout, initializer_range
        super().__init__(pad_token_id=pad_token_id, **settings)


class Tabled(PreTrainedModel):
    """A model that is, or has, a `LookupModel`."""

    @classmethod
    def from_pretrained(cls, path, *args, **options):
        """As of transformers; refuses keys that a binary search would not find, and applies the scale of the rows."""
        try:
            loaded = super().from_pretrained(path, *args, **options)
        except RuntimeError as error:  # sizes
            reason = " ".join(str(error).split())
            raise InputError(f"{path}: the table has another size than config.json says ({reason[:300]}).") from error
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        (table,) = (module for module in model.modules() if isinstance(module, LookupModel))
        wrong = torch.nonzero(table.keys[1:] <= table.keys[:-1])
        if len(wrong):
            raise InputError(f"{path}: the keys of a lookup must ascend, and key {int(wrong[0]) + 1} does not.")
        with torch.no_grad():
            table.table.weight.mul_(table.scale)
            table.scale.fill_(1.0)
        return loaded


class LookupModel(Tabled):
    """Reads token ids, returns `last_hidden_state`: for every token its row plus that of the pair that ends there.

    Attributes:
        keys: int32 of shape `(entries,)`, ascending: the id of a character, or of a pair `first * vocab_size + second`.
        table: float32 rows; those of the entries, in the order of `keys`, before the hashed ones.
        scale: what stored rows are multiplied by: 1, but for rows that `int8_state` has rounded. Applied on loading.
    """

    config_class = LookupConfig
    base_model_prefix = "lookup"
    main_input_name = "input_ids"
    keys: torch.Tensor
    scale: torch.Tensor

    def __init__(self, config: LookupConfig):
        super().__init__(config)
        if not 1 <= config.vocab_size <= MOST_TOKENS or config.hashed_rows < 1:
            got = f"vocab_size {config.vocab_size} and hashed_rows {config.hashed_rows}"
            raise InputError(f"A lookup has 1 to {MOST_TOKENS} tokens and at least 1 hashed row, got {got}.")
        self.table = nn.Embedding(config.entries + config.hashed_rows, config.hidden_size)
        self.register_buffer("keys", torch.arange(config.entries, dtype=torch.int32))
        self.register_buffer("scale", torch.ones(()))
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def rows(self, ids: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Rows of tokens and of the pairs that end there, of shape `(*ids.shape, 2)`.

        `before` are the ids of the tokens before; after the padding token, and at the start, the token stands for its
        pair.
        """
        keys = torch.stack([ids, before * self.config.vocab_size + ids], dim=-1).to(torch.int32)
        hashed = (keys.long() * 0x9E3779B1 >> 15) % self.config.hashed_rows + len(self.keys)
        if not len(self.keys):
            return hashed
        place = place_of(self.keys, keys)
        return torch.where(self.keys[place] == keys, place, hashed)

    def sums(self, ids: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """The row of each token plus that of the pair that ends there, of shape `(*ids.shape, hidden)`."""
        vectors = self.table(self.rows(ids, before))  # (*ids.shape, 2, hidden)
        if self.training and self.config.entry_dropout:
            kept = torch.rand_like(vectors[..., 1, :1]) >= self.config.entry_dropout
            return vectors[..., 0, :] + vectors[..., 1, :] * kept
        return vectors.sum(dim=-2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **ignored) -> Any:
        """Vectors of shape `(sentences, tokens, hidden)`; padding changes nothing on either side."""
        return BaseModelOutput(last_hidden_state=self.sums(input_ids, tokens_before(input_ids)))

    def means(self, ids: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
        """Mean pooling of sentences that lie one after the other in `ids`, without padding: `(sentences, hidden)`."""
        starts = np.cumsum(lengths) - lengths
        before = np.empty_like(ids)
        before[1:] = ids[:-1]
        before[starts[lengths > 0]] = 0
        tokens = [torch.from_numpy(array).to(self.device) for array in (ids, before)]
        offsets = torch.from_numpy(2 * starts).to(self.device)
        return 2 * embedding_bag(self.rows(*tokens).flatten(), self.table.weight, offsets, mode="mean")


def place_of(ascending: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Where each key is, if it is there."""
    last = len(ascending) - 1
    if not torch.compiler.is_exporting():
        return torch.searchsorted(ascending, keys).clamp_(max=last)
    place = torch.zeros_like(keys, dtype=torch.int64)  # ONNX has no searchsorted
    for bit in reversed(range(last.bit_length())):
        probe = (place + 2**bit).clamp(max=last)
        place = torch.where(ascending[probe] <= keys, probe, place)
    return place


def tokens_before(ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
    """The id before each token of a row; 0 at position 0, where a sentence starts, also one of several in a row."""
    positions = torch.arange(ids.shape[1], device=ids.device) if position_ids is None else position_ids
    return ids.roll(1, dims=1).masked_fill(positions == 0, 0)


class BertLookupConfig(BertConfig):
    """Sizes of a BERT and of the table beside it, whose settings are those of `LookupConfig`."""

    model_type = "bert-lookup"

    def __init__(self, entries: int = 0, hashed_rows: int = 1, entry_dropout: float = 0.0, **settings):
        self.entries, self.hashed_rows, self.entry_dropout = entries, hashed_rows, entry_dropout
        super().__init__(**settings)


class BertLookupModel(Tabled, BertModel):
    """A BERT; each of its output vectors plus the row of that token and the row of the pair that ends there.

    Keys do not depend on the size of the vocabulary, so that tokens may be added to it.
    """

    config_class = BertLookupConfig

    def __init__(self, config: BertLookupConfig, add_pooling_layer: bool = True):
        super().__init__(config, add_pooling_layer)
        sizes = {name: getattr(config, name) for name in ("hidden_size", "entries", "hashed_rows", "entry_dropout")}
        if config.vocab_size > MOST_TOKENS:
            raise InputError(f"A table reads at most {MOST_TOKENS} tokens, and this BERT has {config.vocab_size}.")
        self.lookup = LookupModel(LookupConfig(**sizes))
        self.post_init()

    @classmethod
    def beside(cls, bert: BertModel, keys: np.ndarray, hashed_rows: int, entry_dropout: float) -> "BertLookupModel":
        """A BERT and rows of zeros, which change none of its vectors; `keys` ascend, see `LookupModel`."""
        settings = {name: value for name, value in bert.config.to_dict().items() if name != "model_type"}
        sizes = {"entries": len(keys), "hashed_rows": hashed_rows, "entry_dropout": entry_dropout}
        model = cls(BertLookupConfig(**settings | sizes), add_pooling_layer=bert.pooler is not None)
        model.load_state_dict(bert.state_dict(), strict=False)
        model.lookup.keys.copy_(torch.from_numpy(keys))
        torch.nn.init.zeros_(model.lookup.table.weight)
        return model

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None, **options) -> Any:
        """As of BERT, plus the rows."""
        output = super().forward(input_ids, position_ids=position_ids, **options)
        rows = self.lookup.sums(input_ids, tokens_before(input_ids, position_ids))
        output.last_hidden_state = output.last_hidden_state + rows
        return output


for config, model in ((LookupConfig, LookupModel), (BertLookupConfig, BertLookupModel)):
    AutoConfig.register(config.model_type, config)
    AutoModel.register(config, model)


def int8_state(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a `LookupModel` with rows rounded to int8, one step for all of them: a quarter of the size."""
    step = weights["table.weight"].abs().max() / 127
    return weights | {"table.weight": (weights["table.weight"] / step).round().to(torch.int8), "scale": step}


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


class Characters:
    """The tokens of every character, asked of a tokenizer once each: its result for many texts, without its time.

    Right for a tokenizer that reads every character by itself, as `character_tokenizer` makes them.
    """

    tables: WeakKeyDictionary = WeakKeyDictionary()  # by tokenizer

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())  # the other keeps how it was called
        self.backend.no_padding()
        self.backend.no_truncation()
        self.ends = (tokenizer.cls_token_id, tokenizer.sep_token_id)
        self.start = np.full(CODE_POINTS, -1, np.int32)  # of the tokens of a character in `tokens`; -1: not asked yet
        self.count = np.zeros(CODE_POINTS, np.int64)
        self.tokens = np.zeros(0, np.int64)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> "Characters":
        """The table of a tokenizer, made once."""
        if tokenizer not in cls.tables:
            cls.tables[tokenizer] = cls(tokenizer)
        return cls.tables[tokenizer]

    def ask(self, points: np.ndarray) -> None:
        """Asks the tokenizer for the tokens of new characters, given by code point."""
        encoded = self.backend.encode_batch([chr(point) for point in points], add_special_tokens=False)
        ids = [one.ids for one in encoded]
        self.count[points] = counts = np.array([len(one) for one in ids])
        self.start[points] = len(self.tokens) + np.cumsum(counts) - counts
        self.tokens = np.concatenate([self.tokens, *(np.array(one, np.int64) for one in ids)])

    def unlike_bytes(self, tokenizer: PreTrainedTokenizerFast) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Code points of other tokens than the bytes of their UTF-8 form, these tokens in a row, and how many each has.

        Asked are the vocabulary, and the planes of Unicode that have case, widths, spaces and format characters.
        """
        own = {ord(token) for token in tokenizer.vocab if len(token) == 1}
        planes = {*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE1000)}
        points = np.array(sorted(own | planes))
        self.ask(points[self.start[points] < 0])
        bounds = zip(points.tolist(), self.start[points].tolist(), self.count[points].tolist(), strict=True)
        first = tokenizer.vocab[BYTES[0]]
        ids = {point: self.tokens[start : start + count].tolist() for point, start, count in bounds}
        unlike = {point: one for point, one in ids.items() if one != [first + code for code in chr(point).encode()]}
        counts = np.array([len(one) for one in unlike.values()])
        return np.array([*unlike]), np.array([token for one in unlike.values() for token in one]), counts

    def encode(self, texts: list[str], max_length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ids of all texts one after the other, the number of each, and whether it was cut to `max_length`."""
        try:
            points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        except UnicodeEncodeError as error:
            row = next(row for row, text in enumerate(texts, start=1) if text.encode(errors="replace").decode() != text)
            half = ascii(error.object[error.start])
            raise InputError(f"Half a surrogate pair, {half}, in text {row}: no character. Remove it.") from error
        start = self.start[points]
        if len(start) and start.min() < 0:
            self.ask(np.unique(points[start < 0]))
            start = self.start[points]
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        count = self.count[points]
        place = np.concatenate([[0], np.cumsum(count)])  # of the tokens of each character among all
        if place[-1] == len(points) and count.all():
            tokens = self.tokens[start]
        else:
            tokens = self.tokens[np.repeat(start - place[:-1], count) + np.arange(place[-1])]
        lengths = np.diff(place[ends], prepend=0)
        room = max_length - 2
        cut = lengths > room
        if cut.any():
            kept = np.minimum(lengths, room)
            first = np.repeat(np.cumsum(lengths) - lengths, kept)
            tokens, lengths = tokens[first + np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)], kept
        ids = np.empty(len(tokens) + 2 * len(texts), np.int64)
        lengths = lengths + 2
        ends = np.cumsum(lengths)
        ids[ends - lengths], ids[ends - 1] = self.ends
        inner = np.ones(len(ids), bool)
        inner[ends - lengths] = inner[ends - 1] = False
        ids[inner] = tokens
        return ids, lengths, cut
