"""Load the corpora of a run, tokenise them with the targets of its loss, and build its model.

A bi-encoder (双塔) embeds each sentence of a pair by itself, a cross-encoder (单塔) reads both in one sequence.
"""

import logging
import shlex
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import nn
from torch.utils.data import ConcatDataset

from cosent.cli import refuse_changed
from cosent.compute.packed_backbone import max_tokens
from cosent.data.corpus import Corpus, labels_of, load_corpus, measured_splits, random_subset, reversed_labels
from cosent.data.groups import sentence_groups, share_of_known_similar
from cosent.data.pairs import (
    JoinedPairCollator,
    JoinedPairDataset,
    PairCollator,
    PairDataset,
    Prefixes,
    random_negatives,
    read_texts,
    simcse_pairs,
    warn_truncated,
)
from cosent.errors import InputError
from cosent.inference.differences import unknown_characters
from cosent.losses import LOSSES
from cosent.models import lora
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder, TextModel
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.loading import DROPOUTS
from cosent.models.prompts import PromptArguments
from cosent.training.arguments import CorpusArguments, DataArguments, ModelArguments
from cosent.training.objective import Objective, loss_targets

logger = logging.getLogger(__name__)

MANY = 0.5  # of the pairs of sentences
EvaluationSets = dict[str, dict[str, PairDataset]]  # by corpus and split


class Tower(NamedTuple):
    """Dataset and collator of a tower; its model's `forward` does the scoring."""

    dataset: type[PairDataset]
    collator: type[PairCollator] | type[JoinedPairCollator]


TOWERS = {"bi_encoder": Tower(PairDataset, PairCollator), "cross_encoder": Tower(JoinedPairDataset, JoinedPairCollator)}


@dataclass(frozen=True)
class RunCorpora:
    """The corpora of a run."""

    training: list[Corpus]
    selecting: list[Corpus]  # for the best epoch; tested too

    @property
    def by_name(self) -> dict[str, Corpus]:
        return {corpus.manifest.name: corpus for corpus in [*self.training, *self.selecting]}

    def max_length(self, tower: str) -> int:
        """Maximum length in tokens of the corpus with the longest texts."""
        return max(corpus.manifest.max_length[tower] for corpus in self.by_name.values())

    def evaluation_sets(self, dataset: type[PairDataset], encoder: TextModel, prefixes: Prefixes) -> EvaluationSets:
        """The tokenised validation and test splits of all corpora."""
        return {
            name: {
                split: tokenised(f"{name} {split}", rows, dataset, encoder, prefixes)
                for split, rows in corpus.splits.items()
                if split != "train"
            }
            for name, corpus in self.by_name.items()
        }


def corpora_of_run(args: DataArguments, loss: str, seed: int) -> RunCorpora:
    """Loads the corpora of a run, or random parts of them; a validation split is no larger than --limit_train."""
    check_text(args, loss)
    corpora = load_corpora(args)
    check_corpus_weights(args.corpus_weights, len(corpora.training) + bool(args.text), loss)
    seed = seed if args.limit_seed is None else args.limit_seed
    for corpus in corpora.training:
        corpus.splits["train"] = random_subset(corpus.splits["train"], args.limit_train, "--limit_train", seed)
        if (question := reversed_labels(corpus.splits["train"], corpus.manifest)) is not None:
            logger.warning("%s train: %s.", corpus.manifest.name, question)
    limits = [limit for limit in (args.limit_train, args.limit_validation) if limit is not None]
    for corpus in (*corpora.training, *corpora.selecting):
        corpus.splits = measured_splits(corpus.splits, min(limits, default=None), args.skip_test, seed)
    return corpora


def load_corpora(args: CorpusArguments) -> RunCorpora:
    """Loads the corpora to train on, and those for selection and test, by default the same."""
    names, eval_names = args.corpus or [], args.eval_corpora or args.corpus or []
    loaded = {name: load_corpus(name, args.data_dir) for name in dict.fromkeys([*names, *eval_names])}
    corpora = RunCorpora([loaded[name] for name in names], [loaded[name] for name in eval_names])
    for corpus in corpora.training:
        if "train" not in corpus.splits:
            raise InputError(f"{corpus.folder} has no train split, only {', '.join(corpus.splits)}. Train on another.")
    for flag, some in (("--corpus", corpora.training), ("--eval_corpora", corpora.selecting)):
        for corpus in some:
            name = corpus.manifest.name
            others = [c for c in corpora.training if c.manifest.name == name and c.folder != corpus.folder]
            if others or [c.manifest.name for c in some].count(name) > 1:
                raise InputError(f"{flag} names {name} more than once. Name each corpus once.")
    return corpora


