"""A student's generation: the mask, sampling by hand, the cache against full forward passes, and the ranking."""

import numpy as np
import pytest
import torch

from cosent.errors import InputError
from cosent.models import decoding
from cosent.models.decoding import (
    Sampling,
    distinct,
    next_states,
    rank_candidates,
    read_sources,
    remove_token_spaces,
    sample_tokens,
    unilm_mask,
    write_targets,
)
from cosent.models.student import Student

LOW = torch.finfo(torch.float32).min
LOGITS = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()
TEXTS = ["今天天气很好", "我", "推荐一辆红色的车给我"]


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
    expected = torch.where(torch.tensor(seen, dtype=torch.bool), 0.0, LOW)
    mask = unilm_mask(segments, types)
    assert mask.shape == (1, 1, 7, 7) and mask.dtype == torch.float32  # RoFormer adds it: a bool or int one leaks
    assert torch.equal(mask[0, 0], expected)
    half = unilm_mask(torch.tensor([[0, 1, 1]]), torch.zeros(1, 3, dtype=torch.long), torch.bfloat16)
    assert half.isfinite().all() and half.dtype == torch.bfloat16  # padded on the left, as decoding does
    assert (half[0, 0] == 0).tolist() == [[True, False, False], [False, True, True], [False, True, True]]


def shares(count: int = 1000, **parameters) -> list[float]:
    """Share of each token over evenly spaced random numbers."""
    uniform = (torch.arange(count) + 0.5) / count
    tokens = sample_tokens(LOGITS.expand(count, -1), uniform, **parameters)
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


