# Two commands do everything on a machine that has Python 3.11+, git and make: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint verify lock browser clean help

help:            ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/'

demo: $(READY)   ## a simulated cluster end to end: raw files, warehouse, parquet, weekly report
	$(BIN)/zoneledger demo

test: $(READY) browser  ## the whole test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(READY)   ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

verify: $(READY) ## attribution, GPU states and findings against the truth of 20 simulated clusters
	$(BIN)/zoneledger verify --seeds 20

browser:         ## a Chromium for the tests that look at pages (they are skipped, with the reason, where none can be had)
	@sh tests/install_browser.sh

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] < (3, 14) else "zoneledger needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

lock:            ## resolve requirements*.in anew into requirements.lock (versions and hashes, no index address)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header requirements-dev.in -o requirements.lock

clean:           ## remove what the demo and the tests made
	rm -rf demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
