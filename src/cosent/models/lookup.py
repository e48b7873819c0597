"""A lookup: no layers, only a table with a row for each character and for frequent pairs of neighbouring characters.

The vector of a token is the row of the token plus the row of the pair that ends there; a sentence has their mean.
An entry is found by binary search among sorted keys; characters and pairs without one share `hashed_rows` rows.

Registered with transformers when this module is imported, so that `AutoModel` and `SentenceEncoder` load its folders.
"""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import embedding_bag
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput

from cosent.errors import InputError

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  # of characters outside the vocabulary
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


class LookupModel(PreTrainedModel):
    """Reads token ids; `last_hidden_state` is the row of each token plus the row of the pair that ends there.

    Attributes:
        keys: int32 of shape `(entries,)`, ascending: the id of a character, or of a pair `first * vocab_size + second`.
        table: float32 rows; those of the entries, in the order of `keys`, before the hashed ones.
        scale: what stored rows are multiplied by: 1, but for rows rounded to int8. Applied on loading.
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

    @classmethod
    def from_pretrained(cls, path, *args, **options):
        """Loads as in transformers; refuses keys that a binary search would not find, and scales the rows."""
        loaded = super().from_pretrained(path, *args, **options)
        table = loaded[0] if isinstance(loaded, tuple) else loaded
        wrong = torch.nonzero(table.keys[1:] <= table.keys[:-1])
        if len(wrong):
            raise InputError(f"{path}: the keys of a lookup must ascend, and key {int(wrong[0]) + 1} does not.")
        with torch.no_grad():
            table.table.weight.mul_(table.scale)
            table.scale.fill_(1.0)
        return loaded

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

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **ignored) -> Any:
        """Vectors of shape `(sentences, tokens, hidden)`; padding changes nothing on either side."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        before = input_ids.roll(1, dims=1).masked_fill(places == 0, 0)
        single, paired = self.table(self.rows(input_ids, before)).unbind(dim=-2)
        if self.training and self.config.entry_dropout:
            paired = paired * (torch.rand_like(paired[..., :1]) >= self.config.entry_dropout)
        return BaseModelOutput(last_hidden_state=single + paired)

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


AutoConfig.register(LookupConfig.model_type, LookupConfig)
AutoModel.register(LookupConfig, LookupModel)


class Characters:
    """Token ids of each character, looked up in a tokenizer once: 5 times as fast as the tokenizer for many texts.

    Exact for tokenizers that read every character separately, such as `similar-lookup`'s.
    """

    tables: WeakKeyDictionary = WeakKeyDictionary()  # by tokenizer

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())  # the other keeps how it was called
        self.backend.no_padding()
        self.backend.no_truncation()
        self.ends = (tokenizer.cls_token_id, tokenizer.sep_token_id)
        self.start = np.full(CODE_POINTS, -1, np.int32)  # of a character's tokens in `tokens`; -1: not looked up
        self.count = np.zeros(CODE_POINTS, np.int64)
        self.tokens = np.zeros(0, np.int64)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> "Characters":
        """The table of a tokenizer, made once."""
        if tokenizer not in cls.tables:
            cls.tables[tokenizer] = cls(tokenizer)
        return cls.tables[tokenizer]

    def look_up(self, points: np.ndarray) -> None:
        """Looks up the tokens of new characters, given by code point."""
        encoded = self.backend.encode_batch([chr(point) for point in points], add_special_tokens=False)
        ids = [encoding.ids for encoding in encoded]
        self.count[points] = counts = np.array(list(map(len, ids)))
        self.start[points] = len(self.tokens) + np.cumsum(counts) - counts
        self.tokens = np.concatenate([self.tokens, *(np.array(tokens, np.int64) for tokens in ids)])

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
            self.look_up(np.unique(points[start < 0]))
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
            read = np.minimum(lengths, room)
            first = np.repeat(np.cumsum(lengths) - lengths, read)
            tokens, lengths = tokens[first + np.arange(read.sum()) - np.repeat(np.cumsum(read) - read, read)], read
        ids = np.empty(len(tokens) + 2 * len(texts), np.int64)
        lengths = lengths + 2
        ends = np.cumsum(lengths)
        ids[ends - lengths], ids[ends - 1] = self.ends
        inner = np.ones(len(ids), bool)
        inner[ends - lengths] = inner[ends - 1] = False
        ids[inner] = tokens
        return ids, lengths, cut
