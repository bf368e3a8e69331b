#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/sample/dcp: what torch 2.13's dcp.save() writes for FSDP2 of three ranks, uneven, with AdamW.

    make_dcp_sample.py FOLDER

expected.txt: a line each tensor: name, type, shape, chunks as offsets+sizes, as torch's own reader of .metadata has them.
"""
import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

NAMES = {torch.float32: "F32", torch.int64: "I64", torch.bfloat16: "BF16"}


def rank_main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=3)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 5)).sum().backward()
    optimizer.step()
    m, o = get_state_dict(model, optimizer)
    state = {"model": m, "optim": o, "more": {"step": 3, "scalar": torch.tensor(7), "turned": torch.arange(6.).view(2, 3).t(),
                                              "half": torch.ones(4, dtype=torch.bfloat16), "none": torch.zeros(0, 3)}}
    dcp.save(state, checkpoint_id=folder)
    dist.destroy_process_group()


def main():
    folder = sys.argv[1]
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    torch.multiprocessing.start_processes(rank_main, (folder,), 3, start_method="fork")
    os.unlink(os.path.join(folder, "rendezvous"))
    metadata = dcp.FileSystemReader(folder).read_metadata()
    lines = []
    for name, t in metadata.state_dict_metadata.items():
        if not hasattr(t, "chunks"):
            continue
        chunks = " ".join(f"{list(c.offsets)}+{list(c.sizes)}" for c in t.chunks)
        lines.append(f"{name} {NAMES[t.properties.dtype]} {list(t.size)} {chunks}")
    with open(os.path.join(folder, "expected.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
