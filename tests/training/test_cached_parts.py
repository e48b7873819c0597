"""Parts of cached batches: a size of their own, and the largest one that fits into memory."""

import pytest
import torch

from cosent.compute.grad_cache import DoesNotFit, fits_everywhere, is_out_of_memory
from cosent.errors import InputError
from cosent.models.bi_encoder import BiEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.record import read_record
from cosent.training.arguments import PairTrainingArguments
from cosent.training.caching import CachedParts, sizes
from tests.support.launching import WITHIN_EPOCHS, history

TOWERS = {"bi_encoder": BiEncoder, "cross_encoder": CrossEncoder}
AUTO = ("--cached_part_size", "auto")


@pytest.fixture
def corpus(make_corpus, pairs):
    return make_corpus({"train": pairs[:48], "validation": pairs[:32]})


@pytest.fixture
def memory(monkeypatch):
    """Returns a function that lets training run out of memory on more than `pairs` pairs; it returns what was tried.

    Args of the function:
        tower: the model that it happens in.
        after: number of forward passes of training that still succeed with any number of pairs.
        backward: whether it happens in the backward pass.
    """

    def bounded(tower: str, pairs: int, after: int = 0, backward: bool = False) -> list[int]:
        model, tried = TOWERS[tower], []
        original = model.forward

        def forward(self, input_ids, **inputs):
            outputs = original(self, input_ids, **inputs)
            if self.training:
                tried.append(len(input_ids))
                if len(tried) > after and len(input_ids) > pairs:
                    if not backward:
                        raise torch.OutOfMemoryError("CUDA out of memory.")
                    if torch.is_grad_enabled():
                        outputs["scores"].register_hook(fail)
            return outputs

        monkeypatch.setattr(model, "forward", forward)
        return tried

    def fail(gradient):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    return bounded


def weights(folder, step=None):
    return (folder / (f"checkpoint-{step}" if step else "") / "model.safetensors").read_bytes()


def losses(folder):
    return history(folder, "loss"), history(folder, "grad_norm")


@pytest.mark.parametrize(
    ("tower", "backward"),
    [("bi_encoder", False), ("cross_encoder", True)]
    + [pytest.param(*case, marks=pytest.mark.slow) for case in (("bi_encoder", True), ("cross_encoder", False))],
)
def test_a_batch_that_does_not_fit_is_repeated_in_parts(train, corpus, memory, tower, backward):
    """Fails if running out of memory loses a step, leaves half of its gradients behind, or draws other dropout."""
    flags = ("--tower", tower, "--dropout", "0.2", "--per_device_train_batch_size")
    fixed = train(corpus, *flags, "6", "--cached_batch_size", "24", output="fixed")
    tried = memory(tower, 6, backward=backward)
    found = train(corpus, *flags, "24", *AUTO, output="found")
    assert weights(found) == weights(fixed) and losses(found) == losses(fixed)
    assert tried[:2] == [24, 12] and max(tried[5:]) == 6, "24 -> 12 -> 6"
    assert history(found, "cached_part_size") == [12, 6]
    assert read_record(found).cached_part_size == read_record(fixed).cached_part_size == 6


def test_what_fits_costs_nothing_and_changes_nothing(train, corpus, memory):
    """Fails if `auto` runs forward twice where memory suffices, or trains otherwise than without it."""
    flags = ("--per_device_train_batch_size", "24", "--dropout", "0.2")
    plain = train(corpus, *flags, output="plain")
    tried = memory("bi_encoder", 24)
    found = train(corpus, *flags, *AUTO, output="found")
    assert weights(found) == weights(plain) and losses(found) == losses(plain)
    assert tried == [24] * 4 and history(found, "cached_part_size") == []


def test_a_resumed_run_begins_with_the_size_that_fitted(train, corpus, memory):
    """Fails if every restart runs out of memory anew, or the checkpoint does not lead to the same weights."""
    flags = ("--cached_batch_size", "24", *AUTO, "--dropout", "0.2", *WITHIN_EPOCHS)
    memory("bi_encoder", 12)
    whole = train(corpus, *flags, output="whole")
    tried = memory("bi_encoder", 12)
    resumed = train(corpus, *flags, "--resume_from_checkpoint", str(whole / "checkpoint-3"), output="resumed")
    assert tried == [12, 12, 12], "two parts forward, one of them again"
    assert weights(resumed) == weights(whole)


def test_not_even_one_pair_fits(train, corpus, memory):
    """Fails if the search goes on for ever, or ends in a traceback that helps nobody."""
    memory("bi_encoder", 0)
    with pytest.raises(InputError, match="--cached_part_size auto.*--max_length"):
        train(corpus, *AUTO, "--eval_strategy", "no")


def test_other_errors_are_no_lack_of_memory(train, corpus, monkeypatch):
    """Fails if a mistake in a model is retried with ever smaller parts, and then reported as something else."""
    monkeypatch.setattr(BiEncoder, "forward", lambda self, **inputs: 1 / 0 if self.training else None)
    with pytest.raises((ZeroDivisionError, TypeError)):
        train(corpus, *AUTO, "--eval_strategy", "no")
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."))
    assert is_out_of_memory(MemoryError()) and is_out_of_memory(torch.OutOfMemoryError("HIP"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(KeyError), fits_everywhere():
        raise KeyError("memory")
    with pytest.raises(DoesNotFit), fits_everywhere():
        raise MemoryError


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed"])
def test_auto_under_sharding_is_refused(tmp_path, monkeypatch, strategy):
    """Fails if one process runs out of memory within a part, and the others wait for its shards for ever."""
    args = PairTrainingArguments(output_dir=str(tmp_path), use_cpu=True, cached_part_size="auto", eval_strategy="no")
    monkeypatch.setenv(f"ACCELERATE_USE_{strategy.upper()}", "true")
    with pytest.raises(InputError, match=f"--cached_part_size auto .*{strategy}.*--per_device_train_batch_size"):
        CachedParts(args)


def test_how_the_three_flags_go_together(tmp_path):
    """Fails if a part is larger than its batch, the pairs that are compared depend on it, or nonsense is accepted."""

    def args(**flags):
        return PairTrainingArguments(output_dir=str(tmp_path), use_cpu=True, eval_strategy="no", **flags)

    sized = [
        ((24, None, "auto"), (24, 24)),
        ((8, 64, None), (64, 8)),
        ((7, 64, "auto"), (64, 64)),
    ]
    for (rows, batch, part), expected in sized:
        found = sizes(args(per_device_train_batch_size=rows, cached_batch_size=batch, cached_part_size=part))
        assert found == expected
