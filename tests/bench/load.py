"""Loads files as ranks do, all pages touched, when told to: one of the processes of moves.py.
    load.py              prints "ready"; for each line, a JSON list of files, loads them and prints "done"
    load.py --touch N    only touches N bytes of new memory
"""
import json
import sys

import numpy as np

if len(sys.argv) > 1:
    np.empty(int(sys.argv[2]), np.uint8)[::4096] = 1
    sys.exit()

from safetensors.torch import load_file  # noqa: E402
import torch  # noqa: E402


def load(path):
    """What a file is, it says itself: not every name does (those of the servers in null.c are all `f`)."""
    with open(path, "rb") as f:
        is_zip = f.read(4) == b"PK\3\4"
    return torch.load(path, mmap=True, weights_only=True) if is_zip else load_file(path)


print("ready", flush=True)
for line in sys.stdin:
    for path in json.loads(line):
        for tensor in load(path).values():
            flat = tensor.reshape(-1).view(torch.uint8)
            flat[::4096].sum()
    print("done", flush=True)
