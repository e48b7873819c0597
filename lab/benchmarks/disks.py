"""Run jobs on disks that are full or read-only, as a user without rights, and under names that are legal but odd.

python -m lab.benchmarks.disks --work /tmp/disks --output lab/results/disks.json     # as root, on Linux

A run is done, with its output there, or refused in words; or it is a traceback, a crash or a hang. What it leaves
behind besides its output (`*.partial`) is counted. What this machine cannot do, a mount or another user for one, is
left out by name. The campaign continues where it was stopped.
"""

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from cosent.comparing.document import markdown_table
from cosent.errors import messages_for_users
from cosent.record import shortened
from lab import ROOT
from lab.benchmarks.common import save
from lab.benchmarks.forked import SHORT, cosent, forked, set_up

NOBODY = 12345  # a user id
STUDY = """recipes: [bi_encoder/cosent_mini]
corpora: [data/pairs]
seeds: [1]
flags: {model_name_or_path: tiny, max_steps: 2, use_cpu: true, limit_train: 32}
"""
NAMES = {
    "spaces and Chinese": "模型 目录",
    "emoji and quotes": "🙂'\"",
    "signs of a shell": "$HOME`id`[1]*?{x}%s",
    "a line break": "a\nb",
    "240 bytes": "y" * 240,
    "300 bytes": "y" * 300,
}


def jobs(place: Path, name: str = "out") -> dict[str, list[str | Path]]:
    """The words of every job that writes, with its output below a place, as their last one."""
    model, pairs = ["--model", "bi", "--device", "cpu"], ["--pairs", "pairs.tsv"]
    merged = ["--models", "bi", "bi2", "--device", "cpu"]
    binary = ["--label_kind", "binary", "--validation_share", "0.2", "--test_share", "0.2"]
    mined = ["--corpus", "data/pairs", "--validation_pairs", "20", "--random", "100", "--range_min", "0"]
    mined += ["--range_max", "20", "--teacher", "cross"]
    return {
        "train": [
            "train",
            *SHORT,
            "--save_strategy",
            "steps",
            "--save_steps",
            "6",
            "--eval_strategy",
            "steps",
            "--eval_steps",
            "6",
            "--output_dir",
            place / name,
        ],
        "prepare": ["prepare", "pairs", "--source", "pairs.tsv", *binary, "--output", place / name],
        "mine": ["mine", *model, *mined, "--teacher_cache", "cache", "--output", place / name],
        "mine, its cache": ["mine", *model, *mined, "--output", "mined", "--teacher_cache", place / name],
        "merge": ["merge", *merged, "--output", place / name],
        "export": ["export", "--model", "bi", "--output", place / name],
        "encode": ["encode", *model, "--text", "texts.txt", "--output", place / f"{name}.npy"],
        "dedup": ["dedup", *model, "--text", "texts.txt", "--threshold", "0.999", "--output", place / f"{name}.txt"],
        "similarity csv": ["similarity", *model, *pairs, "--output", place / f"{name}.csv"],
        "similarity parquet": ["similarity", *model, *pairs, "--output", place / f"{name}.parquet"],
        "similarity xlsx": ["similarity", *model, *pairs, "--output", place / f"{name}.xlsx"],
        "study": ["study", "study.yaml", "--results", place / name],
        "report": ["report", place / "pawsx_few"],
    }


@contextmanager
def mounted(place: Path, size: str, then: str | None = None) -> Iterator[None]:
    """A tmpfs of a size, with the results of a study in it; `then` are the options that it is mounted with again."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", place], check=True)
    try:
        shutil.copytree(ROOT / "lab/results/pawsx_few", place / "pawsx_few")
        used = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        options = then or f"size={used // 1024 + int(size)}k"
        subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)
        yield
    finally:
        subprocess.run(["umount", place], check=True)


@contextmanager
def plain(place: Path, mode: int = 0o755) -> Iterator[None]:
    """An empty folder of ours."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    place.chmod(mode)
    shutil.copytree(ROOT / "lab/results/pawsx_few", place / "pawsx_few")
    yield
    shutil.rmtree(place)


@contextmanager
def link(place: Path, target: Path, kind: str) -> Iterator[None]:
    """A symbolic link: to a folder, to nothing, or to itself; or a file where a folder is expected."""
    place.unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    if kind == "file":
        place.touch()
    else:
        place.symlink_to(place.name if kind == "circle" else target.name)
        if kind == "folder":
            shutil.copytree(ROOT / "lab/results/pawsx_few", target / "pawsx_few")
    yield
    place.unlink()
    shutil.rmtree(target, ignore_errors=True)


