#!/usr/bin/env bash
# Usage: scripts/fresh_machine.sh RELEASE FOLDER COMMAND...
# Makes a bare Debian RELEASE (trixie, sid) in FOLDER unless it is there, puts the commit of this
# checkout into it, and runs COMMAND in that checkout as root of its own file system and processes.
# Needs root, debootstrap and 12 GB. Settings of pip in the environment go with it.
set -euo pipefail
release=$1 root=$(realpath -m "$2")
shift 2
source=$(realpath "$(dirname "$0")/..")
if [[ ! -e $root/.made ]]; then
  debootstrap --variant=minbase --include=ca-certificates,git,make,procps,python3,python3-venv "$release" "$root" \
    "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >&2
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  touch "$root/.made"
fi
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
echo "127.0.0.1 localhost $(hostname)" > "$root/etc/hosts"
test -d "$root/root/turngym" || git clone -q "$source" "$root/root/turngym"
git -C "$root/root/turngym" fetch -q "$source" HEAD && git -C "$root/root/turngym" checkout -q FETCH_HEAD
mapfile -t pip < <(env | grep '^PIP_' || true)
# A chroot would not do: in one no user namespace can be made, and so no sandbox.
exec unshare --mount --pid --fork --kill-child --uts --ipc bash -euc '
root=$1 && shift
mount --make-rprivate / && mount --bind "$root" "$root" && cd "$root"
mount -t proc proc proc && mount --rbind /sys sys && mount --rbind /dev dev && mount -t tmpfs tmpfs run
mkdir -p old && pivot_root . old && umount -l old && cd /root/turngym
exec env -i HOME=/root LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
' enter "$root" ${pip[@]+"${pip[@]}"} "$@"
