#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY [RULE...]: does a history of real daemons miss a rule of the protocol?  Each test below must pass, and fail when its rule
is taken out of the daemons.  BINARY is scalai-rules (tests/support/rule_off.c).  prop/cluster takes out each of the 32 in its
cluster in memory; here are those that a fault at the right moment shows.
"""
import os
import pathlib
import re
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
HISTORY, CUT, DEAF = ("history_run.py", "3", "24", "1"), ("faults.py", "bystander/cut/commit", "1"), ("faults.py", "committer/deaf/commit", "1")
LEFT_OUT = ("left_out.py",)
RULES = {"gate": HISTORY, "prepared_durable": HISTORY, "barrier": CUT, "wait": CUT, "barrier_all": CUT, "hidden_honest": CUT,
	 "fresh_limited": CUT, "error_unknown": DEAF,
	 "left_out_ends": LEFT_OUT}
SAYS = re.compile(r"fresh: |chain: |truthful: |kept: |failed, and is a version|succeeded, and is no version|does not come to an end|"
		  r"not within|does not end|Error")
work, binary = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()


def clean_up(pid, folder):
	"""After a test that had to be killed."""
	mounts = [line.split()[1] for line in open("/proc/mounts") if line.split()[1].startswith(f"{folder}/")]
	for mount in mounts:
		subprocess.run(["umount", "-l", mount], capture_output=True)
	names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split("\n")
	for name in (n.split()[0] for n in names if n.startswith(f"sc{pid}-")):
		subprocess.run(["ip", "netns", "del", name], capture_output=True)


def run(test, rule):
	"""0 and what was said; or 1, as it failed, or did not end."""
	folder = work / (rule or "none-" + "-".join(test).replace("/", "-"))
	env = dict(os.environ, SCALAI_RULE_OFF=rule, ASAN_OPTIONS="detect_leaks=0", PYTHONDONTWRITEBYTECODE="1", PATIENCE="1")
	log = folder.with_suffix(".log")
	folder.mkdir(parents=True)
	with open(log, "w") as out:
		p = subprocess.Popen([sys.executable, HERE / test[0], folder / "w", binary, *test[1:]], stdout=out, stderr=out, env=env,
				     start_new_session=True)
		try:
			code = p.wait(90)
		except subprocess.TimeoutExpired:
			code = 1
			os.killpg(p.pid, signal.SIGKILL)
			p.wait()
			clean_up(p.pid, folder)
	lines = log.read_text().splitlines()
	return code, next((line for line in lines if SAYS.search(line)), lines[-1] if lines else "it does not end")


chosen = sys.argv[3:] or list(RULES)
for test in dict.fromkeys(RULES[r] for r in chosen):
	code, why = run(test, "")
	if code:
		sys.exit(f"{' '.join(test)} fails with all rules: {why}")
missed = [r for r in chosen if not run(RULES[r], r)[0]]
for rule in chosen:
	lines = (work / f"{rule}.log").read_text().splitlines()
	print(f"{rule:20} {' '.join(RULES[rule]):36} "
	      + ("NOTHING IS BROKEN" if rule in missed else next((line for line in lines if SAYS.search(line)), "it does not end")))
sys.exit(1 if missed else 0)
