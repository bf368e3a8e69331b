# SPDX-License-Identifier: Apache-2.0
# Sourced: fresh roots of Debian, and commands in them.

# make_root FOLDER SUITE GIVEN DEB [PACKAGE…]: a root in FOLDER, with what DEB needs and these packages; GIVEN: a copy of that one.
make_root() {
	local to=$1 suite=$2 given=$3 needs mirror
	needs=$(dpkg-deb -f "$4" Depends | sed 's/ *([^)]*)//g; s/, */,/g')
	shift 4
	if [ -n "$given" ]; then
		cp -a --reflink=auto "$given" "$to"
		return
	fi
	# not all of these are there
	mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null || true; } |
		sed -n 's/^URIs: *\([^ ]*debian\/\?\)$/\1/p; s/^deb .*\(https\?:[^ ]*\/debian\/\?\) .*/\1/p' | head -n 1)
	[ -n "$mirror" ] || { echo "no mirror of Debian is configured here"; return 1; }
	mmdebstrap --quiet --variant=minbase --include="$needs$(printf ',%s' "$@")" "$suite" "$to" "$mirror"
}

# enter_root FOLDER COMMAND…: in namespaces of its own, with /proc, /dev/fuse and no network; nothing that is mounted there stays.
enter_root() {
	# shellcheck disable=SC2016
	unshare -m -p -n -f --kill-child --propagation private bash -c 'set -e
		cd "$1"
		shift
		mount --bind . .
		cd "$PWD"
		mount -t proc proc proc
		mount -t tmpfs -o mode=755 dev dev
		for d in null zero full random urandom tty; do touch dev/$d && mount --bind /dev/$d dev/$d; done
		mknod -m 666 dev/fuse c 10 229 # as udev makes it, for users who are not root, too
		mkdir dev/shm dev/pts
		ln -s /proc/self/fd dev/fd
		[ -e etc/mtab ] || [ -L etc/mtab ] || ln -s ../proc/self/mounts etc/mtab # as systemd makes it; fusermount3 reads it
		mount -t tmpfs run run
		exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
			DEBIAN_FRONTEND=noninteractive chroot . "$@"' bash "$@"
}

# boot_root FOLDER: systemd as process 1 of namespaces of their own; afterwards $init is its pid here, until end_root.
boot_root() {
	local booted
	cgroup=scalai-root.$$
	# shellcheck disable=SC2016
	unshare -m -u -i -n -p -f --kill-child --propagation private bash -c 'set -e
		cd "$1"
		mount --bind . .
		cd "$PWD"
		mount -t proc proc proc
		mount -t sysfs sysfs sys 2>/dev/null || mount --bind /sys sys
		mount -t tmpfs -o mode=755 run run
		mkdir run/cgroup
		mount -t cgroup2 cgroup2 run/cgroup
		mkdir -p "run/cgroup/$2"
		echo $$ >"run/cgroup/$2/cgroup.procs"
		umount run/cgroup
		umount -l sys/fs/cgroup 2>/dev/null || true
		mount -t tmpfs -o mode=755 dev dev
		for d in null zero full random urandom tty fuse; do touch dev/$d && mount --bind /dev/$d dev/$d; done
		touch dev/console
		mkdir dev/shm dev/pts
		mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
		ln -s pts/ptmx dev/ptmx
		ln -s /proc/self/fd dev/fd
		mount -t tmpfs -o mode=1777 tmp tmp
		ip link set lo up
		exec unshare -C bash -c "mount -t cgroup2 cgroup2 sys/fs/cgroup; exec env -i container=scalai PATH=/usr/sbin:/usr/bin:/sbin:/bin \
			chroot . /lib/systemd/systemd --system --log-target=console --show-status=no systemd.unit=multi-user.target"' \
		bash "$1" "$cgroup" >"$1.boot" 2>&1 </dev/null &
	booted=$!
	init=''
	for _ in $(seq 1200); do
		init=$(pgrep -P $booted) || true
		if [ -n "$init" ] && [ "$(cat "/proc/$init/comm" 2>/dev/null)" = systemd ] && in_root systemctl list-units >/dev/null 2>&1; then
			return 0
		fi
		kill -0 $booted 2>/dev/null || break
		sleep 0.1
	done
	cat "$1.boot"
	echo "systemd does not start in $1"
	return 1
}
in_root() { # COMMAND…: in the booted root
	nsenter -t "$init" -m -u -i -n -p -C -r -w env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
end_root() {
	local where
	[ -z "${init:-}" ] || kill -KILL "$init" 2>/dev/null || true
	wait
	where=$(mktemp -d)
	if mount -t cgroup2 cgroup2 "$where" 2>/dev/null; then
		find "$where/${cgroup:-none}" -depth -type d -exec rmdir {} + 2>/dev/null || true
		umount "$where"
	fi
	rmdir "$where"
}
