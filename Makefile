# The one entry point. `make demo` and `make test` need only Python 3.11 and make.
PYTHON ?= python3
VENV   ?= .venv
PIP     = $(VENV)/bin/pip --disable-pip-version-check -q
BIN     = $(VENV)/bin

.PHONY: demo test lint types unit bench clean help

help:  ## what each target does
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	touch $@

# curvlinops is the tests' outside oracle. One of its dependencies asks for torchvision, whose wheel
# does not import beside a CPU torch (and breaks transformers): so it comes without dependencies.
$(VENV)/.dev: $(VENV)/.base
	$(PIP) install -c constraints.txt -e ".[dev]"
	$(PIP) install -c constraints.txt --no-deps curvlinops-for-pytorch backpack-for-pytorch unfoldNd
	touch $@

demo: $(VENV)/.base  ## the whole story on digits, under two minutes, ends with efface-demo/report.html
	$(BIN)/efface demo --out efface-demo

test: lint types unit  ## lint, types and tests

lint: $(VENV)/.dev  ## ruff
	$(BIN)/ruff check src tests benchmarks experiments
	$(BIN)/ruff format --check src tests benchmarks experiments

types: $(VENV)/.dev  ## mypy
	$(BIN)/mypy

unit: $(VENV)/.dev  ## pytest (one thread: the networks in the tests are tiny)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

clean:  ## remove the environment and the demo's output
	rm -rf $(VENV) efface-demo .pytest_cache .mypy_cache .ruff_cache
