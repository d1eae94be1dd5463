# make demo | test | tables | bench | docs. Each makes .venv first, with the exact versions of
# constraints.txt. Needs Python 3.11 or newer: make PYTHON=python3.12 demo.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
FLOORS := simulator envs baselines agents experiments
# An editable install in strict mode is a tree of links: a new or renamed file needs a new one.
FILES := $(shell find $(FLOORS) -type f -not -name '*.pyc' -not -path '*/__pycache__*' | LC_ALL=C sort | cksum | cut -d ' ' -f 1)
DEPENDENCIES := $(VENV)/.dependencies
INSTALLED := $(VENV)/.installed-$(FILES)

.PHONY: demo test tables bench docs lint clean

demo: $(INSTALLED)
	$(BIN)/python scripts/reproduce.py demo

test: $(INSTALLED) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q
	# Compiled kernels do not look at array bounds; once more with kernels that do.
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=build/bounds_checked OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest -n 2 --dist worksteal -q tests/simulator tests/baselines tests/envs

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/typing/dtgym
	for floor in $(FLOORS); do ln -sfn ../../../$$floor build/typing/dtgym/$$floor; done
	$(BIN)/pyright --warnings --pythonpath $(BIN)/python

tables: $(INSTALLED)
	$(BIN)/python scripts/reproduce.py all --resume

bench: $(INSTALLED)
	$(BIN)/python scripts/benchmark.py

docs: $(INSTALLED)
	$(PIP) install -q -c constraints.txt -e '.[docs]' --config-settings editable_mode=strict
	$(BIN)/mkdocs build --strict

$(DEPENDENCIES): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dtgym needs Python 3.11 or newer; try make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q torch==2.13.0 -c constraints.txt
	$(PIP) install -q -c constraints.txt -e '.[dev]' --config-settings editable_mode=strict
	touch $@

$(INSTALLED): $(DEPENDENCIES)
	rm -f $(VENV)/.installed-*
	$(PIP) install -q --no-deps -e . --config-settings editable_mode=strict
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info site .pytest_cache .ruff_cache .hypothesis