def training_set(
    corpora: list[Corpus],
    dataset: type[PairDataset],
    encoder,
    prefixes: Prefixes,
    loss: str,
    args: DataArguments,
    classes: int = 2,
) -> PairDataset | ConcatDataset:
    """Training pairs with the targets of the loss.

    Several corpora are drawn from in turn, and text as one more of them, each line paired with itself; `sbert_joint`
    draws from all similarity pairs and all NLI pairs in turn. Of corpora, `simcse` pairs each sentence with itself.
    """
    config = encoder.backbone.config
    if (args.text or loss == "simcse") and not any(getattr(config, name, 0.0) for name in DROPOUTS):
        logger.warning(
            "This %s has no dropout, so a sentence read twice has the same vector twice. Add --dropout 0.1 (or, with "
            "--use_peft, --lora_dropout 0.1).",
            config.model_type,
        )
    parts: dict[str | bool, list] = {}
    for corpus in corpora:
        rows, manifest = corpus.splits["train"], corpus.manifest
        rows = random_negatives(rows, manifest) if args.random_negatives else rows
        rows = simcse_pairs([*rows["sentence1"], *rows["sentence2"]], manifest.label_max) if loss == "simcse" else rows
        labels, alone = labels_of(rows), len(np.unique(labels_of(rows))) < 2
        meanings = sentence_groups(rows, manifest.similar_from) if alone or LOSSES[loss].compares_sentences else None
        known = 0.0 if meanings is None else share_of_known_similar(meanings)
        targets = loss_targets(loss, labels, manifest, classes, in_batch_negatives=known < 1)
        groups = None
        if LOSSES[loss].compares_sentences:
            groups = meanings
            check_in_batch_negatives(manifest.name, loss, known, alone)
        share, shown = unknown_characters([*rows["sentence1"], *rows["sentence2"]], encoder.tokenizer.backend_tokenizer)
        if share:
            logger.info(
                "%s train: %.3g%% of characters are unknown to the model: %s.", manifest.name, 100 * share, shown
            )
        data = tokenised(f"{manifest.name} train", rows, dataset, encoder, prefixes, targets, groups)
        group = manifest.label_kind == "nli" if loss == "sbert_joint" else manifest.name
        parts.setdefault(group, []).append(data)
    if args.text:
        rows = simcse_pairs(read_texts(args.text))
        if len(rows) < 2:
            raise InputError(f"--text {' '.join(args.text)} has {len(rows)} different lines: too few to compare.")
        parts["--text"] = [tokenised("--text", rows, dataset, encoder, prefixes, groups=sentence_groups(rows, 1.0))]
    groups = [group[0] if len(group) == 1 else ConcatDataset(group) for group in parts.values()]
    return groups[0] if len(groups) == 1 else ConcatDataset(groups)


def check_in_batch_negatives(name: str, loss: str, known: float, one_label: bool) -> None:
    """Warns if similar pairs connect most sentences of a corpus, so that a loss finds few in-batch negatives.

    Args:
        known: see `share_of_known_similar`.
        one_label: whether no loss could compare labels either.
    """
    if known == 1:
        raise InputError(
            f"--loss {loss} compares sentences of different meaning, and the similar pairs of {name} train connect all "
            f"of its sentences. {'Add sentences of another meaning' if one_label else 'Take --loss cosent'}."
        )
    if known > MANY:
        logger.warning(
            "%s train: chains of similar pairs connect most sentences, so %.0f%% of what --loss %s could compare is "
            "taken for similar and left out: are labels too generous?",
            name,
            100 * known,
            loss,
        )


def tokenised(
    where: str, rows, dataset: type[PairDataset], encoder, prefixes: Prefixes, labels=None, groups=None
) -> PairDataset:
    """Tokenises pairs through the cache on disk, and warns about truncated text."""
    data = dataset(rows, encoder.tokenizer, encoder.max_length, labels, prefixes, groups)
    warn_truncated(data.truncated, data.sequences, data.unit, encoder.max_length, where, "--max_length")
    return data


