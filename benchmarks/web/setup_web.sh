#!/bin/bash
# Makes benchmarks/.venv/browsergym, the peer of web.py; no browser is downloaded.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
venv=${TURNGYM_WEB_PEER:-$here/.venv/browsergym}
mkdir -p "$(dirname "$venv")"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install -q browsergym-core==0.14.3 browsergym-miniwob==0.14.3
"$venv/bin/python" -m pip install -q --no-deps miniwob==1.1.0
