# `make demo` and `make test` work on a fresh clone: both build .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,examples
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint docs env bench clean

demo: env
	$(BIN)/python examples/bayesian_pca.py --output results

test: $(VENV)/.installed-for-tests
	$(BIN)/python -m pytest -n auto --dist worksteal --durations=10

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: env
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,examples,bench]"
	$(BIN)/python -m benchmarks.run --write docs/benchmarks

docs: env
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,examples,docs]"
	$(BIN)/python docs/figures.py
	$(BIN)/mkdocs build --strict

env: $(VENV)/.installed

# Reinstalled when what it is made from changes.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $@

# The packages that the tests compare with are large: the demo goes without.
$(VENV)/.installed-for-tests: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist site results .mypy_cache .pytest_cache .ruff_cache
