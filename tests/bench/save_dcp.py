#!/usr/bin/env python3
"""Saves files of ranks as dcp.save() of so many ranks writes them: save_dcp.py FOLDER FILE.safetensors…

Rank N has the rows of each tensor that the Nth file has.  The processes are forked when torch is there already.
"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def save(rank, folder, files, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=len(files))
    mesh = init_device_mesh("cpu", (len(files),))
    state = {n: DTensor.from_local(t, mesh, [Shard(0)], run_check=False) for n, t in load_file(files[rank]).items()}
    dcp.save(state, checkpoint_id=folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TORCH_CPP_LOG_LEVEL="ERROR")
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(save, (sys.argv[1], sys.argv[2:], f"{tmp}/store"), nprocs=len(sys.argv) - 2, start_method="fork")
