#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_copies.py MIB: what speed.c measures of rows, by PyTorch's copy_() of bfloat16.  Prints as speed.c does; 77: there is no PyTorch with CUDA."""
import sys

try:
	import torch
except (ImportError, OSError) as e:
	print(f"there is no PyTorch: {e}")
	sys.exit(77)
if not torch.cuda.is_available():
	print("PyTorch finds no GPU")
	sys.exit(77)

TIMES, AT_ONCE = 20, 8
mib = int(sys.argv[1])
for run in (16, 64, 256, 1024, 4096, 65536):
	width, rows = run // 2, (mib << 20) // run
	loose = torch.zeros(rows, 2 * width, dtype=torch.bfloat16, device="cuda")[:, :width]
	tight = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
	for name, to, of in (("pack", tight, loose), ("unpack", loose, tight)):
		took = []
		for i in range(TIMES + 1):
			began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
			began.record()
			for _ in range(AT_ONCE):
				to.copy_(of)
			ended.record()
			torch.cuda.synchronize()
			took.append(int(began.elapsed_time(ended) * 1e6 / AT_ONCE))
		print(f"PyTorch, {name}, rows of {run} B: {mib << 20} in {' '.join(map(str, took[1:]))} ns")
