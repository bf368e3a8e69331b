#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks' files of tensors as torch.save() writes them (.pt/TOPOLOGY/RANK).

    pt_views.py make JOB WORLD           writes model.safetensors of each rank, of every type that both formats have
    pt_views.py equal AS PT FILE PT_FILE WORLD...    compares PT/dp=N/RANK/PT_FILE with AS/dp=N/RANK/FILE
    pt_views.py once JOB                 reads .pt files through one descriptor, slowly, beside commits
    pt_views.py first JOB TOPOLOGY FILE  prints the milliseconds from the topology to the first byte of a .pt view of it
    pt_views.py saved FILE               writes a file of torch.save(), with objects
"""
import io
import os
import sys
import threading
import time

import torch
from safetensors.torch import load_file, save_file
from waits import Thread

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
         torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]
NAMES = ["plain", "a.b/c", "x~y", "'quoted", "7", "-3", "@at", "#1", "model.layers.0.weight", "\u00fc.weight"]


def whole():
    generator = torch.Generator().manual_seed(3)
    state = {}
    for i, dtype in enumerate(TYPES):
        raw = torch.randint(0, 256, (12 * 5 * 16,), dtype=torch.uint8, generator=generator)
        t = raw % 2 == 1 if dtype == torch.bool else raw.view(dtype)
        state[f"type.{i}"] = t[:60].reshape(12, 5).clone()
    for i, name in enumerate(NAMES):
        state[name] = torch.randn(12, i + 1, generator=generator)
    state["empty"] = torch.zeros(12, 0)
    state["large"] = torch.randn(1200, 300, generator=generator)
    return state


def same_tensor(a, b):
    a, b = a.contiguous(), b.contiguous()
    return a.dtype == b.dtype and a.shape == b.shape and (
        a.numel() == 0 or torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8)))


def make(job, world):
    state = whole()
    for rank in range(world):
        cut = {k: list(v.chunk(world))[rank].clone() for k, v in state.items()}
        cut["one.step"] = torch.tensor(3.5)
        os.makedirs(f"{job}/{rank}", exist_ok=True)
        save_file(cut, f"{job}/{rank}/model.safetensors", metadata={"format": "pt"})


def equal(by_as, by_pt, file, pt_file, worlds):
    files = 0
    for world in worlds:
        ranks = sorted(os.listdir(f"{by_pt}/dp={world}"))
        assert ranks == sorted(map(str, range(world))), ranks
        for rank in ranks:
            path = f"{by_pt}/dp={world}/{rank}/{pt_file}"
            size = os.stat(path).st_size
            want = load_file(f"{by_as}/dp={world}/{rank}/{file}")
            for mmap in (False, True):
                got = torch.load(path, weights_only=True, mmap=mmap)
                assert type(got) is dict and sorted(got) == sorted(want), set(got) ^ set(want)
                for name in want:
                    assert same_tensor(got[name], want[name]), (world, rank, name)
            with open(path, "rb") as f:
                assert len(f.read()) == size
            files += 1
    print(f"{files} files are equal")


def once(job):
    """Each commit writes one number into all tensors; a descriptor never sees two of them."""
    stop, seen, failed = threading.Event(), set(), []

    def commit(k):
        for rank in range(2):
            save_file({f"w{i}": torch.full((64 * 1024,), float(k)) for i in range(8)}, f"{job}/{rank}/model.safetensors")
        with open(f"{job}/.ctl/commit", "w") as f:
            f.write(f"step={k}")

    def read():
        while not stop.is_set():
            fd = os.open(f"{job}/.pt/dp=4/1/model.pt", os.O_RDONLY)
            size, text = os.fstat(fd).st_size, b""
            while len(text) < size:
                text += os.pread(fd, 64 * 1024, len(text))
                time.sleep(0.001)
            os.close(fd)
            values = {x for t in torch.load(io.BytesIO(text), weights_only=True).values() for x in t.unique().tolist()}
            if len(values) != 1:
                failed.append(values)
            seen.update(values)

    commit(0)
    reader = Thread(target=read)
    reader.start()
    for k in range(1, 30):
        commit(k)
        time.sleep(0.02)
    stop.set()
    reader.join()
    assert not failed, failed
    assert len(seen) > 3, seen
    print(f"{len(seen)} versions were read, each whole")


def first(job, topology, file):
    begin = time.perf_counter()
    with open(f"{job}/.ctl/topology", "w") as f:
        f.write(topology)
    written = time.perf_counter()
    fd = os.open(f"{job}/.pt/{topology.replace(' ', ',')}/0/{file}", os.O_RDONLY)
    os.pread(fd, 1, 0)
    found = time.perf_counter()
    os.close(fd)
    print(f"{(found - begin) * 1e3:.1f} ms, {(written - begin) * 1e3:.1f} of these for the topology")


def main():
    what, args = sys.argv[1], sys.argv[2:]
    if what == "make":
        make(args[0], int(args[1]))
    elif what == "equal":
        equal(*args[:4], [int(n) for n in args[4:]])
    elif what == "once":
        once(args[0])
    elif what == "first":
        first(*args)
    elif what == "saved":
        torch.save({"model": {"w": torch.randn(12, 2)}, "step": 7}, args[0])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
