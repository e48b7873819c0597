"""Write docs/cli.md from the `--help` of every job and of the programs that prepare data.

python -m benchmarks.cli_reference
"""

import contextlib
import io
import os
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

from cosent.cli import JOBS, parser

PAGE = Path(__file__).parents[1] / "docs/cli.md"
PROGRAMS = ("data_scripts.prepare", "data_scripts.audit")
WIDTH = 110  # characters of a line

HEAD = """# Command line

<!-- Written by `python -m benchmarks.cli_reference`, out of the fields of dataclasses: do not edit. -->

`cosent train` and `python -m cosent.train` are the same job, and so for all; several processes need
`accelerate launch -m cosent.train` ([any machine](any_machine.md)).

* Every flag is a key of the YAML file that `--config` names, and wins over it. An unknown flag or key is an error.
* Lists are separated by spaces, `--corpus lcqmc nli`, and are lists in YAML, `corpus: [lcqmc, nli]`.
* A switch is turned on by its name and off by `false` after it: `--bf16`, `--packing false`.
* Jobs that learn have every flag of transformers' [TrainingArguments][1] as well, among them `--learning_rate`,
  `--num_train_epochs`, `--per_device_train_batch_size`, `--warmup_steps`, `--seed`, `--bf16` and
  `--resume_from_checkpoint`. Below are those that this project adds or gives another default.
* The exit status is 0, 2 where a command line or a file is wrong, 1 where a run failed, and 130 after Ctrl-C.

[1]: https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)


def page() -> str:
    helps = {f"cosent {job}": help_of_job(job) for job in JOBS}
    helps |= {f"python -m {program}": help_of_program(program) for program in PROGRAMS}
    return "\n".join([HEAD, *(f"## {name}\n\n```text\n{text.rstrip()}\n```\n" for name, text in helps.items())])


def help_of_job(job: str) -> str:
    module = import_module(f"cosent.{job}")
    return parser(module.ARGUMENTS, f"cosent {job}", module.__doc__, WIDTH, library_flags=False).format_help()


def help_of_program(name: str) -> str:
    """`--help` of a program with its own argparse parser."""
    shown = io.StringIO()
    columns = patch.dict(os.environ, {"COLUMNS": str(WIDTH + 2)})  # argparse leaves two of them free
    with columns, contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        import_module(name).parse(["--help"])
    return shown.getvalue()


if __name__ == "__main__":
    main()
