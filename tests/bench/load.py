"""Loads files as a rank does, all pages touched, when told to: one of the processes of moves.py.
    load.py FILE…        prints "ready", waits for a line, loads, prints "done"
    load.py --touch N    only touches N bytes of new memory
"""
import sys

import numpy as np

if sys.argv[1] == "--touch":
    np.empty(int(sys.argv[2]), np.uint8)[::4096] = 1
    sys.exit()

from safetensors.torch import load_file  # noqa: E402
import torch  # noqa: E402

print("ready", flush=True)
sys.stdin.readline()
for path in sys.argv[1:]:
    for tensor in load_file(path).values():
        flat = tensor.reshape(-1).view(torch.uint8)
        flat[::4096].sum()
print("done", flush=True)
