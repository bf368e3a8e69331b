# SPDX-License-Identifier: Apache-2.0
"""Runs the training script of docs/guide.md as printed, for models of several kinds: readme_script.py GUIDE MOUNT

For each a new job: a first start whose save dies before the first commit, a second one that commits a step and dies in the
middle of the next save, a restart that has the committed step, and a start at another topology.
"""
import os
import re
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

GUIDE, MOUNT = sys.argv[1:]
SCRIPT = re.search(r"```python\n(# on every rank.*?)```", open(GUIDE).read(), re.S).group(1)
assert "/mnt/scalai" in SCRIPT and re.findall(r"(?<!/mnt)/scalai", SCRIPT) == []


class Model(torch.nn.Module):
    def __init__(self, tied):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
        self.norm = torch.nn.LayerNorm(4)
        if tied:
            self.head.weight = self.embed.weight


KINDS = {  # layout, model of a plain one
    "plain": ("use replicated", lambda: Model(False)),
    "tied": ("use replicated", lambda: Model(True)),
    "wrapped": ("use replicated", lambda: torch.compile(DistributedDataParallel(Model(False)))),
    "fsdp2": ("use fsdp2", lambda: fully_shard(Model(False), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))),
    "fsdp2_tied": ("use fsdp2", lambda: fully_shard(Model(True), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))),
}


def step(s, model, by):
    with torch.no_grad():
        for t in {t.data_ptr(): t for t in s["parts"](model).values()}.values():  # tied: once
            t.add_(by)


def whole(model):
    return {n.replace("_orig_mod.", "").replace("module.", ""): t.full_tensor() if hasattr(t, "full_tensor") else t
            for n, t in model.state_dict().items()}


def phase(name, kind, s, rank):
    model = KINDS[kind][1]()
    before = {n: t.clone() for n, t in whole(model).items()}
    s["start"](model, rank)
    if name == "first":
        assert all(torch.equal(before[n], t) for n, t in whole(model).items()), "something was loaded"
        if rank == 0:  # it dies before the others have saved
            os.makedirs(f"{s['JOB']}/0", exist_ok=True)
            s["save_file"]({"embed.weight": torch.ones(3)}, f"{s['JOB']}/0/model.safetensors")
    elif name == "second":
        assert all(torch.equal(before[n], t) for n, t in whole(model).items()), "something was loaded"
        step(s, model, 1)
        s["save"](model, rank, 1)
        step(s, model, 1)
        if rank == 0:
            s["save_file"]({n: t.detach().clone() for n, t in s["parts"](model).items()}, f"{s['JOB']}/0/model.safetensors")
    else:
        now = whole(model)
        assert all(torch.equal(before[n] + 1, t) for n, t in now.items()), [n for n, t in now.items() if not torch.equal(before[n] + 1, t)]
        s["save"](model, rank, 2)  # and goes on from there
    dist.barrier()


def run(rank, world, name, kind, at):
    try:
        dist.init_process_group("gloo", init_method=f"file://{at}", rank=rank, world_size=world)
        s = {}
        exec(SCRIPT.replace("/mnt/scalai/gpt", f"{MOUNT}/{kind}"), s)
        phase(name, kind, s, rank)
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ranks(world, name, kind):
    with tempfile.TemporaryDirectory() as folder:
        all_of = [mp.get_context("fork").Process(target=run, args=(r, world, name, kind, folder + "/at")) for r in range(world)]
        for p in all_of:
            p.start()
        for p in all_of:
            p.join(120)
            assert p.exitcode == 0, f"{kind}, {name}: {p.exitcode}"


def write(kind, control, text):
    with open(f"{MOUNT}/{kind}/.ctl/{control}", "w") as f:
        f.write(text)


os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo")
torch.set_num_threads(1)
torch.compile(Model(False))  # what it reads is read before the forks
for kind, (layout, _) in KINDS.items():
    os.mkdir(f"{MOUNT}/{kind}")
    write(kind, "layout", layout + "\n")
    write(kind, "topology", "dp=2\n")
    for name in ("first", "second", "third"):
        ranks(2, name, kind)
    write(kind, "topology", "dp=1\n")
    ranks(1, "another", kind)
    print(f"{kind}: as printed")
