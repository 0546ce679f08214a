# Two commands do all the set-up on a fresh machine: `make figures` and `make test`. Then `make lab`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTED := $(VENV)/.ready-to-test
ARGS ?=

.PHONY: figures test lab lint badges clean

figures: $(READY)
	$(BIN)/delivermem figures

test: $(TESTED)
	$(BIN)/python -m pytest tests $(ARGS)

lab: $(READY)
	$(BIN)/jupyter lab notebooks/00_start_here.ipynb $(ARGS)

badges: $(READY)
	$(BIN)/python -m delivermem.badges

lint: $(TESTED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "delivermem needs Python 3.11 or newer; name one with: make $(MAKECMDGOALS) PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

$(TESTED): tests/requirements.lock $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/requirements.lock
	@touch $(TESTED)

clean:
	rm -rf $(VENV) build dist *.egg-info .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
