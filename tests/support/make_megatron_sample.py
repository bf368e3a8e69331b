#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/sample/megatron: what Megatron-core's distributed optimizer saves as `dp_reshardable` (torch_dist) on four CPU
ranks, tp=2 dp=2, and the same state as its own `fully_reshardable` save has it, whole.

    pip install torch==2.13.0 numpy safetensors; pip install --target FOLDER --no-deps megatron-core==0.16.1
    PYTHONPATH=FOLDER make_megatron_sample.py TO
"""
import os
import shutil
import sys
import tempfile

import torch
import torch.distributed as dist

TP, RANKS = 2, 4


def without_gpu():
    """Megatron asks for CUDA in a few places where the CPU does as well."""
    torch.Tensor.cuda = lambda self, *a, **k: self
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.empty_cache = lambda: None
    for name in ("tensor", "zeros", "empty", "ones", "full"):
        new = getattr(torch, name)
        setattr(torch, name, lambda *a, _new=new, **k: _new(*a, **k | ({"device": "cpu"} if str(k.get("device", "")).startswith("cuda") else {})))
    kind = torch.Tensor.type
    torch.Tensor.type = lambda self, *a, **k: kind(self, *a, **k).replace("torch.", "torch.cuda.") if not a and not k else kind(self, *a, **k)


def make(gated, bucket):
    from megatron.core import parallel_state as ps
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig
    config = TransformerConfig(
        num_layers=2, hidden_size=16, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=20, tensor_model_parallel_size=TP,
        pipeline_dtype=torch.float32, use_cpu_initialization=True, normalization="RMSNorm" if gated else "LayerNorm",
        add_bias_linear=not gated, gated_linear_unit=gated, bias_activation_fusion=False,
        activation_func=torch.nn.functional.silu if gated else torch.nn.functional.gelu)
    model = GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm" if gated else None), 64, 8,
                     pre_process=ps.is_pipeline_first_stage(), post_process=ps.is_pipeline_last_stage(),
                     share_embeddings_and_output_weights=not gated, position_embedding_type="rope" if gated else "learned_absolute")
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=bucket is not None, bucket_size=bucket), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, use_distributed_optimizer=True, bf16=False, fp16=False), [ddp])
    return ddp, optimizer


def rank_main(rank, folder, gated, bucket, kind):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT="29557")
    without_gpu()
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    from megatron.core import dist_checkpointing, parallel_state as ps
    ps.initialize_model_parallel(TP, 1, create_gloo_process_groups=True)
    torch.manual_seed(100 + ps.get_tensor_model_parallel_rank())
    ddp, optimizer = make(gated, bucket)
    for p in ddp.parameters():
        if not getattr(p, "tensor_model_parallel", False):      # the same on all ranks of tensor parallelism
            dist.broadcast(p.data, ps.get_tensor_model_parallel_src_rank(), group=ps.get_tensor_model_parallel_group())
        p.main_grad.copy_(p.data * 0.5 + 0.25)
    optimizer.step()
    if rank == 0:
        os.makedirs(folder)
    dist.barrier()
    sharded = ddp.module.sharded_state_dict()
    state = {"model": sharded, "optimizer": optimizer.sharded_state_dict(sharded, metadata={"distrib_optim_sharding_type": kind}), "iteration": 1}
    dist_checkpointing.save(state, folder, ("torch_dist", 1))
    dist.barrier()
    dist.destroy_process_group()


def whole(folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    reader = dcp.FileSystemReader(folder)
    state = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in reader.read_metadata().state_dict_metadata.items()
             if isinstance(m, TensorStorageMetadata)}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def main():
    from safetensors.torch import save_file
    for name, gated, bucket in ("gpt", False, None), ("llama", True, 700):
        to = os.path.join(sys.argv[1], name)
        shutil.rmtree(to, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.start_processes(rank_main, (to, gated, bucket, "dp_reshardable"), RANKS, start_method="spawn")
            # of several buckets Megatron 0.16.1 saves wrong bytes in this kind ("can lead to data corruption"), of one it does not
            torch.multiprocessing.start_processes(rank_main, (f"{folder}/full", gated, None, "fully_reshardable"), RANKS, start_method="spawn")
            save_file(whole(f"{folder}/full"), os.path.join(to, "expected.safetensors"))


if __name__ == "__main__":
    main()
