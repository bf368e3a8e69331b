# SPDX-License-Identifier: Apache-2.0
"""
MOUNT [SPEC...]: the preset megatron-gpt, against Megatron-core's own layers and what it says of their shards.

For each layer spec, and each rank of several topologies, Megatron builds the rank's model (the processes of a job are
played by one, one rank after the other).  Its sharded_state_dict says where in which whole tensor each of the rank's
tensors lies; whole tensors are random numbers, so this fills the rank's parameters.  The files of all ranks are written
to a job, and committed; at each other topology each rank must find exactly what Megatron has there: the same names, shapes
and bytes.  So each topology is gone to from each other one, and back.
"""
import contextlib
import os
import pathlib
import re
import sys
import warnings
import zlib

os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
warnings.filterwarnings("ignore")
sys.path += [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../support")]
import stand_ins  # noqa: E402
stand_ins.install()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from make_megatron_sample import without_gpu  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
without_gpu()
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory  # noqa: E402
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group  # noqa: E402
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker  # noqa: E402
import specs  # noqa: E402
CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()     # what a rank draws from is of no interest


def whole(key, sharded, vocabulary):
    """The tensor of which Megatron says that this is a part.  Padding, of which each topology has its own, is zero."""
    shape = list(sharded.global_shape)
    rows = vocabulary if sharded.allow_shape_mismatch else shape[0] if shape else 1
    numbers = torch.Generator().manual_seed(zlib.crc32(repr((key, rows, shape[1:])).encode()))
    t = torch.zeros(shape)
    (t[:rows] if shape else t).normal_(generator=numbers)
    return t if sharded.dtype.is_floating_point else (t * 1000).to(sharded.dtype)


def leaves(x):
    if isinstance(x, ShardedTensor):
        yield x
    elif isinstance(x, ShardedTensorFactory):
        parts = list(leaves(x.build()))
        assert sum(p.data.numel() for p in parts) == x.data.numel(), x.key
        yield from parts
    elif isinstance(x, (dict, list, tuple)):
        for y in x.values() if isinstance(x, dict) else x:
            yield from leaves(y)


def opaque(state, tensors, own):
    """
    Bytes of Transformer Engine: Megatron says which are one object.  Those of grouped experts, which a folder has by expert, are one
    for all of a rank's; `own`: not the same on each rank.
    """
    for name, x in state.items():
        if isinstance(x, ShardedObject) and name in tensors:
            grouped = ".mlp.experts.linear_fc" in name
            of = ps.get_expert_model_parallel_rank() if own else 0
            key = f"{x.key} {x.global_offset[:-1]} {of}" if grouped else x.unique_key
            numbers = torch.Generator().manual_seed(zlib.crc32(key.encode()))
            tensors[name] = torch.randint(256, tensors[name].shape, dtype=torch.uint8, generator=numbers)


def rank_of(spec, degrees, rank):
    """
    What a rank's state_dict has, as Megatron's own save and load would leave it, and what it has of whole tensors by the names
    that they have in a folder (torch_dist).
    """
    tp, pp, ep = (degrees.get(a, 1) for a in ("tp", "pp", "ep"))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=tp * pp * degrees.get("dp", 1))
    try:
        ps.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=degrees.get("etp"),
                                     create_gloo_process_groups=False)
        model = spec.make(degrees)
        tensors = {k: v for k, v in model.state_dict(keep_vars=True).items() if torch.is_tensor(v)}
        with torch.no_grad():
            for k, v in tensors.items():
                if v.is_floating_point():
                    v.data.fill_(torch.nan)
            state = model.sharded_state_dict(metadata=ensure_metadata_has_dp_cp_group(None))
            opaque(state, tensors, "grouped=each=ep" in spec.variables)
            regions = {}
            for name, x in state.items():
                for sharded in leaves(x):
                    t, at = whole(sharded.key, sharded, spec.vocabulary), sharded.global_slice()
                    sharded.data.data.copy_(t[at].reshape(sharded.data.shape))
                    region = regions.setdefault(name if name == "output_layer.weight" else sharded.key, (t, [set() for _ in t.shape]))
                    for have, i in zip(region[1], at):
                        have.update(range(i.start, i.stop) if isinstance(i, slice) else [i])
        for k, v in tensors.items():    # what is not a part as it lies, but reshaped, no layout has
            assert spec.refused or not v.isnan().any(), f"Megatron does not say what '{k}' is a part of"
        of_folder = {k: t[torch.meshgrid(*(torch.tensor(sorted(i)) for i in have), indexing="ij")].contiguous() for k, (t, have) in regions.items()}
        return {k: v.detach().clone().contiguous() for k, v in tensors.items()}, of_folder
    finally:
        ps.destroy_model_parallel()
        dist.destroy_process_group()
        sys.excepthook = sys.__excepthook__     # each process group puts its rank in front of an error


