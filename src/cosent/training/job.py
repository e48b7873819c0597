"""Steps shared by training jobs: start, encoder, run, record, model card, and upload to the Hub."""

import hashlib
import platform
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from huggingface_hub import HfApi

import cosent
from cosent.atomic import sha256_of_file
from cosent.cli import PACKAGES
from cosent.compute.distributed import decided_by_main, locked_by_main
from cosent.compute.packing import max_tokens
from cosent.compute.processes import peak_memory_mib
from cosent.data.corpus import Corpus, leaks
from cosent.encoders import local
from cosent.errors import InputError
from cosent.flags import as_words
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.decision import write_rules
from cosent.models.prompts import PromptArguments
from cosent.models.text_model import TextModel
from cosent.record import CorpusRecord, Environment, Footprint, RunRecord, terms_of
from cosent.training.arguments import ModelArguments, RunArguments
from cosent.training.card import write_card
from cosent.training.checkpoints import claim_output_folder, final_folder, find_checkpoint, has_finished, run_settings
from cosent.training.corpora import RunCorpora
from cosent.training.evaluation import Evaluation, check_saved, evaluate_splits, held_out_sets, save_evaluations
from cosent.training.global_batch import GlobalBatchTrainer
from cosent.training.resumable import ResumableTrainer
from cosent.training.verdict import SIMILAR, final_table, floors_of, in_vain, judge, warn_of_fall


@dataclass(frozen=True)
class Start:
    """When and where a job began, and the checkpoint that it continues from."""

    time: float
    checkpoint: str | None
    environment: Environment


@contextmanager
def begin(args: RunArguments) -> Iterator[Start | None]:
    """Start of a job, with a lock on the output folder; None if its run has finished already."""
    start = time.time()
    with locked_by_main(str(args.output_dir)):
        if has_finished(args):
            yield None
            return
        folder = str(args.output_dir), args.resume_from_checkpoint, args.overwrite_output_dir
        yield Start(start, decided_by_main(lambda: find_checkpoint(*folder)), environment())


def build_encoder(args: ModelArguments, classes: int, max_length: int, seed: int) -> SentenceEncoder | CrossEncoder:
    """Loads the encoder to train; `max_length` is a default, `classes` the logits of a cross-encoder."""
    other = {"pooling": args.pooling} if args.tower == "cross_encoder" else {}
    if args.tower == "bi_encoder" and args.segment_ids != "tokenizer":
        other = {"segment_ids": args.segment_ids}
    for flag, value in other.items():
        if value is not None:
            raise InputError(f"--{flag} does nothing for --tower {args.tower}, got {value}. Leave it out.")
    options = {"max_length": max_length if args.max_length is None else args.max_length, "dropout": args.dropout}
    options["seed"] = seed
    if args.tower == "cross_encoder":
        return CrossEncoder.from_pretrained(args.model_name_or_path, classes, args.segment_ids, **options)
    return SentenceEncoder.from_pretrained(args.model_name_or_path, args.pooling, **options)


def make_room(encoder: TextModel, args: PromptArguments) -> None:
    """Adds the tokens of the longer prompt to the maximum length."""
    sides = encoder.prompts.sides(args.prompt, args.prompt_name)
    longer = encoder.max_length + max(map(encoder.count_tokens, sides))
    encoder.max_length = min(longer, max_tokens(encoder.backbone.config))


def run_training(
    start: Start,
    trainer: GlobalBatchTrainer,
    corpora: RunCorpora,
    arguments: tuple,
    code: Sequence[str] = (),
    **facts,
) -> None:
    """Trains, evaluates, saves, checks and publishes a model.

    Args:
        arguments: argument dataclasses of the job, without the trainer's own.
        code: files of the user's own code that the run depends on.
        facts: further fields of the record.
    """
    args, arguments = trainer.args, (trainer.args, *arguments)
    training, evaluated, run_recipe = corpora.training, list(corpora.by_name.values()), recipe(*arguments)
    records = {name: CorpusRecord.of(corpus.folder) for name, corpus in corpora.by_name.items()}
    terms = terms_of(
        [run_recipe["model_name_or_path"], run_recipe.get("teacher")],
        [corpus.manifest for corpus in training],
    )
    files = {file: sha256_of_file(file) for file in [*(run_recipe["text"] or []), *code]}
    settings = run_settings(*arguments, data={name: corpus.manifest_sha256 for name, corpus in records.items()} | files)
    evaluate = partial(evaluate_splits, trainer, corpora, held_out_sets(trainer, corpora))
    claim_output_folder(args.output_dir, start.checkpoint, settings)

    def at_start() -> Evaluation:
        before = evaluate(False)
        if trainer.is_world_process_zero():
            selecting = {corpus.manifest.name: corpus for corpus in corpora.selecting}
            trainer.at_first_validation = {
                name: partial(warn_of_fall, trainer, selecting[name], before) for name in trainer.held_out
            }
        return before

    start_sha256 = weight_hashes(run_recipe["model_name_or_path"])
    exact = args.mixed_precision == "no" and not args.tf32
    result = trainer.train(start.checkpoint, at_start=at_start)
    before, after = trainer.before, evaluate(True)
    floors = floors_of(evaluated, run_recipe, trainer.encoder.device)
    with final_folder(args) as folder:
        trainer.save_model(str(folder), _internal_call=True)
        decided_by_main(partial(check_saved, folder, corpora, after, trainer.sides, exact))
        if not trainer.is_world_process_zero():
            return
        record = RunRecord(
            recipe=run_recipe,
            environment=start.environment,
            processes=args.world_size,
            footprint=footprint(trainer.model),
            corpora=records,
            files=files,
            start_sha256=start_sha256,
            train_pairs=len(trainer.train_dataset),
            before=before.metrics,
            after=after.metrics,
            intervals=after.intervals,
            prompts=trainer.sides,
            history=trainer.state.log_history,
            train_seconds=result.metrics["train_runtime"],
            seconds=time.time() - start.time,
            leaks=leaks(training, evaluated),
            terms=terms,
            **facts,
        )
        judge(record, before, after, floors)
        groups = {name: splits["test"].groups for name, splits in floors.items() if "test" in splits}
        save_evaluations(folder, before, after, groups)
        write_rules(folder, after.rules)
        document(folder, args, record)
    publish(trainer)
    warnings = [f"warning: {line}" for line in record.warnings]
    print(*final_table(record, after.rules), *warnings, record.footprint, sep="\n")
    step = trainer.state.best_global_step if args.load_best_model_at_end else None
    epochs = [entry["epoch"] for entry in trainer.state.log_history if entry["step"] == step]
    moment = f"epoch {epochs[0]:.2f}, step {step}, the best on validation" if epochs else "the end of training"
    loss = f" with {' '.join(as_words({'loss': run_recipe['loss']}))}" if "loss" in run_recipe else ""
    print(f"model in {args.output_dir}: {moment} ({record.train_seconds:.0f} s of training{loss})")
    if record.terms:
        terms_in_words = ", ".join(f"{corpus} ({words})" for corpus, words in record.terms.items())
        print(f"terms of the data behind it: {terms_in_words}")
    if evaluated:
        print(next_step(record, str(args.output_dir), evaluated[0]))


