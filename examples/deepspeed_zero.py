# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's ZeRO, stages 1 to 3: all ranks save by engine.save_checkpoint() into a folder of the job, and a commit makes a
version of it.  With as many ranks DeepSpeed loads its folder itself; with more or fewer it refuses ("Automatic adjustment of
ZeRO's optimizer state partitioning with a new world size is not currently supported"), and the same master weights and
moments come from Scalai, which shows them whole.

    pip install ./python torch safetensors              # in a clone of Scalai
    pip install --no-build-isolation deepspeed==0.19.8
    torchrun --standalone --nproc-per-node=2 examples/deepspeed_zero.py /mnt/scalai deepspeed 1 10    # MOUNT, JOB, stage, steps
    torchrun --standalone --nproc-per-node=2 examples/deepspeed_zero.py /mnt/scalai deepspeed 1 20    # DeepSpeed loads
    torchrun --standalone --nproc-per-node=4 examples/deepspeed_zero.py /mnt/scalai deepspeed 1 30    # Scalai shows

Not in what Scalai shows, and so made anew at another size: learning rate schedules and loss scales.
"""
import glob
import os
import shutil
import sys

import deepspeed
import scalai
import torch
import torch.distributed as dist
from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state
from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state
from safetensors.torch import load_file

BATCH, MOMENTS = 24, ("exp_avg", "exp_avg_sq")


def engine_of(stage, world):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 250), torch.nn.GELU(), torch.nn.Linear(250, 64))
    engine, *_ = deepspeed.initialize(model=model, config={
        "train_batch_size": BATCH, "train_micro_batch_size_per_gpu": BATCH // world,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},     # on GPUs without torch_adam,
        "zero_optimization": {"stage": stage}})         # and "bf16": {"enabled": True}
    return engine


def one_step(engine, step, rank, world):
    x = torch.randn(BATCH, 64, generator=torch.Generator().manual_seed(step)).chunk(world)[rank]
    loss = (engine(x) - x).square().mean()
    engine.backward(loss)
    engine.step()
    loss = loss.detach()
    dist.all_reduce(loss.div_(world))
    return loss.item()


def load_whole(engine, saved, done, rank, world):
    """Puts whole tensors into an engine of any stage and number of ranks: each rank takes its part of them."""
    one_step(engine, 0, rank, world)                    # DeepSpeed makes the optimizer's states in its first step
    named = dict(engine.module.named_parameters())
    with deepspeed.zero.GatheredParameters(list(named.values()), modifier_rank=0):
        with torch.no_grad():
            for name, p in named.items():
                p.copy_(saved[name])
    for name, p in named.items():
        for key in (None, *MOMENTS):
            whole = saved[f"state.{name}.{key}" if key else name]
            if hasattr(p, "ds_id"):                     # stage 3: each rank has a part of each parameter
                size = p.ds_tensor.numel()
                part = torch.nn.functional.pad(whole.flatten(), (0, size * world - whole.numel())).chunk(world)[rank]
                safe_set_local_optimizer_state(p, part, key) if key else safe_set_local_fp32_param(p, part)
            else:
                safe_set_full_optimizer_state(p, whole, key) if key else safe_set_full_fp32_param(p, whole)
    for state in engine.basic_optimizer.state.values():
        state["step"].fill_(done)
    engine.global_steps = done


def main(mount, name, stage, steps):
    deepspeed.init_distributed("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    engine = engine_of(stage, world)

    job = scalai.Job(mount, name)
    if rank == 0:
        job.create("mesh dp\n* dp=0 chunk", f"dp={world}")  # how .as/dp=N cuts what .full has whole
    done = job.resume(f"dp={world}", rank, dist.barrier)
    folder = f"{job.path}/ds"                           # of all ranks, as on a shared disk
    if done is not None:
        tag = f"global_step{done}"
        ranks = len(glob.glob(f"{folder}/{tag}/*_optim_states.pt"))
        if ranks == world:
            engine.load_checkpoint(folder)
        else:
            load_whole(engine, load_file(f"{job.path}/.full/ds/{tag}.safetensors"), done, rank, world)
        if rank == 0:
            print(f"# step {done} of {ranks} ranks, loaded by {'DeepSpeed' if ranks == world else 'way of .full'}", flush=True)

    for step in range(done or 0, steps):
        loss = one_step(engine, step, rank, world)
        if rank == 0:
            print(step + 1, repr(loss), flush=True)
        if (step + 1) % 10 == 0:
            engine.save_checkpoint(folder)              # global_stepN, and its name in `latest`
            if rank == 0:
                for old in set(os.listdir(folder)) - {"latest", f"global_step{step + 1}"}:
                    path = os.path.join(folder, old)    # versions keep them, as many as the job's `keep` says
                    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
            job.commit_all(step + 1, rank, dist.barrier)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
