# SPDX-License-Identifier: Apache-2.0
"""
MOUNT [OTHER]: small jobs of many kinds, each made here by numpy at each of some topologies: what every rank has at each other one, by
`.as` and after a reshard, has to be what is made here for it, bit for bit; and jobs in which one thing is wrong, which have to be refused.
OTHER: the mount of another node of the cluster, where every second rank saves, and all is read.
"""
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from numpy_job import Refused, load, save, write  # noqa: E402

mount, other = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[-1])
rng = np.random.default_rng(40)
FILE = "model.safetensors"
jobs = honest = refusals = 0


def files(mine):
    return mine if all(isinstance(v, dict) for v in mine.values()) else {FILE: mine}


def commit(layout, topology, ranks, config=None):
    global jobs
    jobs += 1
    job = mount / f"small{jobs}"
    job.mkdir()
    write(job, "layout", layout)
    write(job, "topology", topology)
    for at, mine in enumerate(ranks):
        rank = (other if at % 2 else mount) / job.name / str(at)
        rank.mkdir(exist_ok=True)
        for name, tensors in files(mine).items():
            save(rank / name, tensors)
    if config:
        (job / "config.json").write_text(json.dumps(config))
    write(job, "commit", "step=1")
    return job


def same(found, want, what):
    assert found.keys() == want.keys(), (what, found.keys() ^ want.keys())
    for k, a in want.items():
        assert found[k].shape == a.shape and found[k].tobytes() == np.ascontiguousarray(a).tobytes(), (what, k, found[k].shape, a.shape)


def shows(job, folder, ranks, what):
    folder = other / folder.relative_to(mount)
    for at, mine in enumerate(ranks):
        for name, tensors in files(mine).items():
            same(load(folder / str(at) / name), tensors, f"{job.name}, {what}, rank {at}, {name}")


def held(layout, made, topologies, whole=None, starts=None, config=None):
    """made(degrees): what each rank has; of starts, a topology each, the job is made."""
    global honest
    for start in starts or topologies:
        job = commit(layout, start, made(degrees(start)), config)
        honest += 1
        for t in topologies:
            shows(job, job / ".as" / t.replace(" ", ","), made(degrees(t)), f"from {start} .as {t}")
        if whole is not None:
            same(load(job / ".full" / FILE), whole, f"{layout}: whole, from {start}")
        for t in (topologies[-1], topologies[0], start):
            write(job, "topology", t)
            shows(job, job, made(degrees(t)), f"from {start} at {t}")


def wrong(why, layout, topology, ranks, config=None, then=None):
    global refusals
    try:
        job = commit(layout, topology, ranks, config)
        if then:
            write(job, "topology", then)
    except Refused as said:
        assert why in str(said), (why, str(said))
        refusals += 1
    else:
        raise AssertionError(f"{layout}, {topology}, {then} was taken: {why}")


def degrees(topology):
    words = dict(w.split("=") for w in topology.split())
    return {k: int(v) if v.isdigit() else v for k, v in words.items()}


def coordinates(d, *axes):
    for rank in range(int(np.prod([d.get(a, 1) for a in axes]))):
        c = {}
        for a in axes:
            c[a], rank = rank % d.get(a, 1), rank // d.get(a, 1)
        yield c


