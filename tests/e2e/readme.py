# SPDX-License-Identifier: Apache-2.0
"""
Runs the shell session of a document as a reader would copy it: readme.py [--indented] DOCUMENT [FROM=TO...]

All blocks of ```sh are one session: each line must succeed. Lines that begin with "#>" are what the line before them prints to
stdout, where "..." stands for anything within a line. FROM=TO puts the session's paths elsewhere. --indented: the blocks are those that are
indented by four spaces, with an empty line before, and what they print to stderr counts, too.
"""
import re
import subprocess
import sys


def fenced(text):
	"""The blocks of ```sh, as lines that are there or None."""
	inside = False
	for line in text.splitlines():
		if line.startswith("```"):
			inside = line == "```sh"
		yield line if inside and not line.startswith("```") else None


def indented(text):
	"""The indented blocks, likewise."""
	inside, before = False, ""
	for line in text.splitlines():
		inside = line.startswith("    ") and (inside or not before.strip())
		before = line
		yield line[4:] if inside else None


def session(lines):
	"""[(number of the line in the document, command, lines it prints, or None where the document shows none)]"""
	steps = []
	for nr, line in enumerate(lines, 1):
		if not line or not line.strip():
			continue
		if line.startswith("#>"):
			steps[-1][2].append(line[3:])
		elif steps and steps[-1][1].endswith("&&"):
			steps[-1] = (steps[-1][0], f"{steps[-1][1]}\n{line}", [])
		else:
			steps.append((nr, line, []))
	return steps


def like(shown, printed):
	"""Whether the printed lines are those that the document shows."""
	pattern = "\n".join(".*".join(map(re.escape, line.split("..."))) for line in shown)
	return re.fullmatch(pattern, printed.rstrip("\n")) is not None


def main():
	by = indented if sys.argv[1] == "--indented" else fenced
	document, *pairs = sys.argv[2 if by is indented else 1:]
	text = open(document).read()
	for pair in pairs:
		old, _, new = pair.partition("=")
		assert old in text, f"{document} does not have {old}"
		text = text.replace(old, new)
	steps = session(by(text))
	assert steps, f"{document} has no session"
	script = "set -e\n" + "".join(f"{command}\necho\necho @@@\n" for _, command, _ in steps)
	done = subprocess.run(["bash", "-o", "pipefail", "-c", script], stdout=subprocess.PIPE, text=True,
			      stderr=subprocess.STDOUT if by is indented else None)
	outputs = done.stdout.split("\n@@@\n")
	bad = 0
	for (nr, command, shown), printed in zip(steps, outputs[:-1]):
		if shown and not like(shown, printed):
			bad += 1
			print(f"{document}:{nr}: {command}\n  shown:\n" + "\n".join(shown) + f"\n  printed:\n{printed}")
	if done.returncode != 0:
		nr, command, _ = steps[len(outputs) - 1]
		print(f"{document}:{nr}: {command}: failed with status {done.returncode}\n{outputs[-1]}")
	print(f"{len(outputs) - 1} of {len(steps)} lines ran, {bad} printed something else")
	return 1 if bad or done.returncode != 0 else 0


sys.exit(main())
