"""docs/cli.md says what `--help` says."""

from importlib import import_module

from benchmarks.cli_reference import PAGE, page
from cosent.cli import JOBS, flags_of, is_of_library


def test_the_page_is_current():
    """Fails if a flag was added or changed and docs/cli.md was not: run `make tables`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_flag_is_on_the_page():
    """Fails if a job or a flag of this project is left out, or a page lists all of transformers' flags."""
    sections = dict(part.split("\n", 1) for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:])
    assert set(sections) == {
        *(f"cosent {job}" for job in JOBS),
        *(f"python -m data_scripts.{n}" for n in ("prepare", "audit")),
    }
    for job in JOBS:
        flags = flags_of(*import_module(f"cosent.{job}").ARGUMENTS).values()
        ours = [flag for flag in flags if not is_of_library(flag.owner)]
        assert ours
        for flag in ours:
            spelling = flag.name.upper() if flag.positional else f"--{flag.name} "
            assert f"\n  {spelling}" in sections[f"cosent {job}"], flag.name
    assert "\n  --torch_compile " not in sections["cosent train"]
    assert "\n  --label_kind {binary,graded,nli,scores}" in sections["python -m data_scripts.prepare"]
