# SPDX-License-Identifier: Apache-2.0
"""FOLDER... : one process for each folder saves its part of a state into it by torch.distributed.checkpoint; prints a digest."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def whole():
	torch.manual_seed(5)
	return {"w": torch.randn(24, 8), "b": torch.randn(10, 3), "notes": ["an object", 5]}


def save(rank, folders, port):
	os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
	dist.init_process_group("gloo", rank=rank, world_size=len(folders))
	mesh = init_device_mesh("cpu", (len(folders),))
	state = {k: distribute_tensor(v, mesh, [Shard(0)]) if k != "notes" else v for k, v in whole().items()}
	dcp.save(state, checkpoint_id=folders[rank])
	dist.destroy_process_group()


if __name__ == "__main__":
	if sys.argv[1] == "load":
		state = {k: torch.zeros_like(v) if k != "notes" else [] for k, v in whole().items()}
		dcp.load(state, checkpoint_id=sys.argv[2])
		for k, v in whole().items():
			if not (torch.equal(state[k], v) if k != "notes" else state[k] == v):
				sys.exit(f"'{k}' is another one in {sys.argv[2]}")
	else:
		mp.spawn(save, (sys.argv[1:], 29511), nprocs=len(sys.argv) - 1)
