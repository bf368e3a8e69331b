#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors that torch.save() stores in another order of their dimensions: transposed, with channels last, permuted.

    orders.py layout
    orders.py write JOB TP DP            what ranks save; of replicas one has it row by row
    orders.py check (FOLDER TP DP)...    each rank's file has the values, mapped and not
    orders.py views JOB                  .full, .pt, .dcp and .hf have them, too
"""
import os
import sys

import torch

LAYOUT = """mesh tp dp
turned*  tp=0
columns*  tp=1
image  tp=0
pixels  tp=1
permuted  tp=2
*  copy
"""


def whole():
    """-> name: (tensor, dimension that tp cuts or None, the order in which it is stored: the outermost first)"""
    g = torch.Generator().manual_seed(1)
    last, last3d = (0, 2, 3, 1), (0, 2, 3, 4, 1)
    return {
        "turned": (torch.randn(96, 40, generator=g), 0, (1, 0)),
        "turned.large": (torch.randn(1024, 3001, generator=g), 0, (1, 0)),
        "columns": (torch.randn(48, 64, generator=g).bfloat16(), 1, (1, 0)),
        "columns.fp8": (torch.randn(12, 20, generator=g).to(torch.float8_e4m3fn), 1, (1, 0)),
        "columns.bool": (torch.randn(9, 8, generator=g) > 0, 1, (1, 0)),
        "image": (torch.randn(16, 8, 3, 3, generator=g), 0, last),
        "pixels": (torch.randn(4, 12, 5, 7, generator=g).half(), 1, last),
        "permuted": (torch.arange(6 * 5 * 4).reshape(6, 5, 4), 2, (1, 2, 0)),
        "volume": (torch.randn(2, 3, 4, 5, 6, generator=g, dtype=torch.float64), None, last3d),
        "rows": (torch.randn(7, 5, generator=g), None, (0, 1)),
        "norm": (torch.randn(40, generator=g), None, (0,)),
    }


def stored(t, order):
    back = [order.index(k) for k in range(t.dim())]
    return t.permute(order).contiguous().permute(back)


def shard(name, tp, rank):
    t, dim, order = whole()[name]
    return (t if dim is None else t.chunk(tp, dim)[rank % tp]), order


def same(a, b):
    a, b = a.contiguous(), b.contiguous()
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def write(job, tp, dp):
    for rank in range(tp * dp):
        os.makedirs(f"{job}/{rank}", exist_ok=True)
        state = {}
        for i, name in enumerate(whole()):
            t, order = shard(name, tp, rank)
            state[name] = stored(t, order) if rank < tp or i % 2 else t.contiguous()
            assert rank >= tp or name in ("rows", "norm") or not state[name].is_contiguous()
        torch.save(state, f"{job}/{rank}/model.pt")


def expect(path, tp, rank, **how):
    found = torch.load(path, weights_only=True, **how)
    assert list(found) == list(whole()), (path, list(found))
    for name in found:
        assert same(found[name], shard(name, tp, rank)[0]), (path, how, name)


def check(folder, tp, dp):
    for rank in range(tp * dp):
        expect(f"{folder}/{rank}/model.pt", tp, rank)
        expect(f"{folder}/{rank}/model.pt", tp, rank, mmap=True)


def views(job):
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    expect(f"{job}/.full/model.pt", 1, 0, mmap=True)
    check(f"{job}/.pt/tp=4", 4, 1)
    for tp in (1, 2, 4):
        state = {name: torch.zeros_like(t) for name, (t, _, _) in whole().items()}
        dcp.load(state, checkpoint_id=f"{job}/.dcp/tp={tp}")
        for name, t in state.items():
            assert same(t, whole()[name][0]), (".dcp", tp, name)
    found = load_file(f"{job}/.hf/model.safetensors")
    assert set(found) == set(whole())
    for name, t in found.items():
        assert same(t, whole()[name][0]), (".hf", name)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "layout":
        sys.stdout.write(LAYOUT)
    elif what == "views":
        views(*rest)
    elif what == "write":
        write(rest[0], *map(int, rest[1:]))
    else:
        for folder, tp, dp in zip(rest[::3], rest[1::3], rest[2::3]):
            check(folder, int(tp), int(dp))
