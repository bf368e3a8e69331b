# SPDX-License-Identifier: Apache-2.0
"""
A job whose number of ranks changes while it trains: each rank saves its part of model and optimizer, and after a
restart with more or fewer ranks the losses are those of a run that was never stopped, to the last digit.

    pip install ./python torch safetensors              # in a clone of Scalai
    torchrun --standalone --nproc-per-node=4 examples/elastic.py /mnt/scalai elastic 20     # MOUNT, JOB, steps
    torchrun --standalone --nproc-per-node=2 examples/elastic.py /mnt/scalai elastic 40
    torchrun --nnodes=1:4 --nproc-per-node=1 --max-restarts=100 --rdzv-id=elastic --rdzv-backend=c10d \\
        --rdzv-endpoint=HOST:29400 --rdzv-conf=last_call_timeout=5 \\
        examples/elastic.py /mnt/scalai elastic 1000                            # on each machine; they come and go

The first agent on HOST is the last to go. Several agents on one machine need TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
(pytorch#147064). Machines that share a job are nodes of a cluster of Scalai's: docs/cluster.md.
"""
import os
import sys
import time

import scalai
import scalai.tensors
import torch
import torch.distributed as dist

MICROBATCHES, EVERY = 4, 5                              # in a step, whatever the number of ranks; steps between commits
LAYOUT = """mesh dp
*.step copy
* dp=0 chunk
"""                                                     # rank r of n has t.chunk(n)[r] of each tensor; of counters, all


def state_of(model, optimizer):
    """Name -> tensor, of all of model and optimizer."""
    state = dict(model.state_dict())
    for name, p in model.named_parameters():
        state.update({f"optimizer.{name}.{key}": t for key, t in optimizer.state[p].items()})
    return state


def load(model, optimizer, saved):
    model.load_state_dict({name: saved[name] for name in model.state_dict()})
    for name, p in model.named_parameters():
        optimizer.state[p] = {key: saved[f"optimizer.{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}


def together(t, world):
    """The sum over all microbatches of a step, in one order: the same bits, whatever the number of ranks."""
    parts = [torch.empty_like(t) for _ in range(world)]
    dist.all_gather(parts, t)
    total = torch.zeros_like(t[0])
    for part in torch.cat(parts):
        total += part
    return total / MICROBATCHES


def train(model, optimizer, step, rank, world):
    grads, losses = [], []
    for m in range(rank * MICROBATCHES // world, (rank + 1) * MICROBATCHES // world):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step * MICROBATCHES + m))
        model.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        losses.append(loss.detach())
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    grads = together(torch.stack(grads), world)
    for p, g in zip(model.parameters(), grads.split([p.numel() for p in model.parameters()])):
        p.grad = g.view_as(p)
    optimizer.step()
    return together(torch.stack(losses), world).item()


def main(mount, name, steps):
    torch.set_num_threads(1)                            # the order of sums in a matrix product depends on it
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    began = time.monotonic()
    job = scalai.Job(mount, name)
    if rank == 0:
        job.create(LAYOUT, f"dp={world}")
    done = job.resume(f"dp={world}", rank, dist.barrier)
    if done is not None:                                # each rank wants all of it: it reads as if it were the only one
        load(model, optimizer, scalai.tensors.load(job, 0, topology="dp=1"))
    if rank == 0:
        took = (time.monotonic() - began) * 1e3
        print(f"# {world} ranks begin behind step {done}: {took:.1f} ms in Scalai", flush=True)

    for step in range(done or 0, steps):
        loss = train(model, optimizer, step, rank, world)
        if rank == 0:
            print(step + 1, repr(loss), flush=True)
        if (step + 1) % EVERY == 0:
            state = state_of(model, optimizer)
            mine = {key: t.chunk(world)[rank] if t.dim() else t for key, t in state.items()}
            scalai.tensors.save(job, rank, mine)
            job.commit_all(step + 1, rank, dist.barrier)
            if rank == 0:
                print(f"# committed {step + 1}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
