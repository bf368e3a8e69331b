# SPDX-License-Identifier: Apache-2.0
# What cases share: a private mount in $WORK, checks, a sample job.
set -euo pipefail
M=$WORK/mnt
export SCALAI_MOUNT=$M

mount_up() { # [binary] [options]
	local bin=${1:-$SCALAI}
	shift || true
	"$bin" mount -f "$@" "$WORK/store" "$M" >>"$WORK/daemon.log" 2>&1 &
	daemon=$!
	for _ in $(seq 1200); do # a start drops unused paths: of 4 million in some seconds of a quiet machine
		cat "$M/.ctl/health" >/dev/null 2>&1 && return 0 # a dead mount keeps its attributes for a while
		kill -0 "$daemon" 2>/dev/null || { echo "the daemon ended"; return 1; }
		sleep 0.05
	done
	echo "no mount after a minute"
	return 1
}

mount_down() {
	"$SCALAI_FAST" umount "$M"
	wait "$daemon" || { echo "the daemon's status: $?"; return 1; }
}

fail() { echo "FAIL: $*"; exit 1; }
same() { [ "$1" = "$2" ] || fail "expected '$2', found '$1'"; }
# Both say why, then how to avoid it: "REASON: WAY".
skip() { echo "$*"; exit 77; }
skip_part() { echo "skipped: $*"; }

# refused ERRNO-TEXT COMMAND...: the command fails, says so, and `error` has a sentence with $WHY
refused() {
	local job=$1 file=$2 text=$3 why=$4 before after
	before=$(cat "$M/$job/.ctl/versions" "$M/$job/.ctl/topology")
	if printf '%s\n' "$text" >"$M/$job/.ctl/$file" 2>"$WORK/stderr"; then fail "'$text' > $file was taken"; fi
	grep -q "$why" "$M/$job/.ctl/error" || fail "error says: $(cat "$M/$job/.ctl/error"), want: $why"
	after=$(cat "$M/$job/.ctl/versions" "$M/$job/.ctl/topology")
	same "$after" "$before"
}

wait_head() { timeout 60 sh -c "echo > '$M/$1/.ctl/wait'"; }

sample() { # the shipped sample job, as a job named $1
	"$SCALAI_FAST" import "$1" "$E2E/../../tests/sample/job" --topology "tp=2 pp=2" \
		--layout megatron-gpt vocab=300 tied=embedding.word_embeddings.weight --step 20
}
# FUSE over io_uring is switched Y or N in the kernel, until the case ends; false: the kernel has none, or we may not.
rings() {
	local switch=/sys/module/fuse/parameters/enable_uring
	[ -w $switch ] || return 1
	if [ -z "${rings_were:-}" ]; then
		rings_were=$(cat $switch)
		trap 'echo "$rings_were" > /sys/module/fuse/parameters/enable_uring' EXIT
	fi
	echo "$1" > $switch
}
no_rings="FUSE over io_uring can't be switched on: run as root, on Linux >= 6.14 built with FUSE_IO_URING"
need_large() { # MODULE…: of the libraries that the short test goes without
	[ "${SCALAI_TEST_NO_TORCH:-0}" != 1 ] || skip "the short test goes without $*: run tools/test without --quick"
	"$PYTHON" -c 'import importlib.util as i, sys; sys.exit(not all(i.find_spec(m) for m in sys.argv[1:]))' "$@" ||
		fail "not all of $* are installed, and tools/python --test said that they are"
}
