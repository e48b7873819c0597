"""Runs of studies, which several tests look at."""

from functools import cache

from cosent.comparing.runs import Run, expand
from lab.study import study_named


@cache
def runs_of(name: str) -> list[Run]:
    """All runs of a study of the lab or a shipped one."""
    return expand(study_named(name), {})
