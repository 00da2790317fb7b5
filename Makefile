# Every target first brings .venv up to what it needs: scripts/bootstrap.py, a no-op when it is there.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
BOOTSTRAP := $(PYTHON) scripts/bootstrap.py
GAMES := textworld alfworld babyai scienceworld textarena
SANDBOXES := sandboxes docker
WEB := web miniwob
EVERYTHING := train lora search smollm2 minilm openai serve mcp $(GAMES) $(SANDBOXES) $(WEB) desktop android
# For one-off choices: make test PYTEST_ARGS="-k wordle", make demo ARGS="algo=archer".
PYTEST_ARGS ?=
# Two a core: half of the tests wait for a browser, a sandbox or a process most of the time.
WORKERS ?= $(shell expr 2 \* $$(nproc))
ARGS ?=

# Two OpenMP threads on a busy machine can be twenty times slower than one.
export OMP_NUM_THREADS ?= 1
# No command here may reach a model hub.
export HF_HUB_OFFLINE ?= 1

.PHONY: help demo test test-busy conformance sandboxes chaos soak-web web-sites soak-desktop swe drill damage outside llm learning wheel check format bench results extras docs lock clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: ## Train the small default policy and watch its success rise
	@$(BOOTSTRAP) core train
	@$(BIN)/turngym train demo --out runs/demo $(ARGS)

test: ## Everything that CI runs: the checks, then all tests with all game engines
	@$(BOOTSTRAP) core dev $(EVERYTHING)
	@$(BIN)/python -m turngym.environments.web.sites.install tracker forum shop
	@$(MAKE) check
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-busy: ## make test three times in a row beside eight busy loops of equal priority; hours
	@$(BOOTSTRAP) core dev $(EVERYTHING)
	@scripts/busy.sh 3 8 $(MAKE) test

conformance: ## Every environment through every check, at full length; hours
	@$(BOOTSTRAP) core dev $(EVERYTHING) wiki
	@$(BIN)/python -m turngym.environments.web.sites.install
	@TURNGYM_CONFORMANCE=full $(BIN)/python -m pytest -n auto --timeout 7200 tests/conformance $(PYTEST_ARGS)

sandboxes: ## Every promise and attack on bubblewrap, and on a real Docker and Podman; needs root
	@$(BOOTSTRAP) core dev $(SANDBOXES)
	@TURNGYM_ENGINES_RUN="$$(scripts/sandbox_engines.sh start | $(BIN)/python -c \
	'import json, sys; print(json.dumps(dict(line.strip().split("=", 1) for line in sys.stdin)))')" \
	$(BIN)/python -m pytest --timeout 1200 tests/conformance/test_sandboxes.py tests/conformance/test_swe_instances.py $(PYTEST_ARGS)

chaos: ## 500 random operations with kills, 1000 starts and stops, 150 kills during the start
	@$(BOOTSTRAP) core dev sandboxes
	@TURNGYM_CHAOS=full $(BIN)/python -m pytest --timeout 3600 tests/integration/test_sandbox_chaos.py $(PYTEST_ARGS)

soak-web: ## 1000 MiniWoB episodes while the browser is killed 10 times
	@$(BOOTSTRAP) core dev $(WEB)
	@TURNGYM_SOAK=full $(BIN)/python -m pytest --timeout 3600 tests/integration/test_web_soak.py $(PYTEST_ARGS)

web-sites: ## Every kind of task in the four web applications, five seeds each, and their checks
	@$(BOOTSTRAP) core dev web wiki
	@$(BIN)/python -m turngym.environments.web.sites.install
	@TURNGYM_CONFORMANCE=full $(BIN)/python -m pytest --timeout 3600 tests/conformance/test_web_sites.py $(PYTEST_ARGS)

soak-desktop: ## 500 desktop episodes while processes in them are killed at random
	@$(BOOTSTRAP) core dev desktop
	@TURNGYM_SOAK=full $(BIN)/python -m pytest --timeout 3600 tests/conformance/test_desktop.py -k five_hundred $(PYTEST_ARGS)

swe: ## Every SWE task and terminal jobs: sound, solved by the expert and not by nobody, no cheat pays
	@$(BOOTSTRAP) core dev sandboxes
	@$(BIN)/python -m turngym.environments.swe.install
	@$(BIN)/turngym check task swe/bugs --parallel 2
	@$(BIN)/python benchmarks/swe_tasks.py $(ARGS)
	@$(BIN)/python benchmarks/swe_honest.py
	@TURNGYM_SWE=full $(BIN)/python -m pytest --timeout 1800 tests/integration/test_swe_cheats.py $(PYTEST_ARGS)

outside: ## Agents of others, installed from the registry and run unchanged through the gateway
	@$(BOOTSTRAP) core train dev openai serve mcp
	@test -x .venv-outside/bin/mini || { $(PYTHON) -m venv .venv-outside && .venv-outside/bin/pip install -qq \
	'mini-swe-agent>=2.4' 'smolagents>=1.26' 'openai-agents>=0.24'; }
	@TURNGYM_OUTSIDE="$$PWD/.venv-outside/bin/python" \
	$(BIN)/python -m pytest --timeout 600 -s tests/integration/test_outside_agents.py $(PYTEST_ARGS)

llm: ## SmolLM2 through the local engine and through a server: equal turns; and a SWE episode, trained on
	@$(BOOTSTRAP) core train search dev smollm2 openai serve sandboxes
	@TURNGYM_LLM=full $(BIN)/python -m pytest -s tests/integration/test_llm_parity.py tests/integration/test_swe_llm.py $(PYTEST_ARGS)

drill: ## Kill a trainer 50 times, 400 runs of random settings, every fault everywhere: the account stays right
	@$(BOOTSTRAP) core dev
	@TURNGYM_DRILL=full $(BIN)/python -m pytest -s --timeout 3600 tests/integration/test_scheduler_drill.py tests/property/test_staleness_bound.py tests/integration/test_chaos_environment.py $(PYTEST_ARGS)

wheel: ## Build sdist and wheel into dist/, install the wheel from a registry where nothing else is, and use it
	@$(BOOTSTRAP) core train dev
	@rm -rf dist && $(BIN)/python -m hatchling build
	@TURNGYM_WHEEL=full $(BIN)/python -m pytest --timeout 1800 tests/integration/test_wheel.py $(PYTEST_ARGS)

damage: ## Damage every file of a run in every way: named or harmless, never a traceback
	@$(BOOTSTRAP) core train dev
	@TURNGYM_DAMAGE=full $(BIN)/python -m pytest -s --timeout 7200 tests/integration/test_damage.py $(PYTEST_ARGS)

check: ## Format, lint, types and import layers
	@$(BOOTSTRAP) core train lora dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

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
	@$(BIN)/python benchmarks/learning.py $(ARGS)

extras: ## Install every optional part
	@$(BOOTSTRAP) core dev $(EVERYTHING) wiki
	@$(BIN)/python -m turngym.environments.web.sites.install

docs: ## Build the documentation into site/
	@$(BOOTSTRAP) core docs
	@$(BIN)/zensical build --clean

lock: ## Resolve every dependency anew and rewrite constraints.txt
	@$(BOOTSTRAP) --lock

clean: ## Remove .venv, caches and build products; runs/ stays
	@rm -rf .venv .venv-outside .venv.lock build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
