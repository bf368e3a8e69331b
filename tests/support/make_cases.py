#!/usr/bin/env python3
"""Makes recorded cases for tests/unit/meta/model/test_cases.c from the reference model (ptc/).

    make_cases.py --seed N [--cuts 3000] [--jobs 300] > tests/unit/meta/model/cases.txt

A case is a layout, a topology, a state, and the digest (FNV-1a, 64 bits) of what every rank stores
of it, box for box; or that the model refuses it.  `--dump K` prints the full text of case K, to be
compared with what `test_cases --dump K` prints.  Needs numpy (the model imports it).
"""
import argparse
import math
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "ptc"))
from ptc import Layout, Refused, Tensor, Topology, View  # noqa: E402


def fnv(text):
    h = 0xcbf29ce484222325
    for c in text.encode():
        h = (h ^ c) * 0x100000001b3 & 0xffffffffffffffff
    return h


def numbers(values):
    return ",".join(map(str, values))


def dump(layout, topology, state):
    """All that every rank stores, as text; None if it is refused."""
    try:
        parsed = Layout(layout)
        topo = Topology(topology, parsed)
        view = View(parsed, topo, state)
        out = []
        for rank in range(topo.ranks):
            for key, s in sorted(view.rank(rank).items()):
                out.append(f"{rank}\t{key}\t{s.dtype}\t{numbers(s.shape)}\n")
                out += [f"\t{name}\t{numbers(b.off)}\t{numbers(b.ext)}\t{b.at}\t{numbers(b.stride)}\n"
                        for name, b in s.parts]
        return "".join(out)
    except Refused:
        return None


def random_cuts(rng):
    """One tensor, any cuts: sections, pads, uneven chunks, flat, compound axes."""
    topology = " ".join(f"{x}={rng.choice([1, 1, 2, 3, 4])}" for x in "abcd")
    if rng.random() < .3:
        topology += " order=" + "-".join(rng.sample("abcd", 4))
    shape = tuple(rng.choice([1, 2, 5, 6, 8, 12, 24]) for _ in range(rng.choice([1, 1, 2, 2, 3])))
    axes, words, flat, before = rng.sample("abcd", rng.randint(0, 4)), [], False, set()
    while axes:
        use = [axes.pop() for _ in range(rng.choice([1, 1, 2])) if axes]
        if not flat and rng.random() < .3:
            flat, before = True, set()
            words.append("flat")
        dim = 0 if flat else rng.randrange(len(shape))
        words.append(f"{'*'.join(use)}={dim}")
        if not flat and rng.random() < .4:
            words.append(rng.choice(["sections=1:1", "sections=2:1:1"]))
        if dim not in before and rng.random() < .5:
            words.append(rng.choice(["pad=1", "pad=4", "pad=lcm(4)"]))
        if rng.random() < .7:
            words.append("chunk")
        before.add(dim)
    return f"mesh a b c d\nt {' '.join(words) or 'copy'}", topology, {"m.bin:t": Tensor("F32", shape)}


def random_job(rng):
    """A layered model with experts, an optimizer like it, tied and padded embeddings."""
    layers, experts, v = rng.choice([4, 8]), rng.choice([4, 8]), rng.randint(3, 40)
    number, tag, size = rng.choice(["{L}", "{G}"]), rng.choice(["{E}", "{X}"]), rng.choice(["", f"size={v}"])
    zero = rng.choice(["", "dp=0 chunk", "flat dp=0 pad=1", "flat dp=0 pad=lcm(4)"])
    more = rng.choice(["", "sections=1:1", "sections=2:1:1", *(["dp=1 chunk"] if not zero else [])])
    layout = f"""mesh tp dp pp
mesh etp=tp ep edp=* pp
let pad= size=
opt.{{K}}.{{P}} like={{P}} {zero}
opt.{{K}}.{{P}} like={{P}} {'e' + zero if zero.startswith('dp') else zero.replace('dp', 'edp')}
emb stage=first tp=0 pad={rng.choice([1, 4])} size={v}
m{{V}}.{number}.col.* tp=0 {more} pad=$pad
m{{V}}.{number}.row tp=1
m{{V}}.{number}.norm copy            # whole on every rank
m{{V}}.{number}.x.{tag}.up etp=0 sections=1:1
m{{V}}.{number}.x.{tag}.down etp=1
w_{{tp:02}}_*  dp=0 chunk
head stage=last tp=0 pad=1 size={v} tied=emb
end stage=first,last copy
seed each=tp wrap
""" + ("" if not size else "other copy\n")
    state = {"m.st:emb": (v, 3), "m.st:end": (5,), "o.st:opt.m.end": (5,), "o.st:opt.m.emb": (v, 3)}
    for g in range(layers):
        some = {"col.w": (16, 4), "col.b": (16, 2), "row": (3, 8), "norm": (5,)}
        if g % 2:
            some.update({f"x.{x}.{k}": s for x in range(experts) for k, s in (("up", (16, 3)), ("down", (3, 8)))})
        for n, s in some.items():
            state[f"m.st:m.{g}.{n}"] = s
            state[f"o.st:opt.m.m.{g}.{n}"] = s
    if rng.random() < .3:
        state.update({f"r.st:seed@tp={i}": (3,) for i in range(2)})
    tp, dp, pp, vp = rng.choice([1, 2, 4]), rng.choice([1, 2, 3, 4]), rng.choice([1, 2, 4]), rng.choice([1, 1, 2])
    ep = rng.choice([e for e in (1, 2, 4) if (tp * dp) % e == 0] + [3])
    topology = f"tp={tp},dp={dp} pp={pp},ep={ep} etp={rng.choice([e for e in (1, 2) if tp * dp // ep % e == 0] or [1])} vp={vp}"
    if rng.random() < .5:
        marks = sorted(rng.randint(0, layers) for _ in range(pp * vp - 1))
        topology += " stages=" + "+".join(str(b - a) for a, b in zip([0] + marks, marks + [layers]))
    return layout, topology, {n: Tensor("F32", s) for n, s in state.items()}


