# Three commands work on a fresh clone, and build their environment first: `make demo`, `make test` and `make test-all`.
PYTHON ?= python3
NEWEST_PYTHON ?= $(shell .ci/newest-python)
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
PYTEST = $(BIN)/python -m pytest -n auto --dist worksteal
# Run a second time with compiled code that looks whether each access is inside its array.
NATIVE_TESTS := tests/compiled/native $(wildcard tests/infer/mcmc/*/test_native.py)
# SHARE=2/4 takes the second quarter of the tests; MINUTES=8 skips those that would begin later than that.
CHOICE = $(if $(SHARE),--share $(SHARE)) $(if $(MINUTES),--minutes $(MINUTES))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-all test-long test-checked test-oldest test-today lint dist docs figures env bench clean

demo: env
	$(BIN)/python examples/bayesian_pca.py --output results

# What a user or contributor must see, in ten minutes.
test: $(VENV)/.installed-for-tests
	$(PYTEST) -m "not long" --durations=10 $(CHOICE)

# Everything: the long tests, array bounds of native code, the oldest packages and those of today.
test-all: $(VENV)/.installed-for-all-tests
	$(PYTEST) --durations=20
	$(MAKE) test-checked test-oldest test-today

test-long: $(VENV)/.installed-for-all-tests
	$(PYTEST) -m long --durations=10 $(CHOICE)

test-checked: $(VENV)/.installed-for-tests
	PYRO_MANIFOLD_CHECKED=1 $(PYTEST) $(NATIVE_TESTS) $(CHOICE)

# `make test` with the oldest torch that pyproject.toml promises, in an environment of its own.
test-oldest: $(VENV)-oldest/constraints.txt
	$(MAKE) test VENV=$(VENV)-oldest CONSTRAINTS=$(VENV)-oldest/constraints.txt

$(VENV)-oldest/constraints.txt: pyproject.toml constraints.txt
	mkdir -p $(@D)
	sed --quiet 's/.*"torch>=\([0-9.]*\)".*/torch==\1.*/p' pyproject.toml > $@
	grep --extended-regexp --invert-match '^(torch|sympy)==' constraints.txt >> $@  # torch pins sympy

# The wheel as a new user gets it: the newest Python, no constraints. Self-test, README's example, the code of Start and of
# the how-to pages, and `make test`.
test-today: $(VENV)-today/.installed
	cd $(<D) && bin/python -I readme.py && bin/python -I -m pyro_manifold.check
	$(<D)/bin/python -m pytest -n auto --dist worksteal tests/examples/test_documentation.py -k "docs/start or docs/how_to" $(CHOICE)
	$(<D)/bin/python -m pytest -n auto --dist worksteal -m "not long" $(CHOICE)

$(VENV)-today/.installed: pyproject.toml $(shell find pyro_manifold -name '*.py')
	$(or $(NEWEST_PYTHON),$(error No Python was found: give NEWEST_PYTHON=/path/to/python)) -c "import venv"
	rm -rf $(@D)
	$(NEWEST_PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip build
	$(@D)/bin/python -m build --wheel --outdir $(@D)/dist
	$(@D)/bin/python -m pip install --quiet "$$(ls $(@D)/dist/*.whl)[examples]" --group test
	$(@D)/bin/python -m pip list
	$(call readme_example,$(@D))
	touch $@

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The wheel is tested without extras, without the checkout on the path, and without packages of other environments.
dist: env
	rm -rf dist build $(VENV)-dist
	$(BIN)/python -m build
	$(BIN)/python .ci/contents.py dist
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) dist/*.whl
	$(call readme_example,$(VENV)-dist)
	cd $(VENV)-dist && bin/python -m pip check && bin/python -I readme.py && bin/python -I -m pyro_manifold.check

# The first block of Python in README, as a script in an environment.
readme_example = awk '/^```python/ { on = 1; next } on && /^```/ { exit } on' README.md > $(1)/readme.py

bench: $(VENV)/.installed-for-all-tests
	$(BIN)/python -m benchmarks.run --write docs $(if $(PART),--only $(PART))

docs: $(VENV)/.installed-for-docs
	$(BIN)/properdocs build --strict

# Into docs/images, which the repository has.
figures: env
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/benchmark_figures.py

env: $(VENV)/.installed

# Reinstalled when what it is made from changes.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[examples]" --group dev
	touch $@

$(VENV)/.installed-for-tests: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --group test
	touch $@

# The packages that the long tests and benchmarks compare with are large.
$(VENV)/.installed-for-all-tests: $(VENV)/.installed-for-tests
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --group all
	touch $@

# The site is made from the source, which it does not import: torch and the package itself are not needed.
$(VENV)/.installed-for-docs: pyproject.toml $(CONSTRAINTS) | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --group docs
	touch $@

# --group needs pip 25.1.
$(VENV)/.pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-today $(VENV)-dist build dist site results .mypy_cache .pytest_cache .ruff_cache
