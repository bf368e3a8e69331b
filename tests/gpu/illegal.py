#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
illegal.py KERNEL.ptx OUT.c: the kernel with a mistake, as rs_kernel_text: it takes its table of boxes from where no memory is.

A GPU takes it as it takes the right one, and faults when it runs: what a helper of it leaves is tried by test_killed.c.
"""
import pathlib
import re
import sys

text, made = re.subn(r"cvta\.to\.global\.u64(\s+%rd\d+), %rd\d+;", r"mov.u64\1, 4096;", pathlib.Path(sys.argv[1]).read_text(), count=1)
if made != 1:
	sys.exit(f"{sys.argv[1]}: no address of a table")
data = text.encode() + b"\0"
lines = [", ".join(map(str, data[i:i + 32])) for i in range(0, len(data), 32)]
pathlib.Path(sys.argv[2]).write_text("extern const char rs_kernel_text[];\nconst char rs_kernel_text[] = {\n" + ",\n".join(lines) + "};\n")
