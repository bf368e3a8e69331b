# SPDX-License-Identifier: Apache-2.0
# Sourced by tools/setup and tools/python: downloads that are tried again, and what is said when one fails.

say() { printf '%s\n' "tools/${0##*/}: $*" >&2; }

# A download that stands still for this many seconds has failed.
export PIP_DEFAULT_TIMEOUT=${PIP_DEFAULT_TIMEOUT:-60}
apt_options=(-qq -o Acquire::Retries=2 -o Acquire::http::Timeout=60 -o Acquire::https::Timeout=60 -o DPkg::Lock::Timeout=600)

# Says which disk is full, if one is: of the checkout, of temporary files, or of packages; once.
disks_said=
disk_is_full() {
	local folder left full=1
	for folder in "$PWD" "${TMPDIR:-/tmp}" /var/cache/apt; do
		left=$(df -Pm "$folder" 2>/dev/null | awk 'NR == 2 { print $4 }')
		[ "${left:-100}" -lt 100 ] || continue
		full=0
		[[ "$disks_said" != *" $folder "* ]] || continue
		disks_said+=" $folder "
		say "the disk of $folder has $left MiB left: make room there$([ "$folder" != "${TMPDIR:-/tmp}" ] || echo ", or set TMPDIR to a folder that has some"), and run this again"
	done
	return $full
}

# tries WHAT COMMAND…: what COMMAND downloads, tried three times.
tries() {
	local what=$1 n
	shift
	for n in 1 2 3; do
		if timeout --foreground 3600 "$@"; then return 0; fi
		! disk_is_full || return 1
		[ $n != 3 ] || break
		say "$what: the download failed, next try in $((5 * n)) seconds"
		sleep $((5 * n))
	done
	say "$what: not downloaded, see above; run this again when the network is there"
	return 1
}
