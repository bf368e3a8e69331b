# SPDX-License-Identifier: Apache-2.0
"""
FSDP2: each rank saves its shards of the model and of AdamW's moments, and a restart may have another number of ranks.

    pip install ./python torch safetensors              # in a clone of Scalai
    torchrun --standalone --nproc-per-node=4 examples/fsdp2.py /mnt/scalai fsdp2 20         # MOUNT, JOB, steps
    torchrun --standalone --nproc-per-node=3 examples/fsdp2.py /mnt/scalai fsdp2 40
"""
import sys

import scalai
import scalai.tensors
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


def states(model, optimizer):
    """The states of both, and name -> tensor of what this rank holds of them."""
    both = get_state_dict(model, optimizer, options=OPTIONS)
    return both, {name: t.to_local() if hasattr(t, "to_local") else t
                  for state in both for name, t in state.items() if isinstance(t, torch.Tensor)}


def main(mount, name, steps):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 250), torch.nn.GELU(), torch.nn.Linear(250, 64))
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    job = scalai.Job(mount, name)
    if rank == 0:
        job.create("use fsdp2", f"dp={world}")          # a model of Hugging Face's: use fsdp2 model=hf-llama
    done = job.resume(f"dp={world}", rank, dist.barrier)
    if done is not None:
        both, mine = states(model, optimizer)           # what there is by now, to be filled
        saved = scalai.tensors.load(job, rank)
        with torch.no_grad():
            for key, t in mine.items():
                t.copy_(saved[key])
        set_state_dict(model, optimizer, model_state_dict=both[0], optim_state_dict=both[1], options=OPTIONS)

    for step in range(done or 0, steps):
        x = torch.randn(24, 64, generator=torch.Generator().manual_seed(step)).chunk(world)[rank]
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach_().div_(world))
        if rank == 0:
            print(step + 1, repr(loss.item()), flush=True)
        if (step + 1) % 10 == 0:
            scalai.tensors.save(job, rank, states(model, optimizer)[1])
            job.commit_all(step + 1, rank, dist.barrier)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
