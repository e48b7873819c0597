"""Builds the wheel: `data_scripts` and the recipes, which lie at the root of a clone, go into the package.

A clone that is installed with `--editable` needs only its `src` on the path: `cosent` looks for both at its root.
"""

import shutil
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


setup(packages=find_packages("src"), package_dir={"": "src"}, cmdclass={"build_py": BuildWithFolders})
