# Everything a checkout needs: `make demo`, `make test`, `make check`. `make help` lists the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# one lock for everything that measures time on this machine
LOCK   := flock --timeout 3600 $(or $(TMPDIR),/tmp)/crosspipe-machine.lock
GPU    := $(shell nvidia-smi >/dev/null 2>&1 || echo "and not gpu")
BENCHES := $(filter-out tests/bench/test_%,$(wildcard tests/bench/*.py))
PYTEST := $(BIN)/python -m pytest --forbid-skips

.DEFAULT_GOAL := help
.PHONY: help install demo test test-cluster check bench reproduce wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/.installed  ## make .venv with the package, all extras and the development tools, pinned

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV): some minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt 'torch==2.13.0'
	$(BIN)/pip install --quiet --use-pep517 --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install  ## the whole road on this machine: measure, solve, run, report (minutes; seconds when called again)
	$(LOCK) $(BIN)/crosspipe run experiment=demo

test: install  ## the test suite without Slurm: parallel tests first, then the serial ones alone
	$(PYTEST) -n auto -m "not serial and not cluster $(GPU)"
	$(LOCK) $(PYTEST) -m "serial and not cluster $(GPU)"

test-cluster: install  ## the tests that need a real Slurm: starts four-node clusters on this machine (root, Debian 12)
	slurm/devcluster/cluster.sh install
	$(PYTEST) -n 4 --maxschedchunk 1 -m cluster tests/cluster

check: install  ## lint, format, types and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install  ## measure the tables of docs/benchmarks (two hours, quiet; BENCH=--quick: minutes, into build/benchmarks)
	for script in $(BENCHES); do $(LOCK) $(BIN)/python $$script $(BENCH) || exit; done

reproduce: install  ## make the paper's figures and tables again, into docs/results (some forty minutes)
	$(LOCK) $(BIN)/python analysis/reproduce.py

wheel: install  ## build dist/crosspipe-*.whl
	rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist .

clean:  ## remove the environment and build outputs; campaigns and the store stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
