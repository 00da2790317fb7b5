# Every target first brings .venv up to what it needs: scripts/bootstrap.py, a no-op when it is there.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
BOOTSTRAP := $(PYTHON) scripts/bootstrap.py
GAMES := textworld alfworld babyai scienceworld textarena
SANDBOXES := sandboxes docker remote
WEB := web miniwob
EVERYTHING := train lora vllm search smollm2 minilm openai serve mcp $(GAMES) $(SANDBOXES) $(WEB) desktop android
# For one-off choices: make test PYTEST_ARGS="-k wordle", make demo ARGS="algo=archer".
PYTEST_ARGS ?=
PART ?=
# Two a core: half of the tests wait for a browser, a sandbox or a process most of the time.
WORKERS ?= $(shell expr 2 \* $$(nproc))
ARGS ?=

# Two OpenMP threads on a busy machine can be twenty times slower than one.
export OMP_NUM_THREADS ?= 1
# No command here may reach a model hub.
export HF_HUB_OFFLINE ?= 1
# Else each of the hundreds of processes that tests start compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test proof check format bench results learning extras docs lock clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: ## Train the small default policy and watch its success rise
	@$(BOOTSTRAP) core train
	@$(BIN)/turngym train demo --out runs/demo $(ARGS)

test: ## Everything that CI runs: the checks, then all tests with all game engines
	@$(BOOTSTRAP) core dev docs $(EVERYTHING)
	@$(BIN)/python -m turngym.environments.web.sites.install tracker forum shop
	@# mypy takes one core for half a minute; collecting compiles the tests for all workers meanwhile.
	@{ $(BIN)/python -m pytest --collect-only -qq $(PYTEST_ARGS) >/dev/null 2>&1 || true; } & \
		$(MAKE) check; code=$$?; wait; exit $$code
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 30 --durations-min 8 $(PYTEST_ARGS)

proof: ## One part of the tests at full length: PART=web; without PART, what there is
	@EVERYTHING="$(EVERYTHING)" PYTEST_ARGS="$(PYTEST_ARGS)" ARGS="$(ARGS)" PYTHON=$(PYTHON) \
	scripts/proof.sh $(PART)

check: ## Format, lint, types, import layers and words
	@$(BOOTSTRAP) core train lora dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/check_words.py

format: ## Rewrite the code as the checks want it
	@$(BOOTSTRAP) core lint
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: ## Measure speed
	@$(BOOTSTRAP) core train lora
	@PYTHON=$(PYTHON) benchmarks/setup.sh || true
	@$(BIN)/python benchmarks/spine.py $(ARGS)

results: ## Train again what the published tables and plots show
	@$(BOOTSTRAP) core train lora desktop sandboxes $(WEB)
	@$(BIN)/python benchmarks/results.py $(ARGS)

learning: ## Compare credit assignment at equal episodes, five seeds each; some hours
	@$(BOOTSTRAP) core train
	@$(BIN)/python benchmarks/credit/learning.py $(ARGS)

extras: ## Install every optional part
	@$(BOOTSTRAP) core dev docs $(EVERYTHING) wiki
	@$(BIN)/python -m turngym.environments.web.sites.install

docs: ## Build the documentation into site/
	@$(BOOTSTRAP) core docs
	@$(BIN)/zensical build --clean

lock: ## Resolve every dependency anew and rewrite constraints.txt
	@$(BOOTSTRAP) --lock

clean: ## Remove .venv, caches and build products; runs/ stays
	@rm -rf .venv .venv-outside .venv-vllm .venv-nodes .venv-oldest .venv-trackers .venv.lock build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
