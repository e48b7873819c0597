"""Build of the wheel: with `data_scripts` and the recipes, which lie at the root of a clone, and README for PyPI.

A clone that is installed with `--editable` needs only its `src` on the path: `cosent` looks for both at its root.
"""

import os
import re
import shutil
import tomllib
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithFolders(build_py):
    """Copies the two folders into the built package."""

    def run(self):
        super().run()
        if not self.editable_mode:
            for name in ("data_scripts", "recipes"):
                target = Path(self.build_lib, "cosent", name)
                shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def pypi_readme(repository: str | None, version: str) -> str:
    """README with absolute links to a version in a repository; without one, with the text of its relative links.

    PyPI shows README alone: a relative link or picture of it leads nowhere.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](../../actions/", "](ACTIONS/")
    if repository is None:
        text = re.sub(r"<picture>.*?</picture>\n*", "", text, flags=re.DOTALL)
        text = re.sub(r"\[!\[[^]]*\]\([^)]*\)\]\(ACTIONS[^)]*\) ?|!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", text)
        text = re.sub(r"\[(!\[[^]]*\]\([^)]*\))\]\((?!https?:)[^)]*\)", r"\1", text)  # a badge keeps its picture
        return re.sub(r"(?<!!)\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
    text = re.sub(r'((?:srcset|src)=")(?!https?:)', rf"\1{repository}/raw/v{version}/", text)
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|ACTIONS)", rf"\1{repository}/raw/v{version}/", text)
    text = re.sub(r"\]\((?!https?:|ACTIONS)", f"]({repository}/blob/v{version}/", text)
    return text.replace("](ACTIONS/", f"]({repository}/actions/")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"].get("Repository")
    if name := os.environ.get("GITHUB_REPOSITORY"):  # of the release workflow
        repository = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    setup(
        packages=find_packages("src"),
        package_dir={"": "src"},
        cmdclass={"build_py": BuildWithFolders},
        long_description=pypi_readme(repository, project["version"]),
        long_description_content_type="text/markdown",
    )


if __name__ == "__main__":
    main()
