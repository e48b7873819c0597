"""The pipeline of kexue.fm 8541 at the size of `mini`: joint teachers, and RoFormer-Sim students distilled from them.

OMP_NUM_THREADS=1 python -m lab.benchmarks.roformer_sim --output lab/results/roformer_sim.json

Two teachers start from `mini` and read the same mixture: half the batches are NLI (three grades or classes), half ATEC,
BQ, LCQMC and STS-B, in proportion to the pairs taken of each. One has the head of `sbert_joint`, of three and two
classes, the other is CoSENT. Each takes the learning rate that is best on validation after `TRIAL_STEPS`. A student
starts from `similar-writer`, stage 1 of RoFormer-Sim, and learns the cosines of one teacher and to generate; NLI is
text to it, of which it learns no generation. `direct` is the Sentence-BERT head on stage 1, without a teacher. Models
go to runs/roformer_sim; the same command continues. Corpora: `cosent prepare` atec, bq, lcqmc, pawsx, stsb and nli.

Written before the first run:

* The CoSENT teacher is ahead of Sentence-BERT's on ATEC, BQ, LCQMC and STS-B, most on STS-B (over 3 points), and level
  (within 2 points) on PAWSX.
* Its student is ahead of the other student on the same four, by less.
* Sentence-BERT's student is ahead of its teacher on all but PAWSX, as kexue.fm 8541 has it, but because stage 1 has
  read 163,774 similar pairs of three of the corpora; CoSENT's student is not, on STS-B.
* Distillation lifts stage 1 on STS-B from CoSENT, but less than the 5 to 12 points of kexue.fm 8541 on ATEC, BQ and
  LCQMC; from Sentence-BERT it does not lift it on BQ and LCQMC.
* No model puts the ten pairs in order: over 5 of the 25 comparisons are wrong, fewest of a CoSENT model.
* The students still write: perplexity rises by less than a tenth.
"""

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from cosent.comparing.document import Cell, markdown_table, mean_of, times_100
from cosent.data.corpus import load_corpus, random_subset
from cosent.errors import messages_for_users
from cosent.evaluation.metrics import correlations
from cosent.evaluation.significance import spearman
from cosent.evaluation.similarity import character_overlap
from cosent.jobs import distill, train
from cosent.models import load_model
from cosent.models.decoding import Sampling, write_targets
from cosent.models.student import Student
from cosent.record import RunRecord, shortened
from lab.benchmarks.common import finished, save
from lab.benchmarks.quickstart import published_pairs, wrong_orders
from lab.tables.rows import CORPORA
from lab.tables.studies import overlap_cell, published

RUNS = Path("runs/roformer_sim")
LABELLED, NLI = ("atec", "bq", "lcqmc", "stsb"), "nli"
STAGE_1 = "similar-writer"
RATES, TRIAL_STEPS = (2e-4, 5e-4, 1e-3), 120
TEACHER = {"steps": 400, "batch": 32, "pairs": 6400}  # so that each NLI pair is read once
STUDENT = {"pairs": 2000}  # of a corpus; once, in batches of 48
SOURCES, SAMPLES = 50, 20  # of what a student writes
NAMES = {
    "mini": "mini, untrained",
    "stage1": "stage 1",
    "teacher_sbert": "Sentence-BERT teacher",
    "student_sbert": "student of Sentence-BERT",
    "direct_sbert": "Sentence-BERT from stage 1",
    "teacher_cosent": "CoSENT teacher",
    "student_cosent": "student of CoSENT",
}
COMMON = [
    *("--bf16", "--use_cpu", "--disable_tqdm", "true", "--skip_test"),
    *("--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false", "--overwrite_output_dir"),
]


def labelled_pairs() -> list[int]:
    """Number of training pairs of a teacher from each of `LABELLED`."""
    return [min(TEACHER["pairs"], len(load_corpus(name).split("train"))) for name in LABELLED]


def taught_by_labels(name: str, loss: str, start: str, seed: int, rate: float, steps: int) -> RunRecord:
    """Trains a model on labels, unless it has finished."""
    output = RUNS / name
    words = ["--config", f"bi_encoder/{'sbert_joint' if loss == 'sbert_joint' else 'cosent'}", *COMMON]
    words += ["--corpus", *LABELLED, NLI, "--eval_corpora", *LABELLED, "--limit_train", str(TEACHER["pairs"])]
    if loss == "cosent":  # sbert_joint draws in these shares
        words += ["--corpus_weights", *map(str, [*labelled_pairs(), sum(labelled_pairs())])]
    words += ["--model_name_or_path", start, "--dropout", "0.1", "--weight_decay", "0.01", "--seed", str(seed)]
    words += ["--limit_validation", "500" if steps == TRIAL_STEPS else "200"]
    words += ["--pooling", "linear_cls" if start == STAGE_1 else "mean"]
    words += ["--per_device_train_batch_size", str(TEACHER["batch"]), "--max_steps", str(steps)]
    words += ["--learning_rate", str(rate), "--lr_scheduler_type", "linear", "--warmup_steps", "0.1"]
    return finished(train.main, [*words, "--output_dir", str(output)], output)


