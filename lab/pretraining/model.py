"""Pretraining on unlabelled text: masked-language modelling with neighbouring lines, and with lines read together."""

import time
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    BertConfig,
    PreTrainedModel,
    RoFormerConfig,
    TrainerCallback,
)
from transformers.trainer_callback import ExportableState

from cosent.atomic import apply_umask
from cosent.compute.onednn import trainable_onednn_linears
from cosent.compute.packing import sentences_apart
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.losses.cosent import cosent_loss
from cosent.losses.distillation import synonym_loss
from cosent.models.folder import read_json, write_json
from cosent.models.layout import save_modules
from cosent.models.loading import freeze_sines, load_config, quiet_transformers
from cosent.models.modules import Pooling, seeded
from cosent.training.resumable import ResumableTrainer
from lab.pretraining.batches import IGNORED

CONFIGS = {"bert": BertConfig, "roformer": RoFormerConfig}
# Whose packed rows are exact and whose masked-language head is BERT's; all but the last have BERT's on two sentences.
CONTINUABLE = ("bert", "ernie", "megatron-bert", "roformer")
COMPARE_SCALE = 5.0  # of CoSENT on the scores of joined lines
SAMPLE, PLACES = 6000, 40  # matching head: tokens and positions that it is fitted to
SEGMENT_SHIFT = 8.0  # distance of the segment embeddings, in standard deviations of the layer's inputs
SAME, OTHER = 10.0, 3.0  # attention logits: of a token with itself; added across sentences, subtracted within one
FLAT = 0.02  # share of the largest spread below which a direction says nothing
MARK = 3.0  # length of the vector that says where a token's match stands
WARM_UP = 0.03  # share of the run


def fresh_model(
    architecture: str,
    vocabulary: int,
    layers: int,
    width: int,
    positions: int = 512,
    seed: int = 42,
    two_sentences: bool = False,
) -> PreTrainedModel:
    """A random masked-language model, of `width // 64` heads; `two_sentences` adds BERT's pooler and its head on it."""
    if two_sentences and architecture == "roformer":
        raise InputError("A roformer has no head on two sentences for --compare_weight. Leave --architecture out.")
    config = CONFIGS[architecture](
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
        max_position_embeddings=positions,
        **({"embedding_size": width} if architecture == "roformer" else {}),
    )
    with seeded(seed):
        return (AutoModelForPreTraining if two_sentences else AutoModelForMaskedLM).from_config(config)


def initial_model(path: str, architecture: str | None = None, two_sentences: bool = False) -> PreTrainedModel:
    """Loads a masked-language model to continue from, see `fresh_model`.

    A BERT can become a RoFormer, which has no position embeddings.
    """
    path = resolve(path)
    kind = load_config(path).model_type
    if kind not in CONTINUABLE or (two_sentences and kind == "roformer"):
        able = ", ".join(CONTINUABLE[: -1 if two_sentences else None])
        raise InputError(f"--init {path} is a {kind} model, and this pretraining continues only {able}.")
    if architecture not in (None, kind) and (kind, architecture) != ("bert", "roformer"):
        raise InputError(f"--init {path} is a {kind} model and cannot become a {architecture}. Omit --architecture.")
    with quiet_transformers():
        load = AutoModelForPreTraining if two_sentences else AutoModelForMaskedLM
        model = load.from_pretrained(path, dtype=torch.float32)
    if architecture in (None, kind):
        return model
    old = model.config
    size = (old.vocab_size, old.num_hidden_layers, old.hidden_size, old.max_position_embeddings)
    new = fresh_model("roformer", *size, two_sentences=two_sentences)
    weights = {name.replace("bert.", "roformer.", 1): value for name, value in model.state_dict().items()}
    missing, _ = new.load_state_dict(weights, strict=False)
    assert all("embed_positions" in name for name in missing), missing  # RoFormer's sines, which are computed
    return new


