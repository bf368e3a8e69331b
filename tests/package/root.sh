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
	mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null |
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
		for d in null zero full random urandom tty fuse; do touch dev/$d && mount --bind /dev/$d dev/$d; done
		mkdir dev/shm dev/pts
		ln -s /proc/self/fd dev/fd
		mount -t tmpfs run run
		exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
			DEBIAN_FRONTEND=noninteractive chroot . "$@"' bash "$@"
}