def preset_job(rng):
    """The presets that ship, with small models of their names."""
    f = 16
    shapes = {
        "megatron-gpt": {"embedding.word_embeddings.weight": (300, 4), "embedding.position_embeddings.weight": (8, 4),
                         "decoder.final_layernorm.weight": (4,)},
        "hf-glm": {"model.embed_tokens.weight": (16, 4), "model.norm.weight": (4,), "lm_head.weight": (16, 4)},
        "hf-gpt2": {"transformer.wte.weight": (13, 4), "transformer.ln_f.bias": (4,)},
        "hf-bert": {"bert.pooler.dense.bias": (3,), "bert.embeddings.word_embeddings.weight": (7, 3)}}
    layer = {
        "megatron-gpt": ("decoder.layers.{}.", {
            "input_layernorm.weight": (4,), "self_attention.linear_qkv.weight": (24, 4), "self_attention.linear_qkv.bias": (24,),
            "self_attention.linear_proj.weight": (4, 8), "mlp.linear_fc1.weight": (2 * f, 4), "mlp.linear_fc2.weight": (4, f),
            "mlp.linear_fc2.bias": (4,)}),
        "hf-glm": ("model.layers.{}.", {
            "self_attn.q_proj.weight": (8, 4), "self_attn.k_proj.bias": (4,), "self_attn.o_proj.weight": (4, 8),
            "self_attn.q_norm.weight": (4,), "mlp.gate_up_proj.weight": (f, 4), "mlp.down_proj.weight": (4, 8)}),
        "hf-gpt2": ("transformer.h.{}.", {
            "attn.c_attn.weight": (4, 12), "attn.c_attn.bias": (12,), "attn.c_proj.weight": (4, 4), "attn.c_proj.bias": (4,),
            "mlp.c_fc.weight": (4, f), "ln_1.weight": (4,)}),
        "hf-bert": ("bert.encoder.layer.{}.", {
            "attention.self.query.bias": (4,), "attention.output.dense.weight": (4, 4), "output.dense.bias": (4,),
            "output.dense.weight": (4, 8), "intermediate.dense.weight": (8, 4), "output.LayerNorm.bias": (4,)})}
    model = rng.choice(list(shapes))
    base = dict(shapes[model])
    prefix, some = layer[model]
    for g in range(4):
        base.update({prefix.format(g) + n: s for n, s in some.items()})
    use = model
    if model == "megatron-gpt":
        use += rng.choice([" vocab=300 tied=embedding.word_embeddings.weight", " vocab=300 glu=1:1", " vocab=300 file={F}{V}.safetensors"])
    elif rng.random() < .4:
        use = f"fsdp2 model={model}"
    use += " gate_up=1:1" if model == "hf-glm" else ""
    file = "model.safetensors"
    state = {f"{file}:{n}": s for n, s in base.items()} | {"optimizer.safetensors:optimizer.step": ()}
    for k in ("exp_avg", "exp_avg_sq"):
        state.update({f"optimizer.safetensors:optimizer.state.{k}.{n}": s for n, s in base.items()})
    topology = rng.choice(["tp=2 pp=2 dp=2", "tp=4 dp=3", "pp=4 cp=2", "dp=5", "pp=2 vp=2", "tp=2 pp=3 stages=2+1x2", "tp=3", "tp=2 order=pp-tp"])
    return f"use {use}", topology, {n: Tensor("F32", s) for n, s in state.items()}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--cuts", type=int, default=3000)
    ap.add_argument("--jobs", type=int, default=300)
    ap.add_argument("--dump", type=int)
    a = ap.parse_args()
    rng, makers = random.Random(a.seed), [random_cuts] * a.cuts + [random_job] * a.jobs + [preset_job] * a.jobs
    for k, make in enumerate(makers):
        layout, topology, state = make(rng)
        if a.dump is not None and k != a.dump:
            continue
        text = dump(layout, topology, state)
        if a.dump is not None:
            print(layout, topology, *state.items(), sep="\n")
            print("refused" if text is None else text)
            continue
        print(f"case {k}\n{layout.strip()}\n.\n{topology}")
        for n, t in state.items():
            print(f"{n}\t{t.dtype}\t{numbers(t.shape)}")
        print("refused" if text is None else f"expect {fnv(text):016x} {math.ceil(len(text))}", end="\n\n")


if __name__ == "__main__":
    main()
