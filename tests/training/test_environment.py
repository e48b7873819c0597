"""A record says where a run took place, and a run finds that out before it trains."""

from importlib.metadata import PackageNotFoundError, version

import pytest

import cosent
from cosent.training import record


def test_a_source_tree_has_a_version(monkeypatch):
    """Fails if a run from sources that are not installed trains to its end, and has no record then."""

    def installed(name: str) -> str:
        if name == "cosent":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(record, "version", installed)
    here = record.environment()
    assert here.versions["cosent"] == cosent.__version__ and here.versions["torch"] == version("torch")
    assert here.device and here.threads >= 1


def test_the_environment_is_gathered_before_training(monkeypatch, train, made_up, tmp_path):
    """Fails if a run finds out after a night that it cannot write its record."""

    def broken():
        raise PackageNotFoundError("peft")

    monkeypatch.setattr(record, "environment", broken)
    with pytest.raises(PackageNotFoundError):
        train(made_up)
    assert not (tmp_path / "run").exists()
