# nplt: every command a person or a script needs. `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PEERS  := .venv-peers
# One worker more than there are processors: many tests wait for a process or a clock.
PYTEST  = $(BIN)/python -m pytest --dist worksteal -n $$(( $$(nproc) + 1 ))
# A test starts hundreds of Python processes: each would compile the four packages again.
unexport PYTHONDONTWRITEBYTECODE
# 0: without the small language model that answers where there is no key
NPLT_LOCAL ?= 1
FUZZ_SECONDS ?= 600
# 1: exactly the versions of config/requirements.lock, checked by their hashes
LOCKED ?= 0
ifeq ($(LOCKED),1)
FROM_LOCK := --require-hashes -r config/requirements.lock
endif

.DEFAULT_GOAL := help
.PHONY: help run serve install install-dev local test soak check format bench peers walk browser screenshots faults clients servers upgrade fuzz dist lock clean

help:            ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | awk -F ':.*## *' '{printf "  make %-12s %s\n", $$1, $$2}'

run: install     ## start a server if none is running, and chat
	@$(BIN)/nplt

serve: install   ## run the server in the foreground
	@$(BIN)/nplt-server

install: $(VENV)/.installed $(if $(filter 0,$(NPLT_LOCAL)),,$(VENV)/.local-model)  ## set up .venv (quick when nothing changed)

local: $(VENV)/.installed  ## fetch the small language model again
	@sh config/get-local-model $(BIN)/python

test: install-dev  ## run the test suite
	$(PYTEST)

soak: install-dev  ## run the slow tests
	$(PYTEST) -m slow

check: install-dev  ## format, lint, types, import contracts, plain English
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	@sh config/check-page
	$(BIN)/python -m tests.documents.fragments

format: install-dev  ## format the source and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install-dev  ## run the benchmarks and compare with their goals
	$(BIN)/python -m benchmarks

peers: $(PEERS)/.installed  ## set up .venv-peers: what B11 and B15 are compared with

walk: install-dev  ## list the source files that one prompt runs through
	@$(BIN)/python -m benchmarks.walk

browser: install-dev  ## test the page in Chromium: hostile texts, interruptions, speed; half an hour
	@sh config/check-page
	$(PYTEST) -m '' tests/browser

screenshots: install-dev  ## make the pictures in docs/screenshots anew
	$(BIN)/python -m tests.client.make_screenshots
	$(BIN)/python -m tests.browser.make_screenshots

faults: install-dev  ## kill, cut power, fill disks; check that every promise holds
	$(BIN)/python -m faults

clients: install-dev  ## three turns with each real client of OpenAI's API (2 GB, once)
	$(BIN)/python -m tests.real_clients

servers: install-dev  ## 200 turns with each of four servers of models: llama.cpp, LiteLLM, … (1 GB, once)
	$(BIN)/python -m tests.real_servers

upgrade: install-dev  ## serve an older version's data and clients with this one
	$(BIN)/python -m faults.upgrade

fuzz: install-dev  ## fuzz decoder, messages, files and imports (FUZZ_SECONDS=600 in all)
	@sh config/pip-install $(BIN)/python -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

dist: install-dev  ## build the wheel and the sdist into dist/
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

lock: install-dev  ## write config/requirements.lock anew, with today's versions
	$(BIN)/uv pip compile --quiet --no-header --universal --python-version 3.11 \
		--generate-hashes $(foreach extra,dev redis tokens local mcp pdf,--extra $(extra)) \
		pyproject.toml -o config/requirements.lock

install-dev: $(VENV)/.installed-dev

$(BIN)/python:
	@sh config/make-venv "$(PYTHON)" "$(VENV)"

$(VENV)/.installed: pyproject.toml $(BIN)/python
	@echo "installing nplt into $(VENV) (once) …"
	@$(if $(FROM_LOCK),sh config/pip-install $(BIN)/python $(FROM_LOCK))
	@sh config/pip-install $(BIN)/python $(if $(FROM_LOCK),--no-deps) -e .
	@touch $@

# Where it can't be had that is said once; `make local` asks again.
$(VENV)/.local-model: config/get-local-model | $(VENV)/.installed
	@sh config/get-local-model $(BIN)/python
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.installed
	@echo "installing the developers' tools into $(VENV) (once) …"
	@$(if $(FROM_LOCK),,sh config/pip-install $(BIN)/python -e '.[dev]')
	@touch $@

$(PEERS)/bin/python:
	@sh config/make-venv "$(PYTHON)" "$(PEERS)"

$(PEERS)/.installed: benchmarks/peers/requirements.txt $(PEERS)/bin/python
	@echo "installing the programs to compare with into $(PEERS) (once) …"
	@sh config/pip-install $(PEERS)/bin/python -r benchmarks/peers/requirements.txt
	@touch $@

clean:           ## remove .venv and caches; conversations are kept elsewhere
	rm -rf $(VENV) $(PEERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
