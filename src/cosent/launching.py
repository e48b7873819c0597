"""How a job was launched; without torch, so that light jobs answer at once."""

import os

from cosent.schema import InputError


def check_world_size(processes: int = 1) -> None:
    """Refuses processes that were launched together and do not know of each other.

    Args:
        processes: how many this job sees; 1 for a job that is not made for more.

    Raises:
        InputError: the launcher's WORLD_SIZE is another number.
    """
    launched = int(os.environ.get("WORLD_SIZE", 1))
    if launched != processes:
        raise InputError(
            f"{launched} processes were launched, and this job sees {processes}: each would do all of the work and "
            "write the same files. On a CPU set ACCELERATE_USE_CPU=true and distributed_type MULTI_GPU; start jobs "
            "that do not share out their work with plain python."
        )
