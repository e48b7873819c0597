"""Parts shared by both sides of every measurement: rows, lengths, and models of equal weights.

The encoders are the shipped one, and a 12-layer BERT, hidden size 768, with seeded random weights.
"""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from cosent.atomic import write_atomically
from cosent.compute.onednn import AVAILABLE, linear
from cosent.data.corpus import load_corpus
from cosent.encoders import resolve
from cosent.models.cross_encoder import CrossEncoder
from cosent.training.job import environment

BATCH_SIZE = 32  # pairs
WARM_UP = 3  # passes before the clock starts


def shuffled_rows(corpus: str, split: str, count: int, start_over: bool = True):
    """Returns `count` rows in a fixed random order, and the maximum lengths of the corpus by tower.

    A short corpus starts over; for `encode`, which computes a repeated sentence once, there are fewer rows instead.
    """
    loaded = load_corpus(corpus)
    rows = loaded.split(split)
    order = np.random.default_rng(1).permutation(len(rows))
    chosen = np.resize(order, count) if start_over else order[:count]
    return rows.select(chosen), loaded.manifest.max_length


def theirs(model: str, max_length: int):
    """sentence-transformers' bi-encoder of a folder: mean pooling, dropout 0, float32, its default prompt."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    transformer = Transformer(model, config_kwargs=dropout, model_kwargs={"dtype": torch.float32})
    transformer.max_seq_length = max_length
    file = Path(model, "config_sentence_transformers.json")
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    prompts = {key: settings[key] for key in ("prompts", "default_prompt_name") if key in settings}
    return SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), "mean")], **prompts)


def clock() -> float:
    """Seconds: of the processor on one thread, which other programs do not change, else of the wall."""
    alone = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return time.process_time() if alone else time.perf_counter()


def seconds_per_pass(step: Callable[[int], None], passes: int) -> float:
    """Mean seconds of `step(0) .. step(passes - 1)`, without the first `WARM_UP`."""
    times = []
    for index in range(passes):
        step(index)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(clock())
    return float(np.diff(times)[WARM_UP - 1 :].mean())


def peak_flops(dtype: torch.dtype | None = None, clock: Callable[[], float] = time.perf_counter) -> float:
    """FLOP/s of the fastest of six square matrix products, by PyTorch's own and on a CPU by oneDNN's routine.

    Default: float32, on a GPU bfloat16.
    """
    cuda = torch.cuda.is_available()
    dtype = dtype or (torch.bfloat16 if cuda else torch.float32)
    size = 4096
    matrix = torch.randn(size, size, device="cuda" if cuda else "cpu", dtype=dtype)
    best = float("inf")
    for routine in [torch.matmul] if cuda or not AVAILABLE else [torch.matmul, linear]:
        for _ in range(6):
            start = clock()
            routine(matrix, matrix)
            if cuda:
                torch.cuda.synchronize()
            best = min(best, clock() - start)
    return 2 * size**3 / best


def encoder_folder(name: str) -> str:
    """Folder of `mini`, of `base` (made once per machine, 350 MB in the temporary folder), or of any other model."""
    if name != "base":
        return resolve(name)
    tokenizer = AutoTokenizer.from_pretrained(resolve("mini"))
    folder = Path(tempfile.gettempdir(), f"cosent-benchmark-base-{len(tokenizer)}")
    if not (folder / "tokenizer_config.json").is_file():
        with torch.random.fork_rng():
            torch.manual_seed(1)
            BertModel(BertConfig(vocab_size=len(tokenizer)), add_pooling_layer=False).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return str(folder)


def cross_encoder_folder(name: str, max_length: int) -> str:
    """Folder of a one-logit cross-encoder on such an encoder, dropout 0, with a seeded head that both sides load."""
    folder = Path(tempfile.gettempdir(), f"cosent-benchmark-cross-{Path(name).name}-{max_length}")
    CrossEncoder.from_pretrained(
        encoder_folder(name), num_labels=1, max_length=max_length, dropout=0.0, seed=1
    ).save_pretrained(folder)
    return str(folder)


def save(output: str, kind: str, rows: list[dict], **facts) -> dict:
    """Writes a result with its environment and further facts, and returns it."""
    result = {"kind": kind, **facts, "rows": rows, **asdict(environment())}
    write_atomically(Path(output), json.dumps(result, indent=1) + "\n")
    return result
