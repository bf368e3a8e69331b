# SPDX-License-Identifier: Apache-2.0
"""
Plain PyTorch: every rank has the whole model, so that rank 0 saves for all of them, by torch.save() as on a disk.

    pip install ./python torch                          # in a clone of Scalai
    python examples/plain.py /mnt/scalai plain 100      # MOUNT, JOB, steps
    torchrun --standalone --nproc-per-node=2 examples/plain.py /mnt/scalai plain 200

Stop it when you like, by kill -9 too, and start it again, with more or fewer processes: it goes on behind its last
commit.
"""
import os
import sys

import scalai
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(mount, name, steps):
    if "RANK" not in os.environ:                        # without torchrun
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    job = scalai.Job(mount, name)
    if rank == 0:
        job.create("use replicated", f"dp={world}")     # each rank has all of each tensor
    done = job.resume(f"dp={world}", rank, dist.barrier)

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint = f"{job.folder(rank)}/checkpoint.pt"
    if done is not None:
        saved = torch.load(checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    for step in range(done or 0, steps):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step * world + rank))
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(step + 1, repr(loss.item()), flush=True)
        if (step + 1) % 10 == 0:
            if rank == 0:
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
            job.commit_all(step + 1, rank, dist.barrier)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
