"""The student: what it may see, what it saves, who loads it."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, BertConfig, BertModel, RoFormerConfig, RoFormerForMaskedLM

from cosent.errors import InputError
from cosent.models import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.loading import keep_layers
from cosent.models.student import Student

SENTENCES = ["今天天气很好", "我", "wifi 怎么连不上 2024 年的手机"]


@pytest.fixture
def student(tiny_student) -> Student:
    return Student.from_pretrained(str(tiny_student)).eval()


def batch(student: Student, pairs: list[tuple[str, str]], width: int | None = None) -> dict[str, torch.Tensor]:
    """`[CLS] source [SEP] target [SEP]` of each pair, padded on the right to `width` tokens."""
    encoded = student.tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt")
    more = 0 if width is None else width - encoded["input_ids"].shape[1]
    return {name: torch.nn.functional.pad(tensor, (0, more)) for name, tensor in encoded.items()}


def outputs_of(student: Student, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What `forward` gives, and the logits and labels behind it."""
    logits, labels, _ = student.predict_targets(
        student.unilm_states(**inputs), inputs["input_ids"], inputs["token_type_ids"]
    )
    return student(**inputs) | {"logits": logits, "labels": labels}


def test_no_token_sees_its_future(student):
    """Fails if changing target token k changes a logit that predicts token k or an earlier one."""
    inputs = batch(student, [("怎么还款", "如何才能还款呢")])
    start = int(inputs["token_type_ids"][0].argmax())
    before = outputs_of(student, inputs)["logits"]
    for k in range(len(before) - 1):
        changed = inputs["input_ids"].clone()
        changed[0, start + k] = student.tokenizer.convert_tokens_to_ids("京")
        after = outputs_of(student, inputs | {"input_ids": changed})["logits"]
        assert torch.equal(after[: k + 1], before[: k + 1])
        assert (after[k + 1 :] - before[k + 1 :]).abs().amax(dim=1).min() > 1e-3  # and later ones do see it


