# Two commands do everything on a fresh machine: `make report` and `make test`.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
# torch is asked for first, by itself and exactly: a looser request can bring another build with gigabytes of packages.
TORCH := $(shell grep '^torch==' constraints.txt)
AXE := .cache/axe/node_modules/axe-core/axe.min.js
AXE_VERSION := 4.14.0
PYTEST_FLAGS ?=

export PIP_ROOT_USER_ACTION := ignore
export DEBIAN_FRONTEND := noninteractive

.PHONY: help report test check lint types docs tutorials support matrix clean tools

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

report: $(VENV)/.run ## train a small Transformer, study it, write one HTML file; the last line is its path
	@echo "== quadform report"
	@$(BIN)/quadform report

# Types are checked beside the first tests, and told when they are.
test: tools lint ## everything: set-up, make check, every test
	@{ said=$$($(MAKE) --no-print-directory types 2>&1) && code=0 || code=$$?; echo; echo "$$said"; exit $$code; } & types=$$!; \
	echo "== tests"; code=0; \
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) || code=$$?; \
	wait $$types || { echo "make types: failed, see above"; exit 1; }; exit $$code

check: lint types ## format, lint, types, layering

lint: $(VENV)/.dev
	@echo "== ruff format"; $(BIN)/ruff format --check .
	@echo "== ruff check"; $(BIN)/ruff check .

types: $(VENV)/.dev
	@echo "== mypy"; $(BIN)/mypy
	@echo "== layering"; $(BIN)/lint-imports --no-cache

docs: $(VENV)/.dev ## the documentation site; the last line is the path of its first page
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "docs: build/site/index.html"

tutorials: $(VENV)/.dev ## run every tutorial, write its page and notebook anew
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python benchmarks/tutorials.py

support: ## one cell of docs/support.md: make support PYTHON=python3.12 BUILD=2.12.1+cpu [SMOKE=1]
	@$(PYTHON) benchmarks/support.py $(PYTHON) $(BUILD) $(if $(SMOKE),--smoke) $(if $(INDEX),--index $(INDEX))

matrix: ## every cell of docs/support.md that can be installed here: make matrix [INDEX=URL]
	@$(PYTHON) benchmarks/support.py all $(if $(SMOKE),--smoke) $(if $(INDEX),--index $(INDEX))

clean: ## remove caches and the default run; the environment (.venv) stays
	rm -rf build .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache runs/default

# --- the environment: rebuilt when pyproject.toml or constraints.txt changes ---------------------------------------------
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "quadform needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 ..."; exit 1; }
	@echo "== making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "cannot make a virtual environment (Debian: apt-get install python3-venv)"; exit 1; }

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing $(TORCH) (large, once)"; $(PIP) "$(TORCH)"
	@echo "== installing quadform and what it runs on"; $(PIP) --editable ".[cli,report,page]"
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "== installing what the tests use"; $(PIP) --editable ".[dev,hf,kernels]"
	@touch $@

# --- tools from outside Python: a browser and a compiler, installed when missing and allowed -----------------------------
# $(call need,COMMAND,DEBIAN PACKAGES,WHAT FOR)
need = command -v $(1) > /dev/null \
  || { if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
         echo "== installing $(2): $(3)"; apt-get update -qq && apt-get install -y -qq --no-install-recommends $(2) > /dev/null; \
       else echo "$(1) is missing: $(3). Install it (Debian: apt-get install $(2)) and run again."; exit 1; fi; }

tools: $(VENV)/.dev $(AXE)
	@$(call need,chromium,chromium,the browser that opens the report in a test)
	@$(call need,g++,g++,the compiler behind torch.compile)

$(AXE):
	@$(call need,npm,nodejs npm,fetches axe-core for the accessibility test)
	@echo "== installing axe-core $(AXE_VERSION)"
	@npm install --silent --no-audit --no-fund --prefix .cache/axe axe-core@$(AXE_VERSION)
	@touch $@
