#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders of Megatron-core, without Megatron.

    megatron_folders.py equal FILE EXPECTED                 compares two files of whole tensors
    megatron_folders.py cut RANKS TP gpt|llama EXPECTED     each rank has its part of each tensor
    megatron_folders.py without FROM TENSOR TO              copies a folder whose .metadata does not know a tensor
"""
import os
import pickle
import shutil
import sys

import torch
from deepspeed_folders import Pickles, equal
from safetensors.torch import load_file


def dimension(name):
    """The dimension that tensor parallelism cuts, as in Megatron's layers; None: each rank has all of it."""
    name = name.split(".", 3)[3] if name.startswith("optimizer.state.") else name
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return 0
    if "layer_norm" in name:
        return None
    if "linear_qkv" in name or "linear_fc1" in name:
        return 1
    return 2 if name.endswith(("linear_proj.weight", "linear_fc2.weight")) else None


def part(name, t, tp, rank, gated):
    d = dimension(name)
    if d is None:
        return t
    if gated and "linear_fc1" in name:
        return torch.cat([half.chunk(tp, d)[rank] for half in t.chunk(2, d)], d)
    return t.chunk(tp, d)[rank]


def cut(ranks, tp, kind, expected):
    n = 0
    for rank in range(int(tp)):
        mine = load_file(f"{ranks}/{rank}/iter_0000001.safetensors")
        for name, t in load_file(expected).items():
            assert torch.equal(mine[name], part(name, t, int(tp), rank, kind == "llama")), (name, rank)
            n += 1
    print(n, "parts are equal")


def without(source, tensor, to):
    shutil.copytree(source, to)
    os.unlink(f"{to}/expected.safetensors")
    with open(f"{to}/.metadata", "rb") as f:
        m = Pickles.Unpickler(f).load()
    del m.state_dict_metadata[tensor]
    for key in [k for k in m.storage_data if k.fqn == tensor]:
        del m.storage_data[key]
    m.all_local_plans = None
    with open(f"{to}/.metadata", "wb") as f:
        pickle.dump(m, f)


if __name__ == "__main__":
    {"equal": equal, "cut": cut, "without": without}[sys.argv[1]](*sys.argv[2:])
