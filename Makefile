# Two commands: `make demo` and `make test`. Both set everything up first.
PYTHON ?= $(firstword $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done) python3)
VENV := .venv
BIN := $(VENV)/bin
# Every install, also one that pip starts for a build, keeps to the pinned torch.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Compiled modules are kept, whatever the machine says: tests start many processes, and each would compile anew.
unexport PYTHONDONTWRITEBYTECODE
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)
# A process a core, each with one thread: twice as fast as one process with all of them. Each begins with a stretch of
# files of its own, so that what a file's tests share is built once.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: help demo test test-all check docs release page browser clean

help: ## Say what each target does.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 16

demo: $(VENV)/.core ## Set up, then train a Vision Transformer on the images in the box.
	@$(BIN)/vitrail demo

test: $(VENV)/.dev ## Set up, then run every test that is not slow.
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-all: $(VENV)/.dev ## Set up, then run every test.
	$(PYTEST) $(PYTEST_ARGS)

check: $(VENV)/.dev ## Format, lint, types and architecture.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/pytest -q tests/test_architecture.py

docs: $(VENV)/.dev ## Build the documents as a site: build/site/html/index.html.
	$(BIN)/python docs/tools/site.py build/site

release: $(VENV)/.dev ## Build wheel and sdist into dist/, compare them with git and each other, and try the wheel.
	$(BIN)/python .ci/release.py dist

page: $(VENV)/.core ## Write the ViT in the box as one page that a browser opens: build/vitrail-ti8.html.
	@mkdir -p build
	$(BIN)/vitrail export vitrail-ti8 --to html --out build/vitrail-ti8.html --overwrite

browser: ## Install Chromium, in which pages are tested (Debian; elsewhere set CHROMIUM to its path).
	@test -x "$${CHROMIUM:-/usr/bin/chromium}" || { $(AS_ROOT) apt-get update -qq && $(AS_ROOT) apt-get install -y -qq chromium; }
	@"$${CHROMIUM:-/usr/bin/chromium}" --version

clean: ## Remove what the targets above made.
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	f"Vitrail needs Python 3.11 or later; {sys.executable} is {v[0]}.{v[1]}. Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.core
