# SPDX-License-Identifier: Apache-2.0
"""Saves and loads with the libraries that training jobs use, in a rank's folder and in the job's.

    frameworks.py JOB NAME...     NAME: one of the functions below

Each takes a new folder, and is called a second time, with again=True, when what it made is committed.  A commit changes
nothing that programs see, and the version shows the same.
"""
import glob
import hashlib
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import time
import warnings

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu",
                  OMP_NUM_THREADS="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
warnings.filterwarnings("ignore")
import torch  # noqa: E402


def commit(job, at=[0]):
    at[0] += 1
    try:
        (job / ".ctl/commit").write_text(f"step={at[0]}\n")
    except OSError:
        raise AssertionError((job / ".ctl/error").read_text())
    lines = dict(line.split(": ", 1) for line in (job / ".ctl/status").read_text().splitlines() if ": " in line)
    return job / ".v" / lines["version"].split()[0]


def seen(folder, head):
    """All that programs see below a folder; `head`: also what a version has not."""
    all_ = {}
    for d, dirs, names in os.walk(folder):
        for path in [f"{d}/{n}" for n in dirs + names] + [d]:
            st = os.lstat(path)
            what = [oct(st.st_mode), st.st_uid, st.st_gid, st.st_nlink, st.st_mtime_ns]
            if head:
                what += [st.st_ino, st.st_ctime_ns]
            if stat.S_ISLNK(st.st_mode):
                what.append(os.readlink(path))
            elif stat.S_ISREG(st.st_mode):
                what += [st.st_size, hashlib.sha256(open(path, "rb").read()).hexdigest()]
            all_[os.path.relpath(path, folder)] = what
    return all_


def same(found, want, what):
    differ = [f"{p}: {want.get(p)} became {found.get(p)}" for p in sorted({*found, *want}) if found.get(p) != want.get(p)]
    assert not differ, what + "\n" + "\n".join(differ[:20])


def committed(job, folder):
    before, of_version = seen(folder, True), seen(folder, False)
    version = commit(job) / folder.relative_to(job)
    same(seen(folder, True), before, f"a commit changed '{folder}'")
    same(seen(version, False), of_version, f"'{version}' differs")
    return version


# --- the libraries ---

def gpt2(seed):
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0,
                                      eos_token_id=0))


def equal(model, other):
    other = other.state_dict() if hasattr(other, "state_dict") else other
    mine = model.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(mine[k], other[k]) for k in mine)


def trainer(folder, again, kept={}):
    """The Trainer keeps two checkpoints and goes on with the last, as if it had not been stopped."""
    from transformers import Trainer, TrainingArguments
    rows = [{"input_ids": torch.arange(8) * (i + 3) % 64, "labels": torch.arange(8) * (i + 3) % 64} for i in range(32)]

    def train(at, steps, resume):
        args = TrainingArguments(output_dir=str(at), max_steps=steps, save_steps=2, save_total_limit=2, report_to=[],
                                 use_cpu=True, per_device_train_batch_size=2, seed=5, disable_tqdm=True,
                                 lr_scheduler_type="constant", logging_strategy="no")
        t = Trainer(model=gpt2(1), args=args, train_dataset=rows)
        t.train(resume_from_checkpoint=resume)
        assert t.state.global_step == steps
        t.save_model()
        return t.model

    if not again:
        kept[folder] = train(folder / "out", 6, False)
        assert sorted(p.name for p in (folder / "out").glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]
        return
    model = train(folder / "out", 10, True)
    assert sorted(p.name for p in (folder / "out").glob("checkpoint-*")) == ["checkpoint-10", "checkpoint-8"]
    with tempfile.TemporaryDirectory() as elsewhere:
        assert equal(model, train(pathlib.Path(elsewhere), 10, False)), "training that was stopped gives another model"
    assert not equal(model, kept.pop(folder))


def pretrained(folder, again):
    """save_pretrained with shards and an index, over what was there before."""
    from transformers import AutoModelForCausalLM
    at = folder / "model"
    if again:
        assert equal(AutoModelForCausalLM.from_pretrained(at), gpt2(2))
    gpt2(3 if again else 2).save_pretrained(at, max_shard_size="60KB" if again else "30KB")
    assert len(list(at.glob("model-*.safetensors"))) > 2 - again and (at / "model.safetensors.index.json").exists()
    assert equal(AutoModelForCausalLM.from_pretrained(at), gpt2(3 if again else 2))


