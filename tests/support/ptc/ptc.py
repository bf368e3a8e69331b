#!/usr/bin/env python3
"""Reference model of the topology grammar and the layout rules (docs/layout.md): small, slow, obvious.

    layout = Layout("use megatron-gpt vocab=50257 tied=embedding.word_embeddings.weight")
    source = Topology("tp=4 pp=2 dp=2", layout)
    state = infer(layout, source, files)       # files: {rank: {"file:name": (dtype, shape)}} -> {logical: Tensor}
    view = View(layout, Topology("tp=2 pp=4", layout), state)
    view.rank(3)                               # {"file:name": Stored(dtype, shape, [(logical, Box)])}
    reshard(View(layout, source, state), arrays, view)          # {rank: {"file:name": ndarray}}

    ptc.py --boxes LAYOUT_FILE TOPOLOGY < state.json            # state: {"file:name": [dtype, [shape]]}

Whatever the language refuses is raised as Refused with the full sentence.  Presets are those of meta/model/presets.
"""
import itertools
import json
import math
import re
import sys
from bisect import bisect_right
from collections import namedtuple

import numpy as np

from ptc_lang import FLAT, Layout, Refused, Topology, match, need, render, up
from ptc_slice import boxes_of, dim_of, holders, length, local, meet, part, slice_tensor

Tensor = namedtuple("Tensor", "dtype shape")           # a logical tensor
Stored = namedtuple("Stored", "dtype shape parts")     # parts: [(logical name, Box)]; elements in no box are padding

Entry = namedtuple("Entry", "name rule fixed caps virtual")      # a logical tensor on the ranks whose coordinates have `fixed`