def distilled(name: str, teacher: str, seed: int) -> RunRecord:
    """Trains a student of a teacher from stage 1, unless it has finished."""
    output, text = RUNS / name, RUNS / f"nli-{seed}.txt"
    rows = random_subset(load_corpus(NLI).split("train"), STUDENT["pairs"], "", seed)
    both = zip(rows["sentence1"], rows["sentence2"], strict=True)
    text.write_text("".join(f"{sentence}\n" for pair in both for sentence in pair), encoding="utf-8")
    words = ["--config", "student/distill", *COMMON, "--corpus", *LABELLED, "--limit_train", str(STUDENT["pairs"])]
    words += ["--text", str(text), "--teacher", str(RUNS / teacher), "--model_name_or_path", STAGE_1]
    words += ["--limit_validation", "200", "--num_train_epochs", "1", "--seed", str(seed), "--output_dir", str(output)]
    return finished(distill.main, words, output)


def chosen_rate(loss: str, tried: dict[str, dict[str, float]]) -> float:
    """Best learning rate by mean validation Spearman of four corpora after `TRIAL_STEPS` with seed 1."""
    for rate in RATES:
        if str(rate) not in tried.setdefault(loss, {}):
            after = taught_by_labels(f"trial_{loss}-{rate}", loss, "mini", 1, rate, TRIAL_STEPS).after
            tried[loss][str(rate)] = statistics.mean(after[name]["validation"]["spearman"] for name in LABELLED)
    return float(max(tried[loss], key=lambda rate: tried[loss][rate]))


def measured(model: str) -> dict:
    """Test Spearman on the five corpora, and cosines of the ten pairs."""
    encoder, pairs, test = load_model(model), published_pairs(), {}
    for name in CORPORA:
        corpus = load_corpus(name)
        rows = corpus.split("test")
        scores = encoder.similarity(rows["sentence1"][:], rows["sentence2"][:])
        test[name] = float(spearman(scores, corpus.labels("test")))
    ten = encoder.similarity(*([pair[side] for pair in pairs] for side in ("sentence1", "sentence2")))
    return {"test": test, "ten": np.asarray(ten).tolist()}


def written(folder: str) -> dict[str, float]:
    """Share of distinct samples other than the source, and their character overlap with it, on LCQMC.

    `SAMPLES` samples for each of `SOURCES` test sentences.
    """
    student = Student.from_pretrained(folder).eval()
    texts = random_subset(load_corpus("lcqmc").split("test"), SOURCES, "", 1)["sentence1"][:]
    samples = write_targets(student, student.token_ids(texts), Sampling(num_samples=SAMPLES))
    others = [
        {student.tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "") for ids in group} - {text}
        for text, group in zip(texts, samples, strict=True)
    ]
    overlaps = [character_overlap(text, one) for text, group in zip(texts, others, strict=True) for one in group]
    return {"distinct": sum(map(len, others)) / (SOURCES * SAMPLES), "overlap": statistics.mean(overlaps)}


def main(args: argparse.Namespace) -> None:
    output = Path(args.output)
    stored = json.loads(output.read_text(encoding="utf-8")) if output.is_file() else {"models": [], "tried": {}}
    models, tried = stored["models"], stored["tried"]
    RUNS.mkdir(parents=True, exist_ok=True)

    def keep(kind: str, seed: int, model: str, record: RunRecord | None = None) -> None:
        """Measures a model, unless it is in the result, and writes the result."""
        if any((one["kind"], one["seed"]) == (kind, seed) for one in models):
            return
        found = {"kind": kind, "seed": seed, **measured(model)}
        if kind == "stage1" or kind.startswith("student"):
            found |= written(model)
        if record is not None:
            found |= {"minutes": record.train_seconds / 60, "learning_rate": record.recipe["learning_rate"]}
            found["validation"] = {name: values["validation"] for name, values in record.after.items()}
            if kind.startswith("student"):
                found["perplexity"] = [
                    record.before["lcqmc"]["validation"]["perplexity"],
                    record.after["lcqmc"]["validation"]["perplexity"],
                ]
        models.append(found)
        pairs = dict(zip(LABELLED, labelled_pairs(), strict=True)) | {NLI: TEACHER["pairs"]}
        save(
            args.output,
            "roformer_sim",
            rows_of(models),
            setting=f"mini and similar-writer, {TEACHER['steps'] * TEACHER['batch']} pairs read once, half of them NLI",
            teacher=TEACHER | {"pool": pairs},
            student=STUDENT,
            tried=tried,
            pairs=[(pair["sentence1"], pair["sentence2"]) for pair in published_pairs()],
            published=[float(pair["published"]) for pair in published_pairs()],
            models=models,
        )

    for kind, model in (("mini", "mini"), ("stage1", STAGE_1)):
        keep(kind, 0, model)
    for seed in args.seeds:
        for loss in ("sbert", "cosent"):
            objective = "sbert_joint" if loss == "sbert" else loss
            rate, teacher = chosen_rate(objective, tried), f"teacher_{loss}-{seed}"
            record = taught_by_labels(teacher, objective, "mini", seed, rate, TEACHER["steps"])
            keep(f"teacher_{loss}", seed, str(RUNS / teacher), record)
            student = f"student_{loss}-{seed}"
            keep(f"student_{loss}", seed, str(RUNS / student), distilled(student, teacher, seed))
    for seed in args.seeds:
        rate, direct = chosen_rate("sbert_joint", tried), f"direct_sbert-{seed}"
        record = taught_by_labels(direct, "sbert_joint", STAGE_1, seed, rate, TEACHER["steps"])
        keep("direct_sbert", seed, str(RUNS / direct), record)


