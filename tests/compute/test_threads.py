"""One model in many threads and in forked processes: the numbers of one thread, and nobody waits for ever."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from cosent.compute.distributed import evaluating
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.student import Student

THREADS = 8
TEXTS = [f"第{number}个问题怎么还款" * (1 + number % 9) for number in range(24)]


def in_threads(call: Callable[[int], object]) -> list:
    """What each of `THREADS` threads gets from three calls of its own, all of them begun at once."""
    start = Barrier(THREADS)

    def work(thread: int) -> list:
        start.wait()
        return [call(thread) for _ in range(3)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [result for results in pool.map(work, range(THREADS)) for result in results]


@pytest.fixture(params=["encode", "pairs", "generate"])
def task(request, tiny_model, tiny_student):
    """A model, and a function of it and of the number of a thread; even threads have texts that have to be cut."""
    if request.param == "generate":
        model = Student.from_pretrained(str(tiny_student), max_length=16)
        with torch.no_grad():  # some of the sentences end
            model.head.predictions.bias[model.tokenizer.sep_token_id] += 8
        settings = {"num_samples": 5, "max_length": 4}
        return model, lambda thread: model.similar_sentences(TEXTS[thread : thread + 2], **settings)
    if request.param == "pairs":
        model = CrossEncoder.from_pretrained(str(tiny_model), 1, max_length=40)
        return model, lambda thread: model.similarity(texts_of(thread), texts_of(thread)[::-1]).tolist()
    model = SentenceEncoder.from_pretrained(str(tiny_model), max_length=20, dropout=0.5)
    return model, lambda thread: model.encode(texts_of(thread)).tolist()


def texts_of(thread: int) -> list[str]:
    return TEXTS[: 10 + thread] if thread % 2 == 0 else [text[:8] for text in TEXTS[: 10 + thread]]


def test_eight_threads_get_what_one_gets(task):
    """Fails if a web server's requests fail at random, or get the vector of a text that was cut, or dropout."""
    model, call = task
    model.train()  # every call turns dropout off, and on again behind the last one
    alone = [call(thread) for thread in range(THREADS)]
    together = in_threads(call)
    assert together == [result for result in alone for _ in range(3)]
    assert model.training and model.backbone.training
    assert len(set(map(repr, alone))) == THREADS, "not all threads had work of their own"


def test_the_last_thread_turns_dropout_on_again():
    """Fails if the thread that is done first puts dropout into the vectors of the others."""
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout().eval())
    first, second = evaluating(model), evaluating(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not any(module.training for module in model.modules())
    second.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == [True, True, False], "a frozen part stays as it was"


FORK = """
import os, signal, sys, multiprocessing, torch
from cosent.models.bi_encoder import SentenceEncoder

torch.set_num_threads(2)  # with one, no thread of OpenMP is missed
encoder = SentenceEncoder.from_pretrained(sys.argv[1])
texts = [f"第{number}个问题" for number in range(300)]
vectors = encoder.encode(texts)  # enough for both threads

def work():
    signal.alarm(100)  # ends a child that waits for ever, whatever becomes of this process
    sys.exit(0 if abs(encoder.encode(texts) - vectors).max() < 1e-5 else 3)

child = multiprocessing.get_context("fork").Process(target=work, daemon=True)
child.start()
child.join(120)
child.kill()
print(child.exitcode)
pid = os.fork()
if pid == 0:
    work()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_child_encodes(tiny_model):
    """Fails if a server that loads and tries its model before it forks its workers answers nothing."""
    command = [sys.executable, "-c", FORK, str(tiny_model)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert process.stdout.split() == ["0", "0"], process.stderr
