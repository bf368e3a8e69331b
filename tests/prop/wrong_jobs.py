# SPDX-License-Identifier: Apache-2.0
"""
MOUNT SEED WRONG HONEST: random models, layouts and topologies.  In each of WRONG jobs one thing is wrong (a name, a variable, a
cut, a rank that holds another's part or that of another step, heads, a vocabulary, a tensor that is quantized, a buffer that is
whole, numbers of blocks): none may be taken.  HONEST ones, cut here by numpy, must be taken, and whole again be what they were.
"""
import json
import pathlib
import random
import shutil
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from numpy_job import Refused, load, save, write  # noqa: E402

mount, seed, nr_wrong, nr_honest = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


# --- how frameworks cut, by tensor: (dimension, sections) or None ---

def part(a, cut, nr, at):
    if cut is None or nr == 1:
        return a
    dim, sections = cut
    borders = np.cumsum(sections)[:-1] * (a.shape[dim] // sum(sections))
    return np.concatenate([np.split(s, nr, axis=dim)[at] for s in np.split(a, borders, axis=dim)], axis=dim)


def chunk(a, nr, at):
    """As torch.chunk: the last ones are shorter, or empty."""
    size = -(-a.shape[0] // nr)
    return a[min(at * size, a.shape[0]):min(at * size + size, a.shape[0])]


class Model:
    """A model: whole tensors, how each is cut by tp, which layer it is of."""

    def __init__(self, r):
        self.r, self.whole, self.cuts, self.config, self.variables = r, {}, {}, None, ""
        self.tp, self.dp, self.pp, self.shard = r.choice([1, 2, 4]), r.choice([1, 2, 3]), 1, None
        self.layers = r.choice([1, 2, 3])
        self.dtype = r.choice(["f4", "f2"])
        self.numbers = np.random.default_rng(r.randrange(1 << 30))

    def add(self, name, shape, cut=None):
        self.whole[name] = self.numbers.standard_normal(shape).astype(self.dtype)
        self.cuts[name] = cut

    def llama(self):
        r, head, lora = self.r, self.r.choice([8, 16]), self.r.random() < .3
        fp8 = not lora and r.random() < .3
        kv, group = r.choice([4, 8]), r.choice([1, 2])
        q, hidden, inner = kv * group * head, r.choice([32, 64, 96]), r.choice([48, 128])
        self.add("model.embed_tokens.weight", [160, hidden], (0, [1]))
        for i in range(self.layers):
            p = f"model.layers.{i}."
            for n, rows in ("q", q), ("k", kv * head), ("v", kv * head):
                self.add(f"{p}self_attn.{n}_proj.weight", [rows, hidden], (0, [1]))
            self.add(p + "self_attn.o_proj.weight", [hidden, q], (1, [1]))
            for n in "gate", "up":
                self.add(f"{p}mlp.{n}_proj.weight", [inner, hidden], (0, [1]))
            self.add(p + "mlp.down_proj.weight", [hidden, inner], (1, [1]))
            if lora:
                self.add(p + "self_attn.q_proj.lora_A.weight", [8, hidden])
                self.add(p + "self_attn.q_proj.lora_B.weight", [q, 8], (0, [1]))
                self.add(p + "mlp.down_proj.lora_A.weight", [8, inner], (1, [1]))
                self.add(p + "mlp.down_proj.lora_B.weight", [hidden, 8])
            for n in "input_layernorm", "post_attention_layernorm":
                self.add(f"{p}{n}.weight", [hidden])
        for name in [n for n in self.whole if fp8 and "_proj." in n]:  # scales of blocks of 4 by 4
            self.add(name + "_scale_inv", [-(-n // 4) for n in self.whole[name].shape], self.cuts[name])
        self.add("model.norm.weight", [hidden])
        self.add("lm_head.weight", [160, hidden], (0, [1]))
        self.config = {"model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": self.layers,
                       "num_attention_heads": kv * group, "num_key_value_heads": kv, "head_dim": head, "vocab_size": 160}
        self.preset = "hf-llama"

    def gpt2(self):
        e = self.r.choice([24, 48])
        self.add("transformer.wte.weight", [57, e])
        for i in range(self.layers):
            p = f"transformer.h.{i}."
            for n, shape, cut in (("attn.c_attn.weight", [e, 3 * e], (1, [1, 1, 1])), ("attn.c_attn.bias", [3 * e], (0, [1, 1, 1])),
                                  ("attn.c_proj.weight", [e, e], (0, [1])), ("attn.c_proj.bias", [e], None),
                                  ("mlp.c_fc.weight", [e, 4 * e], (1, [1])), ("mlp.c_fc.bias", [4 * e], (0, [1])),
                                  ("mlp.c_proj.weight", [4 * e, e], (0, [1])), ("ln_1.weight", [e], None)):
                self.add(p + n, shape, cut)
        self.add("transformer.ln_f.weight", [e])
        self.preset = "hf-gpt2"

    def megatron(self):
        e, f = 32, 48
        self.add("embedding.word_embeddings.weight", [1024, e], (0, [1]))
        for i in range(self.layers):
            p = f"decoder.layers.{i}."
            for n, shape, cut in (("self_attention.linear_qkv.weight", [3 * e, e], (0, [1])), ("self_attention.linear_proj.weight", [e, e], (1, [1])),
                                  ("mlp.linear_fc1.weight", [2 * f, e], (0, [1, 1])), ("mlp.linear_fc2.weight", [e, f], (1, [1])),
                                  ("input_layernorm.weight", [e], None)):
                self.add(p + n, shape, cut)
        self.add("decoder.final_layernorm.weight", [e])
        self.preset, self.variables = "megatron-gpt", " vocab=1024 glu=1:1"

    def fsdp(self):
        """Any model by FSDP2: parameters in uneven parts, buffers whole."""
        self.tp, self.shard = 1, "dp"
        self.dp = self.r.choice([2, 3, 4])
        for i in range(self.layers + 1):
            rows = self.r.choice([5, 8, 12, 30])
            self.add(f"net.{i}.weight", [rows, 6], (0, [1]))
            self.add(f"net.{i}.bias", [rows], (0, [1]))
        if self.r.random() < .5:
            self.whole["net.0.bias"][:] = 0  # as it begins
        if self.r.random() < .5:
            self.whole |= {"bn.running_mean": np.zeros(8, "f4"), "bn.num_batches_tracked": np.array(7)}
        self.preset = "fsdp2"

    def stated(self):
        """With moments of an optimizer."""
        for k in "exp_avg", "exp_avg_sq":
            for n in [n for n in self.cuts if self.cuts[n] is not None or self.shard]:
                if not n.startswith("optimizer.") and not n.endswith("_scale_inv"):
                    self.add(f"optimizer.state.{k}.{n}", self.whole[n].shape, self.cuts[n])
                    if self.r.random() < .1:
                        self.whole[f"optimizer.state.{k}.{n}"][:] = 0

    def quantized(self):
        """With moments of 8 bits, of those parameters of which each rank has whole blocks, in blocks of one size."""
        size, nr = self.r.choice([4, 8, 16]), self.dp if self.shard else self.tp
        for n, cut in list(self.cuts.items()):
            a = self.whole[n]
            if cut == (0, [1]) and a.shape[0] % nr == 0 and a.size // nr % size == 0 and a.size // nr > size and not n.endswith("_scale_inv"):
                k = "optimizer.state.{}." + n if self.preset == "megatron-gpt" else f"state.{n}.{{}}"
                self.whole |= {k.format("state1"): self.numbers.integers(0, 255, a.shape, "u1"), k.format("qmap1"): np.linspace(-1, 1, 256, dtype="f4"),
                               k.format("absmax1"): self.numbers.standard_normal(a.size // size).astype("f4")}
                self.cuts |= {k.format("state1"): cut, k.format("absmax1"): cut}

    @property
    def layout(self):
        return f"use {self.preset}{self.variables}"

    @property
    def topology(self):
        return f"tp={self.tp} dp={self.dp}"

    def ranks(self):
        out = []
        for rank in range(self.tp * self.dp):
            t, d = rank % self.tp, rank // self.tp
            mine = {}
            for n, a in self.whole.items():
                cut = self.cuts.get(n)
                mine[n] = chunk(a, self.dp, d) if self.shard and cut else part(a, cut, self.tp, t)
            out.append(mine)
        return out


def make(r):
    m = Model(r)
    r.choice([m.llama, m.llama, m.gpt2, m.megatron, m.fsdp, m.fsdp])()
    r.choice([m.stated, m.stated, m.quantized, lambda: None, lambda: None])()
    return m


# --- one thing is wrong: each changes the model's job, or says that it can't be so with this one ---

def typo(m, ranks):
    old = m.r.choice(list(m.cuts))
    words = old.split(".")
    at = m.r.choice([i for i, w in enumerate(words) if not w.isdigit() and len(w) > 3 and w not in ("optimizer", "state", "exp_avg", "exp_avg_sq")] or [0])
    words[at] = words[at][:1] + words[at][2:] if len(words[at]) > 3 else words[at] + "x"
    new = ".".join(words)
    if m.preset == "fsdp2" and words[-1] in ("weight", "bias"):
        return None                          # any parameter may have this name
    for mine in ranks:
        mine[new] = mine.pop(old)
    return f"{old} is called {new}"


def variable(m, ranks):
    if not m.variables:
        return None
    old = m.variables.split()[-1]
    m.variables = m.variables.replace(" glu=", m.r.choice([" gul=", " gl=", " glu_=", " GLU="]))
    return f"{old} is misspelled"


def axis(m, ranks):
    m.bad_topology = m.r.choice(["pt=2", "tp=2 ddp=2", "fsdp=2", f"tp={m.tp} dp={m.dp} tp={m.tp}"])
    return f"the topology is {m.bad_topology}"


def swapped(m, ranks):
    """A tensor is cut along another dimension than the layout says, in each layer, and so is its state; there may be no config.json."""
    if m.tp == 1 or m.shard:
        return None
    names = [n for n, c in m.cuts.items() if c and m.whole[n].ndim == 2 and m.whole[n].shape[1 - c[0]] % m.tp == 0 and "lora" not in n]
    words = lambda n: n.split(".")
    layer = lambda n: ".".join("N" if w.isdigit() else w for w in words(n))
    what = m.r.choice(sorted({layer(n) for n in names if not n.startswith("optimizer.")}))
    m.config = m.config if m.r.random() < .3 else None
    for n in [n for n in names if layer(n).endswith(what)]:
        dim = 1 - m.cuts[n][0]
        for rank, mine in enumerate(ranks):
            mine[n] = part(m.whole[n], (dim, [1]), m.tp, rank % m.tp)
    return f"{what} is cut along dimension {dim}"


def whole_tensor(m, ranks):
    """A tensor that the layout cuts is whole on each rank."""
    if m.tp * (m.dp if m.shard else 1) == 1:
        return None
    name = m.r.choice([n for n, c in m.cuts.items() if c and len(np.unique(m.whole[n])) > 8])
    for mine in ranks:
        mine[name] = m.whole[name]
    return f"{name} is whole on each rank"


def replica(m, ranks):
    """The topology says more parts than there are: as HSDP has them, or as neighbours share them; or a file is another's."""
    nr = m.dp if m.shard else m.tp
    if nr == 1:
        return None
    how = m.r.choice(["ring", "pairs", "copy"] if nr == 4 else ["copy"])
    a, b = m.r.sample(range(nr), 2)
    as_was = [dict(mine) for mine in ranks]
    for rank, mine in enumerate(ranks):
        at = rank // m.tp if m.shard else rank % m.tp
        like = {"ring": at % 2, "pairs": at - at % 2, "copy": a if at == b else at}[how]
        other = like * m.tp if m.shard else rank - at + like
        for n in m.cuts:
            if m.cuts[n] and as_was[other][n].shape == mine[n].shape:
                mine[n] = as_was[other][n]
    if all(np.array_equal(x[n], y[n]) for x, y in zip(ranks, as_was) for n in x):
        return None
    return f"{how} {a} {b}"


def quantized(m, ranks):
    if len(ranks) == 1:
        return None                          # a factor of all columns is right there
    name = m.r.choice([n for n, c in m.cuts.items() if c and n.endswith(".weight") and not n.startswith("optimizer.")])
    stem = name.removesuffix("weight")
    rows, columns = (m.whole[name].shape + (1,))[:2]
    known = [] if m.preset == "hf-llama" and m.tp == 1 else [  # where nothing is cut it is right to have them
        {stem + "weight_scale_inv": np.ones((5, 5), "f4")},  # of blocks that no size here has
        {stem + "qweight": m.numbers.integers(0, 99, (rows, columns)).astype("i4"), stem + "g_idx": np.arange(columns, dtype="i4")}]
    if known and m.cuts[name][0] == 0:
        known.append({stem + "weight_scale": np.ones(rows, "f4")})
    more = m.r.choice(known + [
        {name + ".absmax": np.ones(rows, "f4"), name + ".quant_map": np.linspace(-1, 1, 16, dtype="f4")},
        {stem + "lora_A.default": np.ones((4, columns), "f4")},
        {f"state.{name}.exp_avg_sq_col": np.arange(columns, dtype="f4"), f"state.{name}.exp_avg_sq_row": np.arange(rows, dtype="f4")},
        {f"optimizer.state.exp_avg_sq_col.{name}": np.arange(columns * m.tp * m.dp, dtype="f4")},
    ])
    for mine in ranks:
        mine |= more
    return "there is " + ", ".join(more)


def blocks(m, ranks):
    """Scales of blocks of another size, or more of them than the weight has; or the ranks of a block that is cut have one each."""
    names = [n for n in m.whole if n.endswith("weight_scale_inv") and not n.startswith("optimizer.")]
    if not names:
        return None
    name = m.r.choice(names)
    (a, b), cut = m.whole[name].shape, m.cuts[name]
    shape = m.r.choice([[2 * a, 2 * b], [a, 3 * b], [a, 2 * b] if cut[0] == 0 else [2 * a, b], [m.tp, 1] if cut[0] == 0 else [1, m.tp]])
    for rank, mine in enumerate(ranks):
        mine[name] = part(m.numbers.standard_normal(shape).astype(m.dtype), cut, m.tp, rank % m.tp)
    return f"{name} is {shape}, not {[a, b]}"


def numbers(m, ranks):
    """Numbers of blocks, or what they are of, are not there, or they are too many, or of blocks of another size."""
    if not any("state1" in n for n in m.whole):
        m.quantized()
        ranks[:] = m.ranks()
    names = [n for n in m.whole if "absmax1" in n]
    if len(names) < 2:
        return None                          # alone any size of blocks may be right
    name, how = m.r.choice(names), m.r.choice(["lacks", "alone", "longer", "twice", "flat"])
    state = name.replace("absmax1", "state1")
    for mine in ranks:
        if how in ("lacks", "alone"):
            del mine[name if how == "lacks" else state]
        elif how == "flat":
            mine[state] = mine[state].reshape(-1, 1)
        else:
            mine[name] = np.concatenate([mine[name], mine[name][:1 if how == "longer" else None] + 1])
    return f"{name} {how}"


def buffer(m, ranks):
    if not m.shard:
        return None
    name, value = m.r.choice([("layer_scalar", np.array([.3], "f4")), ("std_scale", np.arange(64, dtype="f4")), ("router.expert_bias", np.zeros(16, "f4"))])
    for mine in ranks:
        mine[name] = value
    return f"a buffer {name}"


def lacking(m, ranks):
    """One rank's file has a tensor less."""
    if len(ranks) == 1:
        return None
    del ranks[-1][m.r.choice([n for n, c in m.cuts.items() if c])]
    return "the last rank lacks a tensor"


def stale(m, ranks):
    """All of a part's replicas lack the second step."""
    nr = m.dp if m.shard else m.tp
    if nr == 1:
        return None
    lazy = m.r.randrange(nr)
    m.late = [r for r in range(len(ranks)) if (r // m.tp if m.shard else r % m.tp) != lazy]
    return f"part {lazy} of {nr} is of the step before"


def heads(m, ranks):
    """The layout shares fewer key heads than the model has, or more."""
    if not m.config or m.tp == 1:
        return None
    m.variables = f" kv={m.r.choice([k for k in (1, 2) if k < m.tp])}"
    return f"heads{m.variables}"


def vocabulary(m, ranks):
    """Fewer words than there are would leave the rest as padding: a wrong number by which the padded size stays says so."""
    if m.preset == "megatron-gpt":
        words = m.r.choice([700, 500, 1100, 1025])
        m.variables = m.variables.replace("vocab=1024", f"vocab={words}")
        return f"vocab={words}" if -(-words // (128 * m.tp)) * m.tp * 128 != 1024 else None
    if m.config:
        m.config["vocab_size"] = m.r.choice([161, 320, 4000])
        return f"vocab_size is {m.config['vocab_size']}"
    return None


WRONG = [typo, variable, axis, swapped, whole_tensor, replica, quantized, blocks, numbers, buffer, lacking, stale, heads, vocabulary]


def commit(name, m, ranks):
    job = mount / name
    job.mkdir()
    write(job, "layout", m.layout)
    write(job, "topology", getattr(m, "bad_topology", m.topology))
    for rank, mine in enumerate(ranks):
        (job / str(rank)).mkdir(exist_ok=True)
        save(job / str(rank) / "model.safetensors", mine)
    if m.config:
        (job / "config.json").write_text(json.dumps(m.config))
    write(job, "config", "remove=yes")
    write(job, "commit", "step=1")
    if hasattr(m, "late"):
        for rank in m.late:
            save(job / str(rank) / "model.safetensors", {n: a + 1 for n, a in ranks[rank].items()})
        write(job, "commit", "step=2")
    return job


kinds = dict.fromkeys((w.__name__ for w in WRONG), 0)
nr = tries = 0
while nr < nr_wrong:
    tries += 1
    r = random.Random(f"{seed} wrong {tries}")
    m = make(r)
    ranks, kind = m.ranks(), WRONG[tries % len(WRONG)]
    said = kind(m, ranks)
    if not said:
        continue
    nr += 1
    kinds[kind.__name__] += 1
    try:
        commit(f"wrong{nr}", m, ranks)
    except Refused as why:
        assert len(str(why)) > 40, why
    else:
        sys.exit(f"wrong {tries} was taken: {m.layout}, {m.topology}: {said}")
    shutil.rmtree(mount / f"wrong{nr}", ignore_errors=True)
for nr in range(nr_honest):
    m = make(random.Random(f"{seed} honest {nr}"))
    try:
        job = commit(f"honest{nr}", m, m.ranks())
        found = load(job / ".full/model.safetensors")
    except Refused as why:
        sys.exit(f"honest {nr} was refused: {m.layout}, {m.topology}: {why}")
    assert found.keys() == m.whole.keys(), (nr, found.keys() ^ m.whole.keys())
    for n, a in m.whole.items():
        assert found[n].shape == a.shape and found[n].tobytes() == a.tobytes(), (nr, m.layout, m.topology, n)
    job.rmdir()
print(f"figure: {sum(kinds.values())} wrong jobs refused ({', '.join(f'{k} {v}' for k, v in kinds.items())}), {nr_honest} honest ones taken")
