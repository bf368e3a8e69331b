#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Runs the stages of tools/test, which has made all that they need: gate.py [--quick|--long] [--list] [--stage NAME]... [PATTERN]

All stages run, whatever failed before; the result is the sum of all.  Stages that are side by side in stages.py run side by side,
and say what they have to say when they end; the last one that is not behind others prints as it goes.  docs/testing.md tells what each
does, and how to read what is printed.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import stacks
import stages

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build-asan"
SKIPS = BUILD / "skips"			# what e2e/run could not run, a line each
ALLOWED = ROOT / "tools/allowed-skips"
TOTALS = re.compile(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?(?:, (\d+) late)?")
SHOWN_LINES_MAX = 3000			# of what failed; the file has the rest
READ_SECONDS = 30			# for what a program has said when it ended
# a stage that is behind others gives them its processor; where each session has a share of its own (sched_autogroup), the session does
BEHIND = ["sh", "-c", 'echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 "$@"', "sh"]
printing = threading.RLock()	# a signal may come while we print


def say(*lines):
	with printing:
		print(*lines, sep="\n", flush=True)


class Outcome:
	"""What came of a stage."""

	def __init__(self, stage):
		self.stage, self.passed, self.failed, self.skipped, self.late = stage, 0, 0, 0, 0
		self.failures, self.skips = [], []
		self.began, self.seconds = time.time(), 0.0

	def fails(self, sentence, nr=1):
		self.failed += nr
		self.failures.append(sentence)

	def word(self):
		return "FAILED" if self.failed else "ok" if self.passed else "skipped"

	def add_totals(self, text):
		"""What the last line says that has totals; -> whether there is one."""
		found = [m for line in text.splitlines() if (m := TOTALS.match(line))]
		if found:
			passed, failed, skipped, late = (int(n or 0) for n in found[-1].groups())
			self.passed += passed
			self.failed += failed
			self.skipped += skipped
			self.late += late
		return bool(found)


class Lane:
	"""Runs programs one after another; `live` ones print as they go."""
	running = []	# of all lanes

	def __init__(self, live):
		self.live = live

	def run(self, words, limit, log, env):
		"""-> (status, text).  What does not end within `limit` seconds says where it stands, and is ended."""
		env = {**os.environ, "PYTHONUNBUFFERED": "1", **env}
		mark, words = stacks.mark(env, "SCALAI_TEST_STAGE"), [str(w) for w in words]
		program = subprocess.Popen(words, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
					   text=True, errors="replace", start_new_session=True)
		Lane.running.append((program, mark))
		text, late = [], threading.Event()

		def hangs():
			late.set()
			say(f"gate: it did not end in {limit:.0f} s: {' '.join(words)}: the stacks of all that it started:")
			pids = [program.pid, *stacks.started(program.pid, mark)]
			with printing:
				stacks.show(pids, sys.stdout)
			stacks.end([program.pid], 60)	# it may clean up
			stacks.end(pids[1:], 0)

		timer = threading.Timer(limit, hangs)
		reader = threading.Thread(target=self.read, args=(program, log, text), daemon=True)
		timer.daemon = True
		timer.start()
		reader.start()
		status = program.wait()
		timer.cancel()
		if late.is_set():
			timer.join()
			status = 124
		reader.join(READ_SECONDS)
		left = stacks.started(program.pid, mark) if reader.is_alive() else []
		if reader.is_alive():	# what has its output may have it for ever
			text.append(f"it has left processes behind that still have its output: {' '.join(map(str, left))}\n")
			status = status or 125
			with printing:
				stacks.show(left, sys.stdout)
			stacks.end(left, 5)
		Lane.running.remove((program, mark))
		return status, "".join(text)

	def read(self, program, log, text):
		try:
			with open(log, "a") as f:
				for line in program.stdout:
					text.append(line)
					f.write(line)
					f.flush()
					if self.live:
						with printing:
							print(line, end="", flush=True)
		except OSError as e:	# no room; the program must not wait for us
			text.append(f"{log}: {e.strerror}\n")
			text += list(program.stdout)


def results_of(logbase):
	"""What `meson test --logbase` has written, a dictionary for each test."""
	logs = sorted(BUILD.glob(f"meson-logs/{logbase}*.json"))
	return [json.loads(line) for line in logs[-1].read_text().splitlines() if line.strip()] if logs else []


def why_failed(test):
	"""The line that says most about a failed test."""
	lines = [line.strip() for line in (test.get("stderr", "") + "\n" + test.get("stdout", "")).splitlines()
		 if line.strip() and not re.match(r"limit: [\d.]+ s, ", line)]
	for sign in (r"limit: it did not end", r"ERROR: \w+Sanitizer", r"runtime error:", r"(\[ +ERROR +\]|error:|Error:|BAD)", r"not ok", r"(?i)fail"):
		for line in lines:
			if re.search(sign, line):
				return line[:200]
	status = test.get("returncode", 0)
	if 128 < status < 128 + signal.NSIG:
		return f"ended by {signal.Signals(status - 128).name}"
	return lines[-1][:200] if lines else "it said nothing"


def judge_tests(outcome, logbase):
	"""Counts the tests of a run of meson, and shows all that the failed ones said."""
	for test in results_of(logbase):
		name, result = test["name"].rpartition(" / ")[2], test["result"]
		if result in ("OK", "EXPECTEDFAIL"):
			outcome.passed += 1
			for line in re.findall(r"^\s*ok \d+ - (.*?) *# SKIP *(.*)$", test.get("stdout", ""), re.M | re.I):
				outcome.skips.append(f"unit {name}, a part: {line[0]}: {line[1]}")
		elif result == "SKIP":
			outcome.skipped += 1
			said = [re.sub(r"^1\.\.0 # SKIP ", "", line) for line in test.get("stdout", "").splitlines() if line.strip()]
			outcome.skips.append(f"unit {name}: {stages.WHY_SKIPPED.get(name) or (said[-1].strip() if said else 'it said nothing')}")
		else:
			status = test.get("returncode", "?")
			outcome.fails(f"unit {name}: {result}, status {status}, {test['duration']:.0f} s: {why_failed(test)}")
			lines = f"{test.get('stdout', '')}\n{test.get('stderr', '')}".strip().splitlines()
			if len(lines) > SHOWN_LINES_MAX:
				lines = [f"(the last {SHOWN_LINES_MAX} of {len(lines)} lines: build-asan/meson-logs has all)", *lines[-SHOWN_LINES_MAX:]]
			say(f"FAILED  unit {name} (status {status}, {test['duration']:.0f} s): all that it said:", *("    " + line for line in lines))


def failures_of_cases(text):
	"""What e2e/run tells again at its end, for each failed case."""
	found, lines = [], text.splitlines()
	for i, line in enumerate(lines):
		if line.startswith("failed: "):
			said = [more.strip() for more in lines[i + 1:i + 8] if more.startswith("    ")]
			found.append(f"e2e {line[8:]}" + (f": {said[-1][:200]}" if said else ""))
	return found or [line for line in lines if line.startswith("FAILED")]


def run_step(lane, stage, step, outcome, log):
	logbase = f"{stage.name}-{stage.steps.index(step)}"
	if step.kind == "tests":
		for old in BUILD.glob(f"meson-logs/{logbase}*"):
			old.unlink()
		words = [*step.words, "--logbase", logbase]
	else:
		words = step.words
	if stage.behind:
		words = [*BEHIND, *words]
	status, text = lane.run(words, stage.limit, log, {"SKIPS": str(SKIPS), **step.env})
	failed = outcome.failed
	if step.kind == "tests":
		judge_tests(outcome, logbase)
	elif step.kind == "cases":
		counted = outcome.add_totals(text)
		outcome.failures += failures_of_cases(text) if status else []
		if not counted and not status:
			outcome.fails(f"{stage.name}: e2e/run said no totals")
	elif status == 0:
		outcome.passed += 1
	if status and outcome.failed == failed:
		said = [line for line in text.splitlines() if line.strip()]
		outcome.fails(f"{stage.name}: {f'it did not end in {stage.limit:.0f} s' if status == 124 else f'status {status}'}: {said[-1].strip()[:200] if said else 'it said nothing'}")


def run_stage(lane, stage):
	outcome = Outcome(stage)
	say(f"== {stage.name}: {stage.about}" + ("" if lane.live else ": begins"))
	log = BUILD / f"stage-{stage.name}.log"
	log.unlink(missing_ok=True)
	reason = stage.cannot()
	if reason:
		outcome.skipped += 1
		outcome.skips.append(f"{stage.name}: {reason}")
		say(f"skipped: {reason}")
	for step in stage.steps if not reason else ():
		try:
			run_step(lane, stage, step, outcome, log)
		except Exception as e:  # noqa: BLE001: a full disk, say; other stages still run
			outcome.fails(f"{stage.name}: the stage itself: {type(e).__name__}: {e}")
	if not outcome.passed + outcome.failed + outcome.skipped:
		outcome.fails(f"{stage.name}: it ran nothing")
	outcome.seconds = time.time() - outcome.began
	if not lane.live and log.exists():
		say(f"== {stage.name}: {stage.about}: what it said:", log.read_text(errors="replace").rstrip())
	say(f"== {stage.name}: {outcome.word()}, {outcome.seconds:.0f} s")
	return outcome


def run_lane(lane, of_lane, outcomes):
	for stage in of_lane:
		outcomes.append(run_stage(lane, stage))
		note(outcomes[-1])


def commit():
	"""The commit that is tested; with a "+" if the working tree has other files."""
	def git(*words):
		done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
		return done.stdout.strip() if done.returncode == 0 else None
	head = git("rev-parse", "HEAD")
	return head and head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def note(outcome):
	"""Adds a line to long.json, or gate.json."""
	line = {"stage": outcome.stage.name, "commit": COMMIT, "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(outcome.began)),
		"seconds": round(outcome.seconds), "result": outcome.word(), "passed": outcome.passed, "failed": outcome.failed,
		"skipped": outcome.skipped, "late": outcome.late}
	if outcome.failures:
		line["failures"] = outcome.failures
	try:
		with printing, open(JOURNAL, "a") as f:
			f.write(json.dumps(line) + "\n")
	except OSError as e:
		say(f"gate: {JOURNAL}: {e.strerror}: this stage has no line there")


def lines_of(path):
	"""What is in long.json; a line that a full disk has cut is none."""
	found = []
	for line in path.read_text().splitlines() if path.exists() else ():
		try:
			found.append(json.loads(line))
		except ValueError:
			continue
	return found


def is_green(name):
	"""Whether this stage has passed for this commit.  A changed working tree is no commit."""
	return bool(COMMIT) and not COMMIT.endswith("+") and any(
		x["stage"] == name and x["commit"] == COMMIT and x["result"] == "ok" for x in lines_of(JOURNAL))


def unlisted(skips):
	"""The skips that tools/allowed-skips, an extended regular expression a line, does not have."""
	lines = ALLOWED.read_text().splitlines() if ALLOWED.exists() else []
	patterns = [line for line in lines if line.strip() and not line.startswith("#")]
	if not patterns or not skips:
		return skips
	words = ["grep", "-vE"] + [w for p in patterns for w in ("-e", p)]
	done = subprocess.run(words, input="\n".join(skips) + "\n", capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
	if done.returncode > 1:
		return [*skips, f"{ALLOWED}: {done.stderr.strip()}"]
	return done.stdout.splitlines()


def summary(outcomes, skips, began):
	"""The table, the failures again, and one last line; -> the exit status."""
	lines = ["", "== stages", f"   {'stage':16s} {'seconds':>7s}  result"]
	for o in outcomes:
		rest = "".join(f", {n} {word}" for n, word in ((o.failed, "failed"), (o.skipped, "skipped"), (o.late, "late")) if n)
		lines.append(f"   {o.stage.name:16s} {o.seconds:7.0f}  {o.word()}: {o.passed} passed{rest}")
	failures = [f for o in outcomes for f in o.failures]
	failed = sum(o.failed for o in outcomes)
	if skips:
		lines += [f"== skipped: {len(skips)}", *("   " + s for s in skips)]
	if os.environ.get("CI") == "true":
		for skip in unlisted(skips):
			failures.append(f"skipped, and not listed in tools/allowed-skips: {skip}")
			failed += 1
	if failures:
		lines += ["== failures", *("   " + f for f in failures)]
	minutes, seconds = divmod(round(time.time() - began), 60)
	passed, skipped, late = (sum(getattr(o, word) for o in outcomes) for word in ("passed", "skipped", "late"))
	lines.append(f"{passed} passed, {failed} failed, {skipped} skipped, {late} late: {len(outcomes)} stages in {minutes} min {seconds} s")
	say(*lines)
	return 1 if failed or not passed else 0


def interrupted(nr, _):
	"""Ends what runs, which may clean up, and then this."""
	say(f"gate: interrupted by {signal.Signals(nr).name}: what runs is ended")
	signal.signal(nr, signal.SIG_IGN)
	first = [p.pid for p, _ in Lane.running]
	below = [pid for p, mark in Lane.running for pid in stacks.started(p.pid, mark) if pid not in first]
	stacks.end(first, 60)
	stacks.end(below, 0)
	os._exit(128 + nr)


def list_stages(rows):
	for stage in (s for row in rows for lane in row for s in lane):
		seen = [x for x in lines_of(JOURNAL) if x["stage"] == stage.name]
		last = f"{seen[-1]['result']} {seen[-1]['began']} {(seen[-1]['commit'] or '?')[:9]}, {seen[-1]['seconds']} s" if seen else "never run here"
		print(f"{stage.name:16s} {'green' if is_green(stage.name) else '-':6s} {last:44s} {stage.about}")


def main():
	global COMMIT, JOURNAL
	ap = argparse.ArgumentParser()
	ap.add_argument("--quick", action="store_true")
	ap.add_argument("--long", action="store_true")
	ap.add_argument("--list", action="store_true")
	ap.add_argument("--stage", action="append", default=[])
	ap.add_argument("--began", type=float, default=time.time(), help="when the set-up began, which is a stage, too")
	ap.add_argument("pattern", nargs="?", default="")
	a = ap.parse_args()
	COMMIT, JOURNAL = commit(), BUILD / ("long.json" if a.long else "gate.json")
	BUILD.mkdir(exist_ok=True)
	rows = stages.long_rows() if a.long else stages.gate_rows(a.quick, a.pattern)
	if a.list:
		return list_stages(rows)
	names = [s.name for row in rows for lane in row for s in lane]
	if wrong := [n for n in a.stage if n not in names]:
		sys.exit(f"tools/test: there is no stage '{wrong[0]}'; there are {' '.join(names)}")
	wanted = set(a.stage) or {n for n in names if not (a.long and is_green(n))}
	if a.long and not wanted:
		print(f"all {len(names)} stages have passed for {COMMIT}: tools/test --long STAGE runs one again")
		return 0
	for nr in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
		signal.signal(nr, interrupted)
	SKIPS.write_text("")
	outcomes = []
	if not a.stage and not a.pattern and not a.long:
		outcomes.append(Outcome(stages.Stage("build", "set-up and builds", [])))
		outcomes[0].passed, outcomes[0].seconds = 1, time.time() - a.began
		say(f"== build: ok, {outcomes[0].seconds:.0f} s")
	for row in rows:
		lanes = [of for lane in row if (of := [s for s in lane if s.name in wanted])]
		first = [of for of in lanes if not of[0].behind] or lanes
		threads = [threading.Thread(target=run_lane, args=(Lane(of is first[-1]), of, outcomes)) for of in lanes]
		for t in threads:
			t.start()
		for t in threads:
			t.join()
	skips = [s for o in outcomes for s in o.skips] + SKIPS.read_text().splitlines()
	if not a.stage and not a.pattern:
		skips += stages.not_built()
	return summary(outcomes, skips, a.began)


if __name__ == "__main__":
	sys.exit(main())
