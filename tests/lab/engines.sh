#!/bin/bash
# A real container engine with its own storage and network, in namespaces of its own.
#
#   tests/lab/engines.sh podman|docker [COMMAND...]
#
# COMMAND runs inside and sees ENGINE (the command line tool), SOCK (its API's unix socket), IMAGE
# (busybox) and PYTHON_IMAGE (the same with a `python`). Without a COMMAND: these are printed as
# NAME=VALUE lines, then `pid=` of a process whose mount and network namespaces to enter, then `ready`; the
# end of stdin ends it. In either case every container and daemon is gone afterwards. Inside:
#
# - cgroup v2 is unmounted, for crun refuses a hybrid; what is seen is v1 alone;
# - containers have a network of their own, with names; they reach each other, and nothing outside;
# - limits are not raised, which this may not be permitted (containers.conf, 1024 each).
#
# Needs root. podman: podman crun conmon netavark aardvark-dns; docker: docker.io, else its packages are
# fetched and unpacked (not installed) in the cache. Both: busybox-static iproute2; python3-minimal.
set -eu
# shellcheck source-path=SCRIPTDIR source=private.sh
. "$(dirname "$(readlink -f "$0")")/private.sh"
kind=${1:?podman or docker}

fetch_docker() { # into the cache, from Debian; outside, for inside there is no way out
	local package
	mkdir -p "$CACHE"
	exec 9>"$CACHE/lock"
	flock 9
	if [ ! -d "$CACHE/docker" ]; then
		rm -rf "$CACHE/docker.new"
		mkdir "$CACHE/docker.new"
		cd "$CACHE/docker.new"
		apt-get -qq download docker.io containerd runc 2>/dev/null
		for package in *.deb; do
			dpkg -x "$package" .
			rm "$package"
		done
		cd /
		mv "$CACHE/docker.new" "$CACHE/docker"
	fi
	exec 9>&-
}

if [ "$kind" = docker ] && ! command -v dockerd >/dev/null; then
	CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/mayhem-lab
	(fetch_docker)
	export PATH=$CACHE/docker/usr/bin:$CACHE/docker/usr/sbin:$PATH
fi
private_enter -nm "$(readlink -f "$0")" "$@"
shift

daemons=()
# shellcheck disable=SC2317  # called by trap
finish() {
	local rc=$? id
	for id in $($ENGINE ps -aq 2>/dev/null); do
		# By its processes' end, not by the engine's patience.
		$ENGINE kill "$id" >/dev/null 2>&1 || true
		$ENGINE rm -f "$id" >/dev/null 2>&1 || true
	done
	for id in "${daemons[@]}"; do
		kill "$id" 2>/dev/null || true
		wait "$id" 2>/dev/null || true
	done
	rmdir /sys/fs/cgroup/*/{docker,libpod_parent} 2>/dev/null || true # the engine's own, where empty
	private_drop
	exit "$rc"
}

rootfs() { # DIR [python]
	local root=$1 applet file python
	mkdir -p "$root"/{bin,etc,proc,sys,dev,tmp}
	cp /bin/busybox "$root/bin/"
	for applet in sh sleep ls cat echo kill ps wget httpd nc dd rm true false; do
		ln -s busybox "$root/bin/$applet"
	done
	[ "${2:-}" = python ] || return 0
	python=$(readlink -f /usr/bin/python3)
	for file in $(dpkg -L "${python##*/}-minimal" "lib${python##*/}-minimal" | grep '^/usr/lib/') \
		"$python" $(ldd "$python" | awk '/=> \// {print $3} /^\t\/lib/ {print $1}'); do
		[ ! -f "$file" ] || install -D "$file" "$root$file"
	done
	ln -s "$python" "$root/bin/python"
}

private_work
ENGINE=true
trap finish EXIT
while read -r mounted; do
	umount "$mounted"
done < <(awk '$9 == "cgroup2" || $8 == "cgroup2" {print $5}' /proc/self/mountinfo | sort -r)
private_dir /dev/shm # podman's locks
ip link set lo up
rootfs "$WORK/busybox"
rootfs "$WORK/python" python

case $kind in
podman)
	private_copy /etc
	private_copy /run
	private_copy /var/lib
	rm -rf /run/libpod /run/containers /run/netns /run/crun /var/lib/containers /var/lib/cni
	private_dir /var/lib/containers # an overlay cannot be the upper part of one
	mkdir -p /etc/containers
	cat >/etc/containers/containers.conf <<-'CONF'
		[containers]
		default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
		[engine]
		runtime = "crun"
		cgroup_manager = "cgroupfs"
		events_logger = "file"
	CONF
	ENGINE=podman SOCK=$WORK/sock IMAGE=localhost/mayhem-test:latest PYTHON_IMAGE=localhost/mayhem-python:latest
	tar -C "$WORK/busybox" -c . | podman import - "$IMAGE" >/dev/null 2>&1
	tar -C "$WORK/python" -c . | podman import - "$PYTHON_IMAGE" >/dev/null 2>&1
	podman system service --time=0 "unix://$SOCK" >"$WORK/log" 2>&1 </dev/null &
	daemons+=($!)
	;;
docker)
	private_copy /etc
	private_copy /run
	# At its usual place, so that a client finds it without being told.
	ENGINE=docker SOCK=/run/docker.sock IMAGE=mayhem-test:latest PYTHON_IMAGE=mayhem-python:latest
	unset DOCKER_HOST
	dockerd --data-root "$WORK/data" --exec-root "$WORK/exec" -H "unix://$SOCK" --pidfile "$WORK/pid" \
		>"$WORK/log" 2>&1 </dev/null &
	daemons+=($!)
	wait_for 30 docker version >/dev/null || {
		cat "$WORK/log" >&2
		exit 1
	}
	tar -C "$WORK/busybox" -c . | docker import - "$IMAGE" >/dev/null
	tar -C "$WORK/python" -c . | docker import - "$PYTHON_IMAGE" >/dev/null
	;;
*)
	echo "engines.sh: podman or docker, not $kind" >&2
	exit 2
	;;
esac
wait_for 30 test -S "$SOCK"
export ENGINE SOCK IMAGE PYTHON_IMAGE
unset MAYHEM_LAB_INSIDE
if [ $# -eq 0 ]; then
	printf '%s\n' "ENGINE=$ENGINE" "SOCK=$SOCK" "IMAGE=$IMAGE" "PYTHON_IMAGE=$PYTHON_IMAGE" "PATH=$PATH" \
		"pid=$$"
fi
rc=0
lab_serve "$@" || rc=$?
exit "$rc"
