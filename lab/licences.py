"""Licences of the packages that `requirements.lock` installs, as their own metadata states them.

    python -m lab.licences --output lab/licences.md

Run in an environment of that file on Linux. Packages for other systems, which are not installed there, are left out.
"""

import argparse
import re
from collections import defaultdict
from importlib.metadata import Distribution, distributions
from pathlib import Path

from lab import ROOT

PAGE = """# Licences

cosent is under Apache-2.0. What `requirements.lock` installs on Linux states these licences in its metadata. NVIDIA's
libraries are dependencies of PyTorch's build for CUDA; the build for CPUs has none of them. Written by
`python -m lab.licences`.

The tokenizers of the shipped models hold traditional forms of [OpenCC](https://github.com/BYVoid/OpenCC) (TSCharacters,
Apache-2.0).

| licence | packages |
|---|---|
{rows}
"""


def locked(file: Path = ROOT / "requirements.lock") -> dict[str, set[str]]:
    """Package -> versions in the file, which may differ by platform."""
    versions = defaultdict(set)
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", file.read_text(encoding="utf-8"), re.MULTILINE):
        versions[normalised(name)].add(version)
    return versions


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(package: Distribution) -> str:
    """Licence of an installed package: its SPDX expression, a short text, or a classifier."""
    metadata = package.metadata.json
    texts = [metadata.get("license_expression", ""), metadata.get("license", "")]
    short = [text for text in texts if 0 < len(text) <= 120 and "\n" not in text]
    classified = [line.split(" :: ")[-1] for line in metadata.get("classifier", []) if line.startswith("License ::")]
    return [*short, *classified, "not stated"][0]


def installed() -> dict[str, str]:
    """Package -> licence, of installed packages in the version of `requirements.lock`; 2.13.0+cpu is 2.13.0."""
    versions = locked()
    here = {normalised(package.name): package for package in distributions()}
    pinned = [name for name in sorted(versions.keys() & here) if here[name].version.split("+")[0] in versions[name]]
    return {name: licence(here[name]) for name in pinned}


def page(licences: dict[str, str]) -> str:
    groups = defaultdict(list)
    for name, text in licences.items():
        groups[text].append(name)
    return PAGE.format(rows="\n".join(f"| {text} | {', '.join(names)} |" for text, names in sorted(groups.items())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="Markdown file to write")
    Path(parser.parse_args().output).write_text(page(installed()), encoding="utf-8")
