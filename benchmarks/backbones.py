"""What every architecture can do as either tower: load, train, train LoRA, pack, save, be loaded by others.

    python -m benchmarks.backbones --corpus data/lcqmc --output results/backbones.json

Random models of 3 layers x 64 learn 32 pairs. Seconds per architecture; those that the file has are kept, `--only`
measures some again. An architecture that fails is shown with its error.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from sentence_transformers import SentenceTransformer

from benchmarks.backbone_tables import backbones_table
from benchmarks.common import BATCH_SIZE
from benchmarks.families import TOWERS, batches, encoder_of, loss_of, measure_each, random_model, write
from cosent.compute.packed_backbone import packing_obstacle
from cosent.errors import InputError, messages_for_users
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.loading import PADDING_EFFECT, observe_architecture
from cosent.models.lora import add_adapter
from tests.families import Size

SIZE = Size(width=64, inner=256, layers=3, heads=4, longest=128, letters=20992)
STEPS = 8
LEARNING_RATES = {"full": 1e-3, "lora": 5e-3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="prepared corpus")
    parser.add_argument("--output", required=True, help="JSON file to write, or to complete")
    parser.add_argument("--only", nargs="+", default=None, help="architectures to measure again, e.g. qwen3")
    parser.add_argument(
        "--packing", default="results/packing.json", help="speeds of `benchmarks.speed.packing` to show"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    speeds = json.loads(Path(args.packing).read_text(encoding="utf-8"))["rows"]

    def row(name, rows, max_length) -> dict:
        return {tower: abilities(name, tower, rows, max_length[tower]) for tower in TOWERS}

    result = measure_each("backbones", args.corpus, BATCH_SIZE, args.output, args.only, row, SIZE)
    for name, measured in result["rows"].items():
        ways = speeds.get(name, {}).get("per_second", {})
        measured["speed"] = {task: way["packed"] / way["padded"] for task, way in ways.items()}
    write(result, args.output)
    print(backbones_table(result))


def abilities(name: str, tower: str, rows, max_length: int) -> dict:
    """What a tower of an architecture can do, with `refused` or `failed` and the message instead where it cannot."""

    def attempt(check: Callable) -> dict:
        torch.manual_seed(1)
        try:
            with random_model(name, tower, max_length, SIZE) as model:
                return check(model, rows)
        except InputError as error:
            return {"refused": str(error)}
        except Exception as error:  # whatever stops an architecture is what this program is for
            return {"failed": f"{type(error).__name__}: {error}"[:300]}

    loaded = attempt(packing)
    return loaded if "refused" in loaded else {"packing": loaded, "full": attempt(full), "lora": attempt(lora)}


def packing(model: BiEncoder | CrossEncoder, rows) -> dict:
    """Whether batches are packed; if so, the largest relative differences of outputs and gradients from padded ones."""
    encoder = encoder_of(model)
    if packing_obstacle(encoder.backbone.config) is not None:
        _, effect = observe_architecture(encoder.backbone, encoder.tokenizer)
        return {"packs": False, "reads_padding": effect > PADDING_EFFECT}
    (batch,) = batches(rows, model)
    seen = {}
    for ways in (True, False):
        encoder.packing = ways
        model.zero_grad()
        loss_of(model, batch, ways).backward()
        gradients = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
        seen[ways] = torch.from_numpy(outputs(encoder, rows)), gradients
    (packed, packed_gradients), (padded, padded_gradients) = seen[True], seen[False]
    return {
        "packs": True,
        "outputs": relative([packed], [padded]),
        "gradients": relative(packed_gradients, padded_gradients),
    }


def relative(seen: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Largest difference relative to the largest expected value."""
    largest = max(float((a - b).abs().max()) for a, b in zip(seen, expected, strict=True))
    return largest / max(float(tensor.abs().max()) for tensor in expected)


def outputs(encoder: SentenceEncoder | CrossEncoder, rows) -> np.ndarray:
    """Vectors of the first column, or scores of the pairs, in one batch."""
    first, second = rows["sentence1"][:], rows["sentence2"][:]
    return encoder.encode(first) if isinstance(encoder, SentenceEncoder) else encoder.similarity(first, second)


def full(model: BiEncoder | CrossEncoder, rows) -> dict:
    """Losses of training all weights, and differences of the saved folder."""
    losses = train(model, rows, LEARNING_RATES["full"])
    return {"losses": losses, **reloaded(encoder_of(model), rows, model.state_dict())}


def lora(model: BiEncoder | CrossEncoder, rows) -> dict:
    """Losses of training an adapter of all linear layers, and differences of the saved, merged folder."""
    inner = model.encoder.backbone if isinstance(model, BiEncoder) else model.model
    adapter = add_adapter(model, inner, 8, 16.0, 0.0, ["all-linear"], seed=1)
    losses = train(model, rows, LEARNING_RATES["lora"])
    return {"losses": losses, **reloaded(encoder_of(model), rows, adapter.merged(model.state_dict()))}


def train(model: BiEncoder | CrossEncoder, rows, learning_rate: float) -> list[float]:
    """First and last loss of some steps on the same batch."""
    (batch,) = batches(rows, model.train())
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], learning_rate)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses[0], losses[-1]]


def reloaded(encoder: SentenceEncoder | CrossEncoder, rows, state: dict[str, torch.Tensor]) -> dict[str, float]:
    """Relative differences of the outputs of a saved folder, loaded here and by sentence-transformers."""
    expected = torch.from_numpy(outputs(encoder, rows))
    first, second = rows["sentence1"][:], rows["sentence2"][:]
    with TemporaryDirectory() as folder:
        if isinstance(encoder, SentenceEncoder):
            encoder.save_pretrained(folder, {name.removeprefix("encoder."): value for name, value in state.items()})
            ours = outputs(SentenceEncoder.from_pretrained(folder), rows)
            theirs = SentenceTransformer(folder, device="cpu").encode(first)
        else:
            encoder.save_pretrained(folder, state)
            ours = outputs(CrossEncoder.from_pretrained(folder), rows)
            theirs = TheirCrossEncoder(folder, device="cpu").predict(list(zip(first, second, strict=True)))
    return {
        "reloaded": relative([torch.from_numpy(ours)], [expected]),
        "sentence_transformers": relative([torch.from_numpy(theirs)], [expected]),
    }


if __name__ == "__main__":
    with messages_for_users():
        main()
