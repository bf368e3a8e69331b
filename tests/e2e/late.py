# SPDX-License-Identifier: Apache-2.0
"""
Bounds on time: late.py WHAT VALUE BOUND, or late.late(WHAT, VALUE, BOUND) with texts such as "12 ms" and "200 ms" (one unit).

Prints a figure.  With BOUNDS=assert, which is for a quiet machine, a bound that is missed ends the case with status 75 and one line that
says what else the machine did; tests/e2e/run runs it once more then.  Only a case with a line "# timed" may ask.  Whatever guards
against a hang is no bound of this kind: it is generous, and always asserted.
"""
import os
import re
import sys


def cpu_times():
	"""Ticks that were stolen from this machine, and all, since it was started."""
	with open("/proc/stat", encoding="ascii") as f:
		numbers = [int(n) for n in f.readline().split()[1:9]]
	return numbers[7], sum(numbers)


BEGAN = tuple(map(int, os.environ["CASE_CPU_TIMES"].split())) if "CASE_CPU_TIMES" in os.environ else cpu_times()


def number(text):
	return float(re.match(r"[0-9.]+", text).group())


def late(what, value, bound):
	case = os.environ.get("CASE")
	if case and not re.search(r"^# timed\b", open(case, encoding="utf-8").read(), re.M):  # else by hand
		raise SystemExit(f"a bound on '{what}', and {case} has no line '# timed'")
	if re.sub("[0-9.]", "", value) != re.sub("[0-9.]", "", bound):
		raise SystemExit(f"late: {what}: '{value}' and '{bound}' are of different units")
	print(f"figure: {what}: {value}, {bound} allowed", flush=True)
	if os.environ.get("BOUNDS") != "assert" or number(value) <= number(bound):
		return
	with open("/proc/loadavg", encoding="ascii") as f:
		load = f.read().split()[0]
	stolen, ticks = (now - then for now, then in zip(cpu_times(), BEGAN))
	print(f"late: {what}: {value}, {bound} allowed, load {load}, steal {100 * stolen / max(ticks, 1):.0f}%", flush=True)
	raise SystemExit(75)


if __name__ == "__main__":
	late(*sys.argv[1:])
