#!/bin/sh
# A walk through pinfold's life on this host, each step checked. Usage:
#   demo.sh PINFOLD
# It keeps its own state in a temporary directory and leaves nothing behind.
set -eu

pinfold=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
config=$work/config
mkdir "$config"
cp "$here"/*.hcl "$here"/*.pl "$config"/
export PINFOLD_STATE_DIR="$work/state" PINFOLD_RUN_DIR="$work/run"
agent=

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
die() { echo "demo: $*" >&2; exit 1; }
# quoted prints words as a shell reads them back.
quoted() {
	for word; do
		case $word in
		'' | *[!A-Za-z0-9_./:=,@%+-]*) printf " '%s'" "$(printf %s "$word" | sed "s/'/'\\\\''/g")" ;;
		*) printf ' %s' "$word" ;;
		esac
	done
}
show() { printf '$ pinfold%s\n' "$(quoted "$@")"; }
run() { show "$@"; (cd "$config" && "$pinfold" "$@"); }

stop_agent() {
	[ -n "$agent" ] || return 0
	kill "$agent" 2>/dev/null || true
	wait "$agent" 2>/dev/null || true
	agent=
}

finish() {
	status=$?
	trap - EXIT INT TERM
	stop_agent
	if [ $status -ne 0 ]; then
		[ ! -s "$work/agent.log" ] || { echo "--- agent.log"; tail -30 "$work/agent.log"; }
		(cd "$config" && "$pinfold" destroy -auto-approve >/dev/null 2>&1) || true
	fi
	rm -rf "$work"
	exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM

# until SECONDS WHAT COMMAND...: waits for a command to succeed.
until_true() {
	limit=$1 what=$2
	shift 2
	tries=$((limit * 5))
	until "$@" >/dev/null 2>&1; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || die "waited ${limit}s in vain: $what"
		sleep 0.2
	done
}

pid_of() { (cd "$config" && "$pinfold" describe -json "$1") | sed -n 's/^ *"pid": *\([0-9]*\),*$/\1/p' | head -1; }
gone() { ! (cd "$config" && "$pinfold" list) | grep -q "$1"; }
new_pid() { p=$(pid_of "$1") && [ -n "$p" ] && [ "$p" != "$2" ]; }

say "What is declared in examples/quickstart, and what it will cost"
run plan

say "Make it so"
run apply -auto-approve

say "What runs now"
run list

say "A command inside sandbox.client, which knows the service's address"
run exec client -- sh -c 'echo "I am $(id -un) on $(hostname), WEB=$WEB"; wget -q -O- "$WEB"' || die "exec failed"

say "The same service from the host, on the port that was chosen"
show output -raw url
url=$(cd "$config" && "$pinfold" output -raw url)
echo "$url"
perl -MIO::Socket::INET -e '$ARGV[0] =~ m{//([^:/]+):(\d+)} or die; my $s = IO::Socket::INET->new(PeerAddr => $1, PeerPort => $2, Timeout => 5) or die "no answer: $!\n"; print $s "GET / HTTP/1.0\r\n\r\n"; local $/; print <$s>' "$url"
echo

say "The agent takes over: deadlines, losses and drift are its business from here on"
show agent
(cd "$config" && exec "$pinfold" agent) >"$work/agent.log" 2>&1 &
agent=$!
until_true 10 "the agent's socket" test -S "$work/run/agent.sock"
echo "agent is pid $agent"

say "sandbox.job has a deadline; when it passes, the agent deletes it"
until_true 40 "sandbox.job to end" gone sandbox.job
run list

say "Somebody kills sandbox.worker[\"a\"] from outside"
old=$(pid_of 'worker["a"]')
[ -n "$old" ] || die "no pid for sandbox.worker"
echo "\$ kill -9 $old"
kill -9 "$old"
until_true 20 "sandbox.worker to come back" new_pid 'worker["a"]' "$old"
echo "it is back as pid $(pid_of 'worker["a"]'), on its old files:"
run exec 'worker["a"]' -- sh -c 'wc -l </work/log'

say "Nothing is left to do; sandbox.job stays ended while its block stands"
run plan -detailed-exitcode

say "The end"
stop_agent
run destroy -auto-approve

say "The host is clean"
short=$(tr -d - <"$work/state/lineage" | cut -c1-6)
[ ${#short} -eq 6 ] || die "cannot tell the state's short id"
# Processes too: init may take a moment to collect the last ones.
left() {
	{ ip -o link; nft list tables; cat /proc/self/mountinfo; find /sys/fs/cgroup -maxdepth 4 -type d; cat /proc/[0-9]*/cgroup; } 2>/dev/null |
		grep -F -e "$work" -e "$short"
}
nothing_left() { ! left; }
until_true 10 "the host to be clean" nothing_left
left=$(ls "$work/state/instances" "$work/state/volumes" "$work/run/netns" 2>/dev/null | grep -v ':$' | grep . || true)
[ -z "$left" ] || die "left behind: $left"
echo "no mount, network namespace, link, nft table, cgroup or process of it is left"
