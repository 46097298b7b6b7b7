# The one entry point. `make demo` and `make test` need only Python 3.11 and make; on Windows, Git's shell, too.
VENV   ?= .venv
ifeq ($(OS),Windows_NT)
PYTHON ?= python
BIN     = $(VENV)/Scripts
SHELL   = bash
else
PYTHON ?= python3
BIN     = $(VENV)/bin
endif
PIP     = $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES = src tests benchmarks experiments tools

.PHONY: demo test lint types unit docs format clean help

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

$(VENV)/.docs: $(VENV)/.base
	$(PIP) install -c constraints.txt -e ".[docs]"
	touch $@

demo: $(VENV)/.base  ## the whole story on digits, under two minutes, ends with efface-demo/report.html
	$(BIN)/efface demo --out efface-demo

test: lint types unit  ## lint, types and tests

lint: $(VENV)/.dev  ## ruff
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: $(VENV)/.dev  ## ruff, repairing what it can
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

types: $(VENV)/.dev  ## mypy
	$(BIN)/mypy

unit: $(VENV)/.dev  ## pytest (one thread: the networks in the tests are tiny)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

docs: $(VENV)/.docs  ## the documentation as a site, in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## remove the environment, the demo's output and the built documentation
	rm -rf $(VENV) efface-demo site .pytest_cache .mypy_cache .ruff_cache
