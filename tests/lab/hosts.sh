#!/bin/bash
# A small fleet: hosts with a network, a name, a machine id, a /run, a /var/lib and an sshd of their own, on
# a bridge that reaches nothing else.
#
#   tests/lab/hosts.sh N [FILE...] [-- COMMAND...]
#
# FILEs (programs) are put in /usr/local/bin of every host. COMMAND runs on the controller's side of the
# bridge, as root, where `ssh h1`, `ssh h2` … just work, as the login user `drill`, who has sudo without a
# password on the hosts; `ssh root-h1` is root there. A third kind, `plain-h1`, is a user without sudo.
# Without a COMMAND: lines of NAME=VALUE, `pid=` (enter its mount and network namespaces to be the controller),
# `h1=` (a process on h1: enter its mount, network and uts namespaces to be there), then `ready`; the end of
# stdin ends it. Host N has address 10.98.0.(10+N), its cable on the controller's side is the device `hN`:
#
#   ip link set h1 down      cuts it without a FIN
#
# Everything is written to overlays of this lab's own mount namespace: users, sudoers, keys and ssh
# configuration are not the machine's. With the end of the lab every session on its hosts is ended.
#
# Needs root; openssh-server openssh-client sudo iproute2.
set -eu
# shellcheck source-path=SCRIPTDIR source=private.sh
. "$(dirname "$(readlink -f "$0")")/private.sh"
private_enter -nm "$(readlink -f "$0")" "$@"
n=${1:?number of hosts}
shift
files=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	files+=("$1")
	shift
done
[ $# -eq 0 ] || shift

sshds=()
# shellcheck disable=SC2317  # called by trap
finish() {
	local rc=$? pid i
	for pid in "$WORK"/controller/mayhem/*; do # connections that are kept open for the next one
		[ ! -S "$pid" ] || ssh -O exit -S "$pid" any 2>/dev/null || true
	done
	# Whoever still has the host's network namespace: sessions whose cable was cut among them.
	for i in "${!sshds[@]}"; do
		for pid in $(ip netns pids "h$((i + 1))" 2>/dev/null); do
			kill -KILL "$pid" 2>/dev/null || true
		done
	done
	for pid in "${sshds[@]}"; do
		wait "$pid" 2>/dev/null || true
	done
	for i in "${!sshds[@]}"; do
		ip netns del "h$((i + 1))" 2>/dev/null || true
	done
	private_drop
	exit "$rc"
}

people() { # users of the hosts, seen by all of the lab
	local name uid=2000
	for name in drill plain; do
		mkdir -p "$WORK/home/$name"
		chown "$uid:$uid" "$WORK/home/$name"
		# Without a password: a key opens, nothing else does. `*` is not locked, as `!` would be.
		echo "$name:x:$uid:$uid::$WORK/home/$name:/bin/bash" >>/etc/passwd
		echo "$name:x:$uid:" >>/etc/group
		echo "$name:*:19000:0:99999:7:::" >>/etc/shadow
		uid=$((uid + 1))
	done
	(
		umask 0337
		echo "drill ALL=(root) NOPASSWD: ALL" >/etc/sudoers.d/mayhem-lab
	)
}

keys() {
	local i
	mkdir -p /etc/ssh/ssh_config.d
	ssh-keygen -q -t ed25519 -N '' -f "$WORK/key"
	ssh-keygen -q -t ed25519 -N '' -f "$WORK/hostkey"
	cp "$WORK/key.pub" "$WORK/authorized_keys"
	for i in $(seq "$n"); do
		echo "10.98.0.$((10 + i)) h$i" >>/etc/hosts
		echo "10.98.0.$((10 + i)) $(cut -d' ' -f1-2 "$WORK/hostkey.pub")" >>"$WORK/known_hosts"
		cat >>/etc/ssh/ssh_config.d/mayhem-lab.conf <<-CONF
			Host h$i root-h$i plain-h$i
			  HostName 10.98.0.$((10 + i))
			  IdentityFile $WORK/key
			  IdentitiesOnly yes
			  UserKnownHostsFile $WORK/known_hosts
			  ConnectTimeout 5
			Host root-h$i
			  User root
			Host plain-h$i
			  User plain
			Host h$i
			  User drill
		CONF
	done
}

host() { # I: its sshd; runs until killed
	local i=$1
	exec nsenter --net="/run/netns/h$i" unshare -mu --propagation private bash -s <<-HOST
		set -eu
		hostname h$i
		ip link set lo up
		mount -t tmpfs -o mode=0755 mayhem-lab /run
		mount -t tmpfs -o mode=0755 mayhem-lab /var/lib
		mkdir -p /run/sshd /run/user/2000 /run/user/2001
		chown 2000 /run/user/2000
		chown 2001 /run/user/2001
		chmod 0700 /run/user/*
		printf '%032x\n' $((0xa110c8ed + i)) >$WORK/machine-id-$i
		mount --bind $WORK/machine-id-$i /etc/machine-id
		exec /usr/sbin/sshd -D -e -f /dev/null -o Port=22 -o ListenAddress=10.98.0.$((10 + i)) \
			-o HostKey=$WORK/hostkey -o AuthorizedKeysFile=$WORK/authorized_keys -o StrictModes=no -o UsePAM=no \
			-o PasswordAuthentication=no -o PermitRootLogin=yes -o TCPKeepAlive=no -o MaxSessions=100 \
			-o MaxStartups=100 -o PidFile=none </dev/null >$WORK/sshd-$i.log 2>&1
	HOST
}

private_work
trap finish EXIT
private_copy /etc
private_copy /usr/local/bin
private_dir /run
mkdir -p /run/netns
people
keys
for file in "${files[@]}"; do
	install -m 0755 "$file" /usr/local/bin/
done
ip link set lo up
ip link add bridge0 type bridge
ip addr add 10.98.0.1/24 dev bridge0
ip link set bridge0 up
for i in $(seq "$n"); do
	ip netns add "h$i"
	ip link add "h$i" type veth peer name eth0 netns "h$i"
	ip link set "h$i" master bridge0 up
	ip -n "h$i" addr add "10.98.0.$((10 + i))/24" dev eth0
	ip -n "h$i" link set eth0 up
	host "$i" &
	sshds+=($!)
done
for i in $(seq "$n"); do
	wait_for 20 ssh -o BatchMode=yes "root-h$i" true || {
		cat "$WORK/sshd-$i.log" >&2
		exit 1
	}
done
unset MAYHEM_LAB_INSIDE
export XDG_RUNTIME_DIR=$WORK/controller
mkdir -m 0700 "$XDG_RUNTIME_DIR"
if [ $# -eq 0 ]; then
	echo "pid=$$"
	echo "XDG_RUNTIME_DIR=$XDG_RUNTIME_DIR"
	for i in $(seq "$n"); do
		echo "h$i=${sshds[i - 1]}"
	done
fi
rc=0
lab_serve "$@" || rc=$?
exit "$rc"
