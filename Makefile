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

.PHONY: demo serve test lint types unit docs format wheel dist bench clean help

help:  ## what each target does
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

# With hf and parquet: whoever has seen the demo goes on with their own photos and a network from transformers.
$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e ".[hf,parquet]"
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

$(VENV)/.service: $(VENV)/.base
	$(PIP) install -c constraints.txt -e ".[service]"
	touch $@

efface-demo/workspace/CURRENT: | $(VENV)/.base
	$(BIN)/efface demo --out efface-demo

efface-demo/signing.key: | efface-demo/workspace/CURRENT
	$(BIN)/efface keys new $@

serve: $(VENV)/.service efface-demo/workspace/CURRENT efface-demo/signing.key  ## the deletion service on the demo's model
	$(BIN)/efface serve efface-demo/workspace --config deploy/demo.toml

test: lint types unit  ## lint, types and tests

lint: $(VENV)/.dev  ## ruff
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: $(VENV)/.dev  ## ruff, repairing what it can
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

types: $(VENV)/.dev  ## mypy
	$(BIN)/mypy

unit: $(VENV)/.dev  ## pytest, two processes (one thread each: the networks in the tests are tiny)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# What a user gets: the wheel alone in a fresh environment, in a folder that holds nothing of this one.
wheel:  ## builds the wheel, installs it in a fresh environment and runs it in an empty folder
	rm -rf build  # setuptools would put files into the wheel that are no longer in src/
	set -e; new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; \
	$(PYTHON) -m venv "$$new/venv"; pip="$$new/venv/bin/pip --disable-pip-version-check -q"; \
	$$pip wheel --no-deps -w "$$new/dist" .; \
	$$pip install -c constraints.txt "$$new"/dist/*.whl; \
	mkdir "$$new/empty"; cd "$$new/empty"; efface="env -u PYTHONPATH $$new/venv/bin/efface"; \
	$$efface demo; \
	$$efface reproduce all --data digits --preset tiny; \
	test -s efface-reproduce/digits/report.html

# What a package index takes: with the project's address in the metadata and in the README's links.
dist: $(VENV)/.base  ## the two packages to publish, in dist/: make dist ADDRESS=https://HOST/OWNER/efface
	set -e; new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; \
	$(BIN)/python tools/release.py "$(ADDRESS)" --out "$$new/efface"; \
	$(PYTHON) -m venv "$$new/venv"; "$$new/venv/bin/pip" --disable-pip-version-check -q install build twine; \
	"$$new/venv/bin/python" -m build -o dist "$$new/efface"; "$$new/venv/bin/twine" check --strict dist/*

# Ratios within one run, never seconds: exit code 3 if a guarded one is not kept. Not part of `make test`: on a machine
# that is shared any time may be ten times another. PRESET=full takes more than an hour; MORE="--data … --backbone …".
PRESET ?= quick
bench: $(VENV)/.dev  ## ratios to what others run, in efface-bench/index.html; some minutes, PRESET=full hours
	$(BIN)/python benchmarks/run.py --preset $(PRESET) --out efface-bench --check $(MORE)

docs: $(VENV)/.docs  ## the documentation as a site, in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## remove the environment, the demo's output and the built documentation
	rm -rf $(VENV) efface-demo efface-bench site dist .pytest_cache .mypy_cache .ruff_cache
