#!/usr/bin/env bash
# Install and start real container engines for the checks of the docker back end, without systemd,
# network access for containers, or a registry. Root on Debian or Ubuntu.
#
# Usage: scripts/sandbox_engines.sh start [docker|podman]...   (default: both)
#        scripts/sandbox_engines.sh stop
# Prints, for each engine, a line NAME=unix:///path/of/its/socket
set -euo pipefail

state=${TURNGYM_ENGINES:-/var/tmp/turngym-engines}

install() {
  local missing=()
  for package in "$@"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  apt-get -qq update >&2 || true
  # 101: no service may be started by the packages; there is no systemd to do it.
  printf '#!/bin/sh\nexit 101\n' >"$state/policy" && chmod +x "$state/policy"
  [ -e /usr/sbin/policy-rc.d ] || { cp "$state/policy" /usr/sbin/policy-rc.d; added=1; }
  DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}" >&2
  [ -z "${added:-}" ] || rm -f /usr/sbin/policy-rc.d
}

wait_for() { # socket, name
  for _ in $(seq 100); do
    [ -S "$1" ] && curl -sf --unix-socket "$1" http://engine/_ping >/dev/null && return
    sleep 0.1
  done
  echo "$2 did not start; see $state/$2.log" >&2
  return 1
}

start_docker() {
  install docker.io curl
  if ! { [ -f "$state/docker.pid" ] && kill -0 "$(cat "$state/docker.pid")" 2>/dev/null; }; then
    rm -f "$state/docker.pid"
    setsid dockerd --data-root "$state/docker-data" --exec-root "$state/docker-exec" \
      --pidfile "$state/docker.pid" --host "unix://$state/docker.sock" \
      --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --bridge=none \
      --storage-driver "${TURNGYM_DOCKER_STORAGE:-overlay2}" --log-level=warn \
      >"$state/docker.log" 2>&1 </dev/null &
  fi
  wait_for "$state/docker.sock" docker
  echo "docker=unix://$state/docker.sock"
}

start_podman() {
  install podman runc curl
  if ! { [ -f "$state/podman.pid" ] && kill -0 "$(cat "$state/podman.pid")" 2>/dev/null; }; then
    rm -f "$state/podman.sock"
    # Storage as flags: named by the environment it costs 20 s a container.
    setsid podman --root "$state/podman-root" --runroot "$state/podman-run" --runtime runc \
      system service --time=0 "unix://$state/podman.sock" >"$state/podman.log" 2>&1 </dev/null &
    echo $! >"$state/podman.pid"
  fi
  wait_for "$state/podman.sock" podman
  echo "podman=unix://$state/podman.sock"
}

stop() {
  for name in docker podman; do
    if [ -f "$state/$name.pid" ]; then
      kill "$(cat "$state/$name.pid")" 2>/dev/null || true
      rm -f "$state/$name.pid"
    fi
  done
}

command=${1:-start}
shift || true
mkdir -p "$state"
case $command in
  start) for engine in "${@:-docker podman}"; do for name in $engine; do "start_$name"; done; done ;;
  stop) stop ;;
  *) echo "usage: $0 start [docker|podman]... | stop" >&2; exit 2 ;;
esac