def test_draws_that_share_rows(monkeypatch):
    """Fails if a draw is made from another row than its own, or looking at the most likely tokens first changes it."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 50, generator=generator) * torch.linspace(0, 6, 40)[:, None]
    rows = torch.cat([torch.arange(40), torch.randint(40, (160,), generator=generator)])
    uniform = torch.rand(200, generator=generator)
    expected = sample_tokens(logits[rows], uniform)  # 64 candidates, more than there are tokens
    monkeypatch.setattr(decoding, "TOKENS_TRIED", (8, 20))  # some rows are looked at a second time
    assert torch.equal(sample_tokens(logits, uniform, rows=rows), expected)
    assert torch.equal(sample_tokens(logits[rows], uniform), expected)
    certain = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(2, -1)  # at either end of the random numbers
    assert sample_tokens(certain, torch.tensor([0.0, 1 - 2**-24]), top_p=1.0).tolist() == [1, 1]


@pytest.fixture
def student(tiny_student) -> Student:
    return Student.from_pretrained(str(tiny_student)).eval()


def full_logits(student: Student, source: list[int], target: list[int]) -> torch.Tensor:
    """Logits after the last token of `source + target`, by a forward pass over all of it."""
    ids = torch.tensor([source + target])
    types = torch.tensor([[0] * len(source) + [1] * len(target)])
    mask = unilm_mask(torch.ones_like(ids), types)
    with torch.no_grad():
        states = student.backbone(input_ids=ids, token_type_ids=types, attention_mask=mask).last_hidden_state
        return student.head(states[0, -1])


def test_cached_logits_are_those_of_a_full_forward(student):
    """Fails if left padding, the cache, segment ids or positions of a step differ from what training saw."""
    sources = student.token_ids(TEXTS)
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(110, 4000, (len(sources), 12), generator=generator)
    with torch.no_grad():
        states, cache, visible = read_sources(student, sources)
        for step in range(targets.shape[1] + 1):
            logits = student.head(states)
            for row, source in enumerate(sources):
                expected = full_logits(student, source, targets[row, :step].tolist())
                torch.testing.assert_close(logits[row], expected, atol=1e-4, rtol=1e-4)
            if step < targets.shape[1]:
                visible = torch.nn.functional.pad(visible, (0, 1))
                states = next_states(student, targets[:, step], cache, visible)
    assert logits.std() > 0.5  # of what was compared


def naive(student: Student, source: list[int], sampling: Sampling) -> list[list[int]]:
    """What `write_targets` should give for a source, sample by sample and without a cache."""
    banned = decoding.unwritable(student.tokenizer, student.backbone.config.vocab_size)
    written = []
    for numbers in sampling.uniform():
        target = []
        for number in numbers:
            logits = full_logits(student, source, target).masked_fill(banned, -torch.inf)
            token = int(sample_tokens(logits[None], number[None], sampling.top_p, sampling.top_k, sampling.temperature))
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


@pytest.mark.parametrize("room", [2**30, 1])
def test_samples_are_those_of_the_naive_loop(terse, monkeypatch, room):
    """Fails if a sample that leaves the batch, or a source in another chunk, changes what the others become."""
    monkeypatch.setitem(decoding.CACHE_BYTES, "cpu", room)
    # Rounding would choose between many tokens of little probability; of 20, [SEP] is more likely.
    with torch.no_grad():
        terse.head.predictions.bias[terse.tokenizer.sep_token_id] -= 2.5
    sampling = Sampling(num_samples=8, top_p=0.9, top_k=20, temperature=0.8, max_length=8, seed=3)
    sources = terse.token_ids(TEXTS)
    expected = [naive(terse, source, sampling) for source in sources]
    assert write_targets(terse, sources, sampling) == expected
    ended = [len(target) for targets in expected for target in targets]
    assert len(ended) > 3 and len(set(ended)) > 2  # some early, some late


def test_a_prefix_is_computed_once(terse, monkeypatch):
    """Fails if samples that have begun alike are computed apart, or rows stay after their last sample has ended."""
    computed = []

    def counting(model, drawn, *rest):
        computed.append(len(drawn))
        return next_states(model, drawn, *rest)

    monkeypatch.setattr(decoding, "next_states", counting)
    sampling = Sampling(num_samples=200, top_k=8, max_length=64)
    written = write_targets(terse, terse.token_ids(TEXTS), sampling)
    assert [len(group) for group in written] == [200] * len(TEXTS)  # all have come to an end
    targets = [(source, target) for source, group in enumerate(written) for target in group]
    prefixes = {(source, *target[:length]) for source, target in targets for length in range(1, len(target) + 1)}
    assert 0 < sum(computed) == len(prefixes) < 0.9 * sum(len(target) for _, target in targets)


def test_seeds(terse):
    """Fails if a run cannot be repeated, depends on the global generator or dropout, or a text on its company."""
    together = terse.similar_sentences(TEXTS, num_samples=20, max_length=8)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    alone = [terse.similar_sentences([text], num_samples=20, max_length=8)[0] for text in TEXTS]
    assert torch.equal(torch.get_rng_state(), state)
    assert [[s for s, _ in group] for group in alone] == [[s for s, _ in group] for group in together]
    assert terse.similar_sentences(TEXTS, num_samples=20, max_length=8, seed=7) != together and all(together)
    terse.train()  # without dropout all the same, and back in this mode afterwards
    assert terse.similar_sentences(TEXTS, num_samples=20, max_length=8) == together and terse.training


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
    banned = decoding.unwritable(terse.tokenizer, vocabulary + 2)
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


def test_ranking_by_hand():
    """Fails if candidates are scored against another text, cut before sorting, the source comes back in other spacing,
    case or punctuation, or Latin words run together."""
    vectors = {"a": [1, 0], "b": [0, 1], "p": [0.6, 0.8], "q": [0.8, 0.6], "r": [1, 0]}

    class Encoder:
        def encode(self, sentences, normalize_embeddings):
            return np.array([vectors[sentence] for sentence in sentences], dtype=np.float32)

    ranked = rank_candidates(Encoder(), ["a", "b"], [["p", "q", "r", "q"], ["q", "p"]], 2)
    assert [[sentence for sentence, _ in group] for group in ranked] == [["r", "q"], ["p", "q"]]
    np.testing.assert_allclose([score for group in ranked for _, score in group], [1, 0.8, 0.8, 0.6], rtol=1e-6)
    samples = ["我 用 wifi 上 网", "我 用 WiFi 上 网", "", "怎 么 上 网", "怎 么 上 网 ？", "？", "上 网 用 wifi 吗"]
    assert distinct("怎么上网", samples) == ["我用wifi上网", "上网用wifi吗"]
    assert remove_token_spaces(" 苹 果 iphone 13 pro 多 少 钱 ? ") == "苹果iphone 13 pro多少钱?"
