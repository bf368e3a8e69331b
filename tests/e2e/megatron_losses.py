# SPDX-License-Identifier: Apache-2.0
"""
MOUNT WORK: losses of real Megatron-core GPTs, vocabulary 300 padded to 512 at tp=2, from ranks' files of a job and from Megatron's
own checkpoint (dist_checkpointing, torch_dist), by processes that talk over gloo: one batch, at tp = 1, 2, 4, 8 and back.

At the same tp both are equal to the last digit.  At tp=8, where 1,024 rows are, Megatron's checkpoint has none behind its 512: there
its model is given what a job has there, the last row again and again.  Each topology
saves what it has loaded, and tp=2 has the loss of the beginning again, also behind tp=1, which has 384 rows only.
"""
import contextlib
import multiprocessing
import os
import pathlib
import sys
import traceback
import warnings

os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
warnings.filterwarnings("ignore")
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from make_megatron_sample import without_gpu  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

V, PAD, H, LENGTH, WRITTEN = 300, 128, 32, 16, 512
PADDED = ("embedding.word_embeddings.weight", "output_layer.weight")
mount, work = map(pathlib.Path, sys.argv[1:])


def rows(tp):
    return -(-V // (PAD * tp)) * PAD * tp


def gpt(tp, tied):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig
    torch.manual_seed(1)
    config = TransformerConfig(num_layers=2, hidden_size=H, num_attention_heads=8, ffn_hidden_size=64, tensor_model_parallel_size=tp, hidden_dropout=0.0,
                               attention_dropout=0.0, use_cpu_initialization=True, pipeline_dtype=torch.float32, bias_activation_fusion=False, init_method_std=0.3)
    return GPTModel(config, get_gpt_layer_local_spec(), rows(tp), LENGTH, share_embeddings_and_output_weights=tied)


def loss_of(model):
    tokens = torch.randint(V, (4, LENGTH + 1), generator=torch.Generator().manual_seed(7))
    places = torch.arange(LENGTH).expand(len(tokens), -1)
    hidden = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
    with torch.no_grad():
        return model(tokens[:, :-1], places, hidden, labels=tokens[:, 1:]).mean().item()


def state(model):
    return {k: t for k, t in model.state_dict().items() if torch.is_tensor(t)}


def first(rank, tp, tied, job, folder):
    """A model as Megatron makes it, its rows of padding, too; saved by both."""
    from megatron.core import dist_checkpointing
    model = gpt(tp, tied)
    save_file({k: t.contiguous() for k, t in state(model).items()}, job / str(rank) / "model.safetensors")
    dist_checkpointing.save({"model": model.sharded_state_dict()}, str(folder), ("torch_dist", 1))
    if rank == tp - 1:
        save_file({k: t[-1:].clone() for k, t in state(model).items() if k in PADDED}, folder.with_suffix(".last"))
    return loss_of(model)


def own(rank, tp, tied, _, folder):
    """From Megatron's checkpoint; rows that it has not are as a job has them."""
    from megatron.core import dist_checkpointing
    model = gpt(tp, tied)
    model.load_state_dict(dist_checkpointing.load({"model": model.sharded_state_dict()}, str(folder))["model"], strict=True)
    for name, last in load_file(folder.with_suffix(".last")).items():
        part = state(model)[name]
        part[max(0, WRITTEN - rank * len(part)):] = last
    return loss_of(model)


def theirs(rank, tp, tied, job, _):
    """From a rank's file of the job, which is written again as it is then."""
    file = job / str(rank) / "model.safetensors"
    model, mine = gpt(tp, tied), load_file(file)
    assert {k: t.shape for k, t in mine.items()} == {k: t.shape for k, t in state(model).items()}
    model.load_state_dict(mine, strict=False)
    save_file({k: t.contiguous() for k, t in state(model).items()}, file)
    return loss_of(model)


def rank_main(what, rank, tp, *words):
    from megatron.core import parallel_state as ps
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{work}/store", rank=rank, world_size=tp)
    ps.initialize_model_parallel(tp, 1, create_gloo_process_groups=True)
    loss = what(rank, tp, *words)
    if rank == 0:
        (work / "loss").write_text(repr(loss))
    dist.barrier()
    dist.destroy_process_group()


def run(what, tp, *words):
    """Forks the ranks, which have imported what they need; the loss that rank 0 has."""
    for name in "store", "loss":
        (work / name).unlink(missing_ok=True)
    pids = []
    for rank in range(tp):
        pid = os.fork()
        if not pid:
            try:
                rank_main(what, rank, tp, *words)
                for child in multiprocessing.active_children():  # Megatron's, which end with their Python
                    child.terminate()
                    child.join()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        pids.append(pid)
    bad = [pid for pid in pids if os.waitpid(pid, 0)[1]]
    assert not bad, f"{what.__name__}: {len(bad)} ranks of {tp} failed"
    return float((work / "loss").read_text())


def control(job, name, text):
    try:
        (job / ".ctl" / name).write_text(text + "\n")
    except OSError:
        raise AssertionError((name, text, (job / ".ctl/error").read_text())) from None


def losses(name, tied, layout):
    job, folder = mount / name, work / name
    job.mkdir()
    folder.mkdir()
    control(job, "layout", layout)
    control(job, "topology", "tp=2")
    for rank in range(2):
        (job / str(rank)).mkdir(exist_ok=True)
    at_first = run(first, 2, tied, job, folder)
    control(job, "commit", "step=1")
    step = 1
    for tp in 8, 2, 4, 1:
        control(job, "topology", f"tp={tp}")
        mine, theirs_own = run(theirs, tp, tied, job, folder), run(own, tp, tied, job, folder)
        assert mine == theirs_own, f"{name}, tp={tp}: {mine!r} from the job, {theirs_own!r} from Megatron's checkpoint"
        assert (abs(mine - at_first) < 1e-5) == (rows(tp) == WRITTEN), (name, tp, mine, at_first)  # the rows of padding count
        step += 1
        control(job, "commit", f"step={step}")
        control(job, "topology", "tp=2")
        back = run(theirs, 2, tied, job, folder)
        step += 1
        control(job, "commit", f"step={step}")
        assert back == at_first, f"{name}: {back!r} at tp=2 behind tp={tp}, not {at_first!r}"
        print(f"figure: {name}: loss {mine!r} at tp={tp}, {rows(tp)} rows, as of Megatron's own checkpoint; back at tp=2 {back!r}", flush=True)


without_gpu()
import megatron.core.dist_checkpointing  # noqa: E402, F401
import megatron.core.dist_checkpointing.strategies.filesystem_async as writer  # noqa: E402
import megatron.core.models.gpt.gpt_layer_specs  # noqa: E402, F401
from megatron.core import tensor_parallel  # noqa: E402
tensor_parallel.random.CudaRNGStatesTracker.fork = lambda self, *_: contextlib.nullcontext()  # nothing is dropped
writer.mp.get_context = lambda _: multiprocessing.get_context("fork")  # a Python that imports torch once more takes seconds
losses("untied", False, f"use megatron-gpt vocab={V}")
losses("tied", True, f"use megatron-gpt vocab={V} tied=embedding.word_embeddings.weight")
