# Everything done twice has a target here; `make help` lists them.
#
# The virtual environment is made once and again only when pyproject.toml or requirements.lock change.
# requirements.lock pins every package for every environment below; it is used as a constraints file.

VENV ?= .venv
INTEROP_VENV ?= .venv-interop
TORCH ?= torch==2.13.0
WORKERS ?= 2
OUT ?= quickstart
ARGS ?=

# The first Python of 3.11 or newer that can make virtual environments; PYTHON=/path/to/python overrides.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	command -v $$p >/dev/null 2>&1 || continue; \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

BIN := $(VENV)/bin
INTEROP_BIN := $(INTEROP_VENV)/bin
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint requirements.lock
# Two processes fill two cores, so libraries with thread pools of their own get one thread each.
TEST_ENV := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPLBACKEND=agg
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest

.PHONY: help quickstart install dev test test-all test-fast test-interop test-browser chromium lint format lock \
	bench-train-step bench-generate bench-serve bench-kill bench-ladder bench-transfer bench-optimizers bench-deviations bench-design \
	bench-fit bench-coverage bench-tokenization \
	bench-pathways bench-pipeline bench-islands bench-kill-islands bench-links bench-wire stress clean distclean

help:
	@echo 'make quickstart        install, then corpus -> ladder -> law -> plan -> verified run -> report (OUT=, ARGS=)'
	@echo 'make install           .venv with areca and the locked dependencies'
	@echo 'make test              all tests but interop and browser (WORKERS=2)'
	@echo 'make test-fast         the same without those marked slow'
	@echo 'make test-all          also those marked exhaustive, with programs compiled as users do'
	@echo 'make test-interop      against PyTorch and transformers, in .venv-interop'
	@echo 'make test-browser      the report in headless Chromium'
	@echo 'make lint              ruff and the type checker; `make format` rewrites'
	@echo 'make bench-train-step  a training step beside PyTorch and transformers'
	@echo 'make bench-generate    tokens per second beside transformers.generate'
	@echo 'make bench-serve       areca serve under 200 clients and odd requests: answers, refusals, memory'
	@echo 'make bench-kill        a run killed again and again, resumed, compared bit for bit'
	@echo 'make bench-ladder      small runs one after another, as processes, and as one program'
	@echo 'make bench-transfer    the best learning rate over widths, PaLM and muP (ARGS="--out DIR --store STORE")'
	@echo 'make bench-optimizers  Muon beside AdamW, each at its best rate (ARGS="--out DIR --store STORE")'
	@echo 'make bench-design      the runs that areca design proposes beside a plain next rung (ARGS="target": planned losses)'
	@echo 'make bench-deviations  each of PaLM'"'"'s choices switched: time and loss (ARGS="time", "decode", "loss --out DIR --store STORE")'
	@echo 'make bench-tokenization  text to tokens beside tokenizers and sentencepiece alone (ARGS="--text FILE --megabytes 32")'
	@echo 'make bench-fit         4,000 bootstraps of the Chinchilla fit beside scipy (ARGS="--data CSV")'
	@echo 'make bench-pathways    the controller against plain JAX: dispatch, shares by weight, a pipeline'
	@echo 'make bench-links       two hosts on one machine with a link of a chosen speed: what sockets measure over it (root)'
	@echo 'make bench-islands     two islands over a link of a chosen speed: exchange overlapped or not, against none (root)'
	@echo 'make bench-kill-islands  islands killed at random instants of a run: no step lost, no bit changed'
	@echo 'make bench-wire        what carries gradients at least cost: jax transfers beside TCP, over such a link (root)'
	@echo 'make stress            random graphs, failures and clients on the controller (ARGS="--minutes 60 --seed 1")'
	@echo 'make bench-pipeline    a pipeline'"'"'s bubble and memory, replayed, beside the theory (ARGS="4x8 8x16 16x64")'
	@echo 'make bench-coverage    how often intervals hold the truth, over twenty known laws (ARGS="--out FILE")'
	@echo 'make lock              resolve requirements.lock anew'
	@echo 'make clean             remove caches; `make distclean` also the environments'

quickstart: $(VENV)/.installed
	$(BIN)/areca quickstart --out $(OUT) $(ARGS)
	@test ! -e $(OUT)/report.html || echo "The report: $(abspath $(OUT))/report.html"

# ---- environments

install: $(VENV)/.installed
dev: $(VENV)/.installed-dev

$(VENV)/.installed: pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo 'Areca needs Python 3.11 or newer with venv and pip (Debian: apt install python3-venv); set PYTHON=/path/to/python.' >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python $(INSTALL) setuptools
	$(BIN)/python $(INSTALL) --no-build-isolation --editable '.[quickstart]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python $(INSTALL) --no-build-isolation --editable '.[quickstart,dev]'
	@touch $@

