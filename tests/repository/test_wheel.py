"""What `pip install` of a built wheel gives: the quickstart runs in an empty folder, far from any clone."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "data_scripts", "lab", "recipes", "tests", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md")
SOURCES += ("LICENSE", "CHANGELOG.md", "CITATION.cff", "README.zh-CN.md", "SECURITY.md", "requirements.txt")
SOURCES += ("requirements.lock",)

TARGETS = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("repository", ["https://github.com/someone/cosent", None])
def test_the_readme_of_pypi(repository):
    """Fails if a link or a picture on PyPI, which shows README alone, leads nowhere, or its text is lost."""
    text = runpy.run_path(str(ROOT / "setup.py"))["pypi_readme"](repository, "1.2.3")
    original = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = TARGETS.findall(text)
    assert len(targets) >= 4 and all(target.startswith("https://") for target in targets)
    assert "CoSENT" in text and text.count("\n## ") == original.count("\n## ")
    pictures = re.findall(r'src(?:set)?="([^"]+)"', text)
    assert len(pictures) == (4 if repository else 0) and all(place.startswith("https://") for place in pictures)
    assert all((ROOT / place.split("/", 7)[7]).is_file() for place in pictures)
    own = [target.removeprefix(f"{repository}/") for target in targets if target.startswith(f"{repository}/")]
    if repository:
        assert len(targets) == len(TARGETS.findall(original))
        files = [target.split("/", 2)[2].partition("#")[0] for target in own if not target.startswith("actions/")]
        assert len(files) >= 10 and all((ROOT / file).exists() for file in files)
    else:
        assert not own


@pytest.mark.matrix
def test_a_wheel_in_an_empty_folder(tmp_path):
    """Fails if a folder is left out of the wheel, or a job needs the root of a clone."""
    pytest.importorskip("setuptools", minversion="77")
    clone, site, here = (tmp_path / name for name in ("clone", "site", "here"))
    clone.mkdir(), here.mkdir()
    for name in SOURCES:  # building writes next to the sources
        source = ROOT / name
        if source.is_file():
            shutil.copy(source, clone)
        else:
            shutil.copytree(source, clone / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__", "results"))
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    build = "from setuptools.build_meta import build_sdist; build_sdist('..')"
    released = os.environ | {"GITHUB_REPOSITORY": "someone/cosent"}
    subprocess.run([sys.executable, "-c", build], cwd=clone, env=released, check=True, stdout=subprocess.DEVNULL)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"CITATION.cff", "data_scripts", "recipes", "src"} <= inside and not inside & {"lab", "tests", "docs"}
    making = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, sdist]
    subprocess.run(making, env=released, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    (metadata,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    targets = TARGETS.findall(zipfile.ZipFile(wheel).read(metadata).decode())
    assert len(targets) >= 10 and all(target.startswith("https://") for target in targets)
    packages = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in packages if not name.endswith(".dist-info")} == {"cosent"}, "one package, and not the lab"
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)

    environment = os.environ | {"PYTHONPATH": str(site)}

    def cosent(*words: str) -> str:
        command = [sys.executable, "-m", "cosent", *words]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    rows = [
        f"第{number}句怎么还款\t第{number}句如何{verb}款\t{label}\n"
        for number in range(30)
        for verb, label in (("还", 1), ("借", 0))
    ]
    (here / "faq.tsv").write_text("".join(rows), encoding="utf-8")
    shares = ["--validation_share", "0.2", "--test_share", "0.2"]
    assert "cosent train --corpus faq" in cosent(
        "prepare", "faq", "--source", "faq.tsv", "--label_kind", "binary", *shares
    )
    cosent("train", *["--corpus", "faq", "--max_steps", "1", "--use_cpu", "true"])
    assert (
        json.loads((here / "runs/faq/run.json").read_text(encoding="utf-8"))["recipe"]["config"] == "bi_encoder/default"
    )
    assert "怎么还款" in cosent("similarity", "--model", "runs/faq", "怎么还款", "如何还款")
    cosent("study", "--help")

    found = [sys.executable, "-c", "from cosent.flags import recipe_file; print(recipe_file('cpu', 'accelerate'))"]
    assert str(site) in subprocess.run(found, cwd=here, env=environment, capture_output=True, text=True).stdout