def places(work: Path) -> dict[str, tuple[Callable, Path, str, Callable]]:
    """By name: what makes the place, where it is, the name of the output, and who runs the job."""
    disk, folder = work / "disk", work / "folder"
    found: dict[str, tuple[Callable, Path, str, Callable]] = {
        "full, 40 KiB left": (partial(mounted, disk, "40"), disk, "out", as_root),
        "full, 1 MiB left": (partial(mounted, disk, "1024"), disk, "out", as_root),
        "read-only": (partial(mounted, disk, "", "ro"), disk, "out", as_root),
        "folder of another user": (partial(plain, folder), folder, "out", as_nobody),
        "link to a folder": (partial(link, work / "link", work / "target", "folder"), work / "link", "out", as_root),
        "link to nothing": (partial(link, work / "link", work / "target", "nothing"), work / "link", "out", as_root),
        "link to itself": (partial(link, work / "link", work / "target", "circle"), work / "link", "out", as_root),
        "file as a folder": (partial(link, work / "link", work / "target", "file"), work / "link", "out", as_root),
    }
    return found | {f"name: {name}": (partial(plain, folder), folder, odd, as_root) for name, odd in NAMES.items()}


def as_root(command: Callable[[], None]) -> Callable[[], None]:
    return command


def as_nobody(command: Callable[[], None]) -> Callable[[], None]:
    """A command of a user without a home, who owns nothing."""

    def unprivileged() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.environ |= {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent/cache", "HF_HOME": "/nonexistent/hf"}
        command()

    return unprivileged


def tried(job: list[str | Path], make: Callable, place: Path, user: Callable) -> dict:
    """Outcome of a job at a place, and the files left behind."""
    for output in ("mined", "cache"):
        shutil.rmtree(output, ignore_errors=True)
    with make():
        ended = forked(user(cosent(*job)), Path("log.txt"))
        output = Path(job[-1])
        there = os.path.exists(output)  # of a name that is too long, `Path.exists` raises
        left = [path.name for path in place.parent.glob("*/*") if ".partial" in path.name or ".replaced" in path.name]
    how = {"ok": "done", "refused": "refused"}.get(ended.how, ended.how)
    return {"outcome": "lost" if how == "done" and not there else how, "left": left, "text": ended.text[-300:]}


def disks_table(result: dict) -> str:
    """Outcomes by place."""
    rows = [[row["place"], row["runs"], row["done"], row["refused"], row["traceback"]] for row in result["rows"]]
    rows.append(["all", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True))])
    other = sum(row["lost"] for row in result["rows"])
    return (
        f"{markdown_table(['place of the output', 'runs', 'done', 'refused in words', 'traceback'], rows)}\n\n"
        f"{result['jobs']} jobs that write; {sum(row['left'] for row in result['rows'])} partial files left behind, "
        f"{other} outputs missing after success. {result['device']}, commit {shortened(result['commit'])}."
    )


def main(args: argparse.Namespace) -> None:
    output = args.output.absolute()
    set_up(args.work)
    args.work.chmod(0o755)
    Path("study.yaml").write_text(STUDY, encoding="utf-8")
    file, work = Path("cases.jsonl"), Path.cwd()
    done = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    finished = {(case["place"], case["job"]): case for case in done}
    for name, (make, place, odd, user) in places(work).items():
        for job, words in jobs(place, odd).items():
            if (name, job) in finished or (job == "report" and name.startswith("name: ")):
                continue
            try:
                case = tried(words, make, place, user)
            except subprocess.CalledProcessError as error:
                print(f"{name}: left out, {error}")
                break
            finished[name, job] = {"place": name, "job": job, **case}
            with open(file, "a", encoding="utf-8") as opened:
                opened.write(json.dumps(finished[name, job], ensure_ascii=False) + "\n")
            print(
                name,
                "|",
                job,
                "|",
                case["outcome"],
                case["left"] or "",
                case["text"].strip().split("\n")[-1][:200],
                flush=True,
            )
    rows = []
    for name in dict.fromkeys(place for place, _ in finished):
        cases = [case for (place, _), case in finished.items() if place == name]
        counts = {kind: sum(case["outcome"] == kind for case in cases) for kind in ("done", "refused", "lost")}
        counts |= {"traceback": len(cases) - sum(counts.values()), "left": sum(len(case["left"]) for case in cases)}
        rows.append({"place": name, "runs": len(cases)} | counts)
    print(disks_table(save(str(output), "disks", rows, jobs=len(jobs(work)))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for models, mounts and finished cases")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
