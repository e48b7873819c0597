"""A record says where a run took place, and a run finds that out before it trains."""

from importlib.metadata import PackageNotFoundError

import pytest

from cosent.training import record


def test_the_environment_is_gathered_before_training(monkeypatch, train, made_up, tmp_path):
    """Fails if a run finds out after a night that it cannot write its record."""

    def broken():
        raise PackageNotFoundError("peft")

    monkeypatch.setattr(record, "environment", broken)
    with pytest.raises(PackageNotFoundError):
        train(made_up)
    assert not (tmp_path / "run").exists()