def next_step(record: RunRecord, model: str, corpus: Corpus) -> str:
    """A command for the shortest pair of the last split of a corpus; without a clear gain, what to do instead."""
    if in_vain(record):
        return f"no clear gain: search with `{SIMILAR}`, or label more"
    rows = list(corpus.splits.values())[-1]
    pairs = zip(rows["sentence1"][:], rows["sentence2"][:], strict=True)
    pair = min(pairs, key=lambda pair: (pair[0] == pair[1], len("".join(pair))))
    prompts = ["--prompt", *record.prompts] if len(set(record.prompts)) > 1 else []
    return f"next: {shlex.join(['cosent', 'similarity', '--model', model, *pair, *prompts])}"


def document(folder: Path, args: RunArguments, record: RunRecord) -> None:
    """Writes card and record into the final folder of a run; for the main process."""
    write_card(folder, record, Path(str(args.output_dir)).resolve().name)
    record.save(folder)


def publish(trainer: ResumableTrainer) -> None:
    """Uploads the output folder without its checkpoints, with --push_to_hub; for the main process."""
    if trainer.args.push_to_hub:  # not by `Trainer.push_to_hub`, which saves the model once more and drops its record
        commit = HfApi(token=trainer.args.hub_token).upload_folder(
            repo_id=str(trainer.hub_model_id),
            folder_path=str(trainer.args.output_dir),
            ignore_patterns=["checkpoint-*", "*.partial", ".cache/*"],
            commit_message="End of training",
        )
        print(f"published: {commit.commit_url}")


def environment() -> Environment:
    """Versions, commit and device."""
    cuda = torch.cuda.is_available()
    return Environment(
        versions={"cosent": cosent.__version__, **{name: version(name) for name in PACKAGES}}
        | {"python": platform.python_version()},
        commit=commit(),
        device=torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()})",
        threads=torch.get_num_threads(),
        source_sha256=source_sha256(),
    )


def commit() -> str | None:
    """Commit of the clone that this package runs from, with `+` if its code differs; None outside of a clone."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():  # the repository around a virtual environment is another one
        return None
    code = ["src", "data_scripts", "recipes"]
    try:
        head, changes = (
            subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "--", *code])
        )
    except FileNotFoundError:  # no git here
        return None
    return head + ("+" if changes else "") or None


def source_sha256() -> str:
    """SHA-256 of the names and contents of the package's Python files, the same in a clone and a wheel."""
    package, sha256 = Path(str(cosent.__file__)).parent, hashlib.sha256()
    for name, file in sorted((file.relative_to(package).as_posix(), file) for file in package.rglob("*.py")):
        if not name.startswith("data_scripts/"):
            sha256.update(f"{name}\n".encode() + file.read_bytes())
    return sha256.hexdigest()


def weight_hashes(model_name_or_path: str) -> dict[str, str]:
    """SHA-256 of the weights in a model folder, by file; empty for models of the Hub and random weights."""
    folder = local(model_name_or_path).expanduser()
    files = sorted(file for kind in ("safetensors", "bin") for file in folder.glob(f"*.{kind}"))
    files += sorted(folder.glob("[0-9]_*/*.safetensors"))
    return {file.relative_to(folder).as_posix(): sha256_of_file(file) for file in files}


def footprint(model: torch.nn.Module) -> Footprint:
    """Model size and peak memory of this process."""
    sizes = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else peak_memory_mib()
    return Footprint(
        parameters=sum(size for size, _ in sizes),
        trainable_parameters=sum(size for size, trainable in sizes if trainable),
        peak_mib=round(peak, 1),
    )


def recipe(args: RunArguments, *job_arguments) -> dict:
    """All settings, flags and defaults alike, in the form of a recipe."""
    settings = {name: value for arguments in job_arguments for name, value in asdict(arguments).items()}
    return settings | args.to_sanitized_dict()
