#!/bin/bash
# Debian's own kernel in a small virtual machine: no pidfs, pure cgroup v2, every capability, a disk that
# may be reset in the middle of anything.
#
#   tests/lab/vm.sh kernel                     fetches the kernel into the cache; prints its directory
#   tests/lab/vm.sh initrd OUT SCRIPT FILE...  an initramfs: FILEs and SCRIPT (as `run`) lie in /t
#   tests/lab/vm.sh disk OUT [MIB]             an empty ext4 image
#   tests/lab/vm.sh boot INITRD [DISK]         the machine, by exec: our pid is its pid, our stdin and stdout
#                                              its console. Killing it is the reset
#   tests/lab/vm.sh run SCRIPT FILE...         all of it once, at most $VM_SECONDS (120); the exit status is SCRIPT's
#
# With VM_PORTS=DIR, thirty channels to the inside: the machine's /dev/vport0pN is the unix socket DIR/N; when
# the side out here closes, the one in there reads the end.
#
# SCRIPT is run by busybox's sh after mounts and modules; its end is the machine's, and the last line is
# `rc=N`. A DISK is mounted at /state with commit=600,noauto_da_alloc: what was not synced stays in memory for
# minutes and is lost by a reset, where ext4's defaults would hide a forgotten sync. After SCRIPT a disk is
# not unmounted.
#
# The kernel is the cloud kernel of the Debian release that runs here, downloaded by apt-get and kept in
# ${XDG_CACHE_HOME:-~/.cache}/mayhem-lab; nothing is installed. KVM is used where it works, else emulation
# (about 4 s to boot); VM_ACCEL=kvm|tcg overrules. VM_MODULES adds modules to the default ones. No root is needed.
#
# Needs: qemu-system-x86 cpio gzip busybox-static e2fsprogs.
set -eu
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mayhem-lab
modules="virtio_pci virtio_blk virtio_console crc32c_generic ext4 overlay ${VM_MODULES:-}"

