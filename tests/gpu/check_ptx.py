#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
What nvcc made of the kernel is what it should be: check_ptx.py PTXAS KERNEL.ptx

ptxas takes it for each architecture, with registers for four blocks on a multiprocessor, no stack and no spills.  Threads do not meet;
all accesses say that they are of global memory, and units of 16 bytes are loaded and stored at once.
"""
import os
import re
import subprocess
import sys

ARCHITECTURES = (80, 86, 89, 90, 100, 120)
REGISTERS_MAX = 64		# 65,536 of a multiprocessor / 4 blocks of 256 threads


def assembled(ptxas, ptx, arch):
	"""(registers, bytes of stack and spills)"""
	run = subprocess.run([ptxas, f"-arch=sm_{arch}", "-v", ptx, "-o", os.devnull], capture_output=True, text=True)
	if run.returncode:
		sys.exit(f"sm_{arch}: ptxas refuses the kernel: {run.stderr}")
	return (int(re.search(r"Used (\d+) registers", run.stderr)[1]),
		sum(int(n) for n in re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", run.stderr).groups()))


def main(ptxas, ptx):
	failed = []
	code = re.findall(r"^\s+(?:@!?%p\d+\s+)?([a-z][\w.]*)", open(ptx).read(), re.M)
	for word in ("bar", "barrier", "atom", "red", "shfl", "vote", "call"):
		if any(c.split(".")[0] == word for c in code):
			failed.append(f"threads meet, or a function is called: {word}")
	for c in code:
		if re.match(r"(ld|st)\.(?!global|param)", c):
			failed.append(f"not of global memory: {c}")
	for wide in ("ld.global.cs.v4.u32", "st.global.cs.v4.u32"):
		if wide not in code:
			failed.append(f"no {wide}")
	for arch in ARCHITECTURES:
		registers, bytes = assembled(ptxas, ptx, arch)
		print(f"sm_{arch}: {registers} registers, {bytes} bytes of stack and spills")
		if registers > REGISTERS_MAX or bytes:
			failed.append(f"sm_{arch}: more than {REGISTERS_MAX} registers, or a stack")
	print("\n".join(failed))
	return 1 if failed else 0


sys.exit(main(*sys.argv[1:]))
