# SPDX-License-Identifier: Apache-2.0
"""
Megatron-core: each rank saves what its model.state_dict() has, and a restart may have another tensor- and data-parallel size.

    pip install ./python torch safetensors megatron-core==0.16.1    # in a clone of Scalai
    torchrun --standalone --nproc-per-node=4 examples/megatron_core.py /mnt/scalai megatron 2 10    # MOUNT, JOB, tp, steps
    torchrun --standalone --nproc-per-node=2 examples/megatron_core.py /mnt/scalai megatron 1 20

Folders of Megatron's own dist_checkpointing (torch_dist), which all ranks write, are taken as they are: docs/guide.md.
"""
import contextlib
import sys

import scalai
import scalai.tensors
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_config import TransformerConfig

VOCAB, LENGTH = 512, 16
OPTIMIZER = "optimizer.safetensors"


def without_gpu():
    """For a machine without CUDA, which Megatron asks for in some places where the CPU does as well."""
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.cuda.current_device = lambda: torch.device("cpu")
    tensor_parallel.random.CudaRNGStatesTracker.fork = lambda self, *_: contextlib.nullcontext()


def gpt(tp):
    torch.manual_seed(1)
    config = TransformerConfig(num_layers=2, hidden_size=32, num_attention_heads=4, tensor_model_parallel_size=tp,
                               pipeline_dtype=torch.float32, use_cpu_initialization=True, hidden_dropout=0.0,
                               attention_dropout=0.0)
    return GPTModel(config, get_gpt_layer_local_spec(), VOCAB, LENGTH)


def moments(model, optimizer):
    """Names as Megatron's own: optimizer.state.KIND.NAME."""
    return {f"optimizer.state.{kind}.{name}": optimizer.state[p][kind]
            for name, p in model.named_parameters() for kind in ("exp_avg", "exp_avg_sq")}


def load(job, rank, model, optimizer):
    scalai.tensors.load_into(model, scalai.tensors.load(job, rank))
    saved = scalai.tensors.load(job, rank, OPTIMIZER)
    for name, p in model.named_parameters():
        optimizer.state[p] = {kind: saved[f"optimizer.state.{kind}.{name}"] for kind in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p]["step"] = saved["optimizer.step"].clone()


def save(job, rank, model, optimizer):
    counter = {"optimizer.step": next(iter(optimizer.state.values()))["step"]}
    scalai.tensors.save(job, rank, scalai.tensors.local(model))
    scalai.tensors.save(job, rank, {**moments(model, optimizer), **counter}, OPTIMIZER)


def loss_of(model, step, dp, group):
    tokens = torch.randint(VOCAB, (8, LENGTH + 1), generator=torch.Generator().manual_seed(step)).chunk(dp)[group]
    places = torch.arange(LENGTH).expand(len(tokens), -1)
    hidden = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
    return model(tokens[:, :-1], places, hidden, labels=tokens[:, 1:]).mean()


def main(mount, name, tp, steps):
    without_gpu()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    parallel_state.initialize_model_parallel(tp)
    group, dp = parallel_state.get_data_parallel_rank(), world // tp
    model = gpt(tp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    job, topology = scalai.Job(mount, name), f"tp={tp} dp={dp}"
    if rank == 0:
        job.create(f"use megatron-gpt vocab={VOCAB}", topology)
    done = job.resume(topology, rank, dist.barrier)
    if done is not None:
        load(job, rank, model, optimizer)

    for step in range(done or 0, steps):
        optimizer.zero_grad()
        loss = loss_of(model, step, dp, group)
        loss.backward()
        for t in [loss.detach_(), *(p.grad for p in model.parameters())]:
            dist.all_reduce(t.div_(dp), group=parallel_state.get_data_parallel_group())
        optimizer.step()
        if rank == 0:
            print(step + 1, repr(loss.item()), flush=True)
        if (step + 1) % 10 == 0:
            if group == 0:                              # the others of data parallelism have the same
                save(job, rank, model, optimizer)
            job.commit_all(step + 1, rank, dist.barrier)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
