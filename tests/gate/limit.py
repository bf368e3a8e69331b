#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Runs a program, and says where it stands when it does not end: limit.py [--seconds N] PROGRAM [ARGUMENT...]

It is the wrapper of `meson test`, which kills without a word what takes too long.  Here the stacks of all threads of the program
and of what it started are printed before they are killed, and the exit status is 124.  Without --seconds the limit is the
program's own in tests/meson.build (from meson-info of this folder), times $LIMIT_FACTOR.  The last line of what ends is the seconds
that it took, and those of the processors, which say more on a machine that does other things.
"""
import json
import os
import pathlib
import resource
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import stacks

SECONDS = 30	# of a program that meson does not know


def limit_of(words):
	try:
		tests = json.loads(pathlib.Path("meson-info/intro-tests.json").read_text())
	except OSError:
		return SECONDS
	mine = [t for t in tests if t["cmd"] == words] or [t for t in tests if t["cmd"][0] == words[0]]
	return max((t["timeout"] for t in mine), default=SECONDS) * float(os.environ.get("LIMIT_FACTOR", "1"))


def main(words):
	seconds = None
	if words[0] == "--seconds":
		seconds, words = float(words[1]), words[2:]
	seconds = seconds or limit_of(words)
	mark = stacks.mark(os.environ, "SCALAI_TEST_LIMIT")
	began = time.monotonic()
	program = subprocess.Popen(words)
	late = threading.Event()

	def hangs():
		late.set()
		print(f"limit: it did not end in {seconds:.0f} s: {' '.join(words)}: the stacks of all its threads:", file=sys.stderr, flush=True)
		started = stacks.started(os.getpid(), mark)
		stacks.show(started, sys.stderr)
		stacks.end(started, 0)

	timer = threading.Timer(seconds, hangs)
	timer.daemon = True
	timer.start()
	status = program.wait()
	if late.is_set():
		timer.join()	# it may be telling of others
		return 124
	timer.cancel()
	used = resource.getrusage(resource.RUSAGE_CHILDREN)
	print(f"limit: {time.monotonic() - began:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of the processors", file=sys.stderr)
	return status if status >= 0 else 128 - status


sys.exit(main(sys.argv[1:]))
