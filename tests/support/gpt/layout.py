"""Who holds which slice of what: the per-rank layout of a Megatron-core style GPT checkpoint.

A job directory is

    DIR/job.json                      topology, model configuration, step, tensor table
    DIR/<rank>/model.safetensors      this rank's weights (f32 or bf16), Megatron-core names
    DIR/<rank>/optimizer.safetensors  Adam: optimizer.state.{exp_avg,exp_avg_sq,param}.<name> (f32)
                                      and optimizer.step (a 0-d i64)
    DIR/<rank>/data/tokens.{bin,idx}  this data-parallel rank's samples (Megatron IndexedDataset)

Ranks count tensor-parallel fastest, then data, then pipeline: rank = tp_i + tp*(dp_i + dp*pp_i).
Everything is replicated over dp.  Layer numbers in names are local to the pipeline stage.
"""
import json
import os
import struct
from dataclasses import asdict, dataclass

import numpy as np
import torch

MODEL, OPTIM = "model.safetensors", "optimizer.safetensors"
KINDS = ("exp_avg", "exp_avg_sq", "param")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
STEP = "optimizer.step"


@dataclass(frozen=True)
class Topology:
    tp: int = 1
    pp: int = 1
    dp: int = 1

    @staticmethod
    def parse(text):
        """'tp=2,pp=2,dp=1' -> Topology; an omitted axis is 1."""
        return Topology(**{k.strip(): int(v) for k, v in (f.split("=") for f in text.split(","))})

    @property
    def world(self):
        return self.tp * self.pp * self.dp

    def coords(self, rank):
        """rank -> (tp index, dp index, pp index)."""
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)

    def rank(self, tp_i, dp_i, pp_i):
        return tp_i + self.tp * (dp_i + self.dp * pp_i)


@dataclass(frozen=True)
class Config:
    """arch 'gpt3': LayerNorm, biases, GELU, learned positions, tied head, full attention heads.
    arch 'llama': RMSNorm, no biases, SwiGLU, rotary positions, untied head, grouped queries."""
    arch: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int = 128
    dtype: str = "f32"

    @property
    def llama(self):
        return self.arch == "llama"

    @property
    def head_dim(self):
        return self.hidden // self.heads


SIZES = {  # hidden, layers, heads, llama kv heads, vocab
    "mini": (32, 4, 8, 4, 300),
    "tiny": (64, 4, 16, 8, 300), "small": (256, 8, 16, 8, 50257),
    "medium": (1024, 24, 16, 8, 50257), "xl": (2048, 24, 32, 8, 50257)}