$(VENV)/.installed-browser: $(VENV)/.installed-dev
	$(BIN)/python $(INSTALL) --no-build-isolation --editable '.[quickstart,dev,browser]'
	@touch $@

# PyTorch is large and only compared with, so it has an environment of its own and is not in the lock.
$(INTEROP_VENV)/.installed: pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo 'Areca needs Python 3.11 or newer; set PYTHON=/path/to/python.' >&2; exit 1; }
	test -x $(INTEROP_BIN)/python || "$(PYTHON)" -m venv $(INTEROP_VENV)
	$(INTEROP_BIN)/python $(INSTALL) setuptools $(TORCH)
	$(INTEROP_BIN)/python $(INSTALL) --no-build-isolation --editable '.[dev,hf]' $(TORCH)
	@touch $@

# ---- checks

TESTS := -n $(WORKERS) --dist worksteal --ignore tests/interop --ignore tests/browser

test: dev
	$(PYTEST) $(TESTS) -m 'not exhaustive' $(ARGS)

test-all: dev
	XLA_FLAGS='--xla_force_host_platform_device_count=8' $(PYTEST) $(TESTS) $(ARGS)

test-fast: dev
	$(PYTEST) $(TESTS) -m 'not slow and not exhaustive' $(ARGS)

test-interop: $(INTEROP_VENV)/.installed
	$(TEST_ENV) $(INTEROP_BIN)/python -m pytest tests/interop $(ARGS)

test-browser: $(VENV)/.installed-browser chromium
	$(PYTEST) tests/browser $(ARGS)

# Chromium with its WebDriver: Debian's packages where apt can install them, else the user's own.
chromium:
	@command -v chromedriver >/dev/null 2>&1 || { \
		command -v apt-get >/dev/null 2>&1 && test "$$(id -u)" = 0 || \
			{ echo 'The browser tests need Chromium and chromedriver (Debian: apt install chromium-driver).' >&2; exit 1; }; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium-driver; }

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# ---- benchmarks: each prints a ratio

bench-design: dev
	$(BIN)/python benchmarks/design.py $(ARGS)

bench-train-step: $(INTEROP_VENV)/.installed
	$(INTEROP_BIN)/python benchmarks/train_step.py $(ARGS)

bench-generate: $(INTEROP_VENV)/.installed
	$(INTEROP_BIN)/python benchmarks/generate.py $(ARGS)

bench-serve: dev
	$(BIN)/python benchmarks/serve_storm.py $(ARGS)

bench-kill: dev
	$(BIN)/python benchmarks/kill.py $(ARGS)

bench-ladder: dev
	$(BIN)/python benchmarks/ladder.py $(ARGS)

bench-transfer: dev
	$(BIN)/python benchmarks/transfer.py $(ARGS)

bench-optimizers: dev
	$(BIN)/python benchmarks/optimizers.py $(ARGS)

bench-deviations: dev
	$(BIN)/python benchmarks/deviations.py $(ARGS)

bench-fit: dev
	$(BIN)/python benchmarks/fit.py $(ARGS)

bench-tokenization: dev
	$(BIN)/python benchmarks/tokenization.py $(ARGS)

bench-pathways: dev
	$(BIN)/python benchmarks/pathways.py $(ARGS)

bench-islands: dev
	$(BIN)/python benchmarks/islands.py $(ARGS)

bench-kill-islands: dev
	$(BIN)/python benchmarks/kill_islands.py $(ARGS)

bench-links: dev
	$(BIN)/python benchmarks/links.py $(ARGS)

bench-wire: dev
	$(BIN)/python benchmarks/wire.py $(ARGS)
stress: dev
	$(BIN)/python benchmarks/stress.py $(ARGS)
bench-pipeline: dev
	$(BIN)/python benchmarks/pipeline.py $(ARGS)

bench-coverage: dev
	$(BIN)/python benchmarks/coverage.py $(ARGS)

# ---- upkeep

# jax 0.10.2 is the last for Python 3.11, and one version of everything keeps the quickstart's text the same everywhere.
lock: dev
	$(BIN)/python -m pip install --quiet uv
	printf 'jax==0.10.2\ntransformers>=5\nsetuptools>=77\n' | $(BIN)/uv pip compile --quiet --upgrade --universal \
		--fork-strategy fewest --python-version 3.11 --no-annotate --custom-compile-command 'make lock' \
		--no-emit-package colorama --no-emit-package httpx2-jsfetch --no-emit-package nest-asyncio \
		--extra quickstart --extra dev --extra browser pyproject.toml - --output-file requirements.lock

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(INTEROP_VENV)