def cut(a, nr, at, dim=0, sections=(1,)):
    borders = np.cumsum(sections)[:-1] * (a.shape[dim] // sum(sections))
    return np.concatenate([np.split(s, nr, axis=dim)[at] for s in np.split(a, borders, axis=dim)], axis=dim)


def chunk(a, nr, at):
    """As torch.chunk."""
    size = -(-a.shape[0] // nr)
    return a[min(at * size, a.shape[0]):min(at * size + size, a.shape[0])]


def some(*shape, kind="f4"):
    return rng.standard_normal(shape).astype(kind) if kind[0] == "f" else rng.integers(1, 120, shape).astype(kind)


def shared_heads():
    q, k, v = some(32, 16), some(8, 16), some(8, 16)

    def made(d):
        tp = d.get("tp", 1)
        part = lambda x, c: np.split(x, min(tp, 2))[c["tp"] * min(tp, 2) // tp]
        return [{"qkv": np.concatenate([cut(q, tp, c["tp"]), part(k, c), part(v, c)]), "b": q[0]} for c in coordinates(d, "tp", "cp", "dp")]
    held("mesh tp cp dp pp\nqkv tp=0 sections=8:2:2 upto=-:2:2\nb copy", made, ["tp=1", "tp=2 dp=2", "tp=8"], {"qkv": np.concatenate([q, k, v]), "b": q[0]})


def uneven_stages():
    w, emb = [some(8, 3) for _ in range(11)], some(8, 3)

    def made(d):
        pp, vp = d.get("pp", 1), d.get("vp", 1)
        counts = [11]
        if "stages" in d:
            counts = [int(n) for part in str(d["stages"]).split("+") for n in [part.split("x")[0]] * int((part.split("x") + ["1"])[1])]
        starts = np.cumsum([0] + counts)
        out = []
        for c in coordinates(d, "tp", "dp", "pp"):
            mine = {}
            for v in range(vp):
                at, t = v * pp + c["pp"], {}
                for j in range(counts[at]):
                    layer = starts[at] + j
                    t |= {f"layers.{j}.w.a": cut(w[layer], d.get("tp", 1), c["tp"]), f"layers.{j}.s": np.array(layer, "f4")}
                if at in (0, pp * vp - 1):
                    t |= {n: cut(emb, d.get("tp", 1), c["tp"]) for n in (["emb"] if at == 0 else []) + (["head"] if at == pp * vp - 1 else [])}
                mine |= {f"model{v if vp > 1 else ''}.safetensors": t} if t else {}
            out.append(mine)
        return out
    held("mesh tp dp pp\nfile {F}{V}.safetensors\nemb stage=first tp=0\nlayers.{L}.w.a tp=0\nlayers.{L}.s copy\nhead stage=last tp=0", made,
         ["tp=2", "tp=2 pp=2 vp=2 stages=2+5+0+4", "dp=2 pp=3 stages=4+3+4", "pp=3 vp=2 stages=1+2x5"])


def fsdp():
    """Uneven and empty parts, types, scalars, buffers, HSDP, context parallelism."""
    params = {"net.w.weight": some(5, 4), "net.b.bias": some(7), "e.weight": some(2, 3), "h.weight": some(3, kind="f2"), "z.weight": np.zeros((0, 4), "f4"), "i.weight": some(9, 2, kind="u2")}
    whole = {"bn.running_mean": some(8), "bn.num_batches_tracked": np.array(7), "step": np.array(3, "f4"), "optimizer.step": np.array(5)}
    whole |= {f"state.{n}.step": np.array(9, "f4") for n in params}
    params |= {f"optimizer.state.exp_avg.{n}": a + 1 for n, a in params.items()} | {f"state.{n}.exp_avg_sq": a + 2 for n, a in params.items()}

    def made(d):
        shards = d.get("dp_shard", d.get("dp", 1))
        return [{n: chunk(a, d.get("cp", 1) * shards, c["dp"] % shards * d.get("cp", 1) + c["cp"]) for n, a in params.items()} | whole for c in coordinates(d, "tp", "cp", "dp")]
    held("use fsdp2", made, ["dp=1", "dp=3", "cp=2 dp=4 dp_shard=2", "dp=8"], params | whole)


def padded_members():
    """Rows of padding of a vocabulary of 10 words, by 8 for each rank, in a bucket of an optimizer and in a stack of layers."""
    tables, ln = [some(64, 4) for _ in range(4)], some(4)

    def table(a, tp, known):
        rows = -(-10 // (8 * tp)) * 8 * tp
        a = a[:min(rows, 10 + known)]
        return np.concatenate([a, np.repeat(a[-1:], rows - len(a), 0)])

    for start in "tp=1", "tp=2 dp=2", "tp=4 dp=2":
        known = -(-10 // (8 * degrees(start)["tp"])) * 8 * degrees(start)["tp"] - 10

        def bucket(d):
            dp, tp, out = d.get("dp", 1), d.get("tp", 1), []
            for c in coordinates(d, "tp", "dp"):
                mine = cut(table(tables[0], tp, known), tp, c["tp"])
                flat = np.concatenate([ln, mine.reshape(-1)])
                flat = np.concatenate([flat, np.zeros(-len(flat) % (2 * dp), "f4")])
                out.append({FILE: {"emb": mine, "ln": ln}, "opt.safetensors": {"m": np.split(flat, dp)[c["dp"]]}})
            return out
        held(f"mesh tp dp\nfile {FILE}\nemb tp=0 pad=8 size=10\nln copy\nfile opt.safetensors\nm join=m.ln,m.emb order=listed dp=0 pad=2\nm.{{P}} like={{P}}",
             bucket, ["tp=1 dp=2", "tp=2 dp=3", "tp=1", "tp=4", "tp=8"], starts=[start])

        def stack(d):
            tp, pp = d.get("tp", 1), d.get("pp", 1)
            return [{"layers.w": np.stack([cut(table(a, tp, known), tp, c["tp"]) for a in tables[c["pp"] * 4 // pp:(c["pp"] + 1) * 4 // pp]])} for c in coordinates(d, "tp", "dp", "pp")]
        held("mesh tp dp pp\nlayers.w stack={G} name=layers.{G}.w tp=0 pad=8 size=10", stack, ["tp=2 pp=2", "tp=1", "pp=4", "tp=4 pp=2", "tp=8"],
             stack({})[0], starts=[start.replace("dp", "pp")])


def experts():
    fc1, fc2, router = some(8, 12, 4), some(8, 4, 6), some(8, 4)

    def made(d):
        tp, pp, ep = (d.get(k, 1) for k in ("tp", "pp", "ep"))
        etp, out = d.get("etp", tp), []
        for rank in range(tp * d.get("dp", 1) * pp):
            stage, rest = divmod(rank, tp * d.get("dp", 1))
            mine = {}
            for layer in range(2 // pp):
                more = stage * (2 // pp) + layer
                p = f"decoder.layers.{layer}.mlp."
                mine |= {p + "router.weight": router + more, p + "router.expert_bias": router[:, 0] + more}
                for x in range(8 // ep):
                    a, b = (w[rest // etp % ep * (8 // ep) + x] + more for w in (fc1, fc2))
                    for name in p + f"experts.local_experts.{x}.linear_fc1.weight", p + f"experts.linear_fc1.weight{x}":
                        mine |= {name: cut(a, etp, rest % etp, 0, (1, 1)), name.replace("fc1", "fc2"): cut(b, etp, rest % etp, 1)}
            out.append(mine)
        return out
    held("use megatron-gpt vocab=256 glu=1:1", made, ["tp=1", "tp=2 dp=2 ep=2 etp=1", "dp=4 ep=4", "tp=2 dp=2 pp=2 ep=2"])


def of_each_rank():
    """States of generators, numbers, types, names that end in numbers, empty tensors; flat parts over tensor parallelism."""
    rng_states, a, b = [some(16, kind="u1") for _ in range(4)], some(8, 2), some(3, 8, kind="u2")
    held("mesh tp dp\nrng each=dp wrap\na.b.*.c tp=0\nbf tp=-1\n* copy", lambda d: [
        {"rng": rng_states[c["dp"]], "step": np.array(1.5, "f8"), "empty": np.zeros((0, 3), "f2"), "c": np.array([1 + 2j], "c8"), "flag": np.array([True, False]),
         "a.b.0.c": cut(a, d.get("tp", 1), c["tp"]), "a.b.00.c": cut(a + 1, d.get("tp", 1), c["tp"]), "bf": cut(b, d.get("tp", 1), c["tp"], 1)} for c in coordinates(d, "tp", "dp")],
        ["dp=4", "tp=8 dp=4"])
    w = some(6, 5)

    def flat(d):
        tp, dp, out = d.get("tp", 1), d.get("dp", 1), []
        for c in coordinates(d, "tp", "dp"):
            mine = cut(w, tp, c["tp"])
            all_of_it = np.concatenate([mine.reshape(-1), np.zeros(-mine.size % (4 * dp), "f4")])
            out.append({"m.safetensors": {"w": mine}, "o.safetensors": {"s.w": np.split(all_of_it, dp)[c["dp"]]}})
        return out
    held("mesh tp dp\nm.safetensors:w tp=0\nfile o.safetensors\ns.{P} like={P} flat dp=0 pad=4", flat, ["tp=1", "tp=2 dp=3", "tp=3 dp=2", "dp=5"])


def gates():
    """The first map of an MLP has twice the columns of the second one, or as many; the layout has to know it."""
    names = ["decoder.layers.0.mlp.linear_fc", "decoder.layers.0.mlp.experts.local_experts.0.linear_fc", "decoder.layers.0.mlp.shared_experts.linear_fc"]
    for tp in 1, 2:
        for name in names:
            mlp = lambda rows: [{f"{name}1.weight": some(rows // tp, 32), f"{name}2.weight": some(32, 64 // tp)} for _ in range(tp)]
            commit("use megatron-gpt vocab=256 glu=1:1", f"tp={tp}", mlp(128))
            commit("use megatron-gpt vocab=256", f"tp={tp}", mlp(64))
            wrong("write glu=1:1 behind the preset", "use megatron-gpt vocab=256", f"tp={tp}", mlp(128))
            wrong("leave glu=1:1 (sections=1:1) away", "use megatron-gpt vocab=256 glu=1:1", f"tp={tp}", mlp(64))
    mine = {"layers.0.gate_up_proj.weight": some(24, 16), "layers.0.down_proj.weight": some(16, 12)}
    own = "mesh tp dp\nlayers.{G}.gate_up_proj.weight tp=0%s\nlayers.{G}.down_proj.weight tp=1"
    commit(own % " sections=1:1", "tp=1", [mine])
    commit("use fsdp2", "dp=2", [{n: chunk(a, 2, at) for n, a in mine.items()} for at in range(2)])
    wrong("sections=1:1 behind the cut", own % "", "tp=1", [mine])


def heads():
    """A topology that does not divide a layer's heads, where several matrices are in one tensor, or heads are latent."""
    def model(name, whole, rows, columns, config, layout, tps, dim=0):
        job = commit(layout, "tp=1", [{name: some(*((rows, columns) if dim == 0 else (columns, rows))), **whole}], config)
        for tp, taken in tps:
            try:
                write(job, "topology", f"tp={tp}")
                said = ""
            except Refused as why:
                said = str(why)
            assert ("heads by config.json" in said) != taken, (name, tp, said)
    attention = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 4, "hidden_size": 16}
    model("model.layers.0.self_attn.qkv_proj.weight", {}, 48, 16, attention | {"model_type": "phi3"}, "use hf-phi3 qkv=4:1:1", ((2, True), (4, False)))
    model("model.layers.0.self_attn.kv_b_proj.weight", {}, 48, 8, attention | {"model_type": "deepseek_v3", "kv_lora_rank": 8, "num_attention_heads": 6}, "use hf-moe", ((2, True), (4, False), (3, True)))
    model("transformer.h.0.attn.c_attn.weight", {"transformer.h.0.attn.c_attn.bias": some(72)}, 72, 24, {"model_type": "gpt2", "n_head": 6, "n_embd": 24}, "use hf-gpt2", ((2, True), (4, False), (6, True)), 1)
    model("gpt_neox.layers.0.attention.query_key_value.weight", {}, 72, 24, {"model_type": "gpt_neox", "num_attention_heads": 6, "hidden_size": 24}, "use hf-gpt-neox", ((3, True), (4, False)))
    model("bert.encoder.layer.0.attention.self.query.weight", {}, 24, 24, {"model_type": "bert", "num_attention_heads": 6, "hidden_size": 24}, "use hf-bert", ((3, True), (4, False)))


def refused():
    w, layout = some(8, 4), "mesh tp dp pp\nw tp=0\nb copy\n*.v tp=1"
    a, b = ({"w": x, "b": w[0]} for x in np.split(w, 2))
    wrong("rank 0 lacks 'model.safetensors:extra'", "mesh tp dp\nw tp=0\n* copy", "tp=2", [a, b | {"extra": w[1]}])
    wrong("rank 0 lacks", "mesh tp dp\nw tp=0\n* copy", "dp=2", [{"w": w, "b": w[0]}, {"w": w, "b": w[0], "x": w[1]}])
    wrong("the ranks hold only 1 of the 2 parts", layout, "tp=2", [a, b | {"q.v": some(4, 2)}])
    wrong("rank 1 must write", layout, "tp=2", [a, {}])
    wrong("rank 0 has F32 [4, 4], but rank 1 has F16", layout, "tp=2", [a, b | {"w": b["w"].astype("f2")}])
    wrong("rank 0 has F32 [4, 4], but rank 1 has I32", layout, "tp=2", [a, b | {"w": b["w"].view("i4")}])
    wrong("rank 0 has F32 [4], but rank 1 has F16", layout, "tp=2", [a, b | {"b": b["b"].astype("f2")}])
    wrong("dimension 1: rank 0 has 4 and rank 1 has 8", layout, "tp=2", [a, b | {"w": b["w"].reshape(2, 8)}])
    wrong("rank 1 has F32 [4, 4, 1]", layout, "tp=2", [a, b | {"w": b["w"].reshape(4, 4, 1)}])
    wrong("the tensor has 0 dimensions", layout, "tp=2", [{"w": np.array(1, "f4")}, {"w": np.array(2, "f4")}])
    wrong("7 does not divide by tp=2", layout, "tp=2", [a | {"w": w[:3]}, b])
    wrong("but the rules make it", layout, "tp=2", [a, b | {"w": w[:0]}])
    wrong("but the rules make it", "mesh dp\nw dp=0 chunk", "dp=2", [{"w": w[:2]}, {"w": w[2:5]}])
    wrong("no rule matches", "use fsdp2", "dp=2", [{"n.weight": some(2, 2), "rng_state": some(64, kind="u1")} for _ in range(2)])
    expert = "model.layers.0.mlp.experts.{}.up_proj.weight"
    for mine in ((0, 1), (2,)), ((0, 1), (1, 2)), ((0, 1), (0, 1)), (range(4), range(4)):
        wrong("'model.safetensors:model.layers.0.mlp.experts.", "use hf-moe", "dp=2 ep=2", [{expert.format(i): some(8, 4) for i in of} for of in mine])


FORMS = {  # of an 8-bit optimizer's state: bitsandbytes' own names, those of its state_dict() since 0.49, an older Scalai's; torchao's
    "bnb": ("state.{P}.{K}", ("state1", "absmax1", "qmap1")), "wrapped": ("state.{P}.__bnb_optimizer_quant_state__.{K}", ("state2", "absmax2", "qmap2")),
    "named": ("optimizer.state.{K}.{P}", ("state1", "absmax1", "qmap1")), "torchao": ("state.{P}.exp_avg_sq.{K}", ("codes", "scale", "qmap"))}
QMAP = np.linspace(-1, 1, 256, dtype="f4")


def quantized(params, form, size):
    """What such an optimizer has of parameters: bytes, a number for each block of `size` elements one behind the other, a map."""
    name, keys = FORMS[form]
    out = {}
    for n, a in params.items():
        kinds = (some(*a.shape, kind="u1"), some(-(-a.size // size)), QMAP) if a.size >= 1024 else (some(*a.shape),)
        out |= {name.format(P=n, K=k): v for k, v in zip(keys, kinds)}
        out |= {f"state.{n}.step": np.array(7, "f4")} if form != "named" else {}
    return out


def run_of(states, form, size, parameter, rows):
    """The part of a rank: these rows of a parameter, and what belongs to them."""
    name, keys = FORMS[form]
    state, absmax, qmap = (name.format(P=parameter, K=k) for k in keys)
    a = states[state]
    lo, hi, _ = rows.indices(a.shape[0])
    mine, row = {state: a[lo:hi]}, a[0].size
    if absmax in states:
        assert lo * row % size == 0 or lo == hi, "the test's own rows are whole blocks"
        mine |= {absmax: states[absmax][lo * row // size:-(-hi * row // size)] if lo < hi else states[absmax][:0], qmap: QMAP}
    step = f"state.{parameter}.step"
    return mine | ({step: states[step]} if step in states else {})


def eight_bits():
    """8-bit optimizers: bytes that are cut as the parameter, and numbers of blocks of the flattened parameter that go with them."""
    shapes = {"net.a.weight": (48, 64), "net.b.weight": (10, 256), "net.c.weight": (5, 512), "net.d.bias": (40,), "net.e.weight": (9, 2, 2, 256), "net.f.bias": (3072,)}

    def chunks(a, nr, at):
        c = -(-a.shape[0] // nr)
        return slice(min(at * c, a.shape[0]), min(at * c + c, a.shape[0]))
    for form, size in ("bnb", 256), ("wrapped", 256), ("named", 256), ("torchao", 128):
        params = {n: some(*s) for n, s in shapes.items()}
        states = quantized(params, form, size)

        def fsdp(d):
            nr, out = d.get("dp", 1) * d.get("cp", 1), []
            for c in coordinates(d, "tp", "cp", "dp"):
                at = c["dp"] * d.get("cp", 1) + c["cp"]
                mine = {}
                for n, a in params.items():
                    mine |= run_of(states, form, size, n, chunks(a, nr, at))
                out.append({FILE: {n: a[chunks(a, nr, at)] for n, a in params.items()}, "optimizer.safetensors": mine})
            return out
        held("use fsdp2", fsdp, ["dp=1", "dp=2", "dp=3", "cp=2 dp=2"], params)
        wrong(f"block of {size} elements", "use fsdp2", "dp=2", fsdp({"dp": 2}), then="dp=5")
        # tensor parallelism by rows, a pipeline, and neighbours that share key heads
        llama = {"model.embed_tokens.weight": some(32, 64), "model.layers.0.self_attn.q_proj.weight": some(64, 64), "model.layers.1.self_attn.k_proj.weight": some(32, 64),
                 "model.layers.1.mlp.up_proj.weight": some(96, 64), "model.layers.0.input_layernorm.weight": some(64), "lm_head.weight": some(32, 64)}
        of = quantized(llama, form, size)

        def rows(d):
            out = []
            for c in coordinates(d, "tp", "dp", "pp"):
                mine, moments = {}, {}
                for n, a in llama.items():
                    stage = {"embed": 0, "rs.0.": 0, "rs.1.": 1}.get(next((k for k in ("embed", "rs.0.", "rs.1.") if k in n), ""), 1)
                    nr = d.get("tp", 1) if a.ndim == 2 else 1
                    nr, at = (min(nr, 2), c["tp"] * min(nr, 2) // nr) if "k_proj" in n else (nr, c["tp"] % nr)
                    part = slice(a.shape[0] // nr * at, a.shape[0] // nr * (at + 1))
                    if d.get("pp", 1) == 1 or stage == c["pp"]:
                        mine[n] = a[part]
                        moments |= run_of(of, form, size, n, part)
                out.append({FILE: mine, "optimizer.safetensors": moments})
            return out
        held("use hf-llama kv=2", rows, ["tp=1", "tp=2 dp=2", "tp=4 pp=2", "pp=2"])
        held_flat(form, size)
    refused_eight_bits()


def held_flat(form, size):
    """Parts of the flattened parameter, as ZeRO has them."""
    w, name = some(6, 512), "optimizer.state.{}.w"
    if form != "named":
        return
    state, absmax = some(w.size, kind="u1"), some(w.size // size)
    held(f"mesh tp dp\nfile {FILE}\nw copy\nfile o.safetensors\noptimizer.state.{{K}}.{{P}} like={{P}} blocks=absmax1:state1 whole=qmap1 flat dp=0 pad=1", lambda d: [
        {FILE: {"w": w}, "o.safetensors": {name.format("state1"): np.split(state, d["dp"])[c["dp"]], name.format("absmax1"): np.split(absmax, d["dp"])[c["dp"]], name.format("qmap1"): QMAP}}
        for c in coordinates(d, "tp", "dp")], ["dp=1", "dp=2", "dp=4", "dp=12"], starts=["dp=1", "dp=6"])


def refused_eight_bits():
    p, n = "model.layers.0.self_attn.{}_proj.weight", "state.{}.{}"
    q, o = p.format("q"), p.format("o")
    of = quantized({q: some(64, 64), o: some(64, 64)}, "bnb", 256)
    w = {q: some(64, 64), o: some(64, 64)}

    def job(change=lambda states: None, names=(q, o)):
        states = {k: v for k, v in of.items() if any(x in k for x in names)}
        change(states)
        return [{FILE: {x: w[x] for x in names}, "optimizer.safetensors": states}]
    absmax, state = n.format(q, "absmax1"), n.format(q, "state1")
    wrong("at 'tp=2' a rank's part is no run of whole blocks", "use hf-llama", "tp=1", job(), then="tp=2")
    wrong("at 'tp=32' a rank's part is no run", "use hf-llama", "tp=1", job(names=(q,)), then="tp=32")
    columns = [{FILE: {o: np.split(w[o], 2, 1)[at]}, "optimizer.safetensors": quantized({o: some(64, 32)}, "bnb", 256)} for at in range(2)]
    wrong("block of 256 elements of 'optimizer.safetensors:state.model.layers.0.self_attn.o_proj.weight.state1' [64, 64], one behind the other, but at 'tp=2'", "use hf-llama", "tp=2", columns)
    parts = [{FILE: {q: np.split(w[q], 2)[at]}, "optimizer.safetensors": quantized({q: some(32, 64)}, "bnb", 4096)} for at in range(2)]
    wrong("has one number on each rank", "use hf-llama", "tp=2", parts)
    wrong("so it is quantized by blocks, but", "use hf-llama", "tp=1", job(lambda s: s.pop(absmax)))
    wrong("tells how", "use hf-llama", "tp=1", job(lambda s: s.pop(state)))
    wrong("blocks of no size (a power of two)", "use hf-llama", "tp=1", job(lambda s: s.update({absmax: some(41)})))
    wrong("blocks of no size (a power of two)", "use hf-llama", "tp=1", job(lambda s: s.update({absmax: some(5000)})))
    wrong("but 'optimizer.safetensors:", "use hf-llama", "tp=1", job(lambda s: s.update({absmax: some(8)})))
    wrong("it has a number for each block, which is one dimension", "use hf-llama", "tp=1", job(lambda s: s.update({absmax: some(16, 1)})))
    wrong("is [64, 32], but", "use hf-llama", "tp=1", job(lambda s: s.update({state: some(64, 32, kind="u1"), absmax: some(8)})))
    wrong("no rule matches", "use hf-llama", "tp=1", job(lambda s: s.update({n.format(q, "max1"): some(1)})))
    two = job()[0]
    two["second.safetensors"] = {absmax: two["optimizer.safetensors"].pop(absmax)}
    wrong("not there: save both in one file", "use hf-llama", "tp=1", [two])
    four = quantized({q: some(64, 64)}, "torchao", 128)
    four[n.format(q, "exp_avg_sq.codes")] = some(2048, kind="u1")  # two in a byte
    wrong("is [2048], but", "use hf-llama", "tp=1", [{FILE: {q: w[q]}, "optimizer.safetensors": four}])
    padded = "mesh dp\nfile a\nw copy\nfile o.safetensors\nstate.{P}.{K} like={P} blocks=absmax1:state1 flat dp=0 pad=1024".replace("file a", f"file {FILE}")
    flat = {"state.w.state1": some(2048, kind="u1"), "state.w.absmax1": some(8)}
    wrong("no run of whole blocks", padded, "dp=2", [{FILE: {"w": some(4090)}, "o.safetensors": flat}] * 2)
    wrong("rows, columns, blocks and whole belong to a like line", "mesh dp\nw copy blocks=a:b", "dp=1", [{}])
    wrong("is not WORD:OF", "mesh dp\nw copy\ns.{P}.{K} like={P} blocks=absmax1", "dp=1", [{}])


def of_frameworks():
    """States and buffers as frameworks name them: numbers of steps with a pipeline and with experts, names that lines of refusals make known."""
    names = {"model.embed_tokens.weight": 0, "model.layers.0.self_attn.q_proj.weight": 0, "model.layers.1.mlp.up_proj.weight": 1, "lm_head.weight": 1}
    params = {n: some(8, 4) for n in names}
    for state in "state.{}.exp_avg", "optimizer.state.exp_avg.{}":
        def staged(d):
            out = []
            for c in coordinates(d, "tp", "dp", "pp"):
                mine = {}
                for n, stage in names.items():
                    if d.get("pp", 1) == 1 or stage == c["pp"]:
                        a, key = cut(params[n], d.get("tp", 1), c["tp"]), state.format(n)
                        mine |= {n: a, key: a + 1, key.replace("exp_avg", "step"): np.array(4 + stage, "f4")}
                out.append(mine)
            return out
        held("use hf-llama", staged, ["tp=1", "tp=2 pp=2", "dp=2 pp=2"])
    experts = [f"model.layers.0.mlp.experts.{x}.up_proj.weight" for x in range(4)]
    of_experts = [some(4, 2) for _ in experts]
    held("use hf-moe", lambda d: [{k: v for x, n in enumerate(experts) if x * d.get("ep", 1) // 4 == c["dp"] % d.get("ep", 1)
                                   for k, v in ((n, of_experts[x]), (f"state.{n}.exp_avg", of_experts[x] + 1), (f"state.{n}.step", np.array(x, "f4")))}
                                  for c in coordinates(d, "tp", "dp")], ["dp=1", "dp=2 ep=2", "dp=4 ep=4"])

    def sharded(layout, params, buffers=(), tops=("dp=1", "dp=2", "dp=3")):
        held(layout, lambda d: [{n: chunk(a, d.get("dp", 1), c["dp"]) for n, a in params.items()} | dict(buffers) for c in coordinates(d, "dp")], list(tops))
    sharded("use fsdp2", {"layers.0.sa_norm.scale": some(5), "layers.0.attn.q_proj.magnitude": some(7), "reg_token": some(1, 4, 2), "blocks.0.gamma_1": some(6), "scale_shift_table": some(2, 3),
                          "layers.0.moe.experts.w1": some(4, 2, 3), "x.ia3_l.default": some(5, 1), "prompt_embeddings": some(5, 2), "t.weight": some(3)},
            {"pos_embed.pos_embed": some(1, 4, 2), "a.relative_position_index": some(4, 4, kind="i8"), "moe.tokens_per_expert": np.zeros(4, "f4")})

    def line(layout, topology, ranks):
        """The line that a refusal says."""
        try:
            commit(layout, topology, ranks)
        except Refused as said:
            return str(said).split("add the line '")[1].split("'")[0]
        raise AssertionError(f"{layout} was taken")
    number = np.array(2.5, "f4")  # a parameter that is one number, and its state in flat parts
    held(f"mesh tp dp\nfile {FILE}\nt copy\nfile o.safetensors\ns.{{P}} like={{P}} flat dp=0 pad=1", lambda d: [
        {FILE: {"t": number}, "o.safetensors": {"s.t": np.full(1, number if c["dp"] == 0 else 0, "f4")}} for c in coordinates(d, "tp", "dp")], ["dp=1", "dp=2", "dp=3"])
    w, token, index = some(6, 4), some(4, 2), some(3, 3, kind="i8")
    new = line("use fsdp2", "dp=1", [{"w.weight": w, "my_token": token}])
    sharded(f"use fsdp2\n{new}", {"w.weight": w, "my_token": token})
    new = line("use fsdp2", "dp=1", [{"w.weight": w, "my_index": index}])
    sharded(f"{new}\nuse fsdp2", {"w.weight": w}, {"my_index": index})
    new = line("use fsdp2", "dp=1", [{"w.weight": w, "state.w.weight.hessian": w + 1}])
    sharded(f"use fsdp2\n{new}", {"w.weight": w, "state.w.weight.hessian": w + 1})
    q = "model.layers.0.self_attn.q_proj.weight"
    new = line("use hf-llama", "tp=2", [{q: cut(w, 2, at), f"state.{q}.hessian": cut(w, 2, at) + 1} for at in range(2)])
    held(f"use hf-llama\n{new}", lambda d: [{q: cut(w, d.get("tp", 1), c["tp"]), f"state.{q}.hessian": cut(w, d.get("tp", 1), c["tp"]) + 1} for c in coordinates(d, "tp", "dp")], ["tp=1", "tp=2", "tp=3 dp=2"])
    for norm in (".gamma", ".beta"), (".weight", ".bias"):
        g = some(6)
        wrong("the two vectors of a norm are of one size", "use fsdp2", "dp=2", [{"n" + norm[0]: chunk(g, 2, at), "n" + norm[1]: np.zeros(6, "f4")} for at in range(2)])
        sharded("use fsdp2", {"n" + norm[0]: g, "n" + norm[1]: g + 1})
    wrong("in three, but the other one is three times as long", "use hf-gpt2", "tp=1", [{"transformer.h.0.attn.c_attn.weight": some(72, 24)}])
    wrong("both lie the other way", "use hf-moe", "tp=1", [{"model.layers.0.mlp.experts.gate_up_proj": some(2, 8, 24), "model.layers.0.mlp.experts.down_proj": some(2, 12, 8)}])


for each in shared_heads, uneven_stages, fsdp, padded_members, experts, of_each_rank, gates, heads, eight_bits, of_frameworks, refused:
    each()
print(f"figure: {honest} jobs are at each topology what numpy makes of them, {refusals} are refused")
