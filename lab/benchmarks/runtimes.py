"""Sentences per second of every way to encode: ours, exported bundles, and sentence-transformers.

    python -m lab.benchmarks.runtimes --corpus data/lcqmc data/pawsx --theirs_python other/bin/python \\
        --output lab/results/runtimes.json

Sides take turns, each in its own process on the same cores, with its own default batch size. No row is read twice. On
one core processor seconds are counted, on several the seconds of a machine that must be quiet. `--busy 1` keeps another
process busy on the same cores.
`--theirs_python` is an interpreter with sentence-transformers, optimum-onnx, optimum-intel, nncf and datasets, which
need an older transformers. Without it, their torch backend alone is measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

OURS = ("ours", "ours bf16", "ours int8")
BUNDLES = ("bundle onnx", "bundle onnx int8", "bundle openvino", "bundle openvino bf16", "bundle openvino int8")
THEIRS = ("theirs onnx", "theirs onnx int8", "theirs openvino f32", "theirs openvino", "theirs openvino int8")
SHOWN = {"ours": "cosent encode", "bundle": "cosent export", "theirs": "sentence-transformers"}
CALIBRATION = 300  # sentences, as in `cosent export`


def encoder_of(side: str, folders: dict[str, str]):
    """`encode(sentences)` of a side; imports only the libraries of that side."""
    kind, *rest = side.split()
    if kind == "ours":
        import torch

        from cosent.models.bi_encoder import SentenceEncoder
        from cosent.models.embedding import quantized

        model = SentenceEncoder.from_pretrained(folders["model"])
        if rest == ["bf16"]:
            model = model.to(torch.bfloat16)
        return (quantized(model) if rest == ["int8"] else model).encode
    if kind == "bundle":
        from cosent.models.bundle import Bundle

        return Bundle(folders[side]).encode
    from sentence_transformers import SentenceTransformer

    backend, int8 = (rest or ["torch"])[0], rest[1:] == ["int8"]
    if not int8:  # by itself OpenVINO computes in bfloat16 on a CPU that has it
        config = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}} if rest[1:] == ["f32"] else {}
        return SentenceTransformer(folders["theirs"], backend=backend, device="cpu", model_kwargs=config).encode
    from sentence_transformers import backend as backends

    model = SentenceTransformer(folders["theirs"], backend=backend, device="cpu")
    copy = f"{folders['theirs']}-{backend}"
    Path(copy, "rows").mkdir(parents=True)
    model.save_pretrained(copy)
    if backend == "onnx":
        backends.export_dynamic_quantized_onnx_model(model, "avx512_vnni", copy)
        file = "onnx/model_qint8_avx512_vnni.onnx"
    else:
        from datasets import Dataset
        from optimum.intel import OVQuantizationConfig

        rows = Dataset.from_dict({"text": json.loads(Path(folders["calibration"]).read_text(encoding="utf-8"))})
        rows.to_parquet(f"{copy}/rows/train.parquet")
        rows_of = {"dataset_config_name": "default", "dataset_split": "train", "column_name": "text"}
        config = OVQuantizationConfig(num_samples=CALIBRATION)
        backends.export_static_quantized_openvino_model(model, config, copy, dataset_name=f"{copy}/rows", **rows_of)
        file = "openvino/openvino_model_qint8_quantized.xml"
    options = {"file_name": file.partition("/")[2]} | ({"subfolder": "onnx"} if backend == "onnx" else {})
    return SentenceTransformer(copy, backend=backend, device="cpu", model_kwargs=options).encode


def side_main(side: str, folders: dict[str, str]) -> None:
    """Measures once for each line on stdin, the path of a JSON list of sentences, and prints one line of JSON."""
    stdout, sys.stdout = sys.stdout, sys.stderr
    encode = encoder_of(side, folders)
    alone = os.environ["OMP_NUM_THREADS"] == "1"  # leaves out what others do on a shared machine
    clock = time.process_time if alone else time.perf_counter
    for line in sys.stdin:
        sentences = json.loads(Path(line.strip()).read_text(encoding="utf-8"))
        start = clock()
        vectors = encode(sentences)
        seconds = clock() - start
        half = len(sentences) // 2
        units = vectors / (vectors**2).sum(1, keepdims=True) ** 0.5
        cosines = (units[:half] * units[half:]).sum(1)
        print(json.dumps({"seconds": seconds, "cosines": cosines.tolist()}), file=stdout, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", nargs="+", required=True, help="prepared corpora")
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--model", default="similar", help="bi-encoder")
    parser.add_argument("--theirs_python", help="interpreter that has their backends")
    parser.add_argument("--cpus", type=int, nargs="+", default=[0], help="numbers of the cores to run on")
    parser.add_argument("--busy", type=int, default=0, help="other processes that never rest")
    parser.add_argument("--repeats", type=int, default=5, help="timed turns of each side")
    parser.add_argument("--pairs", type=int, default=1000, help="of each turn")
    args = parser.parse_args()
    os.sched_setaffinity(0, args.cpus)
    os.environ |= {"OMP_NUM_THREADS": str(len(args.cpus)), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for _ in range(args.busy):
            neighbour = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(neighbour.kill)
        result = compare(args, Path(folder))
    output = Path(args.output)
    before = json.loads(output.read_text(encoding="utf-8")) if output.is_file() else {}
    if (before.get("model"), before.get("busy", 0)) == (args.model, args.busy):  # other corpora and cores stay
        new = {(row["cpus"], row["corpus"]) for row in result["rows"]}
        others = [row for row in before["rows"] if (row["cpus"], row["corpus"]) not in new]
        result["rows"] = others + result["rows"]
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def compare(args, folder: Path) -> dict:
    """Medians, turns and Spearman of every side on every corpus."""
    from dataclasses import asdict

    from scipy.stats import spearmanr

    from cosent.encoders import resolve
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.training.job import environment
    from lab.benchmarks.common import shuffled_rows

    SentenceEncoder.from_pretrained(resolve(args.model)).save_pretrained(folder / "theirs")  # float32, their layout
    folders = {"model": str(folder / "theirs"), "theirs": str(folder / "theirs")}
    for side in BUNDLES:
        _, format, *rounded = side.split()
        folders[side] = str(folder / side.replace(" ", "_"))
        command = [sys.executable, "-m", "cosent", "export", "--model", resolve(args.model), "--format", format]
        command += ["--output", folders[side], *(f"--{one}" for one in rounded)]
        command += ["--corpus", args.corpus[0]] if rounded else []
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows, _ = shuffled_rows(args.corpus[0], "validation", CALIBRATION, start_over=False)
    folders["calibration"] = str(folder / "calibration.json")
    Path(folders["calibration"]).write_text(json.dumps(rows["sentence1"][:]), encoding="utf-8")
    sides = [*OURS, *BUNDLES, "theirs", *(THEIRS if args.theirs_python else ())]
    result = {"kind": "runtimes", "model": args.model, **asdict(environment())}
    result |= {"when": time.strftime("%Y-%m-%d"), "busy": args.busy, "rows": []}
    with ExitStack() as stack:
        processes = {}
        for side in sides:
            python = args.theirs_python if side in THEIRS else sys.executable
            command = [python, __file__, "--side", side, json.dumps(folders)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
            waiting = {"GOMP_SPINCOUNT": "1000"} if side in OURS else {}  # as the command sets it
            processes[side] = stack.enter_context(subprocess.Popen(command, env=os.environ | waiting, **pipes))
        for corpus in args.corpus:
            turns, labels = parts_of(corpus, args.pairs, args.repeats + 1, folder)
            measured: dict[str, list[dict]] = {side: [] for side in sides}
            for turn, path in enumerate(turns):
                for side in sides if turn % 2 else reversed(sides):
                    print(path, file=processes[side].stdin, flush=True)
                    line = processes[side].stdout.readline()
                    if not line:
                        raise SystemExit(f"{side} failed: {' '.join(processes[side].args)}")
                    measured[side].append(json.loads(line))
            for side, found in measured.items():
                speeds = [2 * args.pairs / one["seconds"] for one in found[1:]]  # the first turn warms up
                spearman = spearmanr([cosine for one in found for cosine in one["cosines"]], labels).statistic
                row = {"cpus": len(args.cpus), "corpus": corpus, "side": side}
                row["sentences_per_second"] = statistics.median(speeds)
                result["rows"].append(row | {"all": speeds, "spearman": spearman})
                print(f"{corpus:<12}{side:<24}{row['sentences_per_second']:8.0f}{100 * spearman:8.2f}", file=sys.stderr)
        for process in processes.values():
            process.stdin.close()
    return result


def parts_of(corpus: str, pairs: int, turns: int, folder: Path) -> tuple[list[Path], list[float]]:
    """Files of the sentences of `turns` parts of a test split, and the labels of all their pairs."""
    from lab.benchmarks.common import shuffled_rows

    rows, _ = shuffled_rows(corpus, "test", pairs * turns, start_over=False)
    if len(rows) < pairs * turns:
        raise SystemExit(f"{corpus} has {len(rows)} test pairs, {turns} turns need {pairs * turns}: lower --pairs.")
    paths = []
    for turn in range(turns):
        part = rows[turn * pairs : (turn + 1) * pairs]
        paths.append(folder / f"{Path(corpus).name}-{turn}.json")
        paths[-1].write_text(json.dumps([*part["sentence1"], *part["sentence2"]]), encoding="utf-8")
    return paths, rows["label"][:]


def runtimes_table(result: dict) -> str:
    """Sentences per second and Spearman: a row per side, a column per corpus and number of cores."""
    from cosent.comparing.document import markdown_table
    from cosent.record import shortened

    columns = list(dict.fromkeys((row["corpus"], row["cpus"]) for row in result["rows"]))
    cells = {(row["side"], row["corpus"], row["cpus"]): row for row in result["rows"]}
    lines = []
    for side in dict.fromkeys(row["side"] for row in result["rows"]):
        kind, *rest = side.split()
        line = [" ".join([SHOWN[kind], *rest])]
        for corpus, cpus in columns:
            row = cells.get((side, corpus, cpus))
            line.append("" if row is None else f"{row['sentences_per_second']:.0f}")
            line += ["" if row is None else f"{100 * row['spearman']:.2f}"] if cpus == 1 else []
        lines.append(line)
    header = []
    for corpus, cpus in columns:
        beside = ", next to a busy process" if result.get("busy") else ""
        cores = "1 core" if cpus == 1 else f"{cpus} cores"
        header.append(f"{Path(corpus).name}, sentences/s, {cores}{beside}")
        header += [f"{Path(corpus).name}, Spearman x100"] if cpus == 1 else []
    return (
        f"{markdown_table(['', *header], lines)}\n\n`{result['model']}`; seconds of one core's time, or of two cores; "
        f"medians of turns; {result['device']}, {result['when']}, commit {shortened(result['commit'])}."
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        side_main(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main()
