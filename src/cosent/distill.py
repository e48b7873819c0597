"""Train a RoFormer-Sim student: only on synonyms (stage 1), or on synonyms and a teacher (stage 2).

accelerate launch -q --config_file recipes/accelerate/cpu.yaml -m cosent.distill \\
    --config recipes/student/distill.yaml --corpus lcqmc --teacher runs/teacher --output_dir runs/student
"""

import time
from functools import partial
from pathlib import Path

import datasets
import numpy as np
from transformers import set_seed

from cosent.cli import run
from cosent.data.leaks import leaks
from cosent.data.pairs import PairDataset
from cosent.data.prefix import NO_PREFIXES, Prefixes
from cosent.data.tokenization import warn_truncated
from cosent.errors import InputError
from cosent.inference.prompt_arguments import SavedPromptArguments
from cosent.losses.distillation import pair_ranking_loss, similarity_matrix_loss, synonym_loss
from cosent.modeling.auto import load_model
from cosent.modeling.bi_encoder import BiEncoder, SentenceEncoder
from cosent.modeling.embedder import Embedder
from cosent.modeling.loading import keep_layers
from cosent.modeling.teacher import DEFAULT_CACHE, teacher_scores, teacher_vectors
from cosent.modeling.text_model import TextModel
from cosent.run import CorpusRecord, RunRecord, manifest_hashes
from cosent.student.arguments import DistillArguments, StudentArguments, StudentDataArguments, StudentTrainingArguments
from cosent.student.data import Corruption, StudentCollator, StudentDataset, training_rows
from cosent.student.decoding import Sampling
from cosent.student.evaluation import StudentEvaluation, summary
from cosent.student.model import Student
from cosent.student.trainer import StudentTrainer
from cosent.training import verdict
from cosent.training.checkpoints import claim_output_folder, find_checkpoint, has_finished, run_settings
from cosent.training.dry_run import output_folder, show_plan, truncation
from cosent.training.environment import environment, footprint, recipe
from cosent.training.finish import finish
from cosent.training.folder_proof import FolderProof, sample_pairs
from cosent.training.held_out import select_on_validation
from cosent.training.mixture import load_corpora
from cosent.training.sharding import whole_state
from cosent.training.towers import use_prompts


def main(
    model_args: StudentArguments,
    prompt_args: SavedPromptArguments,
    data_args: StudentDataArguments,
    distill_args: DistillArguments,
    args: StudentTrainingArguments,
):
    start = time.time()
    if has_finished(args):
        return
    checkpoint, here = find_checkpoint(args), environment()
    corpora, measured = load_corpora(data_args.corpus, data_args.eval_corpora, data_args.data_dir)
    select_on_validation(measured, args)
    set_seed(args.seed)
    model, encoder = build(model_args, max(c.manifest.max_length["bi_encoder"] for c in corpora), args.seed)
    prefixes = student_prompts(encoder, model_args, prompt_args)
    rows, positive = training_rows(corpora, data_args, distill_args)
    teacher = load_model(distill_args.teacher).to(args.device) if distill_args.teacher else None
    # A teacher would read all of the text.
    targets = None if args.dry_run else teacher_targets(teacher, rows, distill_args)
    judge = load_model(distill_args.judge).to(args.device) if distill_args.judge else teacher
    sampling = Sampling(num_samples=distill_args.generation_samples)
    held_out = StudentEvaluation(
        model.to(args.device),
        measured,
        model_args.generation,
        judge,
        distill_args.generation_sources,
        sampling,
        prompts=(prefixes[0].text, prefixes[1].text),
    )
    pairs = tokenised_pairs(rows, positive, encoder, prefixes, args)
    with output_folder(args):
        trainer = StudentTrainer(
            model=model,
            args=args,
            similarity_loss=similarity_loss(distill_args, targets),
            generation_weight=distill_args.generation_weight,
            validate=held_out.validate,
            train_dataset=StudentDataset(pairs, targets),
            eval_dataset=list(held_out.validation),
            data_collator=student_collator(encoder.tokenizer, model_args.generation, prefixes, distill_args),
        )
    records = {corpus.manifest.name: CorpusRecord.of(corpus.folder) for corpus in [*measured, *corpora]}
    settings = run_settings(args, model_args, prompt_args, data_args, distill_args, data=manifest_hashes(records))
    if args.dry_run:
        return show_plan(trainer, model, corpora, measured, truncation(pairs, encoder.max_length), checkpoint, settings)
    claim_output_folder(args.output_dir, checkpoint, settings)
    proof = FolderProof(model, sample_pairs([*measured, *corpora]))

    def at_start():
        proof.begin()
        return held_out.report(whole_state(trainer.model))

    result = trainer.train(checkpoint, at_start=at_start)
    before, written_before = trainer.before
    after, written_after = held_out.report(whole_state(trainer.model))
    trainer.save_model()
    proven = proof.check(args.output_dir)
    if trainer.is_world_process_zero():
        record = RunRecord(
            recipe=recipe(args, model_args, prompt_args, data_args, distill_args),
            environment=here,
            processes=args.world_size,
            footprint=footprint(model, trainer.optimizer),
            corpora=records,
            cached_part_size=trainer.cached_parts and trainer.cached_parts.pairs,
            train_pairs=len(rows),
            synonyms=int(positive.sum()),
            before=before,
            after=after,
            prompts=(prefixes[0].text, prefixes[1].text),
            written_before=written_before,
            written_after=written_after,
            history=trainer.state.log_history,
            train_seconds=result.metrics["train_runtime"],
            seconds=time.time() - start,
            proof=proven,
            leaks=leaks(corpora, measured),
        )
        floor = verdict.judge(record, measured, corpora)
        finish(trainer, record)
        print(summary(record, floor), *verdict.in_words(record), sep="\n")
        print(f"model in {args.output_dir} ({record.train_seconds:.0f} s of training)")


