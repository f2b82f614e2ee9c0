PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test check setup

run: setup  ## train on the embedded default
	$(BIN)/python run.py

test: setup  ## the whole suite
	$(BIN)/python -m pytest

check: setup  ## format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
