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

quickstart: .venv/.runtime
	$(BIN)/python -m data_scripts.prepare demo --overwrite
	$(BIN)/accelerate launch -q --config_file recipes/accelerate/cpu.yaml -m cosent.train \
		--config recipes/bi_encoder/cosent_mini.yaml --corpus demo --output_dir runs/quickstart --overwrite_output_dir
	@echo "The ten sentence pairs of kexue.fm 8541, as the new model sees them:"
	$(BIN)/python -m cosent.similarity --model runs/quickstart --pairs recipes/demo/pairs_8541.tsv

test: .venv/.dev lint
	$(BIN)/python -m pytest

lint: .venv/.dev
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