def build(args: StudentArguments, max_length: int, seed: int) -> tuple[Student | BiEncoder, SentenceEncoder]:
    """The model to train, and its encoder (the same object for a student that generates)."""
    options = {
        "max_length": max_length if args.max_length is None else args.max_length,
        "dropout": args.dropout,
        "seed": seed,
    }
    if args.generation:
        encoder = Student.from_pretrained(args.model_name_or_path, args.pooling, layers=args.student_layers, **options)
        model = encoder
    else:
        encoder = SentenceEncoder.from_pretrained(args.model_name_or_path, args.pooling, **options)
        if args.student_layers is not None:
            keep_layers(encoder.backbone, args.student_layers)
        model = BiEncoder(encoder)
    encoder.packing = args.packing
    return model, encoder


def student_prompts(encoder: SentenceEncoder, args: StudentArguments, prompt_args: SavedPromptArguments) -> Prefixes:
    """The prompts of a student in training.

    Raises:
        InputError: a prompt for a student that generates.
    """
    prefixes = use_prompts(encoder, prompt_args, make_room=args.max_length is None)
    if args.generation and prefixes != NO_PREFIXES:
        raise InputError(
            f"The prompt {prefixes[0].text or prefixes[1].text!r} is for a student that only embeds: one that "
            "generates would learn to write it too. Add --generation false, or switch it off with --prompt ''."
        )
    return prefixes


def tokenised_pairs(
    rows: datasets.Dataset,
    positive: np.ndarray,
    encoder: SentenceEncoder,
    prefixes: Prefixes,
    args: StudentTrainingArguments,
) -> PairDataset:
    """Training pairs, labelled 1 for synonyms.

    Raises:
        InputError: fewer pairs than a batch has.
    """
    pairs = PairDataset(rows, encoder.tokenizer, encoder.max_length, positive.astype(np.float32), prefixes)
    warn_truncated(pairs.truncated, pairs.sequences, pairs.unit, encoder.max_length, flag="--max_length")
    batch = args.cached_batch_size or args.train_batch_size * args.world_size
    if args.dataloader_drop_last and len(pairs) < batch:
        raise InputError(
            f"{len(pairs)} pairs do not fill a batch of {batch}: no step is taken. Lower --per_device_train_batch_size."
        )
    return pairs


def student_collator(tokenizer, generation: bool, prefixes: Prefixes, args: DistillArguments) -> StudentCollator:
    """The collator, with noise on the sources of a student that generates."""
    corruption = Corruption.from_tokenizer(tokenizer, args.corruption_share, args.corruption_ratio)
    return StudentCollator(tokenizer.pad_token_id, corruption if generation else None, generation, prefixes)


def teacher_targets(teacher: TextModel | None, rows: datasets.Dataset, args: DistillArguments):
    """The teacher's targets for the rows, in the form of `StudentDataset`."""
    if teacher is None:
        return None
    answers = teacher_vectors if isinstance(teacher, Embedder) else teacher_scores
    prompts = {"prompt": args.teacher_prompt, "prompt_name": args.teacher_prompt_name}
    cache = Path(args.teacher_cache or DEFAULT_CACHE)
    return answers(teacher, rows["sentence1"][:], rows["sentence2"][:], cache, **prompts)


def similarity_loss(args: DistillArguments, targets):
    """Similarity loss for `StudentTrainer`: `(embeddings, teacher) -> scalar`."""
    weight = args.similarity_weight
    if weight is None:
        weight = 100.0 if isinstance(targets, tuple) else 1.0
    if targets is None:
        return lambda embeddings, teacher: weight * synonym_loss(embeddings, args.scale)
    if isinstance(targets, tuple):
        return partial(similarity_matrix_loss, weight=weight)
    return lambda embeddings, scores: weight * pair_ranking_loss(embeddings, scores, args.scale)


ARGUMENTS = (StudentArguments, SavedPromptArguments, StudentDataArguments, DistillArguments, StudentTrainingArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS)
