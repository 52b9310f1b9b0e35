# `make demo` and `make test` work on a fresh clone: both build .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
EXTRAS := dev,examples
# Run a second time with compiled code that looks whether each access is inside its array.
NATIVE_TESTS := tests/graphs/native $(wildcard tests/infer/mcmc/*/test_native.py)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-oldest-torch test-newest-torch lint dist docs figures env bench clean

demo: env
	$(BIN)/python examples/bayesian_pca.py --output results

test: $(VENV)/.installed-for-tests
	$(BIN)/python -m pytest -n auto --dist worksteal --durations=10
	PYRO_MANIFOLD_CHECKED=1 $(BIN)/python -m pytest -n auto --dist worksteal $(NATIVE_TESTS)

# The suite with the oldest torch that pyproject.toml promises and with the newest there is, in environments of their own.
test-oldest-torch: TORCH = torch==$(shell sed -n 's/.*"torch>=\([0-9.]*\)".*/\1/p' pyproject.toml).*
test-newest-torch: TORCH = torch
test-oldest-torch test-newest-torch: test-%-torch: $(VENV)-%/constraints.txt
	$(VENV)-$*/bin/python -m pip install --quiet --upgrade --constraint $< "$(TORCH)"
	$(MAKE) test VENV=$(VENV)-$* CONSTRAINTS=$<

$(VENV)-%/constraints.txt: constraints.txt
	$(PYTHON) -m venv $(@D)
	grep --extended-regexp --invert-match '^(torch|sympy)==' $< > $@  # torch 2.6 pins another sympy

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The wheel is tested without extras, without the checkout on the path, and without packages of other environments.
dist: env
	rm -rf dist build $(VENV)-dist
	$(BIN)/python -m build
	$(BIN)/python .ci/contents.py dist
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) dist/*.whl
	awk '/^```python/ { on = 1; next } on && /^```/ { exit } on' README.md > $(VENV)-dist/readme.py
	cd $(VENV)-dist && bin/python -m pip check && bin/python -I readme.py && bin/python -I -m pyro_manifold.check

bench: env
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[dev,examples,bench]"
	$(BIN)/python -m benchmarks.run --write docs $(if $(PART),--only $(PART))

docs: $(VENV)/.installed-for-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Into docs/images, which the repository has.
figures: env
	$(BIN)/python docs/figures.py

env: $(VENV)/.installed

# Reinstalled when what it is made from changes.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[$(EXTRAS)]"
	touch $@

# The packages that the tests compare with are large: the demo goes without.
$(VENV)/.installed-for-tests: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[test]"
	touch $@

# The site is made from the source, which it does not import: torch and the package itself are not needed.
$(VENV)/.installed-for-docs: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(BIN)/python -c "import tomllib; project = tomllib.load(open('$<', 'rb'))['project']; \
		print(*project['optional-dependencies']['docs'], sep='\n')" > $(VENV)/docs.txt
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --requirement $(VENV)/docs.txt
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest $(VENV)-dist build dist site results .mypy_cache .pytest_cache .ruff_cache
