"""Compare students: distilled from each of several teachers, or trained on the same labels, all from the same stage 1.

python -m benchmarks.students --teachers runs/cosent runs/sbert --corpus lcqmc --limit_train 40000 --layers 2 \
    --seeds 1 2 3 --output results/student.json

Every run is an `accelerate launch` of a recipe; one that has finished is read, not repeated.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from cosent.errors import InputError, messages_for_users
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number, times_100
from cosent.run_record import RunRecord, read_record, shortened
from cosent.studies.definition import same, settings_of

SAMPLES = ("distinct", "similar", "overlap", "judged")  # statistics of what a student writes
STAGE_1, DISTILL, DIRECT = ("student/stage1", "student/distill", "bi_encoder/cosent_mini")
# CoSENT starts from the student's encoder, pooling included; its rate and batch are those of the teacher in `towers`.
DIRECT_FLAGS = {"pooling": "linear_cls", "learning_rate": 5e-4, "per_device_train_batch_size": 64}


def launch(job: str, recipe: str, output: Path, flags: dict) -> RunRecord:
    """Runs a recipe, resumes it, or does nothing if it has finished; returns its record."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "recipes/accelerate/cpu.yaml"]
    command += ["-m", job, "--config", f"recipes/{recipe}.yaml", "--output_dir", str(output)]
    flags = {"resume_from_checkpoint": "auto", "disable_tqdm": True, "save_total_limit": 1} | flags
    print(f"{job} -> {output}", flush=True)
    subprocess.run(command + [part for key, value in flags.items() for part in (f"--{key}", str(value))], check=True)
    record = read_record(output)
    for key in {"num_train_epochs", "limit_train", "corpus", "seed"} & set(flags):
        if not same(record.recipe[key], flags[key]):
            raise InputError(f"{output} was made with {key} {record.recipe[key]}, not {flags[key]}. Name other --runs.")
    return record


def row(model: str, runs: list[RunRecord], corpus: str) -> dict:
    """Table row of runs that differ by their seed; for students that generate, with statistics of their samples."""
    described = {
        "model": model,
        "parameters": runs[0].footprint.parameters,
        "spearman": [run.after[corpus]["test"]["spearman"] for run in runs],
        "minutes": statistics.mean(run.train_seconds for run in runs) / 60,
        "commit": runs[0].environment.commit,
    }
    written = [run.written_after for run in runs if run.written_after is not None]
    if written:
        described["perplexity"] = statistics.mean(each.perplexity for each in written)
        samples = [each.samples for each in written]
        described["samples"] = {key: statistics.mean(sample[key] for sample in samples) for key in samples[0]}
    return described


def main(args: argparse.Namespace) -> None:
    teachers = {folder: record_of(folder) for folder in args.teachers}
    losses = [record.recipe["loss"] for record in teachers.values()]
    if len(set(losses)) < len(losses):
        raise InputError(
            f"--teachers have the losses {', '.join(losses)}: rows are named by them. Name each loss once."
        )
    shared = {"corpus": args.corpus, "num_train_epochs": args.epochs, "data_dir": args.data_dir}
    shared |= settings_of(args.set, "every run")
    if args.limit_train:
        shared["limit_train"] = args.limit_train
    folder = Path(args.runs) / f"{args.corpus}-{args.layers}"
    first = folder / "stage1"
    flags = shared | {"student_layers": args.layers, "judge": args.teachers[0]}
    stage_1 = launch("cosent.distill", STAGE_1, first, flags)
    rows = [
        row(f"teacher of {depth(path)} layers ({run.recipe['loss']})", [run], args.corpus)
        for path, run in teachers.items()
    ]
    rows.append(row(f"student of {args.layers} layers, stage 1 (synonyms)", [stage_1], args.corpus))
    for teacher, record in teachers.items():
        flags = shared | {"model_name_or_path": first, "teacher": teacher, "judge": args.teachers[0]}
        loss = record.recipe["loss"]
        distilled = [launch("cosent.distill", DISTILL, folder / f"distilled-{loss}-{seed}", flags | {"seed": seed})
                     for seed in args.seeds]  # fmt: skip
        rows.append(row(f"then stage 2 (distilled from {loss})", distilled, args.corpus))
    flags = shared | {"model_name_or_path": first} | DIRECT_FLAGS
    direct = [launch("cosent.train", DIRECT, folder / f"direct-{seed}", flags | {"seed": seed}) for seed in args.seeds]
    rows.append(row("or then CoSENT on the labels", direct, args.corpus))
    result = {"kind": "student", "corpus": args.corpus, "train_pairs": direct[0].train_pairs, "epochs": args.epochs,
              "rows": rows, "device": stage_1.environment.device, "commit": stage_1.environment.commit}  # fmt: skip
    text = json.dumps(result, ensure_ascii=False, indent=1)
    if args.output:
        Path(args.output).write_text(text + "\n", encoding="utf-8")
    print(text)


def record_of(teacher: str) -> RunRecord:
    record = read_record(teacher)
    if record is None:
        raise InputError(f"--teachers {teacher} has no run.json. Name folders of models that were trained here.")
    return record


def depth(teacher: str) -> int:
    return json.loads(Path(teacher, "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]


def stage_length(result: dict) -> str:
    return f"{result['epochs']} epochs" if result["epochs"] > 1 else "one epoch"


def student_table(result: dict) -> str:
    """A teacher and its students: retrieval and, for those that generate, statistics of their samples."""
    header = ["model", "parameters", f"{result['corpus']} test Spearman x100", "perplexity", *SAMPLES, "minutes"]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        written: list[Cell] = [None] * (1 + len(SAMPLES))
        if "samples" in row:
            samples = [Number(row["samples"][key], form=".3f") for key in SAMPLES]
            written = [Number(row["perplexity"], form=".1f"), *samples]
        parameters, minutes = f"{row['parameters'] / 1e6:.1f} M", Number(row["minutes"], form=".1f")
        rows.append([row["model"], parameters, times_100(row["spearman"]), *written, minutes])
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"{result['train_pairs']:,} training pairs, {stage_length(result)} a stage; mean ± standard deviation over "
        f"seeds. Of 50 x 20 samples: share of distinct ones, share above a cosine of 0.8, character overlap with the "
        f"source, the first teacher's mean cosine between the source and the top 5. {result['device']}, commit "
        f"{shortened(result['commit'])}."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teachers", nargs="+", required=True, help="folders of encoders trained on the same rows, "
                        "each with a loss of its own; the first one judges what students write")  # fmt: skip
    parser.add_argument("--corpus", default="lcqmc", help="prepared corpus")
    parser.add_argument("--data_dir", default="data", help="folder of the prepared corpora")
    parser.add_argument("--limit_train", type=int, help="training pairs; default: all")
    parser.add_argument("--layers", type=int, default=2, help="layers of the student, kept from mini-roformer")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of each stage")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of stage 2 and of CoSENT")
    parser.add_argument("--set", nargs="+", default=[], metavar="FLAG=VALUE",
                        help="flags of every run, as for `cosent study`")  # fmt: skip
    parser.add_argument("--runs", default="runs/students", help="folder for the models")
    parser.add_argument("--output", help="JSON to write")
    with messages_for_users():
        main(parser.parse_args())
