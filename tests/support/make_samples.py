#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints by the libraries that own the formats, and what these make of them.

    make_samples.py pt FOLDER            torch.save() of all kinds of states, one file each
    make_samples.py dcp FOLDER           dcp.save(): five ranks of which two hold nothing
    make_samples.py fsdp1 FOLDER         dcp.save() of FSDP1's sharded state and optimizer, of two ranks
    make_samples.py mesh FOLDER          dcp.save() of FSDP2 over tensor parallelism, two by two, with AdamW
    make_samples.py hfdcp FOLDER         dcp.save() by HuggingFaceStorageWriter, of two ranks; FOLDER_whole: consolidated
    make_samples.py megatron FOLDER      Megatron-core's GPT, tp=2 pp=2: torch_dist; FOLDER/legacy: a file each model-parallel rank
    make_samples.py hf FOLDER            save_pretrained() of GPT-2 in shards and in a .bin, and of a Llama in BF16
    make_samples.py same A B...          folders of files of torch.save() hold the same as the first one
    make_samples.py whole DCP FILE...    safetensors files have the tensors of a DCP folder, as dcp.load() gives them
    make_samples.py models A B...        from_pretrained() makes the same models of folders
    make_samples.py shards A B...        and DCP's HuggingFaceStorageReader reads the same tensors from them
    make_samples.py reshard JOB/DCP OTHER TP PP  what Megatron-core loads of a torch_dist folder at that topology, is in the job's .as, and in that of a
                                         job of legacy files
    make_samples.py digests FOLDER       DIGEST NAME of each tensor, as torch.load() gives it, by the definition in docs/formats.md