def rows_of(models: list[dict]) -> list[dict]:
    """The scores of each kind of model by corpus, as claims compare them."""
    kinds = [kind for kind in NAMES if any(model["kind"] == kind for model in models)]
    return [
        {
            "name": f"{kind} {corpus}",
            "values": [
                model["test"][corpus] for model in sorted(models, key=lambda m: m["seed"]) if model["kind"] == kind
            ],
        }
        for kind in kinds
        for corpus in CORPORA
    ]


def of_kind(result: dict, kind: str) -> list[dict]:
    return sorted((model for model in result["models"] if model["kind"] == kind), key=lambda model: model["seed"])


def shown(result: dict) -> dict[str, list[dict]]:
    """Models by the table name of their kind; kinds without models are left out."""
    return {name: models for kind, name in NAMES.items() if (models := of_kind(result, kind))}


def roformer_sim_table(result: dict) -> str:
    """Test Spearman x100 of stage 1, teachers and students by corpus, next to the published table."""
    columns, source = shown(result), {row["method"]: row for row in of_source()}
    rows: list[list[Cell]] = []
    for corpus in CORPORA:
        base, tuned, small, small_tuned = (f"{source[name][corpus]:.2f}" for name in source)
        scores = (times_100(model["test"][corpus] for model in models) for models in columns.values())
        rows.append([corpus, overlap_cell(corpus), *scores, f"{base}, {tuned}", f"{small}, {small_tuned}"])
    counts = (
        joined(wrong_orders(model["ten"], result["published"]) for model in models) for models in columns.values()
    )
    rows.append(["ten pairs in the wrong order, of 25", None, *counts, None, None])
    header = ["test Spearman x100", "character overlap", *columns, "RoFormer-Sim, -FT", "-small, -FT-small"]
    return f"{markdown_table(header, rows)}\n\n{protocol_of(result)}"


def of_source() -> list[dict]:
    """The rows of RoFormer-Sim in the published tables."""
    return next(table["rows"] for table in published() if "RoFormer-Sim" in table["source"])


def joined(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def protocol_of(result: dict) -> str:
    """Training data and settings of the table in one passage."""
    teacher, seeds = result["teacher"], len(of_kind(result, "teacher_cosent"))
    pool = teacher["pool"]
    similar, batches = sum(pool.values()) - pool[NLI], teacher["steps"] * teacher["batch"] // 2
    drawn = joined(f"{name} {batches * pool[name] / similar:,.0f}" for name in LABELLED)
    rates = joined(f"{of_kind(result, f'teacher_{loss}')[0]['learning_rate']:g}" for loss in ("sbert", "cosent"))
    return (
        f"A teacher: {teacher['steps']} batches of {teacher['batch']}, {batches:,} pairs of NLI and as many of the "
        f"others (about {drawn}), learning rates {rates}. A student: {result['student']['pairs']:,} pairs of each of "
        f"the five corpora, once. {seeds} seed{'s' if seeds > 1 else ''}; {result['device']}, "
        f"commit {shortened(result['commit'])}."
    )


def ten_pairs_table(result: dict) -> str:
    """Cosines of the ten pairs, means over seeds, next to the published ones, and statistics of generated sentences."""
    columns = shown(result)
    rows: list[list[Cell]] = [
        [
            " / ".join(pair),
            f"{known:.3f}",
            *(mean_of((m["ten"][place] for m in models), ".3f") for models in columns.values()),
        ]
        for place, (pair, known) in enumerate(zip(result["pairs"], result["published"], strict=True))
    ]
    for name, measure, form in (
        ("Spearman of the ten", lambda model: correlations(model["ten"], result["published"])["spearman"], ".2f"),
        ("distinct paraphrases", lambda model: model.get("distinct"), ".0%"),
        ("their overlap with the source", lambda model: model.get("overlap"), ".2f"),
        ("perplexity on LCQMC, before", lambda model: model.get("perplexity", [None])[0], ".2f"),
        ("perplexity on LCQMC, after", lambda model: model.get("perplexity", [None, None])[1], ".2f"),
    ):
        rows.append([name, None, *(mean_of(map(measure, models), form) for models in columns.values())])
    return markdown_table(["pair", "published", *columns], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="JSON file to write, or to continue")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    with messages_for_users():
        main(parser.parse_args())