def accelerate_state(folder, again):
    """save_state with a limit of two, load_state."""
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration
    a = Accelerator(cpu=True, project_config=ProjectConfiguration(
        project_dir=str(folder), automatic_checkpoint_naming=True, total_limit=2, iteration=3 if again else 0))
    model = gpt2(2)
    model, optimizer = a.prepare(model, torch.optim.AdamW(model.parameters()))
    if again:
        a.load_state(str(folder / "checkpoints/checkpoint_2"))
        assert optimizer.state_dict()["state"][0]["step"] == 3
    for i in range(1 if again else 3):
        model(input_ids=torch.arange(8)[None] + i, labels=torch.arange(8)[None]).loss.backward()
        optimizer.step()
        a.save_state()
    want = {k: v.clone() for k, v in model.state_dict().items()}
    assert sorted(os.listdir(folder / "checkpoints")) == [f"checkpoint_{i}" for i in ((2, 3) if again else (1, 2))]
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    a.load_state()
    assert equal(model, want)


def lightning(folder, again):
    """ModelCheckpoint with a link to the last one."""
    import logging
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(8, 8)

        def training_step(self, batch, _):
            loss = (self.layer(batch) - batch).pow(2).mean()
            self.log("global", float(self.global_step))
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    checkpoint = ModelCheckpoint(dirpath=folder / "ckpt", save_last="link", save_top_k=2, monitor="global", mode="max",
                                 every_n_train_steps=2)
    t = L.Trainer(accelerator="cpu", max_steps=12 if again else 6, default_root_dir=folder, logger=False,
                  callbacks=[checkpoint], enable_progress_bar=False, enable_model_summary=False)
    data = torch.utils.data.DataLoader(torch.arange(64.).view(8, 8) / 64, batch_size=2)
    t.fit(Model(), data, ckpt_path=str(folder / "ckpt/last.ckpt") if again else None)
    last = folder / "ckpt/last.ckpt"
    assert last.is_symlink() and torch.load(last, weights_only=False)["global_step"] == t.global_step, os.listdir(last.parent)


def dcp_rank(rank, folder, again):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(64.).view(16, 4)
    state = {"model": {"w": distribute_tensor(whole.clone(), mesh, [Shard(0)]), "b": torch.ones(3)}, "step": 7}
    if again:
        empty = {"model": {"w": distribute_tensor(torch.zeros(16, 4), mesh, [Shard(1)]), "b": torch.zeros(3)}, "step": 0}
        dcp.load(empty, checkpoint_id=folder / "ckpt")
        assert torch.equal(empty["model"]["w"].full_tensor(), whole) and empty["step"] == 7
        dcp.save(empty, checkpoint_id=folder / "ckpt")  # over the committed one
        dcp.async_save(state, checkpoint_id=folder / "later").result()
    else:
        dcp.save(state, checkpoint_id=folder / "ckpt")
    dist.barrier()
    dist.destroy_process_group()


def dcp(folder, again):
    """torch.distributed.checkpoint of two processes, which meet by a file; another sharding loads it."""
    import torch.distributed.checkpoint as dcp
    (folder / "rendezvous").unlink(missing_ok=True)
    torch.multiprocessing.start_processes(dcp_rank, (folder, again), 2, start_method="fork")
    for name in ("ckpt", "later")[:1 + again]:
        state = {"model": {"w": torch.zeros(16, 4), "b": torch.zeros(3)}, "step": 0}
        dcp.load(state, checkpoint_id=folder / name, no_dist=True)
        assert torch.equal(state["model"]["w"], torch.arange(64.).view(16, 4)) and state["step"] == 7