class Pretraining(nn.Module):
    """A masked-language model on packed rows with a second objective; for two sentences, with BERT's head on them."""

    def __init__(self, model: PreTrainedModel, tokenizer):
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.head = model.cls.predictions
        freeze_sines(model)

    def forward(
        self, labels: Tensor, overlaps: Tensor | None = None, alone: dict[str, Tensor] | None = None, **rows: Tensor
    ) -> dict[str, Tensor]:
        """Losses of a batch of `NeighbourBatches` or, with `overlaps` and `alone`, of `ComparedBatches`.

        Returns:
            `mlm` (`joined_mlm` of joined lines): mean cross entropy of the masked tokens. `neighbour`: `synonym_loss`,
            by the mean vectors of pieces. `compare`: CoSENT of the first score on the order of the overlaps plus CoSENT
            of the second on the order of the cosines that this encoder's own mean vectors have now.
        """
        hidden = self.hidden(**rows)
        chosen = labels != IGNORED
        mlm = cross_entropy(self.head(hidden[chosen]).float(), labels[chosen])  # of (hidden tokens, vocabulary)
        if overlaps is None:
            return {"mlm": mlm, "neighbour": synonym_loss(piece_means(hidden.float(), rows["segments"]))}
        pooled = self.model.base_model.pooler(first_vectors(hidden, rows["segments"])[:, None])
        scores = self.model.cls.seq_relationship(pooled).float()  # (inputs, 2)
        with torch.no_grad():
            vectors = piece_means(self.hidden(**alone).float(), alone["segments"])
        compared = ~overlaps.isnan()
        targets = torch.stack([overlaps, cosine_similarity(vectors[::2], vectors[1::2])], dim=1)[compared]
        columns = zip(scores[compared].T, targets.T, strict=True)
        return {"joined_mlm": mlm, "compare": sum(cosent_loss(*column, COMPARE_SCALE) for column in columns)}

    def hidden(self, input_ids: Tensor, segments: Tensor, **positions: Tensor) -> Tensor:
        """Token vectors of packed rows, shape `(rows, width, hidden)`."""
        with sentences_apart(segments):
            return self.model.base_model(input_ids=input_ids, **positions).last_hidden_state

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Writes weights of this type, loaded in float32, with tokenizer and mean pooling, for every library alike."""
        with quiet_transformers():
            deepcopy(self.model).to(dtype).save_pretrained(folder)  # a full copy: tied weights stay tied
        config = read_json(str(folder), "config.json")
        write_json(Path(folder, "config.json"), config | {"dtype": "float32"})
        self.tokenizer.save_pretrained(folder)
        apply_umask(folder)
        save_modules(folder, Pooling("mean", self.model.config.hidden_size))

    def saved_state(self, folder: str | Path) -> dict[str, Tensor]:
        """The weights that `save_pretrained` wrote to `folder`, as `load_state_dict` takes them."""
        with quiet_transformers():
            saved = type(self.model).from_pretrained(folder, dtype=torch.float32)
        return Pretraining(saved, self.tokenizer).state_dict()


def piece_means(hidden: Tensor, segments: Tensor) -> Tensor:
    """Mean of the token vectors of each piece, shape `(pieces, hidden)`, from packed rows `(rows, width, hidden)`."""
    segments = segments.flatten()
    pieces = int(segments.max())
    sums = hidden.new_zeros(pieces + 1, hidden.shape[-1]).index_add(0, segments, hidden.flatten(0, 1))
    counts = torch.bincount(segments, minlength=pieces + 1)
    return sums[1:] / counts[1:, None]


def first_vectors(hidden: Tensor, segments: Tensor) -> Tensor:
    """Vector of the first token, [CLS], of each input, shape `(inputs, hidden)`, from packed rows."""
    begins = segments.diff(dim=1, prepend=segments.new_zeros(len(segments), 1)) != 0
    begins &= segments > 0
    return hidden[begins][segments[begins].argsort()]


@torch.no_grad()
def add_matching_head(model: PreTrainedModel, ids: np.ndarray, seed: int = 42) -> None:
    """Replaces head 0 of the first layer of a BERT by one that attends to the same token in the other sentence.

    A small encoder that has read only single lines hardly learns to compare two: no head looks across. Compare mimetic
    initialisation, arXiv 2305.09828. Query and key hold the token (a linear discriminant of tokens against positions)
    and the sentence; the value holds the token and the sentence where it was found, so that a token with a match is
    marked differently from one without, which attends to itself. A single line is read as before but for this head:
    segment 0 stays, and segment 1 moves in the direction that the text uses least.

    Args:
        ids: tokens of some text, shape `(tokens,)`; a few thousand are enough.
    """
    generator = torch.Generator().manual_seed(seed)
    first, second, plain, free = separate_segments(model.base_model.embeddings, ids, generator)
    attention = model.base_model.encoder.layer[0].attention
    width = attention.self.attention_head_size

    side = second.mean(dim=0) - first.mean(dim=0)
    side = side / side.norm()
    along = [(values @ side).mean() for values in (first, second)]
    middle, half = (along[0] + along[1]) / 2, (along[1] - along[0]) / 2
    side, offset = side[None] / half, middle / half  # inputs @ side - offset: about -1 in sentence 1, 1 in sentence 2

    centre = plain.mean(dim=0)
    noise = torch.cat([first - plain, second - plain])
    tokens = discriminant(plain - centre, noise, width - 1)  # (width - 1, hidden)
    same = ((first - centre) @ tokens.T).pow(2).sum(dim=1).mean() / width**0.5
    code, away = tokens * (SAME / same).sqrt(), (OTHER * width**0.5) ** 0.5
    for layer, what, sign in (
        (attention.self.query, code, away),
        (attention.self.key, code, -away),
        (attention.self.value, tokens / 2, 1.0),
    ):
        layer.weight[:width] = torch.cat([what, sign * side])
        layer.bias[:width] = -torch.cat([what @ centre, sign * offset[None]])
    mark = free - free.mean()
    mark = MARK * mark / mark.norm()
    out = attention.output.dense
    out.weight[:, :width] = 0.02 * torch.randn(len(mark), width, generator=generator)
    out.weight[:, width - 1] = mark
    out.bias += mark  # takes back what every token of a line on its own adds


def separate_segments(embeddings, ids: np.ndarray, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Moves the embedding of segment 1 away from that of segment 0, in a direction that the text hardly uses.

    Returns:
        Inputs of the first layer `(tokens, hidden)` for a sample of tokens: in sentence 1 at random positions, the same
        in sentence 2, and in sentence 1 at a mean position; and another direction that the text hardly uses.
    """
    words, segments = embeddings.word_embeddings.weight, embeddings.token_type_embeddings.weight
    norm, places = embeddings.LayerNorm, embeddings.position_embeddings.weight[1:PLACES]
    sample = torch.from_numpy(ids)[torch.randint(len(ids), (SAMPLE,), generator=generator)]
    sums = words[sample] + places[torch.randint(len(places), (SAMPLE,), generator=generator)] + segments[0]
    first = norm(sums)
    rare = torch.linalg.eigh(torch.cov(first.T)).eigenvectors  # the least used direction first
    direction = rare[:, 0] / norm.weight
    direction = direction - direction.mean()
    direction = direction * first.std() * sums.std(dim=1).mean() / (direction * norm.weight).norm()
    segments[1] = segments[0] + SEGMENT_SHIFT * direction
    second = norm(sums + segments[1] - segments[0])
    return first, second, norm(words[sample] + places.mean(dim=0) + segments[0]), rare[:, 1]


