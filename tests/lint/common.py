# SPDX-License-Identifier: Apache-2.0
"""What both lints use: the sources, and the list of exceptions, which may only shrink."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FLOORS = ("meta", "reshard", "fs")
EXCEPTIONS = pathlib.Path(__file__).with_name("exceptions")


def sources():
	"""All C files of the three floors, and the kernel, as paths below the root."""
	return sorted(str(p.relative_to(ROOT)) for floor in FLOORS for end in ("*.[ch]", "*.cu") for p in (ROOT / floor).rglob(end))


def tests():
	"""The programs of tests/, as paths below the root: C, Python, and the shell of the end-to-end cases."""
	found = [p for end in ("*.[ch]", "*.py", "e2e/cases/*") for p in (ROOT / "tests").rglob(end)]
	return sorted(str(p.relative_to(ROOT)) for p in found if p.is_file())


def room(path):
	"""The folder of a file: a room."""
	return path.rpartition("/")[0]


def judge(kinds, found):
	"""`found`: {(kind, object): sentence}.  Compares it with the exceptions of these kinds; the exit status."""
	allowed = set()
	for line in EXCEPTIONS.read_text().splitlines():
		words = line.partition("#")[0].split(None, 1)
		if words and words[0] in kinds:
			allowed.add((words[0], words[1].strip()))
	for key in sorted(found.keys() - allowed):
		print(f"{key[1]}: {found[key]}")
	for kind, name in sorted(allowed - found.keys()):
		print(f"tests/lint/exceptions: '{kind} {name}' is not needed any more: remove the line")
	return 1 if found.keys() ^ allowed else 0


def main(kinds, check):
	"""--list prints today's exceptions of this lint instead of comparing."""
	args = [a for a in sys.argv[1:] if a != "--list"]
	found = check(*args)
	if "--list" in sys.argv:
		print("\n".join(f"{kind} {name}" for kind, name in sorted(found)))
		return 0
	return judge(kinds, found)