class View:
    """What every rank of a topology sees of a state {logical name: Tensor}."""

    def __init__(self, layout, topo, state):
        self.layout, self.topo, self.state, self.cache, found = layout, topo, state, {}, {}
        self.experts, self.entries, self.buffers, self.ranks, self.where = {}, [], [], {}, {}
        for name in state:
            plain = name.partition("@")[0]
            found[name] = [(r, c) for r in layout.rules if not r.tied or topo.degree.get("pp", 1) > 1 for c in [r.match(plain, True)]
                           if c is not None and bool(r.each) == ("@" in name)]
        firsts = [next((c for r, c in rc if not r.tied), {}) for rc in found.values()]
        self.layers = 1 + max((c[k] for c in firsts for k in "LG" if k in c), default=-1)
        for r, c in itertools.chain(*found.values()):
            for k in set("EX") & set(c):
                self.experts[self.family(r, c)] = max(self.experts.get(self.family(r, c), 0), c[k] + 1)
        held = self.find_buffers()
        for name, rules in found.items():
            before, primary = len(self.entries), False
            for r, caps in rules:
                if r.tied or not primary:
                    here = [Entry(name, r, f, c, name in held) for f, c in self.places(r, caps, name)]
                    mine = [e for e in here if layout.first(self.key(e, dict(topo.coords(0), **e.fixed)), topo)[0] is r]
                    self.entries += mine
                    primary = primary or bool(mine) and not r.tied
            need(len(self.entries) > before or name in held, f"no rule places '{name}'")
            need(primary or name in held, f"'{name}' has only tied copies")
        self.by_name = {n: list(g) for n, g in itertools.groupby(self.entries, lambda e: e.name)}

    @staticmethod
    def family(r, caps):
        return r.index, tuple(sorted((k, v) for k, v in caps.items() if k not in "EX"))

    def places(self, r, caps, name):
        """[(coordinates that are fixed, captures of the stored name)] of a logical tensor under a rule."""
        d, topo, fixed, chunks, stored = self.topo.degree, self.topo, {}, [None], dict(caps)
        for k in set("LG") & set(caps):
            starts = topo.starts(self.layers)
            chunks = [bisect_right(starts, caps[k]) - 1]
            stored["L"] = caps[k] - starts[chunks[0]]
        if r.stage:
            chunks = sorted({c % topo.chunks if c < 0 else c for c in r.stage})
            need(chunks[-1] < topo.chunks, f"'{r.text}': stage {chunks[-1]}, the topology has {topo.chunks}")
        elif r.has("V") and chunks == [None]:
            chunks = range(topo.chunks)
        for k in set("EX") & set(caps):
            n = self.experts[self.family(r, caps)]
            need(n % d.get("ep", 1) == 0, f"'{name}': {n} experts do not divide by ep={d.get('ep', 1)}")
            fixed["ep"], stored["E"] = divmod(caps[k], n // d.get("ep", 1))
        pp = d.get("pp", 1)
        fixed = {a: i for a, i in fixed.items() if a in d}
        for fixed in self.spread(r, name, fixed):
            for c in chunks:
                where = {} if c is None or "pp" not in d else {"pp": c % pp}
                yield {**fixed, **where}, {**stored, "V": c // pp if c is not None and d["vp"] > 1 else None}

    def spread(self, r, name, fixed):
        """Coordinates that see this one of the tensors of an `each` rule."""
        if not r.each:
            return [fixed]
        mine = tuple(int(x) for x in re.findall(r"=(\d+)", name.partition("@")[2]))
        family = [n for n in self.state if n.partition("@")[0] == name.partition("@")[0]]
        had = [1 + max(int(re.findall(r"=(\d+)", n.partition("@")[2])[i]) for n in family) for i in range(len(r.each))]
        new = [self.topo.degree[a] for a in r.each]
        need(r.wrap or had == new, f"'{name}' is there once for each {'*'.join(r.each)}, {had}, and the topology has {new}; "
             "say wrap to read coordinate i from i mod the old degree")
        return [{**fixed, **dict(zip(r.each, at))} for at in itertools.product(*map(range, new))
                if all(a % h == m for a, h, m in zip(at, had, mine))]

    def key(self, e, coords):
        return e.rule.key({**coords, **e.caps})

    def find_buffers(self):
        """[(concat rule, captures but {P}, {member's name: logical name})]; -> names that lie in a buffer."""
        table = {}
        for c in self.layout.concats:
            for name in self.state:
                caps = c.match(name, True)
                if caps is not None:
                    table.setdefault((c.text, tuple((k, v) for k, v in caps.items() if k != "P")), (c, {}))[1][caps["P"]] = name
        self.buffers = [(c, dict(k[1]), names) for k, (c, names) in table.items()]
        return {n for _, _, names in self.buffers for n in names.values()}

    def slice(self, e, coords):
        axes = sorted({a for c in e.rule.cuts for a in c.axes})
        at = e.name, e.rule.index, tuple(coords[a] for a in axes)
        if at not in self.cache:
            self.cache[at] = slice_tensor(e.rule.cuts, self.state[e.name].shape, self.topo, coords, f"'{e.name}'")
        return self.cache[at]

    def on(self, coords):
        return [e for e in self.entries if all(coords[a] == i for a, i in e.fixed.items())]

    def rank(self, rank):
        """All that a rank stores: {stored name: Stored}."""
        if rank in self.ranks:
            return self.ranks[rank]
        coords, out = self.topo.coords(rank), self.ranks.setdefault(rank, {})
        here = self.on(coords)
        for e in here:
            if not e.virtual:
                key, (shape, boxes) = self.key(e, coords), self.slice(e, coords)
                need(key not in out, f"rank {rank}: '{e.name}' and '{out[key].parts[0][0] if key in out and out[key].parts else ''}'"
                     f" would both be stored as '{key}'" + (" (vp > 1 and no {V} in the rule)" if self.topo.degree["vp"] > 1 else ""))
                out[key] = Stored(self.state[e.name].dtype, shape, [(e.name, b) for b in boxes])
        for c, caps, names in self.buffers:
            for key, parts, size in self.buffer(c, caps, names, here, coords):
                out[key] = Stored(self.state[next(iter(names.values()))].dtype, (size,), parts)
        return out

    def members(self, c, here, coords):
        """Entries a concat rule joins on a rank, in its order, with the captures of its glob."""
        def position(e):
            i = e.rule.index
            g, layered = e.caps.get("L", e.caps.get("G")), lambda r: r.has("L", "G")
            while g is not None and i and layered(self.layout.rules[i - 1]):
                i -= 1
            return e.caps["V"] or 0, i, g or 0, e.rule.index, e.caps.get("E", 0), e.name
        out = []
        for e in sorted(here, key=position if c.order != "name" else lambda e: self.key(e, coords)):
            for yes, glob in c.concat:
                caps = glob.match(self.key(e, coords))
                if caps is not None:
                    out += [(e, {k: v for k, v in caps.items() if c.has(k)})] if yes else []
                    break
        return out[::-1] if c.order == "reverse" else out

    def buffer(self, c, caps, names, here, coords):
        """Stored tensors of one concat rule on a rank: yields (key, parts, size)."""
        groups = {}
        for e, more in self.members(c, here, coords):
            member = e.name.split(":", 1)[1]
            need(FLAT not in e.rule.cuts, f"'{c.text}': member '{e.name}' is flat already")
            need(member in names, f"'{c.text}': '{member}' is a member, but the state has no such part")
            more = {**more, "V": e.caps["V"] if c.has("V") else None}
            groups.setdefault(tuple(sorted(more.items(), key=str)), (more, []))[1].append((e, names[member]))
        (cut,) = c.cuts
        d, i = self.topo.of(cut.axes), self.topo.index(cut.axes, coords)
        for more, items in groups.values():
            at, start, bucket, buckets = 0, 0, [], []
            for k, (e, name) in enumerate(items):
                dims, _ = local(e.rule.cuts, self.state[name].shape, self.topo, coords, f"'{name}'")
                at, n, alone = up(at, c.align), math.prod(map(length, dims)), c.alone and match(c.alone, e.name.split(":", 1)[1]) is not None
                if alone and bucket:
                    start = at = self.close(buckets, bucket, start, at, cut, d)
                    bucket = []
                bucket.append((at, n, name, dims))
                at += n
                if alone or k + 1 == len(items) or c.bucket and at - start >= c.bucket:
                    start = at = self.close(buckets, bucket, start, at, cut, d)
                    bucket = []
            parts, size = [], 0
            for b, (start, end, inside) in enumerate(buckets):
                need((end - start) % d == 0 or cut.chunk, f"'{c.text}': {end - start} elements do not divide by {d}")
                lo, hi = (start + x for x in part(end - start, d, i))
                if c.has("B"):
                    parts, size = [], 0
                for at, n, name, dims in inside:
                    a, z = max(lo, at), min(hi, at + n)
                    if a < z:
                        parts += [(name, box) for box in boxes_of(dims, a - at, z - at, size + a - lo)]
                size += hi - lo
                if c.has("B") or b + 1 == len(buckets):
                    yield c.key({**coords, **caps, **more, "B": b}), parts, size

    @staticmethod
    def close(buckets, inside, start, at, cut, d):
        end = start + up(at - start, (math.lcm(cut.pad, d) if cut.lcm else cut.pad * d) if cut.pad else 1)
        buckets.append((start, end, inside))
        return end

    def sources(self, name, off, ext):
        """Holders of a region, each element at least once: yields (rank, stored name, Box).  Replicas are left out."""
        topo = self.topo
        for e in self.by_name.get(name, [])[:1]:
            if not e.virtual:
                for coords in holders(e.rule.cuts, self.state[name].shape, topo, off, ext, name):
                    rank = sum(i * topo.stride[a] for a, i in {**coords, **e.fixed}.items())
                    at = topo.coords(rank)
                    for b in self.slice(e, at)[1]:
                        if meet(b, off, ext):
                            yield rank, self.key(e, at), meet(b, off, ext)
                return
        if not self.where:                                  # buffers: an index of all; a real one searches prefix sums
            for rank in range(topo.ranks):
                for key, s in self.rank(rank).items():
                    for n, b in s.parts:
                        self.where.setdefault(n, {}).setdefault((b.off, b.ext), (rank, key, b))
        yield from ((rank, key, meet(b, off, ext)) for rank, key, b in self.where.get(name, {}).values() if meet(b, off, ext))


# --- the other direction: files -> logical tensors ------------------------------------------------------------------

def infer(layout, topo, files, known=None):
    """{rank: {stored name: (dtype, shape)}} -> {logical name: Tensor}.  `known` are the logical tensors of the version
    before, or declared ones: they give the shapes that flat pieces do not tell."""
    known, rows_, buffers, counts, layers = known or {}, [], [], {}, 0
    need(set(files) == set(range(topo.ranks)), f"topology {topo.text} has ranks 0 to {topo.ranks - 1}; missing "
         f"{sorted(set(range(topo.ranks)) - set(files))[:4]}, unknown {sorted(set(files) - set(range(topo.ranks)))[:4]}")
    for rank in sorted(files):
        coords = topo.coords(rank)
        for key, (dtype, shape) in files[rank].items():
            try:
                r, caps = layout.first(key, topo)
            except Refused as e:
                raise Refused(f"rank {rank}: {e}") from None
            wrong = [a for a in caps if a in coords and caps[a] != coords[a]]
            need(not wrong, f"rank {rank}: '{key}' says {wrong} {[caps[a] for a in wrong]}, the rank's is {[coords[a] for a in wrong]}")
            need((caps.get("V") is not None) == (topo.degree["vp"] > 1) or not r.has("V"), f"rank {rank}: '{key}' and vp={topo.degree['vp']}")
            (buffers if r.concat else rows_).append((rank, coords, key, r, caps, dtype, tuple(shape)))
            if "L" in caps and not r.concat:
                chunk = (caps.get("V") or 0) * topo.degree.get("pp", 1) + coords.get("pp", 0)
                counts[chunk] = max(counts.get(chunk, 0), caps["L"] + 1)
            layers = max(layers, caps.get("G", -1) + 1)
    sizes = [counts.get(c, 0) for c in range(topo.chunks)]
    if counts:
        want = topo.stages or [max(sizes)] * topo.chunks
        need(sizes == want, f"stages hold {'+'.join(map(str, sizes))} layers, topology '{topo.text}' means {'+'.join(map(str, want))}")
        layers = max(layers, sum(sizes))
    starts, experts = topo.starts(layers), {}
    for _, coords, key, r, caps, *_ in rows_:
        if "L" in caps:
            caps["L"] += starts[(caps.get("V") or 0) * topo.degree.get("pp", 1) + coords.get("pp", 0)]
        if "E" in caps:
            n = experts.setdefault(View.family(r, caps), {})
            n[coords.get("ep", 0)] = max(n.get(coords.get("ep", 0), 0), caps["E"] + 1)
    seen = {}
    for rank, coords, key, r, caps, dtype, shape in rows_:
        if "E" in caps:
            n = experts[View.family(r, caps)]
            need(len(n) == topo.degree.get("ep", 1) and len(set(n.values())) == 1, f"'{key}': experts held by ep coordinate: {n}; want "
                 f"the same number on each of ep={topo.degree.get('ep', 1)}")
            caps["E"] += coords.get("ep", 0) * n[0]
        name = r.key(caps, True) + ("@" + ",".join(f"{a}={coords[a]}" for a in r.each) if r.each else "")
        seen.setdefault(name, []).append((rank, coords, key, r, dtype, shape, r.base and r.file))
    state = {}
    for name, obs in seen.items():
        obs = [o for o in obs if not o[3].tied] or obs
        rank, coords, key, r, dtype, shape, _ = obs[0]
        for o in obs:
            need(o[4] == dtype and len(o[5]) == len(shape), f"'{name}': rank {rank} has {dtype} {list(shape)}, rank {o[0]} has {o[4]} {list(o[5])}")
        if name in known:
            shape = known[name].shape
        elif FLAT not in r.cuts:
            shape = tuple(whole(name, r, k, obs, topo) for k in range(len(shape)))
        else:
            state[name] = (dtype, r, name)                  # its shape is its base's, below
            continue
        state[name] = Tensor(dtype, shape)
    shapes = {n.split(":", 1)[1]: t.shape for n, t in {**known, **state}.items() if isinstance(t, Tensor)}
    for name, t in state.items():
        if not isinstance(t, Tensor):
            caps = t[1].match(name, True)
            base = render(t[1].base, caps) if t[1].base else None
            need(base in shapes, f"'{name}' is flat and nothing tells its shape; store '{base}' whole, or declare it")
            state[name] = Tensor(t[0], shapes[base])
    if buffers:
        view = View(layout, topo, {**known, **state})
        for rank, coords, key, c, caps, dtype, shape in buffers:
            for e, more in view.members(c, view.on(coords), coords):
                if all(caps.get(k, v) == v for k, v in more.items()):
                    name = c.key({**caps, "P": e.name.split(":", 1)[1]}, True)
                    state[name] = Tensor(dtype, view.state[e.name].shape)
    written = {n.split(":", 1)[0] for n in state}
    gone = sorted(n for n in known if n not in state and n.split(":", 1)[0] in written)
    need(not gone, f"'{gone[0] if gone else ''}' of the version before is on no rank ({len(gone)} such tensors)")
    check(View(layout, topo, state), files)
    return state


def whole(name, r, k, obs, topo):
    """Size of dimension k of a logical tensor: the sum over the coordinates of the axes that cut it."""
    cuts = [c for c in r.cuts if dim_of(c, obs[0][5], f"'{name}'") == k]
    axes, sizes = [a for c in cuts for a in c.axes], {}
    for rank, coords, key, _, _, shape, _ in obs:
        at = tuple(coords[a] for a in axes)
        other, size = sizes.setdefault(at, (rank, shape[k]))
        need(size == shape[k], f"'{name}' dimension {k}: rank {other} has {size}, rank {rank} has {shape[k]}; both are {dict(zip(axes, at))}")
    need(len(sizes) == topo.of(axes), f"'{name}': ranks hold {len(sizes)} of the {topo.of(axes)} parts over {'*'.join(axes)}")
    total = sum(size for _, size in sizes.values())
    return cuts[0].size if cuts and cuts[0].size else total


def check(view, files):
    """The ranks must hold exactly what the rules make of the state."""
    for rank in sorted(files):
        want = {k: (s.dtype, s.shape) for k, s in view.rank(rank).items()}
        have = {k: (d, tuple(s)) for k, (d, s) in files[rank].items()}
        for key in sorted(set(want) | set(have)):
            need(key in have, f"rank {rank} lacks '{key}', {want.get(key)}, which other ranks and the rules say it has")
            need(key in want, f"rank {rank} has '{key}', which the rules do not put there")
            need(want[key] == have[key], f"rank {rank}: '{key}' is {have[key]}, the rules make it {want[key]}")


# --- bytes, in memory -------------------------------------------------------------------------------------------------

def window(array, box):
    flat = array.reshape(-1)
    return np.lib.stride_tricks.as_strided(flat[box.at:], box.ext, [s * flat.itemsize for s in box.stride])


def join(view, arrays):
    """{rank: {stored name: ndarray}} -> {logical name: ndarray}; replicas must be equal, every element there."""
    out, seen = {}, {}
    for rank in sorted(arrays):
        for key, s in view.rank(rank).items():
            for name, box in s.parts:
                if name not in out:
                    out[name], seen[name] = np.zeros(view.state[name].shape, arrays[rank][key].dtype), np.zeros(view.state[name].shape, bool)
                at, piece = tuple(slice(o, o + n) for o, n in zip(box.off, box.ext)), window(arrays[rank][key], box)
                known = seen[name][at]
                need(np.array_equal(out[name][at][known], piece[known]), f"rank {rank}: '{key}' differs from another rank's copy of '{name}'")
                out[name][at], seen[name][at] = piece, True
    for name, mask in seen.items():
        need(mask.all(), f"'{name}': {int((~mask).sum())} elements are on no rank")
    return out


def fill(view, rank, get):
    """A rank's arrays; get(logical name, box) -> the elements of a region.  Padding is zero."""
    out = {}
    for key, s in view.rank(rank).items():
        for name, box in s.parts:
            piece = get(name, box)
            out.setdefault(key, np.zeros(s.shape, piece.dtype))
            window(out[key], box)[...] = piece
        out.setdefault(key, np.zeros(s.shape, s.dtype))
    return out


def cut(view, state):
    """{logical name: ndarray} -> {rank: {stored name: ndarray}}."""
    region = lambda name, b: state[name][tuple(slice(o, o + n) for o, n in zip(b.off, b.ext))]
    return {rank: fill(view, rank, region) for rank in range(view.topo.ranks)}


def reshard(source, arrays, target):
    """The plan run directly: every box of the target gathered from boxes of the source, no whole tensor made."""
    def get(name, box):
        piece, found = None, np.zeros(box.ext, bool)
        for rank, key, b in source.sources(name, box.off, box.ext):
            piece = np.zeros(box.ext, arrays[rank][key].dtype) if piece is None else piece
            at = tuple(slice(o - p, o - p + n) for o, p, n in zip(b.off, box.off, b.ext))
            piece[at], found[at] = window(arrays[rank][key], b), True
        need(found.all(), f"'{name}': {int((~found).sum())} elements of {box.off} + {box.ext} are on no rank")
        return piece
    return {rank: fill(target, rank, get) for rank in range(target.topo.ranks)}


def main():
    if sys.argv[1:2] != ["--boxes"] or len(sys.argv) != 4:
        return print(__doc__)
    with open(sys.argv[2]) as f:
        layout = Layout(f.read())
    topo = Topology(sys.argv[3], layout)
    view = View(layout, topo, {n: Tensor(d, tuple(s)) for n, (d, s) in json.load(sys.stdin).items()})
    for rank in range(topo.ranks):
        for key, s in sorted(view.rank(rank).items()):
            print(rank, key, s.dtype, list(s.shape), sep="\t")
            for name, b in s.parts:
                print("", name, *map(list, b[:2]), b.at, list(b.stride), sep="\t")


if __name__ == "__main__":
    main()
