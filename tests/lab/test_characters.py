"""Adding characters to an encoder: what stays as it was, what the new rows are, and who reads the tokenizer how."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from cosent.cli import parse
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.folder import save_modules
from cosent.models.modules import Pooling
from cosent.seal import check
from lab import characters
from lab.pretraining.batches import learn_tokenizer
from lab.pretraining.model import fresh_model
from tests.support.launching import later_wins

KNOWN = ["我很喜欢北京", "今天的天气好不好", "国家的苹果好吃吗", "怎样才能还款abc"]
TEXT = [*KNOWN * 5, "陈璟喜欢北京", "璟的苹果", "陈璟还款", "今天的璟"]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """A folder with a tiny encoder, and the folders that `characters` makes of it, of one and of the other way."""
    place = tmp_path_factory.mktemp("characters")
    (place / "text.txt").write_text("\n".join(TEXT), encoding="utf-8")
    (place / "forms.txt").write_text("國\t国\n昇\t升\n乾\t干 乾\n麼\t麽 么\n", encoding="utf-8")
    (place / "standard.txt").write_text("\n".join(f"-\t{one}" for one in "璟昇珺国么干乾"), encoding="utf-8")
    tokenizer = learn_tokenizer(KNOWN * 9, size=80)
    model = fresh_model("bert", len(tokenizer), layers=1, width=16)
    model.half().save_pretrained(place / "old")
    config = json.loads((place / "old/config.json").read_text())
    (place / "old/config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    tokenizer.save_pretrained(place / "old")
    save_modules(place / "old", Pooling("mean", 16))
    (place / "old/run.json").write_text('{"history": [1]}')

    def run(name, *flags):
        words = ["--init", place / "old", "--forms", place / "forms.txt", "--standard", place / "standard.txt"]
        words += ["--batch_tokens", 20, "--passes", 20, "--output", place / name, *flags]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(characters, "EVERY", 2)
            characters.main(*parse(later_wins([*map(str, words)]), characters.CharacterArguments))

    run("new", "--text", place / "text.txt")
    run("drawn", "--text", place / "text.txt", "--passes", 0)
    run("taken", "--like", place / "new")
    return place


def test_what_an_encoder_holds_stays_and_new_characters_differ(encoders):
    """Fails if figures of the old edition no longer hold, or two new characters have one row."""
    old, new, taken = (load_file(encoders / name / "model.safetensors") for name in ("old", "new", "taken"))
    (words,) = (name for name in old if name.endswith("word_embeddings.weight"))
    for name, weight in old.items():
        assert new[name].dtype == torch.float16 and torch.equal(new[name][: len(weight)], weight)
        assert torch.equal(taken[name], new[name]), "a model that has not moved"
    vocabulary = json.loads((encoders / "new/tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert len(vocabulary) == len(new[words]) and {"璟", "颢", "妤"} <= vocabulary.keys()
    assert "珺" not in vocabulary, "a standard character that does not occur"
    assert len(torch.unique(new[words], dim=0)) == len(new[words])

    before, after = (SentenceEncoder.from_pretrained(str(encoders / name)) for name in ("old", "new"))
    assert (before.encode(KNOWN) == after.encode(KNOWN)).all()
    names = ["陈璟", "陈颢"]
    assert before.similarity(*names) == pytest.approx(1) and after.similarity(*names) < 0.999
    same = after.encode(["國家ＡＢＣ", "国家abc"]), before.encode(["国家abc"] * 2)
    assert (same[0] == same[1]).all()
    check(encoders / "new")
    record = json.loads((encoders / "new/run.json").read_text(encoding="utf-8"))
    assert record["history"] == [1] and record["characters"]["windows"] == 4
    assert record["characters"]["after"]["old_loss"] > 0


def test_only_rows_that_are_read_move(encoders):
    """Fails if characters without a line drift together, or those with one are left as they were drawn."""
    drawn, new = (load_file(encoders / name / "model.safetensors") for name in ("drawn", "new"))
    (words,) = (name for name in drawn if name.endswith("word_embeddings.weight"))
    vocabulary = json.loads((encoders / "new/tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    moved = {token for token, row in vocabulary.items() if not torch.equal(drawn[words][row], new[words][row])}
    assert moved == {"璟"}


def test_every_reader_reads_alike(encoders, tmp_path):
    """Fails if transformers puts its own normaliser in place of that of tokenizer.json, or training loses it."""
    folder = encoders / "new"
    SentenceEncoder.from_pretrained(str(folder)).save_pretrained(tmp_path)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    readers = [AutoTokenizer.from_pretrained(path) for path in (folder, tmp_path)]
    for text, expected in {
        "ＡＢＣ國家，？": ["abc", "国", "家", "，", "？"],
        "昇升乾麼": ["[UNK]", "升", "乾", "么"],  # standard characters stay as they are
        "陈璟颢": ["陈", "璟", "颢"],
        "𠮷": ["[UNK]"],
    }.items():
        assert backend.encode(text, add_special_tokens=False).tokens == expected
        assert [reader.tokenize(text) for reader in readers] == [expected] * 2
    assert all("token_type_ids" in reader("好", "好") for reader in readers)
    names = [json.loads((path / "tokenizer_config.json").read_text())["tokenizer_class"] for path in (folder, tmp_path)]
    assert names == ["PreTrainedTokenizerFast"] * 2, "which transformers 4 knows too"
