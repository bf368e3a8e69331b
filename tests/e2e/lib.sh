# SPDX-License-Identifier: Apache-2.0
# What cases share: a private mount in $WORK, checks, a sample job.
set -euo pipefail
M=$WORK/mnt
export SCALAI_MOUNT=$M
export CASE=$0 # late.py looks at its mark
cpu_times() { awk '$1 == "cpu" {print $9, $2 + $3 + $4 + $5 + $6 + $7 + $8 + $9}' /proc/stat; } # stolen, all; in ticks since boot
CASE_CPU_TIMES=$(cpu_times)
export CASE_CPU_TIMES

mount_up() { # [binary] [options]
	local bin=${1:-$SCALAI}
	shift || true
	"$bin" mount -f "$@" "$WORK/store" "$M" >>"$WORK/daemon.log" 2>&1 &
	daemon=$!
	local end=$((SECONDS + ${MOUNT_SECONDS:-60}))
	while [ $SECONDS -lt $end ]; do
		cat "$M/.ctl/health" >/dev/null 2>&1 && return 0 # a dead mount keeps its attributes for a while
		kill -0 "$daemon" 2>/dev/null || { echo "the daemon ended"; return 1; }
		sleep 0.05
	done
	echo "no mount after ${MOUNT_SECONDS:-60} s"
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

# What commands have made of a job: without bytes and state of its versions, which change when a view becomes files.
as_commanded() { cut -f 1-3,6- "$M/$1/.ctl/versions"; cat "$M/$1/.ctl/topology"; }
# refused ERRNO-TEXT COMMAND...: the command fails, says so, and `error` has a sentence with $WHY
refused() {
	local job=$1 file=$2 text=$3 why=$4 before after
	before=$(as_commanded "$job")
	if printf '%s\n' "$text" >"$M/$job/.ctl/$file" 2>"$WORK/stderr"; then fail "'$text' > $file was taken"; fi
	grep -q "$why" "$M/$job/.ctl/error" || fail "error says: $(cat "$M/$job/.ctl/error"), want: $why"
	after=$(as_commanded "$job")
	same "$after" "$before"
}

wait_head() { timeout 60 sh -c "echo > '$M/$1/.ctl/wait'"; }

# await WHAT COMMAND...: waits until the command passes, two minutes at most.  It ends at once then: the bound is against a hang.
await() {
	local what=$1 end=$((SECONDS + 120))
	shift
	until "$@" >"$WORK/await.out" 2>&1; do
		[ $SECONDS -lt $end ] || fail "not within 120 s: $what: $(tail -n 3 "$WORK/await.out")"
		sleep 0.05
	done
}
# What the background has still to do: lines of its metrics, empty if nothing.
owed() {
	awk '/^scalai_(background_busy|hashes_owed|records_owed|trees_owed) / {found++; if ($2 != 0) print $1 "=" $2}
	     END {if (found != 4) print "metrics: " found + 0 " of 4"}' "$M/.ctl/metrics"
}
answered() { # waits until each request to the mount has its answer: the kernel sends closes behind close(2)
	"$PYTHON" -c 'import sys; sys.path.append(sys.argv[2])
from waits import Waiting, until
waiting = Waiting(sys.argv[1])
until("each request has its answer", lambda: not waiting())' "$M" "$E2E"
}
# settled [SECONDS]: waits until the daemon owes nothing of what was asked before: heads are verified and materialized (or the
# status says why not), files are hashed, records of files and trees are written.
settled() {
	local end=$((SECONDS + ${1:-120})) left
	while :; do
		left=$(owed 2>&1) || left="its metrics cannot be read: $left"
		[ -n "$left" ] || return 0
		[ $SECONDS -lt $end ] || fail "after ${1:-120} s the daemon still owes: $left; $(grep -hs '^stopped: ' "$M"/*/.ctl/status)"
		sleep 0.05
	done
}
# late WHAT VALUE BOUND: a figure, and a bound on a time (both with their unit behind them: "12 ms" "200 ms").  The bound is asserted on a
# quiet machine only, where BOUNDS=assert says so; else it is reported.  Missed, it ends the case with status 75: late is not wrong.
late() {
	"$PYTHON" "$E2E/late.py" "$@" || exit $?
}
# Waits until each of these processes waits in the kernel for an answer of the daemon, in one and the same request.
parked() { # PID...
	await "processes $* wait for an answer of the daemon" in_request "$@"
}
in_request() { # PID...
	local at
	at=$(calls "$@") && sleep 0.1 && [ "$at" = "$(calls "$@")" ]
}
calls() { # PID...: the system calls that they are in; it fails if one does not wait there for a daemon of FUSE
	local pid
	for pid in "$@"; do
		grep -qs 'fuse\|request_wait' "/proc/$pid/stack" "/proc/$pid/wchan" && cat "/proc/$pid/syscall" || return 1
	done
}
ended() { # PID: it is no process any more, or one that nobody has waited for yet
	! grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$1/status"
}

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
ready_python() { # MODULE…: from now on $PYTHON has read them, and starts at once
	local module log=$WORK/ready.log
	export READY_AT=$WORK/ready READY_PYTHON=$PYTHON
	for module; do
		case " ${READY_MODULES:-} " in *" $module "*) ;; *) READY_ALL= ;; esac
	done
	if [ -n "${READY_ALL:-}" ]; then # one for all cases that want no more
		READY_AT=$READY_ALL/ready log=$READY_ALL/log
	else
		(READY_FOR=$$ "$PYTHON" "$E2E/ready_python" serve "$@" </dev/null >"$log" 2>&1 &)
	fi
	for _ in $(seq 2400); do [ -S "$READY_AT" ] && break; sleep 0.05; done
	[ -S "$READY_AT" ] || fail "no ready python after two minutes: $(cat "$log")"
	PYTHON=$E2E/ready_python
}
blob_of() { # RANK: the file in the store that has its model, of the head of job gpt
	"$PYTHON" - "$WORK/store" "$1" <<'P'
import glob, os, sqlite3, sys
store, rank = sys.argv[1:]
db = sqlite3.connect(f"file:{store}/scalai.db?mode=ro", uri=True)
blob, = db.execute("SELECT f.blob FROM job JOIN version v ON v.id = job.head JOIN version_set x ON x.version = v.id JOIN set_blob f ON "
                   "f.blob_set = x.blob_set JOIN path ON path.id = f.path WHERE job.name = 'gpt' AND path.text = 'model.safetensors' "
                   "AND f.rank = ? ORDER BY f.blob DESC", (rank,)).fetchone()
print(next(p for p in glob.glob(store + "/blobs/*/*") if os.path.basename(p) == str(blob)))
P
}
hashed() { # all that is sealed was looked at: what is damaged by now is not known to be
	timeout 60 "$PYTHON" - "$WORK/store" <<'P'
import sqlite3, sys, time
while sqlite3.connect(f"file:{sys.argv[1]}/scalai.db?mode=ro", uri=True).execute("SELECT 1 FROM blob WHERE hash IS NULL AND bytes").fetchone():
    time.sleep(0.05)
P
}
# eio WHAT COMMAND...: it fails with EIO
eio() {
	local what=$1
	shift
	if "$@" >"$WORK/out" 2>"$WORK/stderr"; then fail "$what passed"; fi
	grep -q "Input/output error" "$WORK/stderr" || fail "$what says: $(cat "$WORK/stderr"), want: Input/output error"
}
spoil() { # BLOB [NAME]: a tensor in it, whose name has NAME, has other bytes, and nobody has written it just now
	"$PYTHON" - "$1" "${2:-mlp.linear_fc1.weight}" <<'P'
import json, os, sys
with open(sys.argv[1], "r+b") as f:
    header = int.from_bytes(f.read(8), "little")
    tensors = json.loads(f.read(header))
    begin, end = next(t["data_offsets"] for name, t in tensors.items() if sys.argv[2] in name)
    f.seek(8 + header + (begin + end) // 2)
    f.write(b"other bytes")
os.utime(sys.argv[1], (1, 1))
P
}
