# SPDX-License-Identifier: Apache-2.0
"""
Runs the shell session of a document as a reader would copy it: readme.py DOCUMENT [FROM=TO...]

All blocks of ```sh are one session: each line must succeed. Lines that begin with "#>" are what the line before them prints to
stdout, where "..." stands for anything within a line. FROM=TO puts the session's paths elsewhere.
"""
import re
import subprocess
import sys


def session(text):
	"""[(number of the line in the document, command, lines it prints, or None where the document shows none)]"""
	steps, inside = [], False
	for nr, line in enumerate(text.splitlines(), 1):
		if line.startswith("```"):
			inside = line == "```sh"
		elif inside and line.startswith("#>"):
			steps[-1][2].append(line[3:])
		elif inside and line.strip():
			steps.append((nr, line, []))
	return steps


def like(shown, printed):
	"""Whether the printed lines are those that the document shows."""
	pattern = "\n".join(".*".join(map(re.escape, line.split("..."))) for line in shown)
	return re.fullmatch(pattern, printed.rstrip("\n")) is not None


def main():
	text = open(sys.argv[1]).read()
	for pair in sys.argv[2:]:
		old, _, new = pair.partition("=")
		assert old in text, f"{sys.argv[1]} does not have {old}"
		text = text.replace(old, new)
	steps = session(text)
	assert steps, f"{sys.argv[1]} has no session"
	script = "set -e\n" + "".join(f"{command}\necho\necho @@@\n" for _, command, _ in steps)
	done = subprocess.run(["bash", "-o", "pipefail", "-c", script], stdout=subprocess.PIPE, text=True)
	outputs = done.stdout.split("\n@@@\n")
	bad = 0
	for (nr, command, shown), printed in zip(steps, outputs[:-1]):
		if shown and not like(shown, printed):
			bad += 1
			print(f"{sys.argv[1]}:{nr}: {command}\n  shown:\n" + "\n".join(shown) + f"\n  printed:\n{printed}")
	if done.returncode != 0:
		nr, command, _ = steps[len(outputs) - 1]
		print(f"{sys.argv[1]}:{nr}: {command}: failed with status {done.returncode}\n{outputs[-1]}")
	print(f"{len(outputs) - 1} of {len(steps)} lines ran, {bad} printed something else")
	return 1 if bad or done.returncode != 0 else 0


sys.exit(main())
