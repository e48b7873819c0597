# Both targets set themselves up: a fresh machine needs Python 3.11+ and a package index, nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install quickstart test lint

install: .venv/.runtime

.venv/.runtime: requirements.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt --editable .
	touch $@

.venv/.dev: .venv/.runtime requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

test: .venv/.dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m pytest

lint: .venv/.dev
	$(BIN)/python -m ruff check .
