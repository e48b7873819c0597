"""Small models and corpora, and jobs in forks of a process that has imported them: a job of a second in 0.1 s."""

import importlib
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

from cosent import cli
from cosent.data.corpus import load_corpus
from cosent.encoders import resolve
from cosent.errors import InputError

JOBS = ("train", "similarity", "search", "mine", "report", "encode", "export", "merge", "dedup")
TRAINING = ["--corpus", "data/pairs", "--model_name_or_path", "tiny", "--use_cpu", "--disable_tqdm", "true"]
TRAINING += ["--per_device_train_batch_size", "16", "--num_train_epochs", "2", "--limit_train", "96"]
SHORT = ["--config", "bi_encoder/cosent_mini", *TRAINING]


@dataclass
class Ended:
    """How a fork ended: `how` is ok, refused, traceback, crash or hang; `value` is what its function returned."""

    how: str
    value: Any
    text: str  # of its log, or the message, or the last line of the traceback


def forked(function: Callable[[], Any], log: Path, seconds: float = 300) -> Ended:
    """Calls a function in a fork of this process, in a group of its own; the log takes stdout and stderr."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.stdout, sys.stderr = (os.fdopen(stream, "w", 1, encoding="utf-8", closefd=False) for stream in (1, 2))
        how, value, text = "ok", None, ""
        try:
            value = function()
        except InputError as error:
            how, text = "refused", str(error)
        except SystemExit as error:
            how = {0: "ok", None: "ok", 2: "refused"}.get(error.code, "traceback")
        except BaseException as error:
            traceback.print_exc()
            how, text = "traceback", f"{type(error).__name__}: {error}"
        sys.stderr.flush()
        said = log.read_text(encoding="utf-8", errors="replace")
        how = "traceback" if how == "refused" and "Traceback (most recent" in said else how
        os.write(send, json.dumps([how, value, text or said[-2000:]], default=str).encode())
        os._exit(0)
    os.close(send)
    answer, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([receive], [], [], 1)[0]:
            if not (part := os.read(receive, 1 << 16)):
                break
            answer += part
    os.close(receive)
    if not answer and time.monotonic() >= end:
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if answer:
        return Ended(*json.loads(answer))
    return Ended(
        "hang" if time.monotonic() >= end else "crash", None, log.read_text(encoding="utf-8", errors="replace")
    )


def cosent(*words: str | Path) -> Callable[[], None]:
    """The command `cosent JOB ...` as a function for `forked`."""

    def command() -> None:
        sys.argv = ["cosent", *map(str, words)]
        cli.main()

    return command


def make(target: Path, *words: str | Path) -> None:
    """Runs a job that has to end well, unless its target is there already."""
    if not target.exists():
        ended = forked(cosent(*words), Path("log.txt"))
        if ended.how != "ok":
            raise InputError(f"{' '.join(map(str, words))}: {ended.text}")


def set_up(work: Path) -> None:
    """Imports what jobs import, enters a folder, and makes in it what campaigns damage or run on."""
    torch.set_num_threads(1)
    for name in JOBS:
        importlib.import_module(cli.module_of(name))
    work.mkdir(parents=True, exist_ok=True)
    os.chdir(work)
    if not Path("tiny/config.json").is_file():
        config = AutoConfig.from_pretrained(resolve("mini"))
        config.update({"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64})
        AutoModel.from_config(config).save_pretrained("tiny")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(Path(resolve("mini"), file), "tiny")
    make(Path("data/demo"), "prepare", "demo", "--output", "data/demo")
    if not Path("pairs.tsv").exists():
        rows = load_corpus("data/demo").split("test")[:]
        pairs = zip(rows["sentence1"], rows["sentence2"], rows["label"], strict=True)
        lines = (f"{first}\t{second}\t{int(label > 2)}\n" for first, second, label in pairs)
        Path("pairs.tsv").write_text("sentence1\tsentence2\tlabel\n" + "".join(lines), encoding="utf-8")
        texts = dict.fromkeys(rows["sentence1"])
        Path("texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    binary = ["--label_kind", "binary", "--validation_share", "0.2", "--test_share", "0.2"]
    make(Path("data/pairs"), "prepare", "pairs", "--source", "pairs.tsv", *binary, "--output", "data/pairs")
    make(Path("bi/run.json"), "train", *SHORT, "--pooling", "linear_cls", "--output_dir", "bi")
    make(Path("bi2/run.json"), "train", *SHORT, "--pooling", "linear_cls", "--seed", "7", "--output_dir", "bi2")
    cross = ["--config", "cross_encoder/cosent_mini", *TRAINING]
    make(Path("cross/run.json"), "train", *cross, "--output_dir", "cross")
