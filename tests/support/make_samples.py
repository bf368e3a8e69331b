#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints by the libraries that own the formats, and what these make of them.

    make_samples.py pt FOLDER            torch.save() of all kinds of states, one file each
    make_samples.py dcp FOLDER           dcp.save(): five ranks of which two hold nothing
    make_samples.py fsdp1 FOLDER         dcp.save() of FSDP1's sharded state and optimizer, of two ranks
    make_samples.py same A B...          folders of files of torch.save() hold the same as the first one
    make_samples.py whole DCP FILE...    safetensors files have the tensors of a DCP folder, as dcp.load() gives them
    make_samples.py digests FOLDER       DIGEST NAME of each tensor, as torch.load() gives it, by the definition in docs/formats.md
"""
import argparse
import collections
import os
import random
import sys
import tempfile

import torch


def kinds():
    torch.manual_seed(0)
    w, flat = torch.randn(5, 7), torch.arange(24.)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.LayerNorm(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    deep = torch.ones(2)
    for _ in range(60):
        deep = {"x": deep}
    return {
        "nested": {"model": collections.OrderedDict(w=w, tied=w, b=torch.randn(3).bfloat16(), p=torch.nn.Parameter(torch.ones(2, 2))),
                   "list": [torch.zeros(2), (torch.ones(1), {"x": torch.tensor(True)})], 7: torch.tensor(7), "7": torch.tensor(8),
                   "a/b": torch.tensor(9)},
        "types": {str(d).split(".")[1]: (torch.arange(6) % 2).to(d) for d in (
            torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
            torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2)},
        "views": {"t": w.t(), "flat": flat, "a": flat[:10].view(2, 5), "z": flat[10:24].view(7, 2)},
        "empty": {"none": torch.zeros(0, 4), "scalar": torch.tensor(3.5), "one": torch.zeros(1, 1, 1)},
        "training": {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": 2**40,
                     "args": argparse.Namespace(tp=2, name="x", dtype=torch.bfloat16),
                     "rng": [{"python": random.getstate(), "torch": torch.get_rng_state()}]},
        "many": {f"layer.{i}": torch.full((i % 5 + 1,), float(i)) for i in range(1200)},
        "deep": deep,
        "bytes": {"b": b"\x00\xff", "ba": bytearray(b"abc"), "set": {1, 2}, "c": 1 + 2j, "size": torch.Size([1, 2]),
                  "device": torch.device("cpu"), "dtype": torch.int8, "big": 10**40, "w": flat},
    }


def pt(folder):
    from torch.utils.serialization import config
    os.makedirs(folder)
    states = kinds()
    for name, state in states.items():
        torch.save(state, f"{folder}/{name}.pt")
    torch.serialization.set_crc32_options(False)
    torch.save(states["nested"], f"{folder}/nocrc.pt")
    torch.serialization.set_crc32_options(True)
    config.save.storage_alignment = 4096
    torch.save(states["nested"], f"{folder}/aligned.pt")
    config.save.storage_alignment = 64
    torch.save(states["training"], f"{folder}/protocol4.pt", pickle_protocol=4)
    with open(f"{folder}/stream.pt", "wb") as f:  # the archive's own folder has another name
        torch.save(states["nested"], f)


def rank_main(rank, world, work, folder, meet):
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}/store", rank=rank, world_size=world)
    work(world, folder)
    dist.barrier()
    dist.destroy_process_group()


def ranks(world, work, folder):
    with tempfile.TemporaryDirectory() as meet:
        torch.multiprocessing.start_processes(rank_main, (world, work, folder, meet), world, start_method="fork")


def dcp_rank(world, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    w = torch.arange(6.).reshape(3, 2)
    dcp.save({"w": distribute_tensor(w, init_device_mesh("cpu", (world,)), [Shard(0)]), "scalar": torch.tensor(5.), "step": 7},
             checkpoint_id=folder)


def fsdp1_rank(world, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardedStateDictConfig, StateDictType
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.ReLU(), torch.nn.Linear(7, 9, bias=False), torch.nn.LayerNorm(9))
    model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, 10)).square().mean().backward()
    optimizer.step()
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()):
        dcp.save({"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}, checkpoint_id=folder)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        a, b = a.detach().contiguous(), b.detach().contiguous()
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    if isinstance(a, argparse.Namespace):
        return equal(vars(a), vars(b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def same(one, *others):
    names = sorted(os.listdir(one))
    for name in names:
        a = torch.load(f"{one}/{name}", weights_only=False)
        for other in others:
            b = torch.load(f"{other}/{name}", weights_only=False, mmap=True)
            assert type(a) is type(b) and equal(a, b), (other, name)
    for other in others:
        assert names == sorted(n for n in os.listdir(other) if n.endswith(".pt")), os.listdir(other)
    print(len(names), "files are equal")


def whole(folder, *paths):
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    metadata = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {k: torch.zeros(list(t.size), dtype=t.properties.dtype) for k, t in metadata.items() if hasattr(t, "chunks")}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    for path in paths:
        found = load_file(path)
        assert set(state) == set(found), set(state) ^ set(found)
        for name, t in state.items():
            assert equal(t, found[name]), (path, name)
    print(len(state), "tensors are equal")


def key(k):
    if isinstance(k, str):
        k = k.replace("~", "~0").replace("/", "~1")
        return "'" + k if k.lstrip("-").isdigit() else k
    return str(k)


def tensors(state, path=""):
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, (dict, list, tuple)):
        for k, v in state.items() if isinstance(state, dict) else enumerate(state):
            yield from tensors(v, f"{path}/{key(k)}" if path else key(k))


def digests(folder):
    from digest import digest
    for name in sorted(os.listdir(folder)):
        for path, t in tensors(torch.load(f"{folder}/{name}", weights_only=False)):
            print(digest(bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).tolist())), f"{name}:{path}")


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what in ("dcp", "fsdp1"):
        ranks(*{"dcp": (5, dcp_rank), "fsdp1": (2, fsdp1_rank)}[what], *rest)
    else:
        {"pt": pt, "same": same, "whole": whole, "digests": digests}[what](*rest)
