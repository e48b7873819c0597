"""The student: what it may see, what it writes, what it saves, and who loads it."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, BertConfig, BertModel, RoFormerConfig, RoFormerForMaskedLM

from cosent.errors import InputError
from cosent.models import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.loading import keep_layers
from cosent.models.student import Sampling, Student, distinct, sample_tokens, unilm_mask, unwritable, write_targets

TEXTS = ["今天天气很好", "我", "推荐一辆红色的车给我"]
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


def test_the_mask_by_hand():
    """Fails if a source sees its target, a target its future, or a sequence its neighbour in the row."""
    segments = torch.tensor([[1, 1, 1, 1, 2, 2, 0]])
    types = torch.tensor([[0, 0, 1, 1, 0, 1, 0]])
    seen = [
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 1],
    ]
    expected = torch.where(torch.tensor(seen, dtype=torch.bool), 0.0, torch.finfo(torch.float32).min)
    mask = unilm_mask(segments, types)
    assert mask.shape == (1, 1, 7, 7) and mask.dtype == torch.float32  # RoFormer adds it: a bool or int one leaks
    assert torch.equal(mask[0, 0], expected)
    half = unilm_mask(torch.tensor([[0, 1, 1]]), torch.zeros(1, 3, dtype=torch.long), torch.bfloat16)
    assert half.isfinite().all() and half.dtype == torch.bfloat16  # padded on the left, as decoding does
    assert (half[0, 0] == 0).tolist() == [[True, False, False], [False, True, True], [False, True, True]]


def test_what_a_token_sees(student):
    """Fails if a logit that predicts target token k knows it, generation ignores the source, or the sentence vector
    depends on the target."""
    inputs = batch(student, [("怎么还款", "如何才能还款呢")])
    start = int(inputs["token_type_ids"][0].argmax())
    before = outputs_of(student, inputs)
    for k in range(len(before["logits"]) - 1):
        changed = inputs["input_ids"].clone()
        changed[0, start + k] = student.tokenizer.convert_tokens_to_ids("京")
        after = outputs_of(student, inputs | {"input_ids": changed})
        assert torch.equal(after["logits"][: k + 1], before["logits"][: k + 1])
        assert (after["logits"] - before["logits"])[k + 1 :].abs().amax(dim=1).min() > 1e-3  # later ones do see it
        assert torch.equal(after["embeddings"], before["embeddings"])
    other = outputs_of(student, batch(student, [("怎么借款", "如何才能还款呢")]))
    assert (before["logits"] - other["logits"]).abs().amax(dim=1).min() > 1e-3
    alone = torch.from_numpy(student.encode(["怎么还款"]))
    torch.testing.assert_close(before["embeddings"], alone, atol=1e-5, rtol=1e-5)


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


def test_one_folder_for_everyone(tiny_student, tmp_path):
    """Fails if a reload differs by a bit, or sentence-transformers, AutoModel or the bi-encoder read other vectors."""
    student = Student.from_pretrained(str(tiny_student), max_length=20).eval()
    student.save_pretrained(tmp_path)
    reloaded = Student.from_pretrained(str(tmp_path))
    assert reloaded.max_length == 20
    assert (reloaded.pooling.mode, len(reloaded.after_pooling)) == ("cls", 1)
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


LOGITS = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()


def shares(count: int = 1000, **parameters) -> list[float]:
    """Share of each token over evenly spaced random numbers."""
    uniform = (torch.arange(count) + 0.5) / count
    tokens = sample_tokens(LOGITS, uniform, torch.zeros(count, dtype=torch.long), **parameters)
    return (torch.bincount(tokens, minlength=4) / count).tolist()


@pytest.mark.parametrize(
    "parameters, expected",
    [
        ({"top_p": 1.0}, [0.15, 0.5, 0.05, 0.3]),
        ({"top_p": 0.7}, [0, 0.625, 0, 0.375]),  # 0.5 < 0.7 <= 0.8: two tokens, 5 : 3
        ({"top_p": 0.9}, [0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95]),
        ({"top_p": 0.1}, [0, 1, 0, 0]),
        ({"top_p": 1.0, "top_k": 2}, [0, 0.625, 0, 0.375]),
        ({"top_p": 1.0, "temperature": 0.5}, [0.0225 / 0.365, 0.25 / 0.365, 0.0025 / 0.365, 0.09 / 0.365]),
    ],
)
def test_shares_by_hand(parameters, expected):
    """Fails if the nucleus holds a token too many or too few, or shares are not the renormalised probabilities."""
    assert shares(**parameters) == pytest.approx(expected, abs=2e-3)
    certain = torch.tensor([[-torch.inf, 0.0, -torch.inf], [0.0, -torch.inf, -torch.inf]])
    ends = torch.tensor([0.0, 1 - 2**-24, 0.5])  # both ends of the random numbers, and another row
    assert sample_tokens(certain, ends, torch.tensor([0, 0, 1]), **parameters).tolist() == [1, 1, 0]


def full_logits(student: Student, source: list[int], target: list[int]) -> torch.Tensor:
    """Logits after the last token of `source + target`, by a forward pass over all of it."""
    ids = torch.tensor([source + target])
    types = torch.tensor([[0] * len(source) + [1] * len(target)])
    mask = unilm_mask(torch.ones_like(ids), types)
    with torch.no_grad():
        states = student.backbone(input_ids=ids, token_type_ids=types, attention_mask=mask).last_hidden_state
        return student.head(states[0, -1])


def naive(student: Student, source: list[int], sampling: Sampling) -> list[list[int]]:
    """What `write_targets` should give for a source, sample by sample and without a cache."""
    banned = unwritable(student.tokenizer, student.backbone.config.vocab_size)
    written = []
    for numbers in sampling.uniform():
        target = []
        for number in numbers:
            logits = full_logits(student, source, target).masked_fill(banned, -torch.inf)
            options = sampling.top_p, sampling.top_k, sampling.temperature
            token = int(sample_tokens(logits[None], number[None], torch.tensor([0]), *options))
            if token == student.tokenizer.sep_token_id:
                written.append(target)
                break
            target.append(token)
    return written


@pytest.fixture
def terse(student) -> Student:
    """A student that ends about every fifth sentence at each step, so that samples leave the batch at all times."""
    with torch.no_grad():
        student.head.predictions.transform.LayerNorm.weight.mul_(0.3)
        student.head.predictions.bias[student.tokenizer.sep_token_id] += 5
    return student


def test_samples_are_those_of_the_naive_loop(terse):
    """Fails if the cache, segment ids or positions of a step differ from what training saw, or a sample that ends, or
    shares a prefix, changes what the others become."""
    # Rounding would choose between many tokens of little probability; of 20, [SEP] is more likely.
    with torch.no_grad():
        terse.head.predictions.bias[terse.tokenizer.sep_token_id] -= 2.5
    sampling = Sampling(num_samples=8, top_p=0.9, top_k=20, temperature=0.8, max_length=8, seed=3)
    sources = terse.token_ids(TEXTS)
    expected = [naive(terse, source, sampling) for source in sources]
    assert [write_targets(terse, source, sampling) for source in sources] == expected
    ended = [len(target) for targets in expected for target in targets]
    assert len(ended) > 3 and len(set(ended)) > 2  # some early, some late


def test_seeds(terse):
    """Fails if a run cannot be repeated, depends on the global generator or dropout, or a text on its company."""
    together = terse.similar_sentences(TEXTS, num_samples=8, max_length=8)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    alone = [terse.similar_sentences([text], num_samples=8, max_length=8)[0] for text in TEXTS]
    assert torch.equal(torch.get_rng_state(), state)
    assert [[s for s, _ in group] for group in alone] == [[s for s, _ in group] for group in together]
    assert terse.similar_sentences(TEXTS, num_samples=8, max_length=8, seed=7) != together and all(together)
    terse.train()  # without dropout all the same, and back in this mode afterwards
    assert terse.similar_sentences(TEXTS, num_samples=8, max_length=8) == together and terse.training


def test_what_is_returned(terse):
    """Fails if candidates repeat, are unordered, too many, scored by another cosine, or a special token or a place of
    the vocabulary without one can be drawn."""
    (group,) = terse.similar_sentences(TEXTS[:1], num_samples=60, max_length=8, keep=10)
    sentences, scores = [s for s, _ in group], [score for _, score in group]
    assert 3 < len(group) <= 10 and len(set(sentences)) == len(sentences) and TEXTS[0] not in sentences
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx(terse.similarity([TEXTS[0]] * len(group), sentences).tolist(), abs=1e-5)
    assert terse.similar_sentences([]) == []
    vocabulary = len(terse.tokenizer)
    banned = unwritable(terse.tokenizer, vocabulary + 2)
    special = terse.tokenizer.convert_tokens_to_ids(["[PAD]", "[UNK]", "[CLS]", "[MASK]"])
    assert set(banned.nonzero().flatten().tolist()) == {*special, vocabulary, vocabulary + 1}


def test_options_that_make_no_sense(student):
    """Fails if a wrong value ends in a stack trace or is ignored."""
    for options, message in (
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"max_length": 127}, "need 130 positions"),
        ({"keep": 0}, "keep must be at least 1"),
    ):
        with pytest.raises(InputError, match=message):
            student.similar_sentences(["我"], **options)


def test_samples_that_are_left():
    """Fails if the source comes back in other spacing, case or punctuation, or Latin words run together."""
    samples = ["我 用 wifi 上 网", "我 用 WiFi 上 网", "", "怎 么 上 网", "怎 么 上 网 ？", "？", "上 网 用 wifi 吗"]
    assert distinct("怎么上网", samples) == ["我用wifi上网", "上网用wifi吗"]
    assert distinct("", [" 苹 果 iphone 13 pro 多 少 钱 ? "]) == ["苹果iphone 13 pro多少钱?"]


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


def test_published_checkpoints_load(published):
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