def ranks_of(spec, topology):
    degrees = {a: int(n) for a, n in (word.split("=") for word in topology.split())}
    n = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees.get("dp", 1)
    return [rank_of(spec, degrees, r) for r in range(n)]


def why(job, error):
    return f"{error}: {(job / '.ctl/error').read_text()}"


def compare(found, want, what):
    assert found.keys() == want.keys(), (what, sorted(found.keys() ^ want.keys()))
    for k, v in want.items():
        assert found[k].dtype == v.dtype and found[k].shape == v.shape, (what, k, found[k].shape, v.shape)
        assert torch.equal(found[k], v), (what, k)


def hold(mount, name, spec, source, ranks, kind):
    """
    Writes what ranks have at topology `source`, and compares with what they have at each other one.  Returns how many tensors
    were compared.
    """
    job = mount / f"{name}-{kind}-{source.replace(' ', ',')}"
    job.mkdir()
    try:
        (job / ".ctl/layout").write_text(f"use {spec.preset} vocab={spec.vocabulary} {spec.variables}\n")
        (job / ".ctl/topology").write_text(source + "\n")
        for r, tensors in enumerate(ranks[source]):
            (job / str(r)).mkdir(exist_ok=True)
            save_file(tensors, job / str(r) / "model.safetensors")
        (job / ".ctl/commit").write_text("\n")
    except OSError as error:
        raise AssertionError(f"{name} at {source}, {kind}: {why(job, error)}") from None
    n = 0
    for t in ranks:
        for r, want in enumerate(ranks[t]):
            what = f"{name} from {source} to {t}, {kind}, rank {r}"
            try:
                found = load_file(job / ".as" / t.replace(" ", ",") / str(r) / "model.safetensors")
            except OSError as error:
                raise AssertionError(f"{what}: {why(job, error)}") from None
            compare(found, want, what)
            n += len(want)
    return n


def check(mount, name):
    spec = specs.SPECS[name]
    both = {t: ranks_of(spec, t) for t in spec.topologies}
    ranks = {t: [r[0] for r in of] for t, of in both.items()}
    if spec.refused:
        try:
            hold(mount, name, spec, spec.topologies[0], ranks, "ranks")
        except AssertionError as error:
            assert spec.refused in str(error), error
            return print(f"figure: {name}: refused")
        raise AssertionError(f"{name} was taken")
    n = sum(hold(mount, name, spec, source, ranks, "ranks") for source in ranks)
    # a folder has a whole tensor, by the numbers of all layers; ranks count their own from 0
    names = both["tp=1"][0][1] if "tp=1" in both else {}
    numbered = any(re.match(r"decoder\.layers\.\d", k) for k in names)
    folder = {t: [r[1] for r in of] for t, of in both.items() if not (numbered and "pp" in t)}
    n += hold(mount, name, spec, "tp=1", folder, "folder") if names else 0
    print(f"figure: {name}: {len({k for r in ranks.values() for k in r[0]})} tensors, {len(names)} names in folders, {n} compared")


if __name__ == "__main__":
    for each in sys.argv[2:] or specs.SPECS:
        check(pathlib.Path(sys.argv[1]), each)