def torch_files(folder, again):
    """torch.save in both of its formats, over a file and beside it; a map of a file that is replaced stays as it was."""
    state = {"w": torch.arange(5000.), "half": torch.ones(3, 5, dtype=torch.bfloat16), "n": {"lr": 0.1, "name": "x"}}
    mapped = torch.load(folder / "zip.pt", mmap=True) if again else None
    if again:
        assert all(torch.equal(torch.load(folder / n)["w"], state["w"]) for n in ("zip.pt", "old.pt"))
        state["w"] += 1
    torch.save(state, folder / "tmp")
    os.replace(folder / "tmp", folder / "zip.pt")
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)
    with open(folder / "synced.pt", "wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    for n in ("zip.pt", "old.pt", "synced.pt"):
        found = torch.load(folder / n)
        assert torch.equal(found["w"], state["w"]) and torch.equal(found["half"], state["half"]) and found["n"] == state["n"]
    assert torch.equal(torch.load(folder / "zip.pt", mmap=True)["w"], state["w"])
    assert mapped is None or torch.equal(mapped["w"], state["w"] - 1)


def deepspeed_folder(folder, again):
    """What DeepSpeed's engine does with a folder: one a step, files of each rank, and a name in `latest` when all are there.
    (DeepSpeed itself is not called: it builds kernels when it is installed.)"""
    if again:
        last = (folder / "latest").read_text()
        found = torch.load(folder / last / "mp_rank_00_model_states.pt", mmap=True)
        assert last == "global_step2" and torch.equal(found["module"]["w"], torch.full((300, 7), 2.))
        assert all(torch.load(p)["rank"] == int(p.name.split("_")[4]) for p in (folder / last).glob("*_optim_states.pt"))
    for step in (3,) if again else (1, 2):
        tag = folder / f"global_step{step}"
        tag.mkdir(exist_ok=True)
        torch.save({"module": {"w": torch.full((300, 7), float(step))}, "global_steps": step}, tag / "mp_rank_00_model_states.pt")
        for rank in range(2):
            torch.save({"rank": rank, "fp32": torch.ones(1000)}, tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        shutil.copy(__file__, folder / "zero_to_fp32.py")
        (folder / "zero_to_fp32.py").chmod(0o755)
        (folder / "latest").write_text(tag.name)
        if step > 1:
            shutil.rmtree(folder / f"global_step{step - 1}")


def datasets(folder, again):
    """save_to_disk, load_from_disk, map with a cache of its own."""
    import datasets as d
    d.config.HF_DATASETS_CACHE = str(folder / "cache")
    if again:
        rows = d.load_from_disk(str(folder / "rows"))
        rows = rows.map(lambda r: {"y": r["x"] * 2}, cache_file_name=str(folder / "mapped.arrow"), load_from_cache_file=False)
        assert rows["y"][:3] == [0, 2, 4] and len(rows) == 1000
        rows.save_to_disk(str(folder / "more"), num_shards=3)
        assert d.load_from_disk(str(folder / "more"))[999] == {"x": 999, "t": "999", "y": 1998}
    else:
        d.Dataset.from_dict({"x": list(range(1000)), "t": [str(i) for i in range(1000)]}).save_to_disk(str(folder / "rows"))


def orbax(folder, again):
    """A manager that keeps two checkpoints, saved in the background."""
    import jax.numpy as jnp
    import orbax.checkpoint as ocp
    with ocp.CheckpointManager(folder / "ckpt", options=ocp.CheckpointManagerOptions(max_to_keep=2)) as m:
        if again:
            found = m.restore(2, args=ocp.args.StandardRestore())
            assert (found["w"] == jnp.arange(1000.) + 2).all() and found["n"]["b"] == 2
        for step in (3, 4) if again else (0, 1, 2):
            m.save(step, args=ocp.args.StandardSave({"w": jnp.arange(1000.) + step, "n": {"b": step}}))
        m.wait_until_finished()
        assert sorted(m.all_steps()) == ([3, 4] if again else [1, 2])


def main():
    job = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:]:
        for where in ("0", "."):
            began = time.monotonic()
            folder = job / where / name
            folder.mkdir(parents=True)
            globals()[name](folder, False)
            version = committed(job, folder)
            before = seen(version, False)
            globals()[name](folder, True)
            committed(job, folder)
            same(seen(version, False), before, f"'{version}' changed")
            shutil.rmtree(folder)
            commit(job)
            assert not folder.exists()
            print(f"{name} in {where}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
