PYTHON ?= python3
BIN := .venv/bin
# Each of the programs that tests start would compile all modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test check accept docs thorough stress setup

run: .venv/.run  ## train on the embedded default
	$(BIN)/python run.py

test: setup  ## every property by at least one test: about five minutes on 2 cores
	$(BIN)/python -m pytest

check: setup  ## format, lint, imports, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m pytest

accept: setup  ## every promise: pinned batches, resumes, kills, random configurations
	CI=true $(BIN)/python -m pytest $$(cat tests/acceptance.txt)
	PENSTOCK_TEST_CASES=25 PENSTOCK_TEST_KILLS=10 PENSTOCK_TEST_MOMENTS=1 $(BIN)/python -m pytest -n 0 -m stress \
	  tests/promises/stress/test_random_configurations.py tests/promises/stress/test_trainer_kills.py tests/promises/stress/test_stops.py \
	  tests/promises/stress/test_kills.py::test_kills_of_forked_workers

docs: setup  ## these pages and the API reference, as a site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

thorough: setup  ## further cases of the same properties, all of them
	$(BIN)/python -m pytest -m 'thorough and not stress'

stress: setup  ## kills of workers and trainers by the hundred; minutes
	$(BIN)/python -m pytest -m stress -n 0 -s

setup: .venv/.ready

.venv/.run: pyproject.toml constraints.txt $(wildcard pipeline/native/*.[ch])
	@echo "installs about 6 GB into .venv, nearly all of it PyTorch with its CUDA libraries"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/.ready: .venv/.run
	@echo "installs about 1.5 GB more into .venv: what tests compare with, and tools"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
