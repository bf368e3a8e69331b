#!/usr/bin/env python3
"""Files of torch.save() in a job: written, committed, read at other topologies, with the objects that are in them.

    torch_files.py MOUNT write|check|other JOB
"""
import argparse
import collections
import errno
import os
import sys

import numpy as np
import torch

MESH = "mesh tp dp"
LAYOUT = MESH + """
weights.pt:net/rows*  tp=0
weights.pt:net/columns  tp=1
weights.pt:optim/*  tp=0
*:rng/*  object
weights.pt:*  copy
"""


def coordinates(rank, tp):
    return rank % tp, rank // tp


def cut(t, dim, n, i):
    return t.chunk(n, dim)[i].clone()


def state(tp, t, d, given=None):
    """Of a rank at tp coordinate t and dp coordinate d; its objects are those of rank `given` of the job's ranks."""
    t_of, d_of = given or (t, d)
    rows = torch.arange(64 * 8, dtype=torch.float32).reshape(64, 8)
    columns = (torch.arange(32 * 65536) % 251).to(torch.bfloat16).reshape(32, 65536)
    net = collections.OrderedDict(rows=cut(rows, 0, tp, t), columns=cut(columns, 1, tp, t).contiguous())
    net["rows.parameter"] = torch.nn.Parameter(cut(rows, 0, tp, t) + 1)
    net["norm"] = net["the same norm"] = torch.ones(5)
    net["fp8"] = torch.arange(16).to(torch.float8_e4m3fn)
    net["empty"] = torch.zeros(0, 7)
    return {"net": net, "optim": {0: {"exp_avg": cut(rows, 0, tp, t) * 2, "step": 3}, 12: {"exp_avg": cut(rows, 0, tp, t)}},
            "args": argparse.Namespace(t=t_of, d=d_of, text="ä", none=None), "list": [1, 2.5, True, 1 << 70, (3, "x")],
            "rng": {"torch": torch.full((5056,), 16 * t_of + d_of, dtype=torch.uint8), "numpy": np.arange(5) + t_of},
            "complex": torch.ones(3, dtype=torch.complex128) * t_of}


def plain(t):
    return t.detach().view(torch.uint8) if t.dtype.itemsize == 1 else t.detach()


def differs(a, b, path=""):
    """-> where, or None."""
    if type(a) is not type(b):
        return f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad and torch.equal(plain(a), plain(b))
    elif isinstance(a, np.ndarray):
        same = np.array_equal(a, b)
    elif isinstance(a, argparse.Namespace):
        return differs(vars(a), vars(b), path)
    elif isinstance(a, dict):
        if list(a) != list(b):
            return f"{path}: keys {list(a)} and {list(b)}"
        return next(filter(None, (differs(a[k], b[k], f"{path}/{k}") for k in a)), None)
    else:
        same = a == b
    return None if same else f"{path}: {str(a)[:60]} and {str(b)[:60]}"


def check(path, want):
    for how in ({"mmap": True}, {}):
        found = torch.load(path, weights_only=False, **how)
        where = differs(found, want)
        if where:
            sys.exit(f"{path} ({how}): {where}")


def write(job, tp, dp):
    for rank in range(tp * dp):
        os.makedirs(f"{job}/{rank}", exist_ok=True)
        torch.save(state(tp, *coordinates(rank, tp)), f"{job}/{rank}/weights.pt")


def check_ranks(job, tp, dp):
    for rank in range(tp * dp):
        check(f"{job}/{rank}/weights.pt", state(tp, *coordinates(rank, tp)))


def check_other(folder, tp, dp, had):
    """Objects are those of the rank at the same coordinates, of 0 on an axis that had fewer."""
    for rank in range(tp * dp):
        t, d = coordinates(rank, tp)
        check(f"{folder}/{rank}/weights.pt", state(tp, t, d, (t if t < had[0] else 0, d if d < had[1] else 0)))


if __name__ == "__main__":
    what, folder, *numbers = sys.argv[1:]
    numbers = [int(n) for n in numbers]
    if what == "layout":
        sys.stdout.write(LAYOUT)
    elif what == "write":
        write(folder, *numbers)
    elif what == "check":
        check_ranks(folder, *numbers)
    else:
        check_other(folder, *numbers[:2], tuple(numbers[2:]))
