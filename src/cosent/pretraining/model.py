"""Pretraining on unlabelled text: masked-language modelling, and retrieval of neighbouring pieces of text."""

from copy import deepcopy
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    BertConfig,
    BertForMaskedLM,
    PreTrainedModel,
    RoFormerConfig,
    RoFormerForMaskedLM,
)

from cosent.compute.contexts import seeded
from cosent.compute.row_masks import sentences_apart
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.files import apply_umask
from cosent.losses.cosent import cosent_loss
from cosent.losses.distillation import synonym_loss
from cosent.modeling.foreign_code import load_config
from cosent.modeling.loading import freeze_sines, quiet_transformers
from cosent.modeling.pooling import Pooling
from cosent.modeling.saved_folder import read_json, save_modules, write_json

ARCHITECTURES = {"bert": (BertConfig, BertForMaskedLM), "roformer": (RoFormerConfig, RoFormerForMaskedLM)}
CAN_GO_ON = ("bert", "ernie", "megatron-bert", "roformer")  # whose packed rows are exact and whose head is BERT's
WITH_MATCHING = ("bert", "ernie", "megatron-bert")
COMPARE_SCALE = 5.0  # of CoSENT on the scores of joined lines
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def fresh_model(
    architecture: str,
    vocabulary: int,
    layers: int,
    width: int,
    positions: int = 512,
    seed: int = 42,
    two_sentences: bool = False,
) -> PreTrainedModel:
    """A masked-language model with random weights, `width // 64` heads and an intermediate size of `4 * width`.

    Args:
        two_sentences: with BERT's pooler and its head on it.
    """
    config_class, model_class = ARCHITECTURES[architecture]
    config = config_class(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
        max_position_embeddings=positions,
        **({"embedding_size": width} if architecture == "roformer" else {}),
    )
    with seeded(seed):
        return AutoModelForPreTraining.from_config(config) if two_sentences else model_class(config)


def initial_model(path: str, architecture: str | None = None, two_sentences: bool = False) -> PreTrainedModel:
    """Loads a masked-language model to continue from; a RoFormer can be initialised from BERT weights.

    The two share all weights except position embeddings, which RoFormer does not have.

    Args:
        two_sentences: also load, or initialise, BERT's pooler and its head on it, which reads two sentences.

    Raises:
        InputError: an architecture whose packed rows were not verified, that has no such head, or whose weights do not
            fit the requested architecture.
    """
    path = resolve(path)
    kind = load_config(path).model_type
    if kind not in CAN_GO_ON:
        raise InputError(
            f"--init {path} is a {kind} model, and pretraining continues only {', '.join(CAN_GO_ON)} models. Start "
            "from one of those, or leave --init out."
        )
    if two_sentences and (kind not in WITH_MATCHING or architecture not in (None, kind)):
        raise InputError(
            f"--compare_weight needs a head on two sentences, as in {', '.join(WITH_MATCHING)}; --init "
            f"{path} is a {kind} model. Take a BERT, e.g. --init mini, and leave --architecture out."
        )
    with quiet_transformers():
        model = (AutoModelForPreTraining if two_sentences else AutoModelForMaskedLM).from_pretrained(
            path, dtype=torch.float32
        )
    if architecture in (None, kind):
        return model
    if (kind, architecture) != ("bert", "roformer"):
        raise InputError(
            f"--init {path} is a {kind} model and cannot become a {architecture}. Leave --architecture out."
        )
    old = model.config
    new = fresh_model(
        "roformer", old.vocab_size, old.num_hidden_layers, old.hidden_size, positions=old.max_position_embeddings
    )
    weights = {name.replace("bert.", "roformer.", 1): value for name, value in model.state_dict().items()}
    missing, _ = new.load_state_dict(weights, strict=False)
    learnt = [name for name in missing if "embed_positions" not in name]  # RoFormer's sines, which are computed
    assert not learnt, learnt
    return new


class Pretraining(nn.Module):
    """Module that the trainer wraps: a masked-language model on packed rows with a second objective.

    Args:
        model: a transformers model for masked-language modelling; for two sentences, with a pooler and
            `cls.seq_relationship`.
        tokenizer: saved with it.
    """

    def __init__(self, model: PreTrainedModel, tokenizer):
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        head = getattr(model, "cls", None) or model.lm_head
        self.head = getattr(head, "predictions", head)
        freeze_sines(model)

    def forward(
        self,
        labels: torch.Tensor,
        overlaps: torch.Tensor | None = None,
        alone: dict[str, torch.Tensor] | None = None,
        **rows: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        """Computes the losses of a batch of `NeighbourBatches` or `ComparedBatches`.

        Args:
            labels, rows (`torch.Tensor` of shape `(rows, width)`): packed rows: `input_ids`, `segments`, positions.
            overlaps (`torch.Tensor` of shape `(inputs,)`): if each input is a pair to compare, its share of common
                tokens, else NaN.
            alone: packed rows of the sentences of those pairs.

        Returns:
            `mlm`: mean cross entropy of the masked tokens (`joined_mlm` with `overlaps`); and
            `compare`: with `overlaps`, CoSENT of the first score on the order of the overlaps plus CoSENT of the second
            on the order of the cosines that this encoder's own mean vectors have now;
            or `neighbour`: mean cross entropy of finding the neighbour of each piece among all other pieces of the
            batch by cosine (`synonym_loss`). All of shape `()`.
        """
        hidden = self.hidden(**rows)
        chosen = labels != -100
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

    def hidden(self, input_ids: torch.Tensor, segments: torch.Tensor, **positions: torch.Tensor) -> torch.Tensor:
        """Token vectors of packed rows, shape `(rows, width, hidden)`."""
        with sentences_apart(segments):
            return self.model.base_model(input_ids=input_ids, **positions).last_hidden_state

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Writes weights, tokenizer and mean pooling, for `AutoModel`, sentence-transformers and `--init` alike.

        Args:
            dtype: of the weights in the file. Everyone loads them in float32: the config says so.
        """
        with quiet_transformers():
            deepcopy(self.model).to(dtype).save_pretrained(folder)  # a full copy: tied weights stay tied
        config = read_json(str(folder), "config.json")
        write_json(Path(folder, "config.json"), config | {"dtype": "float32"})
        self.tokenizer.save_pretrained(folder)
        apply_umask(folder)
        save_modules(folder, self.model.config.num_hidden_layers, Pooling("mean", self.model.config.hidden_size))

    def saved_state(self, folder: str | Path) -> dict[str, torch.Tensor]:
        """The weights that `save_pretrained` wrote to `folder`, as `load_state_dict` takes them."""
        with quiet_transformers():
            saved = type(self.model).from_pretrained(folder, dtype=torch.float32)
        return Pretraining(saved, self.tokenizer).state_dict()


def piece_means(hidden: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """Mean of the token vectors of each piece, shape `(pieces, hidden)`, from packed rows `(rows, width, hidden)`."""
    segments = segments.flatten()
    pieces = int(segments.max())
    sums = hidden.new_zeros(pieces + 1, hidden.shape[-1]).index_add(0, segments, hidden.flatten(0, 1))
    counts = torch.bincount(segments, minlength=pieces + 1)
    return sums[1:] / counts[1:, None]


def first_vectors(hidden: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """Vector of the first token, [CLS], of each input, shape `(inputs, hidden)`, from packed rows."""
    begins = segments.diff(dim=1, prepend=segments.new_zeros(len(segments), 1)) != 0
    begins &= segments > 0
    return hidden[begins][segments[begins].argsort()]
