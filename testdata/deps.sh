#!/bin/sh
# deps.sh COMMAND=PACKAGE...: installs the Debian packages whose commands are missing.
set -eu
missing=
for pair in "$@"; do
	command -v "${pair%%=*}" >/dev/null 2>&1 || missing="$missing ${pair#*=}"
done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
	echo "missing:$missing; install them with this system's package manager" >&2
	exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "missing:$missing; run as root, or: sudo apt-get install$missing" >&2
	exit 1
fi
echo "installing:$missing"
apt-get update -qq
# shellcheck disable=SC2086 # a list of package names
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