kernel() { # prints the directory of the unpacked package
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9
	if ! compgen -G "$cache/kernel/boot/vmlinuz-*" >/dev/null; then
		local package
		package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ {print $2; exit}')
		if [ -z "$package" ]; then
			echo "vm.sh: no linux-image-cloud-amd64 in the package lists; apt-get update" >&2
			exit 1
		fi
		rm -rf "$cache/kernel.new"
		mkdir "$cache/kernel.new"
		(cd "$cache/kernel.new" && apt-get -qq download "$package" 2>/dev/null && dpkg -x ./*.deb . && rm ./*.deb)
		mv "$cache/kernel.new" "$cache/kernel"
	fi
	exec 9>&-
	echo "$cache/kernel"
}

declare -A placed
n_modules=0
module() { # NAME: it and what it depends on, numbered in the order of loading
	local file need
	[ -z "${placed[$1]:-}" ] || return 0
	placed[$1]=yes
	file=$(find "$kernel/lib/modules" -name "$1.ko" -o -name "${1//_/-}.ko" | head -n 1)
	[ -n "$file" ] || return 0 # built in
	for need in $(tr '\0' '\n' <"$file" | sed -n 's/^depends=//p' | tr , ' '); do
		module "$need"
	done
	cp "$file" "$root/mods/$(printf %03d $n_modules)-$1.ko"
	n_modules=$((n_modules + 1))
}

initrd() { # OUT SCRIPT FILE...
	local out script applet kernel root
	out=$1 script=$2
	shift 2
	kernel=$(kernel)
	root=$(mktemp -d)
	chmod 0755 "$root" # it becomes /
	mkdir -p "$root"/{bin,sbin,proc,sys,dev,tmp,run,etc,t,mods,state,var/lib}
	cp /bin/busybox "$root/bin/"
	for applet in $(/bin/busybox --list); do
		[ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
	done
	printf '%s\n' root:x:0:0::/root:/bin/sh nobody:x:65534:65534::/:/bin/sh >"$root/etc/passwd"
	echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
	for applet in $modules; do
		module "$applet"
	done
	cp "$script" "$root/t/run"
	[ $# -eq 0 ] || cp "$@" "$root/t/"
	chmod +x "$root"/t/*
	cat >"$root/init" <<-'INIT'
		#!/bin/sh
		export PATH=/bin:/sbin:/t HOME=/
		mount -t proc proc /proc
		mount -t sysfs sys /sys
		mount -t devtmpfs dev /dev
		mount -t cgroup2 cg /sys/fs/cgroup
		mount -t tmpfs -o mode=1777 tmp /tmp
		mount -t tmpfs run /run
		for c in $(cat /sys/fs/cgroup/cgroup.controllers); do echo +$c >/sys/fs/cgroup/cgroup.subtree_control; done 2>/dev/null
		for m in /mods/*.ko; do insmod $m 2>/dev/null; done
		ip link set lo up
		i=0
		while [ -n "$DISK" ] && [ ! -b /dev/vda ] && [ $i -lt 100 ]; do usleep 20000; i=$((i + 1)); done
		[ ! -b /dev/vda ] || mount -t ext4 -o commit=600,noauto_da_alloc /dev/vda /state
		setsid sh /t/run
		echo "rc=$?"
		poweroff -f
	INIT
	chmod +x "$root/init"
	(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$out"
	rm -rf "$root"
}

disk() { # OUT [MIB]
	rm -f "$1"
	truncate -s "${2:-64}M" "$1"
	# No lazy work after the first mount, and a journal, as a real host has.
	mke2fs -q -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 "$1"
}

accelerator() {
	# A /dev/kvm is not enough: without the processor's own help (seen) it is there, and the guest hangs.
	case ${VM_ACCEL:-$([ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo && echo kvm)} in
	kvm) echo "kvm -cpu host" ;;
	*) echo "tcg,thread=multi -cpu max" ;;
	esac
}

boot() { # INITRD [DISK]
	local kernel args port
	kernel=$(kernel)
	# Not a microvm, though it boots in half the time: with nothing but the PIT to measure its clock by,
	# it hangs before its first line when the machine is busy (6 of 6).
	args=(-M "pc,hpet=on,usb=off,vmport=off" -m "${VM_MIB:-512}" -smp 2 -nodefaults -no-user-config -display none
		-serial stdio -no-reboot -kernel "$(compgen -G "$kernel/boot/vmlinuz-*")" -initrd "$1"
		-append "console=ttyS0 quiet panic=-1 ${2:+DISK=yes}")
	if [ -n "${VM_PORTS:-}" ]; then # before the disk, or it would not be vport0
		args+=(-device virtio-serial-pci)
		for port in $(seq 1 30); do
			args+=(-chardev "socket,id=p$port,path=$VM_PORTS/$port,server=on,wait=off"
				-device "virtserialport,chardev=p$port,nr=$port")
		done
	fi
	[ -z "${2:-}" ] || args+=(-drive "id=d,file=$2,format=raw,if=none,cache=unsafe" -device "virtio-blk-pci,drive=d")
	# shellcheck disable=SC2046  # two words
	exec qemu-system-x86_64 -accel $(accelerator) "${args[@]}"
}

run() { # SCRIPT FILE...
	local work rc
	work=$(mktemp -d)
	# shellcheck disable=SC2064  # now
	trap "rm -rf '$work'" EXIT
	initrd "$work/initrd" "$@"
	timeout "${VM_SECONDS:-120}" "$0" boot "$work/initrd" </dev/null | tr -d '\r' | tee "$work/out"
	rc=$(sed -n 's/^rc=\([0-9]*\)$/\1/p' "$work/out" | tail -n 1)
	exit "${rc:-1}"
}

case ${1:-} in
kernel | initrd | disk | boot | run) "$@" ;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
