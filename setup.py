"""Packages that lie outside `src`: `data_scripts`, and the recipes inside the installed `cosent`."""

from setuptools import find_namespace_packages, find_packages, setup

setup(
    packages=[*find_packages("src"), *find_namespace_packages(include=["data_scripts*"]), "cosent.recipes"],
    package_dir={"": "src", "data_scripts": "data_scripts", "cosent.recipes": "recipes"},
)
