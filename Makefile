# Every target sets itself up: a fresh machine needs Python 3.11+ and a package index, nothing else.
PYTHON ?= python3
BIN := .venv/bin
FAST := not matrix and not slow and not distributed
# Two test files at a time, of one thread each: a process takes up to 2 GiB, so more of them are your choice (JOBS=8).
JOBS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install quickstart check test lint types imports coverage tables

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## /  make \1@/p' Makefile | awk -F @ '{printf "%-18s %s\n", $$1, $$2}'

install: .venv/.runtime  ## what is needed to train and serve, in .venv

quickstart: .venv/.runtime  ## train the embedded encoder on the demo corpus, score sentence pairs
	$(BIN)/cosent prepare demo --overwrite
	$(BIN)/cosent train --corpus demo --num_train_epochs 1 \
		--output_dir runs/quickstart --overwrite_output_dir
	@echo "The ten sentence pairs of kexue.fm 8541, scored by the new model:"
	@$(BIN)/cosent similarity --model runs/quickstart --pairs recipes/demo/pairs_8541.tsv
	@echo "Two pairs, scored by the shipped model:"
	@$(BIN)/cosent similarity --pairs examples/two.tsv

check: lint types imports  ## before you push: linters and the fast tests
	$(PYTEST) -m "$(FAST)"

test: lint types imports  ## everything, also the slow tests and those that launch several processes
	$(PYTEST)

lint: .venv/.dev  ## style and spelling
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/typos

types: .venv/.dev  ## type annotations of the leaf modules
	$(BIN)/mypy

imports: .venv/.dev  ## imports point one way: the contracts in pyproject.toml
	$(BIN)/lint-imports --no-logo

coverage: .venv/.dev  ## lines that the fast tests never run
	$(PYTEST) -m "$(FAST)" --cov=cosent --cov=data_scripts --cov-report=term-missing:skip-covered

tables: .venv/.runtime  ## write the generated blocks of README, docs and lab
	$(BIN)/python -m lab.tables

.venv/.runtime: requirements.txt pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt --editable .
	touch $@

.venv/.dev: .venv/.runtime requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@
