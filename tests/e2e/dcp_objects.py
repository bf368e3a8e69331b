# SPDX-License-Identifier: Apache-2.0
"""Objects of torch.save() files in .dcp/TOPOLOGY.

    dcp_objects.py save JOB              saves the state of two ranks
    dcp_objects.py load FOLDER           loads it by dcp.load(): all of it is rank 0's, tensors whole
    dcp_objects.py two JOB               saves two files of one rank whose objects have the same names
    dcp_objects.py names FOLDER          prints the names of objects
"""
import argparse
import collections
import os
import pickle
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp

warnings.filterwarnings("ignore")
SHAPE = 8, 4


def state(rank, whole=False):
    w = torch.arange(32.0).reshape(SHAPE)
    if not whole:
        w = w.chunk(2)[rank].clone()
    rng = torch.Generator().manual_seed(5 + rank).get_state()
    return {
        "model": collections.OrderedDict(w=w, b=torch.ones(3)),
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": w * 2}},
                      "param_groups": [{"lr": 0.1 + rank, "betas": (0.9, 0.99), "params": [0], "a/b~c": "'quoted"}]},
        "epoch": 7 + rank, "none": None, "big": 2**70, "text": "sch\u00f6n", "pair": (1, "x"), "lists": [[1, 2], [3]],
        "mixed": [{"x": 1}, 2], "bytes": b"\0\xff", "7": "text", "set": {1}, "rng": rng,
        "args": argparse.Namespace(lr=1, sizes=[1, 2]),
    }


def equal(a, b, path=""):
    assert type(a) is type(b), f"{path}: {type(a)} {type(b)}"
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), path
    elif isinstance(a, dict):
        assert list(a) == list(b), f"{path}: {list(a)} {list(b)}"
        for k in a:
            equal(a[k], b[k], f"{path}.{k}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            equal(x, y, f"{path}.{i}")
    else:
        assert a == b, f"{path}: {a} {b}"


def emptied(x):
    """The same names, other values: what load() fills."""
    if isinstance(x, torch.Tensor):
        return torch.zeros_like(x)
    if isinstance(x, dict):
        return type(x)((k, emptied(v)) for k, v in x.items())
    if isinstance(x, list) and any(isinstance(y, dict) for y in x):
        return [emptied(y) for y in x]
    return "?"


def main(what, at):
    if what == "save":
        for rank in (0, 1):
            os.makedirs(f"{at}/{rank}", exist_ok=True)
            torch.save(state(rank), f"{at}/{rank}/model.pt")
    elif what == "load":
        want, got = state(0, True), emptied(state(0, True))
        dcp.load(got, checkpoint_id=at, no_dist=True)
        equal(want, got)
    elif what == "two":
        os.makedirs(f"{at}/0", exist_ok=True)
        for name in ("a", "b"):
            torch.save({"w": torch.ones(2), "step": name, "only_" + name: 1, "nul\0": 1}, f"{at}/0/{name}.pt")
    else:
        with open(f"{at}/.metadata", "rb") as f:
            metadata = pickle.load(f)
        print(*sorted(k for k, v in metadata.state_dict_metadata.items() if type(v).__name__ == "BytesStorageMetadata"))


main(*sys.argv[1:])
