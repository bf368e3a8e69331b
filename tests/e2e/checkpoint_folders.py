#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed (FSDP2, AdamW) that are folders of a job.

    checkpoint_folders.py save FOLDER WORLD        trains three steps on so many processes, and saves
    checkpoint_folders.py dcp FOLDER WORLD [TP]    loads it by dcp.load(), trains on, prints the losses; with FSDP2 over TP
    checkpoint_folders.py shards FOLDER WORLD      the same from a safetensors file each rank: FOLDER/RANK/NAME.safetensors
    checkpoint_folders.py equal FOLDER FILE        compares a file of whole tensors with what is in the checkpoint
    checkpoint_folders.py cuts FOLDER AS WORLD...  and a file each rank, cut as torch.chunk() does: AS/dp=WORLD/RANK/NAME.safetensors
    checkpoint_folders.py mix JOB LAYOUT           loads a .dcp of the ranks' files again and again beside commits
    checkpoint_folders.py spoil FROM HOW...        copies a checkpoint to the folder HOW, and makes its .metadata wrong
"""
import os
import pickle
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

NAME = "ckpt"


def load_file(path):
    from safetensors.torch import load_file as load
    return load(path)


def losses(model, optimizer, steps):
    out = []
    for step in range(steps):
        x = torch.linspace(-1, 1, 20 * 4).view(4, 20) * (step + 1)
        loss = (model(x) - x[:, :3].cos()).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        out.append(loss.item())
    return out


def flat(tree, path=""):
    """Names as DCP makes them of nested dicts."""
    for k, v in tree.items():
        name = f"{path}.{k}" if path else str(k)
        if isinstance(v, dict):
            yield from flat(v, name)
        elif isinstance(v, torch.Tensor):
            yield name, v


def sharded(world, tp):
    model = torch.nn.Sequential(torch.nn.Linear(20, 31), torch.nn.GELU(), torch.nn.LayerNorm(31), torch.nn.Linear(31, 3))
    mesh = init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("dp", "tp"))
    if tp > 1:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(output_layouts=Replicate()),
                                               "3": RowwiseParallel(input_layouts=Replicate())})
    fully_shard(model, mesh=mesh["dp"])
    return model


def rank_main(rank, how, folder, world, tp, meet):
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = sharded(world, tp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if how == "save":
        losses(model, optimizer, 3)
    m, o = get_state_dict(model, optimizer)
    state = {"model": m, "optim": o}
    if how == "save":
        dcp.save({**state, "more": {"step": 3, "turned": torch.arange(12.).view(3, 4).t(), "half": torch.ones(5).bfloat16()}},
                 checkpoint_id=folder)
    else:
        if how == "dcp":
            # files of tensors alone have no learning rate and the like
            partial = "/.dcp/" in folder and not folder.endswith("/" + NAME)
            dcp.load(state, checkpoint_id=folder, planner=dcp.DefaultLoadPlanner(allow_partial_load=partial))
        else:
            mine = load_file(f"{folder}/{rank}/{NAME}.safetensors")
            for name, tensor in flat(state):
                local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                if local.numel():
                    local.copy_(mine[name])
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        text = repr(losses(model, optimizer, 3))
        if rank == 0:
            print(text)
    dist.destroy_process_group()


def run(how, folder, world, tp=1):
    meet = os.path.join(os.environ["WORK"], "rendezvous")
    if os.path.exists(meet):
        os.unlink(meet)
    torch.multiprocessing.start_processes(rank_main, (how, folder, int(world), int(tp), meet), int(world), start_method="fork")


def whole(folder):
    metadata = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {k: torch.zeros(list(t.size), dtype=t.properties.dtype) for k, t in metadata.items() if hasattr(t, "chunks")}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def equal(folder, path):
    state, mine = whole(folder), load_file(path)
    assert set(state) == set(mine), set(state) ^ set(mine)
    bad = [k for k in state if not same(state[k], mine[k])]
    assert not bad, bad
    print(len(state), "tensors are equal")


def cuts(folder, presented, *worlds):
    state = whole(folder)
    for world in map(int, worlds):
        for rank in range(world):
            mine = load_file(f"{presented}/dp={world}/{rank}/{NAME}.safetensors")
            for k, t in state.items():
                parts = t.chunk(world) if t.dim() and not k.startswith("more.") else [t] * world
                want = parts[rank] if rank < len(parts) else t[:0]
                assert k in mine and same(mine[k], want) or not want.numel(), (world, rank, k)


def mix(job, layout):
    """Version i has i in each element, and a load has one i.  (With keep=N it may fail, if N commits come meanwhile.)"""
    from safetensors.torch import save_file
    job += "_mix"
    os.mkdir(job)
    for name, text in (("layout", open(layout).read()), ("topology", "dp=1"), ("config", "keep=0")):
        with open(f"{job}/.ctl/{name}", "w") as f:
            f.write(text)

    def commits():
        for i in range(1, 1000):
            os.makedirs(f"{job}/0", exist_ok=True)
            for name in ("a", "b"):
                save_file({f"{name}.w": torch.full((64, 8), float(i))}, f"{job}/0/{name}.safetensors")
            with open(f"{job}/.ctl/commit", "w") as f:
                f.write("\n")
            yield i
    writer = commits()
    next(writer)
    child = os.fork()
    if child == 0:
        for _ in writer:
            pass
        os._exit(0)
    good = failed = 0
    try:
        while good < 60:
            state = {f"{name}.w": torch.zeros(64, 8) for name in ("a", "b")}
            try:
                dcp.load(state, checkpoint_id=f"{job}/.dcp/dp=4", no_dist=True)
            except dcp.api.CheckpointException:
                failed += 1
                assert failed < 3, "nothing is dropped here"
                continue
            seen = {float(x) for t in state.values() for x in t.unique()}
            assert len(seen) == 1, f"a load has bytes of the versions {seen}"
            good += 1
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    print(good, "loads,", failed, "failed")


def spoil(source, *ways):
    for how in ways:
        spoil_one(how, source, how)


def spoil_one(how, source, to):
    shutil.copytree(source, to)
    path = os.path.join(to, ".metadata")
    with open(path, "rb") as f:
        m = pickle.load(f)
    name = "model.0.weight"
    tensor = m.state_dict_metadata[name]
    first = next(k for k in m.storage_data if k.fqn == name)
    info = m.storage_data[first]
    if how == "missing":
        os.unlink(os.path.join(to, info.relative_path))
    elif how == "cut":
        os.truncate(os.path.join(to, info.relative_path), 100)
    elif how == "gap":
        del tensor.chunks[0]
    elif how == "overlap":
        tensor.chunks.append(ChunkStorageMetadata(torch.Size([1, 0]), tensor.chunks[0].sizes))
        m.storage_data[MetadataIndex(name, torch.Size([1, 0]))] = info
    elif how == "outside":
        tensor.chunks[0] = ChunkStorageMetadata(tensor.chunks[0].offsets, torch.Size([1000, 20]))
    elif how == "type":
        tensor.properties.dtype = torch.float64
    elif how == "climbs":
        info.relative_path = "../../../etc/passwd"
    elif how == "huge":
        info.length = 1 << 60
    elif how == "object":
        m.storage_data[next(k for k in m.storage_data if k.fqn == "more.step")].length += 100000
    elif how == "elsewhere":
        m.storage_data[first] = next(v for k, v in m.storage_data.items() if k.fqn == "model.0.bias")
    elif how == "compressed":
        info.transform_descriptors = ["zstd"]
    elif how == "evil":
        class Evil:
            def __reduce__(self):
                return os.system, ("touch " + os.path.join(os.environ["WORK"], "executed"),)
        m.planner_data = Evil()
    with open(path, "wb") as f:
        pickle.dump(m, f)


def main():
    how, *rest = sys.argv[1:]
    if how in ("save", "dcp", "shards"):
        run(how, *rest)
    else:
        {"equal": equal, "cuts": cuts, "spoil": spoil, "mix": mix}[how](*rest)


if __name__ == "__main__":
    main()