def check_text(args: DataArguments, loss: str) -> None:
    """Refuses text that a loss cannot learn from, and a run with nothing to train on or to measure."""
    if not args.text and not args.corpus:
        raise InputError("--corpus is missing: name prepared corpora to train on, or --text for --loss simcse.")
    if args.text and not LOSSES[loss].compares_sentences:
        able = ", ".join(name for name, other in LOSSES.items() if other.compares_sentences)
        raise InputError(f"--text has no labels, and --loss {loss} learns from labels only. Choose one of {able}.")
    if not args.corpus and not args.eval_corpora:
        raise InputError("--text has no labels to measure by: name --eval_corpora, e.g. lcqmc.")


def check_corpus_weights(weights: list[float] | None, corpora: int, loss: str) -> None:
    """Refuses `--corpus_weights` that are not one positive number per corpus (and text)."""
    if weights is None:
        return
    if loss == "sbert_joint":
        raise InputError("--loss sbert_joint draws similarity pairs and NLI pairs 1:1. Leave --corpus_weights out.")
    if len(weights) != corpora or corpora < 2 or not all(0 < value < float("inf") for value in weights):
        raise InputError(f"--corpus_weights takes a positive number per corpus, as 2 1; got {weights} for {corpora}.")


def build_model(
    args: ModelArguments, features: list[str] | None, objective: Objective, max_length: int, seed: int
) -> nn.Module:
    """Builds the model that a trainer wraps, with the head that its objective needs; `max_length` is a default."""
    other = {"pooling": args.pooling, "features": features} if args.tower == "cross_encoder" else {}
    if args.tower == "bi_encoder" and args.segment_ids != "tokenizer":
        other = {"segment_ids": args.segment_ids}
    for flag, value in other.items():
        if value is not None:
            raise InputError(f"--{flag} does nothing for --tower {args.tower}, got {value}. Leave it out.")
    if args.load_in_4bit and not args.use_peft:
        raise InputError("--load_in_4bit keeps the weights frozen: add --use_peft true, or leave it out.")
    max_length = max_length if args.max_length is None else args.max_length
    same = {"max_length": max_length, "dropout": args.dropout}
    same["quantization_config"] = lora.four_bit_config() if args.load_in_4bit else None
    if args.tower == "cross_encoder":
        encoder = model = CrossEncoder.from_pretrained(
            args.model_name_or_path, objective.classes, segment_ids=args.segment_ids, seed=seed, **same
        )
    else:
        encoder = SentenceEncoder.from_pretrained(args.model_name_or_path, pooling=args.pooling, seed=seed, **same)
        model = BiEncoder(encoder, objective.head(encoder.embedding_dimension, features, seed))
    encoder.packing = args.packing
    return model


def use_prompts(encoder: TextModel, args: PromptArguments, make_room: bool) -> Prefixes:
    """The prompts of both sentences in a training; from now on those of the encoder, and saved with it.

    `make_room` raises the maximum length, which is that of the sentences alone, by the longer prompt.
    """
    prompts = encoder.prompts.sides(args.prompt, args.prompt_name)
    if make_room:
        longer = encoder.max_length + max(map(encoder.count_tokens, prompts))
        encoder.max_length = min(longer, max_tokens(encoder.backbone.config))
    prefixes = encoder.prefixes(prompts)
    encoder.prompts = encoder.prompts.trained_with(prompts)
    return prefixes


def warn_of_missing_prompts(corpora: RunCorpora, tower: str, prefixes: Prefixes) -> None:
    """Warns about corpora whose raw rows had a prompt that this run does not put before the first sentences."""
    for name, corpus in corpora.by_name.items():
        if (prompt := corpus.manifest.prompt) and prefixes[0] != prompt:
            flag = f"--prompt {shlex.quote(prompt)}" + " ''" * (tower == "bi_encoder")
            logger.warning(
                "%s: its queries had the prompt %r, which is not read here. Train with %s.", name, prompt, flag
            )


def adapter(args: ModelArguments, model: nn.Module, seed: int) -> lora.Adapter | None:
    """Adds the LoRA adapter of the arguments to the model, if any."""
    if not args.use_peft:
        refuse_changed(args, ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"), "--use_peft true")
        return None
    inner = model.encoder.backbone if isinstance(model, BiEncoder) else model.model
    settings = (args.lora_r, args.lora_alpha, args.lora_dropout, args.lora_target_modules)
    return lora.add_adapter(model, inner, *settings, seed)
