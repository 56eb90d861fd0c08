# shellcheck shell=bash
# Sourced by the labs. All of a lab lives in mount and network namespaces of its own: what it writes to
# /etc, /run and the like goes to a tmpfs that goes with the last process in there. Nothing of the
# machine's is touched, and two labs do not meet.
#
#   private_enter NAMESPACE-FLAGS "$0" "$@"   starts the script again inside; returns there
#   private_work                              makes $WORK, a tmpfs
#   private_dir DIR                           an empty DIR of our own over the machine's (made where missing)
#   private_copy DIR                          a writable view of DIR; writes stay here
#   lab_serve [COMMAND...]                    runs COMMAND; without one says "ready" and waits for the end of stdin

private_enter() {
	local flags=$1
	shift
	[ "${MAYHEM_LAB_INSIDE:-}" != "$1" ] || return 0
	if [ "$(id -u)" -ne 0 ]; then
		echo "${1##*/}: needs root" >&2
		exit 2
	fi
	MAYHEM_LAB_INSIDE=$1 exec unshare "$flags" --propagation private bash "$@"
}

private_work() {
	# A directory of the machine's is only the place to mount on; it is removed by the shell that
	# mounted, after the last user of the mount.
	WORK=$(mktemp -d /tmp/mayhem-lab-XXXXXX)
	mount -t tmpfs -o mode=0755 mayhem-lab "$WORK"
}

private_drop() {
	cd /
	umount -l "$WORK"
	rmdir "$WORK"
}

private_dir() {
	[ -d "$1" ] || private_copy "$(dirname "$1")"
	mkdir -p "$1"
	mount -t tmpfs -o mode=0755 mayhem-lab "$1"
}

private_copy() {
	local name=${1//\//_}
	[ ! -e "$WORK/copy/$name" ] || return 0
	mkdir -p "$WORK/copy/$name/"{upper,work}
	mount -t overlay -o "lowerdir=$1,upperdir=$WORK/copy/$name/upper,workdir=$WORK/copy/$name/work" mayhem-lab "$1"
}

wait_for() { # SECONDS COMMAND...: until it succeeds
	local end=$((SECONDS + $1))
	shift
	until "$@" 2>/dev/null; do
		[ "$SECONDS" -lt "$end" ] || return 1
		sleep 0.05
	done
}

lab_serve() {
	if [ $# -gt 0 ]; then
		"$@"
	else
		echo ready
		while read -r _; do :; done # to the end of stdin
	fi
}
