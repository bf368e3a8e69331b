# SPDX-License-Identifier: Apache-2.0
"""
Rows of padding in checkpoint folders: what each topology shows of a folder is what Megatron-core itself loads there.

    padding_folders.py megatron FOLDER TO     Megatron-core saves a GPT, vocabulary 300 padded to 512, on two ranks (tp=2); FOLDER is
                                              what it wrote, TO what it loads of that at tp=1, where it pads to 384
    padding_folders.py stand-in FOLDER        writes a folder with an optimizer's moments as well, by DCP alone
    padding_folders.py check JOB NAME FOLDER [TO]
"""
import multiprocessing
import os
import sys
import traceback
import warnings

os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
warnings.filterwarnings("ignore")
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

V, PAD, H = 300, 128, 16
PADDED = ("embedding.word_embeddings.weight", "output_layer.weight")


def rows(tp):
    return -(-V // (PAD * tp)) * PAD * tp


def model(tp):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig
    config = TransformerConfig(num_layers=1, hidden_size=H, num_attention_heads=4, tensor_model_parallel_size=tp, use_cpu_initialization=True,
                               pipeline_dtype=torch.float32, bias_activation_fusion=False)
    return GPTModel(config, get_gpt_layer_local_spec(), rows(tp), 8, share_embeddings_and_output_weights=False, position_embedding_type="rope")


def rank_main(rank, world, store, folder, to):
    from megatron.core import dist_checkpointing, parallel_state as ps
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    ps.initialize_model_parallel(world, 1, create_gloo_process_groups=True)
    torch.manual_seed(100 + rank)
    sharded = model(world).sharded_state_dict()
    for name in PADDED:  # rows of padding that tell
        torch.nn.init.normal_(sharded[name].data)
    if to is None:
        if rank == 0:
            os.makedirs(folder)
        dist.barrier()
        dist_checkpointing.save({"model": sharded, "iteration": 1}, folder, ("torch_dist", 1))
    else:
        loaded = dist_checkpointing.load({"model": sharded}, folder)["model"]
        save_file({k: t.detach().clone() for k, t in loaded.items() if k in PADDED}, to)
    dist.barrier()
    dist.destroy_process_group()


def run(world, *words):
    """Forks the ranks: what they need has been imported."""
    pids = []
    for rank in range(world):
        pid = os.fork()
        if not pid:
            try:
                rank_main(rank, world, *words)
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
    assert not bad, f"{len(bad)} ranks of {world} failed"


def megatron(folder, to):
    from make_megatron_sample import without_gpu
    without_gpu()
    import megatron.core.dist_checkpointing
    import megatron.core.dist_checkpointing.strategies.filesystem_async as writer
    import megatron.core.models.gpt.gpt_layer_specs  # noqa: F401
    writer.mp.get_context = lambda _: multiprocessing.get_context("fork")  # a Python that imports torch once more takes seconds
    run(2, f"{folder}.store2", folder, None)
    run(1, f"{folder}.store1", folder, to)


def stand_in(folder):
    torch.manual_seed(7)
    state = {name: torch.randn(512, H) for name in PADDED} | {"decoder.final_layernorm.weight": torch.randn(H)}
    state |= {f"optimizer.state.{kind}.{name}": torch.randn(512, H) for name in PADDED for kind in ("param", "exp_avg", "exp_avg_sq")}
    dcp.save(state, checkpoint_id=folder, no_dist=True)


def whole(folder):
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    reader = dcp.FileSystemReader(folder)
    state = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in reader.read_metadata().state_dict_metadata.items() if isinstance(m, TensorStorageMetadata)}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def check(job, name, folder, loaded=None):
    table = {k: t for k, t in whole(folder).items() if k.endswith(PADDED)}
    assert len(table) >= len(PADDED) and all(t.shape == (512, H) for t in table.values()), {k: t.shape for k, t in table.items()}
    for tp in 1, 2, 4, 8:
        ranks = [load_file(f"{job}/.as/tp={tp}/{rank}/{name}.safetensors") for rank in range(tp)]
        for key, t in table.items():
            want = torch.cat([t[:rows(tp)], t[-1:].expand(max(0, rows(tp) - 512), H)])  # the last row is repeated
            found = torch.cat([r[key] for r in ranks])
            assert found.shape == want.shape, (tp, key, found.shape, want.shape)
            assert torch.equal(found, want), (tp, key, (found != want).any(1).nonzero().flatten()[:9])
        dcps = whole(f"{job}/.dcp/tp={tp}/{name}")  # as Megatron would save it there, as far as rows are known
        for key, t in table.items():
            assert torch.equal(dcps[key], t[:rows(tp)]), (tp, key, dcps[key].shape)
    full = load_file(f"{job}/.full/{name}.safetensors")
    for key, t in table.items():
        assert torch.equal(full[key], t[:rows(1)]), (key, full[key].shape)
    if loaded:
        for key, t in load_file(loaded).items():
            assert t.shape == (rows(1), H) and torch.equal(full[key], t), (key, t.shape)
    print(f"figure: {name}: {len(table)} tensors of 512 rows at tp = 1, 2, 4, 8" + (", at tp=1 what Megatron loads" if loaded else ""))


if __name__ == "__main__":
    {"megatron": megatron, "stand-in": stand_in, "check": check}[sys.argv[1]](*sys.argv[2:])
