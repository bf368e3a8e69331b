#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Would the gate be red?  Runs it over planted stages and tests that fail, hang, die, are skipped, or leave processes, in a folder
of its own; all others must run, and the last lines must name each.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ME = str(os.getpid())	# in the place of each @: no other run has such processes
MESON = """
project('planted')
sh = find_program('bash')
foreach name, t : {
  'good': ['echo 1..1; echo ok 1 - a', 'tap', 60],
  'bad': ['echo 1..1; echo "x.c:3: error: Failure!" >&2; echo not ok 1 - a; exit 1', 'tap', 60],
  'hangs': ['setsid sleep 1003.@ & sleep 1004.@', 'exitcode', 4],
  'skips': ['echo no etcd here; exit 77', 'exitcode', 60],
  'dies': ['kill -SEGV $$', 'exitcode', 60],
}
  test(name, sh, args: ['-c', t[0]], protocol: t[1], timeout: t[2], suite: 'unit')
endforeach
test('wrong', sh, args: ['-c', 'echo 1..1; echo "y.c:4: error: a wrong byte" >&2; echo not ok 1 - a; exit 1'], protocol: 'tap', suite: 'behind')
"""
# the gate, with other stages: argv[1] is the folder, the rest are its arguments
GATE = """
import os, pathlib, sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv.pop(1))
import gate, stages
folder = pathlib.Path(sys.argv.pop(1))
gate.BUILD = stages.BUILD = folder / "build"
gate.SKIPS, gate.ALLOWED, gate.READ_SECONDS = gate.BUILD / "skips", folder / "allowed", 1
def stage(name, *scripts, limit=20, kind="program", cannot=lambda: None, behind=False):
	return stages.Stage(name, "planted", [stages.Step(kind, ["bash", "-c", s]) for s in scripts], limit, cannot, behind)
rows = [[[stages.Stage("unit", "planted", [stages.tests(9, "suite:unit", behind=30)])]],
	[[stage("early", "echo 'BAD: a lost commit'; exit 3")]],
	[[stage("hang", "setsid sleep 1001.@ & sleep 1002.@", limit=1)], [stage("beside", f"test $(nice) = {min(19, os.nice(0) + 19)} && echo fine", behind=True),
	 stages.Stage("properties", "planted", [stages.tests(9, "suite:behind")], behind=True), stage("cannot", "exit 1", cannot=lambda: "no loop devices")]],
	[[stage("cases", "echo 'failed: 12_x (status 1, 3s)'; echo '    FAIL: a wrong byte'; echo '5 passed, 1 failed, 2 skipped, 1 late'; exit 1", kind="cases")]],
	[[stage("silent", "true", kind="cases")]],
	[[stages.Stage("nothing", "planted", [stages.tests(9, "suite:nothing")])]],
	[[stage("leaves", "setsid sleep 1005.@ & echo it ends")]],
	[[stage("last", "echo 'a case: a reason: a way' >>$SKIPS; echo it runs")]]]
stages.gate_rows = stages.long_rows = lambda *a: rows
stages.not_built = lambda: ["the kernel: no nvcc"]
sys.exit(gate.main())
"""
WANTED = """
unit bad: ERROR, status 1|: x.c:3: error: Failure!
unit hangs: |status 124|limit: it did not end in 4 s
unit dies: |ended by SIGSEGV
early: status 3: BAD: a lost commit
unit wrong: ERROR, status 1|: y.c:4: error: a wrong byte
hang: it did not end in 1 s
e2e 12_x (status 1, 3s): FAIL: a wrong byte
silent: e2e/run said no totals
nothing: it ran nothing
leaves: status 125: it has left processes behind
skipped, and not listed in tools/allowed-skips: unit skips: no etcd here
skipped, and not listed in tools/allowed-skips: a case: a reason: a way
skipped, and not listed in tools/allowed-skips: cannot: no loop devices
"""


def run(folder, *words):
	env = {**os.environ, "CI": "true"}
	done = subprocess.run([sys.executable, "-c", GATE.replace("@", ME), str(HERE), str(folder), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
			      text=True, env=env, timeout=300)
	return done.returncode, done.stdout


def must(holds, what, text):
	if not holds:
		sys.exit(f"{text}\ngate: planted: {what}")


def main():
	with tempfile.TemporaryDirectory(prefix="scalai-gate.") as name:
		folder = pathlib.Path(name)
		(folder / "meson.build").write_text(MESON.replace("@", ME))
		(folder / "allowed").write_text("# listed\n^the kernel: no (nvcc|ptxas)$\n")
		subprocess.run(["meson", "setup", folder / "build", folder], check=True, stdout=subprocess.DEVNULL)
		status, text = run(folder)
		end = text.partition("== failures")[2]
		must(status == 1, f"status {status}, not 1", text)
		for line in WANTED.strip().splitlines():
			must(any(all(part in said for part in line.split("|")) for said in end.splitlines()), f"the end does not say '{line}'", text)
		must("no nvcc" not in end, "a listed skip is a failure", text)
		must(end.strip().splitlines()[-1].startswith("9 passed, 13 failed, 4 skipped, 1 late: 12 stages in "), "its last line is not the sum", text)
		must("thread " in text and f"sleep 1002.{ME}" in text and f"sleep 1003.{ME}" in text, "a hang shows no stacks", text)
		must("it runs" in text, "the last stage did not run", text)
		left = subprocess.run(["pgrep", "-f", rf"^sleep 100[1-5]\.{ME}$"], capture_output=True, text=True).stdout.split()
		must(not left, f"processes are left: {left}", text)
		status, text = run(folder, "--stage", "beside")
		must(status == 0 and text.rstrip().splitlines()[-1].startswith("1 passed, 0 failed, 0 skipped"), "one stage alone", text)
		status, text = run(folder, "--stage", "none")
		must(status == 1 and "there is no stage 'none'" in text, "a stage that is not there", text)


main()