@pytest.mark.parametrize("pooling", ["linear_cls", "mean"])
def test_the_target_sees_the_source_and_never_the_reverse(tiny_student, pooling):
    """Fails if generation ignores the source, or the sentence vector depends on the target."""
    student = Student.from_pretrained(str(tiny_student), pooling=pooling).eval()
    one = outputs_of(student, batch(student, [("怎么还款", "如何还款")]))
    other_source = outputs_of(student, batch(student, [("怎么借款", "如何还款")]))
    other_target = outputs_of(student, batch(student, [("怎么还款", "天气很好")]))
    assert (one["logits"] - other_source["logits"]).abs().amax(dim=1).min() > 1e-3
    assert torch.equal(one["embeddings"], other_target["embeddings"])
    alone = torch.from_numpy(student.encode(["怎么还款"]))
    torch.testing.assert_close(one["embeddings"], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("packing", [True, False])
def test_padding_and_packing_change_nothing(student, packing):
    """Fails if a short pair comes out differently beside a long one, in wider rows, or packed."""
    pairs = [("怎么还款", "如何还款"), ("好", "今天的天气真的非常非常好呀好呀"), ("我" * 30, "你"), ("红", "绿")]
    student.packing = False
    alone = [outputs_of(student, batch(student, [pair])) for pair in pairs]
    student.packing = packing
    together = outputs_of(student, batch(student, pairs, width=90))
    for name in ("embeddings", "logits"):
        expected = torch.cat([outputs[name] for outputs in alone])
        torch.testing.assert_close(together[name], expected, atol=2e-5, rtol=1e-4)
    assert torch.equal(together["labels"], torch.cat([outputs["labels"] for outputs in alone]))


def test_the_loss_of_a_target_by_hand(student):
    """Fails if the cross entropy is shifted by a token, counts the source, leaves out the end of a sentence, breaks on
    text without a target, or a weight gets no gradient, which DistributedDataParallel would wait for."""
    inputs = batch(student, [("怎么还款", "如何还款"), ("好", "今天天气很好"), ("好", "好")])
    inputs["attention_mask"][2, 3:] = inputs["token_type_ids"][2, 3:] = 0  # unlabelled
    outputs = outputs_of(student, inputs)
    each = -outputs["logits"].double().log_softmax(-1)[torch.arange(12), outputs["labels"]]
    assert student.tokenizer.convert_ids_to_tokens(outputs["labels"][:5]) == ["如", "何", "还", "款", "[SEP]"]
    assert outputs["target_tokens"].tolist() == [5, 7, 0] and outputs["embeddings"].shape == (3, 32)
    expected = [each[:5].sum().item(), each[5:].sum().item(), 0]
    assert outputs["target_losses"].tolist() == pytest.approx(expected, rel=1e-5)
    (outputs["embeddings"].sum() + outputs["target_losses"].sum()).backward()
    assert not [name for name, weight in student.named_parameters() if weight.requires_grad and weight.grad is None]


@pytest.mark.parametrize("pooling", ["linear_cls", "mean"])
def test_one_folder_for_everyone(student, tiny_student, tmp_path, pooling):
    """Fails if a reload differs by a bit, or sentence-transformers, AutoModel or the bi-encoder read other vectors."""
    student = Student.from_pretrained(str(tiny_student), pooling=pooling, max_length=20).eval()
    student.save_pretrained(tmp_path)
    reloaded = Student.from_pretrained(str(tmp_path))
    assert reloaded.max_length == 20
    expected = ("cls", 1) if pooling == "linear_cls" else ("mean", 0)
    assert (reloaded.pooling.mode, len(reloaded.after_pooling)) == expected
    weights = reloaded.state_dict()
    for name, value in student.state_dict().items():
        assert torch.equal(weights[name], value), name
    assert reloaded.head.predictions.decoder.weight is reloaded.backbone.embeddings.word_embeddings.weight

    vectors = torch.from_numpy(student.encode(SENTENCES))
    theirs = SentenceTransformer(str(tmp_path), device="cpu").encode(SENTENCES, convert_to_tensor=True)
    torch.testing.assert_close(theirs, vectors, atol=2e-6, rtol=0)
    bi_encoder = SentenceEncoder.from_pretrained(str(tmp_path))
    assert torch.equal(torch.from_numpy(bi_encoder.encode(SENTENCES)), vectors)
    name = "encoder.layer.1.output.dense.bias"
    assert torch.equal(AutoModel.from_pretrained(tmp_path).state_dict()[name], weights[f"backbone.{name}"])
    head = AutoModelForMaskedLM.from_pretrained(tmp_path).cls.predictions
    assert torch.equal(head.bias, weights["head.predictions.bias"])


@pytest.fixture
def published(tmp_path, tiny_student):
    """A stand-in for `junnyu/roformer_chinese_sim_char_small`: its keys and shapes, at a tenth of the vocabulary.

    Kept in the file are what transformers' class has no place for (the pooler), and what old versions of it wrote
    (the sines of the positions, a decoder of its own); its config calls it a decoder and names no embedding size.
    """
    hidden, vocabulary = 384, 1200
    sizes = {"vocab_size": vocabulary, "hidden_size": hidden, "num_attention_heads": 6, "intermediate_size": 1536}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 512}  # 6 layers in the original
    generator, weights = torch.Generator().manual_seed(1), {}
    for name, value in RoFormerForMaskedLM(RoFormerConfig(**sizes)).state_dict().items():
        random = torch.randn(value.shape, generator=generator) * 0.05
        weights[name] = value if "embed_positions" in name else random
    weights["cls.predictions.decoder.weight"] = weights["roformer.embeddings.word_embeddings.weight"]
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
    weights["roformer.pooler.dense.weight"] = torch.randn(hidden, hidden, generator=generator) * 0.05
    weights["roformer.pooler.dense.bias"] = torch.randn(hidden, generator=generator)
    folder = tmp_path / "published"
    folder.mkdir()
    torch.save(weights, folder / "pytorch_model.bin")
    others = {"eos_token_id": 102, "pooler_activation": "linear", "architectures": ["RoFormerForCausalLM"]}
    RoFormerConfig(is_decoder=True, **sizes, **others).save_pretrained(folder)
    characters = [chr(0x4E00 + index) for index in range(vocabulary - 103)]
    tokens = ["[PAD]", *(f"[unused{index}]" for index in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", *characters]
    tokens[99] = "[MASK]"
    (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    return folder, weights


def test_published_checkpoints_load(published, tmp_path):
    """Fails if RoFormer-Sim's pooler is lost, its tokenizer asks for rjieba, or its config makes it causal."""
    folder, weights = published
    student = Student.from_pretrained(str(folder), max_length=64).eval()
    assert torch.equal(student.after_pooling[0].linear.weight, weights["roformer.pooler.dense.weight"])
    assert torch.equal(student.after_pooling[0].linear.bias, weights["roformer.pooler.dense.bias"])
    head = student.head.predictions.transform.dense
    assert torch.equal(head.weight, weights["cls.predictions.transform.dense.weight"])
    name = "encoder.layer.1.attention.self.query.weight"
    assert torch.equal(student.backbone.state_dict()[name], weights[f"roformer.{name}"])
    assert student.tokenizer.tokenize("一丁不") == ["一", "丁", "不"]

    states = student.backbone(input_ids=torch.tensor([[101, 110, 111, 102]])).last_hidden_state
    pooled = states[0, 0] @ weights["roformer.pooler.dense.weight"].T + weights["roformer.pooler.dense.bias"]
    text = "".join(student.tokenizer.convert_ids_to_tokens([110, 111]))
    torch.testing.assert_close(torch.from_numpy(student.encode([text])[0]), pooled.detach(), atol=1e-5, rtol=1e-4)
    # bidirectional: the first token's vector knows the last one
    other = student.backbone(input_ids=torch.tensor([[101, 110, 150, 102]])).last_hidden_state
    assert (states[0, 0] - other[0, 0]).abs().max() > 1e-4

    # As a teacher, or in `encode` and `evaluate`, it is the same model.
    encoder = load_model(str(folder))
    np.testing.assert_allclose(encoder.encode([text, "一丁"]), student.encode([text, "一丁"]), atol=1e-5)

    student.save_pretrained(tmp_path / "saved")
    again = Student.from_pretrained(str(tmp_path / "saved"))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in student.state_dict().items())


def test_what_is_refused(published, tiny_model, tmp_path):
    """Fails if a word-level RoFormer is read by character, a BERT becomes a student that cannot write, or a wrong name
    ends in a stack trace."""
    folder, _ = published
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    (folder / "vocab.txt").write_text("\n".join([*lines[:-1], "微信"]), encoding="utf-8")
    (tmp_path / "empty").mkdir()
    cases = {folder: "rjieba", tiny_model: "bert model", tmp_path / "empty": "cannot be read"}
    for place, message in cases.items():
        with pytest.raises(InputError, match=message):
            Student.from_pretrained(str(place))


def test_a_smaller_student_out_of_a_larger_one(tiny_student):
    """Fails if dropped layers leave holes in the KV cache, or the folder of a small student does not load."""
    student, whole = (Student.from_pretrained(str(tiny_student)).eval() for _ in range(2))
    keep_layers(student.backbone, 1)
    assert len(student.backbone.encoder.layer) == student.backbone.config.num_hidden_layers == 1
    name = "output.dense.weight"
    first, expected = (one.backbone.encoder.layer[0].state_dict()[name] for one in (student, whole))
    assert torch.equal(first, expected)
    assert len(student.similar_sentences(["好"], num_samples=2, max_length=4)) == 1
    with pytest.raises(InputError, match="--student_layers 3.* 2 layers"):
        keep_layers(whole.backbone, 3)
    model = BertModel(BertConfig(num_hidden_layers=4, hidden_size=8, num_attention_heads=2, intermediate_size=8))
    before = list(model.encoder.layer)
    keep_layers(model, 2)
    assert list(model.encoder.layer) == [before[0], before[3]] and model.config.num_hidden_layers == 2
    numbers = [{m.layer_idx for m in layer.modules() if hasattr(m, "layer_idx")} for layer in model.encoder.layer]
    assert numbers == [{0}, {1}]