def make_config(size, arch, dtype, seq=128, vocab=None, limit=None):
    """A preset.  limit (bytes of one full copy of the state) drops layers in fours down to four,
    then halves the width; it never depends on the topology."""
    hidden, layers, heads, kv, v = SIZES[size]
    v, full = vocab or v, layers
    while True:
        ffn = -(-8 * hidden // 3 // 64) * 64 if arch == "llama" else 4 * hidden
        cfg = Config(arch, hidden, layers, heads, kv if arch == "llama" else heads, ffn, v, seq, dtype)
        if not limit or state_bytes(cfg) <= limit:
            return cfg
        if layers > 4:
            layers -= 4
        elif heads > 8:
            hidden, heads, layers = hidden // 2, heads // 2, full
        else:
            raise SystemExit(f"cannot shrink {size} below {limit} bytes")


@dataclass(frozen=True)
class Param:
    """A whole (unsharded, unpadded) tensor and how it is cut: tensor parallel along axis, which
    first counts as `parts` stacked blocks each cut on its own (SwiGLU's gate over up), with
    rows padded with zeros to a multiple of 128*tp where pad is set."""
    name: str
    shape: tuple
    axis: int | None
    where: str | int          # 'first', 'last' or the layer
    parts: int = 1
    pad: bool = False


def params(cfg):
    """Every tensor of the model, by its global name."""
    h, f, last = cfg.hidden, cfg.ffn, "decoder.final_layernorm"
    qkv = (cfg.heads + 2 * cfg.kv_heads) * cfg.head_dim  # q..q k v per group, so axis 0 cuts cleanly
    fc1, parts = (2 * f, 2) if cfg.llama else (f, 1)
    out = [Param("embedding.word_embeddings.weight", (cfg.vocab, h), 0, "first", pad=True)]
    if not cfg.llama:
        out.append(Param("embedding.position_embeddings.weight", (cfg.seq, h), None, "first"))
    for i in range(cfg.layers):
        for name, shape, axis, n in (
                ("input_layernorm.weight", (h,), None, 1), ("input_layernorm.bias", (h,), None, 1),
                ("self_attention.linear_qkv.weight", (qkv, h), 0, 1),
                ("self_attention.linear_qkv.bias", (qkv,), 0, 1),
                ("self_attention.linear_proj.weight", (h, h), 1, 1),
                ("self_attention.linear_proj.bias", (h,), None, 1),
                ("pre_mlp_layernorm.weight", (h,), None, 1), ("pre_mlp_layernorm.bias", (h,), None, 1),
                ("mlp.linear_fc1.weight", (fc1, h), 0, parts), ("mlp.linear_fc1.bias", (fc1,), 0, parts),
                ("mlp.linear_fc2.weight", (h, f), 1, 1), ("mlp.linear_fc2.bias", (h,), None, 1)):
            if not (cfg.llama and name.endswith(".bias")):
                out.append(Param(f"decoder.layers.{i}.{name}", shape, axis, i, n))
    out += [Param(f"{last}.{x}", (h,), None, "last") for x in (["weight"] if cfg.llama else ["weight", "bias"])]
    if cfg.llama:
        out.append(Param("output_layer.weight", (cfg.vocab, h), 0, "last", pad=True))
    return out


def numel(cfg):
    return sum(int(np.prod(p.shape)) for p in params(cfg))


def state_bytes(cfg):
    """Bytes of one unsharded copy: weights plus three f32 optimizer tensors."""
    return numel(cfg) * (DTYPES[cfg.dtype].itemsize + 12)


def held(cfg, topo, rank):
    """What a rank holds: [(local name, Param)].  With a tied head and pp > 1 the last stage holds
    a second copy of the word embedding under the name output_layer.weight."""
    if cfg.layers % topo.pp or cfg.heads % topo.tp or cfg.kv_heads % topo.tp or cfg.ffn % topo.tp:
        raise SystemExit(f"{topo} does not divide {cfg}")
    stage, per = topo.coords(rank)[2], cfg.layers // topo.pp
    out = []
    for p in params(cfg):
        if isinstance(p.where, int):
            if p.where // per == stage:
                out.append((p.name.replace(f".{p.where}.", f".{p.where % per}.", 1), p))
        elif stage == (0 if p.where == "first" else topo.pp - 1):
            out.append((p.name, p))
        if p.name.startswith("embedding.word") and not cfg.llama and stage == topo.pp - 1 > 0:
            out.append(("output_layer.weight", p))
    return out


def rows_padded(p, tp):
    return -(-p.shape[0] // (128 * tp)) * 128 * tp if p.pad else p.shape[0]


def local_shape(p, tp):
    if p.axis is None:
        return p.shape
    s = [rows_padded(p, tp), *p.shape[1:]]
    s[p.axis] //= tp
    return tuple(s)


def shard(p, full, tp, i):
    """Tensor-parallel slice i of tp of a whole tensor (contiguous)."""
    if p.axis is None or tp == 1 and not p.pad:
        return full.contiguous()
    if p.pad:
        n = rows_padded(p, tp) // tp
        piece = full[i * n:(i + 1) * n]
        return torch.cat([piece, piece.new_zeros(n - len(piece), *full.shape[1:])])
    blocks = full.reshape(p.parts, full.shape[0] // p.parts, *full.shape[1:])
    n = blocks.shape[p.axis + 1] // tp
    return blocks.narrow(p.axis + 1, i * n, n).reshape(local_shape(p, tp)).contiguous()


def merge(p, pieces):
    """Inverse of shard; drops the padding rows."""
    if p.axis is None:
        return pieces[0]
    blocks = [x.reshape(p.parts, x.shape[0] // p.parts, *x.shape[1:]) for x in pieces]
    return torch.cat(blocks, p.axis + 1).reshape(-1, *pieces[0].shape[1:] if p.axis == 0 else p.shape[1:])[:p.shape[0]]


def entries(cfg, topo, rank):
    """Every stored tensor of a rank but the step: [(file, stored name, kind, Param)]."""
    mine = held(cfg, topo, rank)
    return ([(MODEL, n, "weight", p) for n, p in mine] +
            [(OPTIM, f"optimizer.state.{k}.{n}", k, p) for k in KINDS for n, p in mine])


def write_job(path, cfg, topo, step, **more):
    os.makedirs(path, exist_ok=True)
    table = [{k: v for k, v in asdict(p).items()} for p in params(cfg)]
    with open(os.path.join(path, "job.json"), "w") as f:
        json.dump({"topology": asdict(topo), "config": asdict(cfg), "step": step, **more, "tensors": table}, f, indent=1)


def read_job(path):
    """-> (Config, Topology, the whole dict)."""
    with open(os.path.join(path, "job.json")) as f:
        job = json.load(f)
    return Config(**job["config"]), Topology(**job["topology"]), job


def data_part(samples, batch, dp, i):
    """Data-parallel rank i's rows: its share of every global batch, in order."""
    return samples.reshape(-1, dp, batch // dp, samples.shape[-1])[:, i].reshape(-1, samples.shape[-1])


def data_join(parts, batch):
    """Inverse of data_part over all dp ranks."""
    shaped = [p.reshape(-1, batch // len(parts), p.shape[-1]) for p in parts]
    return np.concatenate(shaped, 1).reshape(-1, parts[0].shape[-1])


def write_samples(path, rows):
    """rows (n, seq+1) i32 -> tokens.bin and tokens.idx, one sequence and one document per row."""
    os.makedirs(path, exist_ok=True)
    n, width = rows.shape
    rows.astype("<i4").tofile(os.path.join(path, "tokens.bin"))
    with open(os.path.join(path, "tokens.idx"), "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, n, n + 1))
        f.write(np.full(n, width, "<i4").tobytes() + (np.arange(n, dtype="<i8") * width * 4).tobytes())
        f.write(np.arange(n + 1, dtype="<i8").tobytes())


def read_samples(path):
    with open(os.path.join(path, "tokens.idx"), "rb") as f:
        assert f.read(9) == b"MMIDIDX\0\0", path
        _, code, n, _ = struct.unpack("<QBQQ", f.read(25))
        assert code == 4
        width = int(np.frombuffer(f.read(4), "<i4")[0])
    return np.fromfile(os.path.join(path, "tokens.bin"), "<i4").reshape(n, width)
