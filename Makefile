# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Both create .venv, install the pinned dependencies once, and run.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LLAMACPP_STAMP := $(VENV)/.llamacpp-installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1

step = @printf '\n== %s\n' '$(1)'

.DEFAULT_GOAL := help
.PHONY: help install demo test test-llamacpp lint format docs bench-spine bench-engines bench-families study-demo study-aime clean

help:
	@printf '%s\n' \
	  'make demo         install, then solve, deposit, restart and replay on a real model' \
	  'make test         install, then format check, lint, types, imports, tests' \
	  'make test-llamacpp  build llama.cpp once (minutes), then the tests of its engine' \
	  'make lint         the checks of make test that run no test' \
	  'make format       rewrite the sources to the project format' \
	  'make docs         write docs/cli.md again from the command line itself' \
	  'make bench-spine  the benchmark of the exact spine' \
	  'make bench-engines   restore of each engine, bytes, load or compute' \
	  'make bench-families  every architecture of the catalogue, cold against grafted' \
	  'make study-demo   a small registered study on a real model; again: goes on, or scores anew' \
	  'make study-aime   the headline study: hours, resumable; needs the data files and llama.cpp' \
	  'make clean        remove .venv, caches and build output (never models or libraries)' \
	  '' \
	  'PYTHON=python3.12 chooses the interpreter; ARGS="..." goes to demo, pytest or the benchmark.'

install: $(STAMP)

# The stamp is written last: an install that was cut short runs again.
$(STAMP): pyproject.toml constraints.txt
	$(call step,install into $(VENV) (once))
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v < (3, 10) and "kvgraft needs Python 3.10 or later, this is %d.%d: make PYTHON=python3.11 ..." % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(if $(CI),--progress-bar off) -c constraints.txt -e '.[transformers,math,dev]'
	@touch $@

# The vision tools would take as long again to build, and nothing here uses them.
$(LLAMACPP_STAMP): $(STAMP)
	$(call step,build llama.cpp into $(VENV) (once; some minutes unless pip has it in its cache))
	CMAKE_ARGS="$(CMAKE_ARGS) -DLLAVA_BUILD=OFF" CMAKE_BUILD_PARALLEL_LEVEL=$$(nproc) \
	  $(BIN)/python -m pip install $(if $(CI),--progress-bar off) -c constraints.txt -e '.[llamacpp]'
	@touch $@

demo: $(STAMP)
	$(BIN)/kvgraft demo $(ARGS)

lint: $(STAMP)
	$(call step,ruff format --check)
	@$(BIN)/ruff format --check .
	$(call step,ruff check)
	@$(BIN)/ruff check .
	$(call step,mypy)
	@$(BIN)/mypy
	$(call step,lint-imports)
	@$(BIN)/lint-imports

test: lint
	$(call step,pytest)
	@$(BIN)/python -m pytest $(ARGS)

test-llamacpp: $(LLAMACPP_STAMP)
	$(call step,pytest: the llama.cpp engine)
	@$(BIN)/python -m pytest tests/engines/llamacpp $(ARGS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python -m kvgraft.cli.docs docs/cli.md

bench-spine: $(STAMP)
	$(BIN)/python benchmarks/spine.py $(ARGS)

bench-engines: $(STAMP)
	$(BIN)/python benchmarks/engines.py $(ARGS)

bench-families: $(STAMP)
	$(BIN)/python benchmarks/families.py $(ARGS)

STUDY_OUT ?= study-demo

study-demo: $(STAMP)
	$(BIN)/kvgraft study run benchmarks/studies/demo.json --out $(STUDY_OUT) \
	  $(if $(wildcard $(STUDY_OUT)/registration.json),--resume) $(ARGS)

# Each step goes on where it stopped; the attempts stop after 50 minutes, for the next run to go on.
study-aime: $(LLAMACPP_STAMP)
	$(BIN)/python benchmarks/headline.py attempts 0.5b
	$(BIN)/python benchmarks/headline.py attempts 1.5b
	$(BIN)/python benchmarks/headline.py library 0.5b
	$(BIN)/python benchmarks/headline.py library 1.5b
	$(BIN)/python benchmarks/headline.py score $(ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +
