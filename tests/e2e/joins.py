#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Flat tensors of DeepSpeed's ranks as files of ranks.

    joins.py write SAMPLE STAGE JOB         a file for each rank: its parameters, whole, and the flat parts of its optimizer
    joins.py same SAMPLE STAGE RANKS        a folder of ranks has these parts again, but for padding
    joins.py files FILE SAMPLE              DeepSpeed's own file of the only rank has the whole groups
    joins.py whole FILE EXPECTED            a file of whole tensors has what DeepSpeed's own conversion made
"""
import os
import sys

import torch
from deepspeed_folders import Pickles
from safetensors.torch import load_file, save_file

KEYS = "exp_avg", "exp_avg_sq"


def name_of(stage, group, key):
    """The keys that lead to a flat tensor in DeepSpeed's own file."""
    o = "optimizer_state_dict"
    if key == "fp32":
        return f"{o}/{'fp32_flat_groups' if stage == 3 else 'single_partition_of_fp32_groups'}/{group}"
    return f"{o}/{o if stage == 3 else 'base_optimizer_state'}/state/{group}/{key}"


def parts_of(sample, stage, rank):
    """{name: flat tensor} of a rank, as DeepSpeed saved it."""
    state = torch.load(f"{sample}/global_step2/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", pickle_module=Pickles, weights_only=False)
    o = state["optimizer_state_dict"]
    flat = o["fp32_flat_groups"] if stage == 3 else o["single_partition_of_fp32_groups"]
    states = (o["optimizer_state_dict"] if stage == 3 else o["base_optimizer_state"])["state"]
    out = {name_of(stage, g, "fp32"): t.detach().as_subclass(torch.Tensor).clone() for g, t in enumerate(flat)}
    return out | {name_of(stage, g, k): states[g][k].clone() for g in range(len(flat)) for k in KEYS}


def parameters(expected):
    return {k: t.bfloat16() for k, t in load_file(expected).items() if not k.startswith("state.")}


def write(sample, stage, job):
    for rank in range(2):
        os.makedirs(f"{job}/{rank}", exist_ok=True)
        save_file(parts_of(sample, int(stage), rank), f"{job}/{rank}/optimizer.safetensors")
        save_file(parameters(f"{sample}/expected.safetensors"), f"{job}/{rank}/model.safetensors")


def real(sample, stage, rank, n):
    """Which elements of a rank's part of a group are of parameters, by the rule that DeepSpeed's documents give."""
    shapes = {k: t.numel() for k, t in parameters(f"{sample}/expected.safetensors").items()}
    for g in range(2):
        sizes = [s for k, s in sorted(shapes.items()) if k.endswith(".bias") == (g == 1)]
        if stage == 3:
            mask = [i < max(0, min(-(-s // n), s - rank * -(-s // n))) for s in sizes for i in range(-(-s // n))]
        else:
            total, part = sum(sizes), -(-sum(sizes) // (2 * n)) * 2
            mask = [rank * part + i < total for i in range(part)]
        yield torch.tensor(mask)


def same(sample, stage, ranks):
    stage = int(stage)
    for rank in range(2):
        mine, want = load_file(f"{ranks}/{rank}/optimizer.safetensors"), parts_of(sample, stage, rank)
        assert mine.keys() == want.keys(), (mine.keys(), want.keys())
        for g, mask in enumerate(real(sample, stage, rank, 2)):
            for k in ("fp32",) + KEYS:
                a, b = (t[name_of(stage, g, k)] for t in (mine, want))
                assert a.numel() >= b.numel() >= mask.sum(), (g, k, a.shape, b.shape)
                at = mask[:b.numel()].nonzero().flatten()
                assert torch.equal(a[at], b[at]), (stage, rank, g, k)
    print("the parts are the same")


def whole(file, expected):
    mine, want = load_file(file), load_file(expected)

    def name(k):
        if not k.startswith("state."):
            return f"optimizer.state.fp32.{k}"
        parameter, _, key = k[len("state."):].rpartition(".")
        return f"optimizer.state.{key}.{parameter}"
    assert mine.keys() == {name(k) for k in want}, mine.keys() ^ {name(k) for k in want}
    for k, t in want.items():
        assert torch.equal(mine[name(k)], t), k
    print(len(want), "tensors are equal")


def files(file, sample):
    """At dp=1 the whole groups are in DeepSpeed's own file, one parameter behind the other."""
    o, want = torch.load(file, pickle_module=Pickles, weights_only=False)["optimizer_state_dict"], load_file(f"{sample}/expected.safetensors")
    for g in range(2):
        names = [k for k in sorted(want) if not k.startswith("state.") and k.endswith(".bias") == (g == 1)]
        flat = torch.cat([want[k].flatten() for k in names])
        assert torch.equal(o["single_partition_of_fp32_groups"][g][:flat.numel()], flat)
        for key in KEYS:
            flat = torch.cat([want[f"state.{k}.{key}"].flatten() for k in names])
            assert torch.equal(o["base_optimizer_state"]["state"][g][key][:flat.numel()], flat)


if __name__ == "__main__":
    {"write": write, "same": same, "whole": whole, "files": files}[sys.argv[1]](*sys.argv[2:])