"""
import argparse
import collections
import os
import random
import sys
import tempfile

import torch


def kinds():
    torch.manual_seed(0)
    w, flat = torch.randn(5, 7), torch.arange(24.)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.LayerNorm(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    deep = torch.ones(2)
    for _ in range(60):
        deep = {"x": deep}
    return {
        "nested": {"model": collections.OrderedDict(w=w, tied=w, b=torch.randn(3).bfloat16(), p=torch.nn.Parameter(torch.ones(2, 2))),
                   "list": [torch.zeros(2), (torch.ones(1), {"x": torch.tensor(True)})], 7: torch.tensor(7), "7": torch.tensor(8),
                   "a/b": torch.tensor(9)},
        "types": {str(d).split(".")[1]: (torch.arange(6) % 2).to(d) for d in (
            torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
            torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2)},
        "views": {"t": w.t(), "flat": flat, "a": flat[:10].view(2, 5), "z": flat[10:24].view(7, 2)},
        "empty": {"none": torch.zeros(0, 4), "scalar": torch.tensor(3.5), "one": torch.zeros(1, 1, 1)},
        "training": {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": 2**40,
                     "args": argparse.Namespace(tp=2, name="x", dtype=torch.bfloat16),
                     "rng": [{"python": random.getstate(), "torch": torch.get_rng_state()}]},
        "many": {f"layer.{i}": torch.full((i % 5 + 1,), float(i)) for i in range(1200)},
        "deep": deep,
        "bytes": {"b": b"\x00\xff", "ba": bytearray(b"abc"), "set": {1, 2}, "c": 1 + 2j, "size": torch.Size([1, 2]),
                  "device": torch.device("cpu"), "dtype": torch.int8, "big": 10**40, "w": flat},
    }


def pt(folder):
    from torch.utils.serialization import config
    os.makedirs(folder)
    states = kinds()
    for name, state in states.items():
        torch.save(state, f"{folder}/{name}.pt")
    torch.serialization.set_crc32_options(False)
    torch.save(states["nested"], f"{folder}/nocrc.pt")
    torch.serialization.set_crc32_options(True)
    config.save.storage_alignment = 4096
    torch.save(states["nested"], f"{folder}/aligned.pt")
    config.save.storage_alignment = 64
    torch.save(states["training"], f"{folder}/protocol4.pt", pickle_protocol=4)
    with open(f"{folder}/stream.pt", "wb") as f:  # the archive's own folder has another name
        torch.save(states["nested"], f)


def rank_main(rank, world, work, folder, meet):
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}/store", rank=rank, world_size=world)
    work(world, folder)
    dist.barrier()
    dist.destroy_process_group()


def ranks(world, work, folder):
    with tempfile.TemporaryDirectory() as meet:
        torch.multiprocessing.start_processes(rank_main, (world, work, folder, meet), world, start_method="fork")


def dcp_rank(world, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    w = torch.arange(6.).reshape(3, 2)
    dcp.save({"w": distribute_tensor(w, init_device_mesh("cpu", (world,)), [Shard(0)]), "scalar": torch.tensor(5.), "step": 7},
             checkpoint_id=folder)


def fsdp1_rank(world, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardedStateDictConfig, StateDictType
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.ReLU(), torch.nn.Linear(7, 9, bias=False), torch.nn.LayerNorm(9))
    model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, 10)).square().mean().backward()
    optimizer.step()
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()):
        dcp.save({"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}, checkpoint_id=folder)


def mesh_rank(world, folder):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU(), torch.nn.Linear(8, 9, bias=False), torch.nn.LayerNorm(9))
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, 10)).square().mean().backward()
    optimizer.step()
    m, o = get_state_dict(model, optimizer)
    dcp.save({"model": m, "optim": o, "step": 1, "more": {"note": "text", "rng": torch.get_rng_state()}}, checkpoint_id=folder)
    dist.barrier()


def hfdcp_rank(world, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    state = {"a.weight": distribute_tensor(torch.randn(7, 4), mesh, [Shard(0)]),
             "b.weight": distribute_tensor(torch.randn(6, 8).bfloat16(), mesh, [Shard(1)]), "c.bias": torch.randn(5)}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(folder, save_distributed=True))
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(folder + "_whole", save_distributed=True, enable_consolidation=True))


def megatron_model(tp, pp, seed):
    from make_megatron_sample import without_gpu
    without_gpu()
    from megatron.core import parallel_state as ps
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig
    ps.initialize_model_parallel(tp, pp)
    config = TransformerConfig(
        num_layers=4, hidden_size=16, num_attention_heads=4, num_query_groups=4, ffn_hidden_size=24, tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp, pipeline_dtype=torch.float32, use_cpu_initialization=True, bias_activation_fusion=False)
    torch.manual_seed(seed + ps.get_tensor_model_parallel_rank() + 8 * ps.get_pipeline_model_parallel_rank())
    return GPTModel(config, get_gpt_layer_local_spec(), 128, 32, pre_process=ps.is_pipeline_first_stage(),
                    post_process=ps.is_pipeline_last_stage(), share_embeddings_and_output_weights=False)


def megatron_rank(world, folder):
    import torch.distributed as dist
    model = megatron_model(2, 2, 100)
    from megatron.core import dist_checkpointing, parallel_state as ps
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    tp, pp, dp = ps.get_tensor_model_parallel_rank(), ps.get_pipeline_model_parallel_rank(), ps.get_data_parallel_rank()
    for p in model.parameters():
        if not getattr(p, "tensor_model_parallel", False):  # the same on all ranks of tensor parallelism
            dist.broadcast(p.data, ps.get_tensor_model_parallel_src_rank(), group=ps.get_tensor_model_parallel_group())
    if dist.get_rank() == 0:
        os.makedirs(folder)
    dist.barrier()
    rng = {"torch_rng_state": torch.get_rng_state()}
    args = argparse.Namespace(tensor_model_parallel_size=2)
    dist_checkpointing.save({"model": model.sharded_state_dict(), "checkpoint_version": 3.0, "iteration": 5, "args": args,
                             "rng_state": ShardedObject("rng_state", rng, (2, 2), (pp, tp), replica_id=dp)}, folder, ("torch_dist", 1))
    old = f"{folder}_legacy/mp_rank_{tp:02d}_{pp:03d}"
    os.makedirs(old)
    torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 5, "model": model.state_dict(), "rng_state": [rng]},
               f"{old}/model_optim_rng.pt")


def reshard_rank(world, at):
    folder, other, tp, pp = at
    import torch.distributed as dist
    from safetensors.torch import load_file
    model = megatron_model(tp, pp, 7)
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    sharded = model.sharded_state_dict()
    pieces = {k: (t.key, t.global_offset[0] * t.prepend_axis_num) for k, t in sharded.items() if isinstance(t, ShardedTensor)}
    model.load_state_dict(dist_checkpointing.load({"model": sharded}, folder)["model"], strict=False)
    want = {k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
    at = f".as/tp={tp} pp={pp}/{dist.get_rank()}"
    legacy = torch.load(f"{other}/{at}/model_optim_rng.pt", mmap=True, weights_only=False)["model"]
    legacy = {k: v for k, v in legacy.items() if isinstance(v, torch.Tensor)}
    assert set(want) == set(legacy), set(want) ^ set(legacy)
    found = load_file(f"{os.path.dirname(folder)}/{at}/{os.path.basename(folder)}.safetensors")
    first = min(layer for key, layer in pieces.values() if key.startswith("decoder.layers."))
    for k, v in want.items():
        assert equal(v, legacy[k]), (k, "legacy")
        key, layer = pieces[k]
        assert equal(v, found[key][layer - first] if key.startswith("decoder.layers.") else found[key]), (k, key)
    if dist.get_rank() == 0:
        print(len(want), "tensors of a rank are equal")


def reshard(folder, other, tp, pp):
    ranks(int(tp) * int(pp), reshard_rank, (folder, other, int(tp), int(pp)))


def hf(folder):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=200, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    gpt2.save_pretrained(f"{folder}/gpt2", max_shard_size="60KB")
    gpt2.config.save_pretrained(f"{folder}/gpt2_bin")
    torch.save(gpt2.state_dict(), f"{folder}/gpt2_bin/pytorch_model.bin")
    LlamaForCausalLM(LlamaConfig(vocab_size=200, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                 num_key_value_heads=2)).bfloat16().save_pretrained(f"{folder}/llama")


def equal(a, b):
    if isinstance(a, torch.Tensor):
        a, b = a.detach().contiguous(), b.detach().contiguous()
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    if isinstance(a, argparse.Namespace):
        return equal(vars(a), vars(b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def same(one, *others):
    names = sorted(os.listdir(one))
    for name in names:
        a = torch.load(f"{one}/{name}", weights_only=False)
        for other in others:
            b = torch.load(f"{other}/{name}", weights_only=False, mmap=True)
            assert type(a) is type(b) and equal(a, b), (other, name)
    for other in others:
        assert names == sorted(n for n in os.listdir(other) if n.endswith(".pt")), os.listdir(other)
    print(len(names), "files are equal")


def whole(folder, *paths):
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    metadata = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {k: torch.zeros(list(t.size), dtype=t.properties.dtype) for k, t in metadata.items() if hasattr(t, "chunks")}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    for path in paths:
        found = load_file(path)
        assert set(state) == set(found), set(state) ^ set(found)
        for name, t in state.items():
            assert equal(t, found[name]), (path, name)
    print(len(state), "tensors are equal")


def models(one, *others):
    from transformers import AutoModelForCausalLM
    a = AutoModelForCausalLM.from_pretrained(one)
    for other in others:
        b = AutoModelForCausalLM.from_pretrained(other)
        assert a.config.to_diff_dict() == b.config.to_diff_dict(), other
        assert equal(dict(a.state_dict()), dict(b.state_dict())), other
    print(len(a.state_dict()), "tensors of models are equal")


def read_shards(folder):
    import torch.distributed.checkpoint as dcp
    reader = dcp.HuggingFaceStorageReader(folder)
    state = {k: torch.zeros(list(t.size), dtype=t.properties.dtype) for k, t in reader.read_metadata().state_dict_metadata.items()}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return {k: state[k] for k in sorted(state)}


def shards(one, *others):
    a = read_shards(one)
    assert a and all(equal(a, read_shards(other)) for other in others)
    print(len(a), "tensors of shards are equal")


def key(k):
    if isinstance(k, str):
        k = k.replace("~", "~0").replace("/", "~1")
        return "'" + k if k.lstrip("-").isdigit() else k
    return str(k)


def tensors(state, path=""):
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, (dict, list, tuple)):
        for k, v in state.items() if isinstance(state, dict) else enumerate(state):
            yield from tensors(v, f"{path}/{key(k)}" if path else key(k))


def digests(folder):
    from digest import digest
    for name in sorted(os.listdir(folder)):
        for path, t in tensors(torch.load(f"{folder}/{name}", weights_only=False)):
            print(digest(bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).tolist())), f"{name}:{path}")


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    of_ranks = {"dcp": (5, dcp_rank), "fsdp1": (2, fsdp1_rank), "mesh": (4, mesh_rank), "hfdcp": (2, hfdcp_rank),
                "megatron": (4, megatron_rank)}
    if what in of_ranks:
        ranks(*of_ranks[what], *rest)
    else:
        {"pt": pt, "hf": hf, "models": models, "shards": shards, "reshard": reshard, "same": same, "whole": whole, "digests": digests}[what](*rest)
