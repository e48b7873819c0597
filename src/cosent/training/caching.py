"""Sizes of the parts of cached batches: fixed, or the largest that fit into memory."""

import logging
from collections.abc import Callable

from accelerate.utils.memory import clear_device_cache
from torch import Tensor
from transformers import TrainerCallback

from cosent.compute.grad_cache import DoesNotFit, random_state, set_random_state
from cosent.errors import InputError
from cosent.training.arguments import PairTrainingArguments
from cosent.training.sharding import launched_with

logger = logging.getLogger(__name__)

LOGGED = "cached_part_size"


class CachedParts(TrainerCallback):
    """Runs cached batches in parts; with `auto`, in the largest ones that fit into the memory of every device.

    `auto` begins with the batch as a whole. When any process runs out of memory, all forget what they have computed for
    this batch and repeat it in parts of half the size, from the same random state: the result is that of a run with
    parts of this size, bit for bit on a CPU. A resumed run takes the size from its log.
    """

    def __init__(self, args: PairTrainingArguments):
        self.batch, self.pairs = sizes(args)  # per device
        self.auto = args.cached_part_size is not None
        if self.auto and launched_with() is not None:
            raise InputError(
                f"--cached_part_size auto does not work under {launched_with()}. Lower --per_device_train_batch_size."
            )

    def on_train_begin(self, args, state, control, **kwargs):
        earlier = [entry[LOGGED] for entry in state.log_history if LOGGED in entry]
        if self.auto and earlier:
            self.pairs = earlier[-1]

    def run(self, step: Callable[[int], Tensor], forget: Callable[[], None], log: Callable[[dict], None], pairs: int):
        """Runs a batch of `pairs` pairs per device.

        Args:
            step: pairs of a part -> the result of the batch; raises `DoesNotFit` on all processes or on none.
            forget: undoes what an interrupted `step` has left behind.
            log: takes an entry for the log of the run.
        """
        start = random_state()
        while True:
            try:
                return step(self.pairs)
            except DoesNotFit as error:
                reason = str(error)  # no more of it: the error keeps what it interrupted in memory
            tried = min(self.pairs, pairs)
            if tried == 1:
                raise InputError(
                    f"--cached_part_size auto: out of memory with a single pair at a time ({reason}). Lower "
                    "--max_length, or add --activation_checkpointing true."
                )
            self.pairs = (tried + 1) // 2
            forget()
            set_random_state(start)
            clear_device_cache(garbage_collection=True)
            logger.info("out of memory with %d pairs at a time: the batch is repeated with %d.", tried, self.pairs)
            log({LOGGED: self.pairs})


def sizes(args: PairTrainingArguments) -> tuple[int, int]:
    """Pairs per device of a batch, and of its parts or, for `auto`, the largest parts to try."""
    part, auto = args.per_device_train_batch_size, args.cached_part_size is not None
    if args.cached_batch_size is None:
        return part, part
    step = args.world_size * (1 if auto else part)
    if args.cached_batch_size < 1 or args.cached_batch_size % step:
        raise InputError(f"--cached_batch_size must be a multiple of {step}, got {args.cached_batch_size}.")
    batch = args.cached_batch_size // args.world_size
    return batch, batch if auto else part
