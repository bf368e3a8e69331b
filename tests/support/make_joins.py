#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/sample/joins.txt: what ranks store of joined, shared and stacked tensors, element by element, for tests/unit/meta/model/test_joins.c.

    make_joins.py > tests/sample/joins.txt

The slow, obvious way, with arrays: members are cut, flattened, put one behind the other and cut again, as DeepSpeed, Megatron, FSDP1
and vLLM do it (the formulas were held against checkpoints that these wrote).  Element x of tensor t is 1000 t + x + 1; 0 is padding.
Needs numpy.
"""
import itertools
import math
import random

import numpy as np


def arrays(shapes):
    return {n: (1000 * t + 1 + np.arange(math.prod(s))).reshape(s) for t, (n, s) in enumerate(shapes.items())}


def up(n, m):
    return -(-n // m) * m


def join(members, align=1, bucket=None, alone=()):
    """[(name, flat)] -> [(buffer, is it real?)], one for each bucket."""
    out, at, inside = [], 0, []

    def close():
        nonlocal at, inside
        if inside:
            buf, real = np.zeros(at, int), np.zeros(at, bool)
            for start, x in inside:
                buf[start:start + x.size], real[start:start + x.size] = x, True
            out.append((buf, real))
        at, inside = 0, []

    for name, x in members:
        if name in alone:
            close()
        at = up(at, align)
        inside.append((at, x))
        at += x.size
        if name in alone or bucket and at >= bucket:
            close()
    close()
    return out


def cut(buf, d, i, pad=0, lcm=False, chunk=False, strip=False):
    n = up(buf.size, math.lcm(pad, d) if lcm else pad * d) if pad else buf.size
    full = np.concatenate([buf, np.zeros(n - buf.size, int)])
    c = up(n, d) // d if chunk else n // d
    part = full[i * c:(i + 1) * c]
    return part[:max(0, buf.size - i * c)] if strip else part


def part(n, d, i, upto=None):
    """The rows of part i of d; of `upto` parts at most, each held by neighbours."""
    k = min(d, upto or d)
    j = i * k // d
    return range(j * (n // k), (j + 1) * (n // k))


def case(layout, topology, shapes, ranks):
    print(f"case\n{layout.strip()}\n.\n{topology}")
    for n, s in shapes.items():
        print(n, "F32", ",".join(map(str, s)), sep="\t")
    for rank, files in enumerate(ranks):
        for n, a in files.items():
            print(rank, n, ",".join(map(str, a.shape)), " ".join(map(str, a.reshape(-1))), sep="\t")
    print()


def flat_cases(rng):
    shapes = {"m:w": (2, 3), "m:b": (3,)}
    a = arrays(shapes)
    forward, backward = [(n, x.reshape(-1)) for n, x in a.items()], [(n, x.reshape(-1)) for n, x in reversed(a.items())]
    head = "mesh dp\nm:w copy\nm:b copy\n"
    for d in (1, 2, 3, 4):
        for words, make in (
                ("dp=0 pad=2", lambda i, d=d: cut(join(forward)[0][0], d, i, pad=2)),
                ("dp=0 pad=2 strip", lambda i, d=d: cut(join(forward)[0][0], d, i, pad=2, strip=True)),
                ("align=4 dp=0 chunk", lambda i, d=d: cut(join(forward, 4)[0][0], d, i, chunk=True)),
                ("order=reverse align=4 dp=0 pad=lcm(8)", lambda i, d=d: cut(join(backward, 4)[0][0], d, i, pad=8, lcm=True))):
            case(f"{head}m:z join=* {words}".replace("join=*", "join=w,b"), f"dp={d}", shapes, [{"m:z": make(i)} for i in range(d)])
        parts = [np.concatenate([cut(x, d, i, pad=1) for _, x in forward]) for i in range(d)]        # ZeRO-3
        case("mesh dp\nm:w flat dp=0 pad=1\nm:b flat dp=0 pad=1\nm:z join=w,b", f"dp={d}", shapes, [{"m:z": p} for p in parts])
    for _ in range(40):
        shapes = {f"m:t{k}": tuple(rng.choice([1, 2, 3, 5, 8]) for _ in range(rng.choice([1, 2, 3]))) for k in range(rng.randint(1, 7))}
        a, d, align, bucket = arrays(shapes), rng.choice([1, 2, 3, 4]), rng.choice([1, 2, 4, 64]), rng.choice([None, 20, 60])
        order, alone, pad = rng.choice(["rules", "reverse", "listed", "name"]), rng.choice([None, "t1"]), rng.choice(["1", "3", "lcm(6)"])
        names = list(a)
        listed = rng.sample(names, len(names))
        if order != "rules":
            names = {"reverse": names[::-1], "listed": listed, "name": sorted(names)}[order]
        buckets = join([(n, a[n].reshape(-1)) for n in names], align, bucket, (f"m:{alone}",) if alone else ())
        globs = ",".join(n[2:] for n in listed)
        words = f"join={globs} order={order} align={align} dp=0 pad={pad}" + (f" bucket={bucket}" if bucket else "") + \
            (f" alone={alone}" if alone else "")
        layout = "mesh dp\n" + "".join(f"{n} copy\n" for n in shapes) + f"m:z.{{B}} {words}"
        number = int(pad.strip("lcm()"))
        case(layout, f"dp={d}", shapes, [{f"m:z.{b}": cut(buf, d, i, number, pad[0] == "l") for b, (buf, _) in enumerate(buckets)}
                                         for i in range(d)])


def pipelined(rng):
    """Ranks of one stage have other members than those of another; tensor parallelism cuts members, dp what is joined."""
    for _ in range(12):
        tp, dp, pp, layers = rng.choice([1, 2]), rng.choice([1, 2, 3]), rng.choice([1, 2]), 2
        shapes = {"m:emb": (4, 2)} | {f"m:l.{g}.{k}": s for g in range(layers) for k, s in (("w", (4, 3)), ("b", (5,)))} | {"m:end": (3,)}
        a, ranks = arrays(shapes), []
        for rank in range(tp * dp * pp):
            t, d, p = rank % tp, rank // tp % dp, rank // tp // dp
            mine = [("emb", np.split(a["m:emb"], tp)[t])] if p == 0 else []
            mine += [x for g in range(layers) if g * pp // layers == p
                     for x in (("w", np.split(a[f"m:l.{g}.w"], tp)[t]), ("b", a[f"m:l.{g}.b"]))]
            mine += [("end", a["m:end"])]
            ranks.append({"m:z": cut(join([(n, x.reshape(-1)) for n, x in mine], 2)[0][0], dp, d, 1)})
        case("mesh tp dp pp\nm:emb stage=first tp=0\nm:l.{L}.w tp=0\nm:l.{L}.b copy\nm:end copy\nm:z join=* align=2 dp=0 pad=1"
             .replace("join=*", "join=e*,l.*"), f"tp={tp} dp={dp} pp={pp}", shapes, ranks)


def fused():
    """vLLM's QKVParallelLinear: kv heads fewer than ranks are held by neighbours; also as sections of one tensor."""
    h, hn = 3, 2
    for q, kv, tp in ((8, 2, 4), (8, 8, 2), (8, 4, 4), (16, 2, 8), (4, 1, 4), (8, 2, 2)):
        shapes = {f"m:0.{k}_proj.weight": (n * hn, h) for k, n in (("q", q), ("k", kv), ("v", kv))}
        a, ranks = arrays(shapes), []
        for r in range(tp):
            nq, nkv, at = q // tp, max(1, kv // tp), r // max(1, tp // kv)
            ranks.append({"m:0.qkv_proj.weight": np.concatenate(
                [a["m:0.q_proj.weight"][r * nq * hn:(r + 1) * nq * hn]] +
                [a[f"m:0.{k}_proj.weight"][at * nkv * hn:(at + 1) * nkv * hn] for k in "kv"])})
        case(f"mesh tp\nm:*.q_proj.weight tp=0\nm:*.k_proj.weight tp=0 upto={kv}\nm:*.v_proj.weight tp=0 upto={kv}\n"
             "m:*.qkv_proj.weight join=*.q_proj.weight,*.k_proj.weight,*.v_proj.weight order=listed over=0", f"tp={tp}", shapes, ranks)
        whole, start = np.concatenate(list(a.values())), 0
        one = {"m:qkv": whole.shape}
        whole = arrays(one)["m:qkv"]
        sizes = (q * hn, None), (kv * hn, kv), (kv * hn, kv)
        starts = list(itertools.accumulate((n for n, _ in sizes), initial=0))
        case(f"mesh tp\nm:qkv tp=0 sections={q}:{kv}:{kv} upto=-:{kv}:{kv}", f"tp={tp}", one,
             [{"m:qkv": whole[[s + x for s, (n, k) in zip(starts, sizes) for x in part(n, tp, r, k)]]} for r in range(tp)])
    for d in (1, 2, 4):
        one = {"m:w": (8, 2)}
        case("mesh tp\nm:w tp=0 upto=2", f"tp={d}", one, [{"m:w": arrays(one)["m:w"][list(part(8, d, r, 2))]} for r in range(d)])


def stacked():
    shapes = {f"m:l.{g}.w": (4, 3) for g in range(4)} | {"m:b": (2,)}
    a = arrays(shapes)
    for tp, pp in ((1, 1), (2, 1), (1, 2), (2, 2), (1, 4)):
        case("mesh tp pp\nm:l.w stack={G} name=l.{G}.w tp=0\nm:b copy", f"tp={tp} pp={pp}", shapes,
             [{"m:l.w": np.stack([np.split(a[f"m:l.{g}.w"], tp)[r % tp] for g in range(4) if g * pp // 4 == r // tp]), "m:b": a["m:b"]}
              for r in range(tp * pp)])


def main():
    rng = random.Random(1)
    flat_cases(rng)
    pipelined(rng)
    fused()
    stacked()


if __name__ == "__main__":
    main()
