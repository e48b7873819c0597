"""Writing with a cache: the same numbers as without one, for any company in the batch."""

import pytest
import torch

from cosent.errors import InputError
from cosent.student import decoding
from cosent.student.attention_mask import unilm_mask
from cosent.student.decoding import Sampling, next_states, read_sources, write_targets
from cosent.student.model import Student
from cosent.student.sampling import sample_tokens

TEXTS = ["今天天气很好", "我", "推荐一辆红色的车给我"]


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
    sources = student.tokenize_sources(TEXTS, [], [])
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
    sources = terse.tokenize_sources(TEXTS, [], [])
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
    written = write_targets(terse, terse.tokenize_sources(TEXTS, [], []), sampling)
    assert [len(group) for group in written] == [200] * len(TEXTS)  # all have come to an end
    targets = [(source, target) for source, group in enumerate(written) for target in group]
    prefixes = {(source, *target[:length]) for source, target in targets for length in range(1, len(target) + 1)}
    assert 0 < sum(computed) == len(prefixes) < 0.9 * sum(len(target) for _, target in targets)


def test_writing_is_done_without_dropout_and_leaves_the_mode(terse):
    """Fails if dropout changes what is written, or training goes on without it afterwards."""
    sources, sampling = terse.tokenize_sources(TEXTS, [], []), Sampling(num_samples=8, max_length=8)
    expected = write_targets(terse, sources, sampling)
    terse.train()
    assert write_targets(terse, sources, sampling) == expected and terse.training


def test_what_is_never_written(student):
    """Fails if [MASK], [CLS] or a place of the vocabulary without a token can be drawn, or [SEP] cannot."""
    vocabulary = len(student.tokenizer)
    banned = decoding.unwritable(student.tokenizer, vocabulary + 3)
    special = student.tokenizer.convert_tokens_to_ids(["[PAD]", "[UNK]", "[CLS]", "[MASK]"])
    assert set(banned.nonzero().flatten().tolist()) == {*special, vocabulary, vocabulary + 1, vocabulary + 2}


def test_seeds(terse):
    """Fails if a run cannot be repeated, depends on the global generator, or a text on its company."""
    together = terse.similar_sentences(TEXTS, num_samples=20, max_length=8)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    alone = [terse.similar_sentences([text], num_samples=20, max_length=8)[0] for text in TEXTS]
    assert torch.equal(torch.get_rng_state(), state)
    assert [[s for s, _ in group] for group in alone] == [[s for s, _ in group] for group in together]
    assert terse.similar_sentences(TEXTS, num_samples=20, max_length=8, seed=7) != together
    assert all(together)


def test_what_is_returned(terse):
    """Fails if candidates repeat, hold special tokens, are unordered, too many, or scored by another cosine."""
    (found,) = terse.similar_sentences(TEXTS[:1], num_samples=60, max_length=8, keep=10)
    sentences, scores = [s for s, _ in found], [score for _, score in found]
    assert 3 < len(found) <= 10 and len(set(sentences)) == len(sentences) and TEXTS[0] not in sentences
    assert scores == sorted(scores, reverse=True) and not any("[" in sentence for sentence in sentences)
    assert scores == pytest.approx(terse.similarity([TEXTS[0]] * len(found), sentences).tolist(), abs=1e-5)
    assert terse.similar_sentences([]) == []


def test_masked_strings_are_not_seen(student):
    """Fails if a masked string still shapes what is written, or masking loses the tokens around it."""
    one, other = (
        student.tokenize_sources(["推荐红车给我"], [], ["红车"]),
        student.tokenize_sources(["推荐绿树给我"], [], ["绿树"]),
    )
    assert one == other
    tokens = student.tokenizer.convert_ids_to_tokens(one[0])
    assert tokens == ["[CLS]", "推", "荐", "[MASK]", "[MASK]", "给", "我", "[SEP]"]
    several = student.tokenize_sources(["用K和M的微信S好吗"], [], ["微信", "S", "信"])
    tokens = student.tokenizer.convert_ids_to_tokens(several[0])
    assert tokens[5:] == ["的", *["[MASK]"] * 3, "好", "吗", "[SEP]"]
    with pytest.raises(InputError, match="does not contain '蓝'"):
        student.similar_sentences(["红车"], mask_tokens=["蓝"])


@pytest.mark.parametrize(
    "options, words",
    [
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"num_samples": 0}, "num_samples must be at least 1"),
        ({"max_length": 127}, "need 130 positions"),
        ({"keep_tokens": ["车"]}, "does not contain '车'"),
        ({"keep": 0}, "keep must be at least 1"),
    ],
)
def test_options_that_make_no_sense(student, options, words):
    """Fails if a wrong value ends in a stack trace or is ignored."""
    with pytest.raises(InputError, match=words):
        student.similar_sentences(["我"], **options)


def test_one_string_is_no_list(student):
    """Fails if a sentence is taken for a list of its characters."""
    with pytest.raises(InputError, match="got one string"):
        student.similar_sentences("今天")