def discriminant(signal: Tensor, noise: Tensor, count: int) -> Tensor:
    """Directions in which `signal` varies most next to `noise`, scaled to a variance of 1; shape `(count, hidden)`.

    Linear discriminant analysis. Directions in which the signal hardly varies (few distinct tokens) are 0. Both are of
    shape `(tokens, hidden)` with mean 0.
    """
    between, within = (values.T.double() @ values.double() / len(values) for values in (signal, noise))
    within += torch.eye(len(within)) * (0.01 * within.trace() + 0.02 * between.trace()) / len(within)
    root = torch.linalg.cholesky(within).inverse()
    vectors = torch.linalg.eigh(root @ between @ root.T).eigenvectors[:, -count:].T @ root
    spread = (signal.double() @ vectors.T).pow(2).mean(dim=0).sqrt()[:, None]
    return torch.where(spread > FLAT * spread.max(), vectors / spread, 0.0).to(signal.dtype)


class Budget(TrainerCallback, ExportableState):
    """Counts minutes and tokens, also across a resume, and ends the run when its minutes are up."""

    def __init__(self, max_minutes: float | None):
        self.max_minutes, self.tokens = max_minutes, 0
        self.minutes = 0.0  # at the last step

    def state(self) -> dict:
        counted = {"tokens": self.tokens, "minutes": self.minutes}
        return {"args": {"max_minutes": self.max_minutes}, "attributes": counted}

    def on_train_begin(self, args, state, control, **kwargs):
        counted = state.stateful_callbacks["Budget"]["attributes"]  # of the checkpoint, if there is one
        self.tokens, self.minutes = counted["tokens"], counted["minutes"]
        self.start = time.monotonic() - 60 * self.minutes

    def on_step_end(self, args, state, control, **kwargs):
        self.minutes = (time.monotonic() - self.start) / 60
        if self.max_minutes is not None and self.minutes >= self.max_minutes:
            control.should_training_stop = True
        control.should_log |= control.should_training_stop or state.global_step >= state.max_steps  # the record's last


class PretrainTrainer(ResumableTrainer):
    """Trainer of a `Pretraining` over endless batches, with a schedule that ends with the steps or the minutes.

    Args:
        weights: of the losses, by name; 1 for those without.
    """

    loss_is_scaled_for_ga = False

    def __init__(self, *, weights: dict[str, float], max_minutes: float | None, **kwargs):
        super().__init__(**kwargs)
        self.weights, self.budget = weights, Budget(max_minutes)
        self.add_callback(self.budget)

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_dataset, batch_size=None)

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        def factor(step: int) -> float:
            by_minutes = self.budget.minutes / self.budget.max_minutes if self.budget.max_minutes else 0.0
            return float(np.interp(max(step / self.args.max_steps, by_minutes), (0, WARM_UP, 1), (0, 1, 0)))

        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
        return self.lr_scheduler

    def training_step(self, *args, **kwargs):
        with trainable_onednn_linears():
            return super().training_step(*args, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        losses = model(**inputs)
        self.budget.tokens += int((inputs["segments"] > 0).sum())
        for name, value in losses.items():
            self.parts.setdefault(name, []).append(value.detach())
        return sum(self.weights.get(name, 1.0) * value for name, value in losses.items())

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            logs |= {"tokens": self.budget.tokens, "minutes": self.budget.minutes}
        super().log(logs, *args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        self.model.save_pretrained(output_dir or self.args.output_dir)

    def saved_state(self, checkpoint: str | Path) -> dict[str, Tensor]:
        return self.model.saved_state(checkpoint)
