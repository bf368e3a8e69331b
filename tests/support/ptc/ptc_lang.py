"""The languages of docs/layout.md: topologies, name patterns, layout rules.  Part of the reference model, see ptc.py."""
import itertools
import math
import os
import re
from collections import namedtuple
from dataclasses import dataclass, field, replace

Cut = namedtuple("Cut", "axes dim sections pad lcm size chunk", defaults=((1,), 0, False, 0, False))
FLAT = Cut((), None)
RANKS_MAX = 1 << 20


class Refused(Exception):
    pass


def need(ok, text):
    if not ok:
        raise Refused(text)


def up(n, m):
    return -(-n // m) * m


def number(text, what):
    need(re.fullmatch(r"[1-9]\d{0,8}|0", text), f"{what}: '{text}' is not a number")
    return int(text)


# --- topology ---------------------------------------------------------------------------------------------------

class Topology:
    """Degrees of the axes of a layout's meshes.  Every mesh numbers the same ranks, its first axis fastest."""

    def __init__(self, text, layout):
        given, orders, self.stages, self.text = {}, [], None, " ".join(re.split(r"[\s,]+", text.strip()))
        for word in self.text.split():
            key, _, value = word.partition("=")
            need(key not in given and not (key == "stages" and self.stages), f"topology '{text}': {key} is given twice")
            if key == "order":
                orders.append(value.split("-"))
            elif key == "stages":
                self.stages = [number(n, "stages") for part in value.split("+")
                               for n, _, k in [part.partition("x")] for _ in range(number(k or "1", "stages"))]
            else:
                need(key in layout.axes or key == "vp",
                     f"topology '{text}': no axis '{key}'; this layout's axes are {' '.join(layout.axes)}")
                given[key] = number(value, f"topology '{text}', {key}")
                need(given[key] > 0, f"topology '{text}': {key} is 0")
        self.degree, self.stride, self.ranks = {"vp": given.pop("vp", 1)}, {}, 0
        for mesh in layout.meshes:
            rest = [a for a, default in mesh if default == "*" and a not in given]
            for axis, default in mesh:
                if axis not in rest and axis not in self.degree:
                    self.degree[axis] = given.get(axis) or self.degree.get(default) or int(default)
            known = math.prod(self.degree[a] for a, _ in mesh if a not in rest)
            if rest:
                need(self.ranks % known == 0, f"topology '{text}': {self.ranks} ranks do not divide by {known}, the "
                     f"product of {' '.join(a for a, _ in mesh if a not in rest)}")
                self.degree[rest[0]] = self.ranks // known
            axes, size = [a for a, _ in mesh], math.prod(self.degree[a] for a, _ in mesh)
            need(self.ranks in (0, size), f"topology '{text}': {' '.join(axes)} make {size} ranks, not {self.ranks}")
            self.ranks = size
            for order in orders:
                if set(order) <= set(axes):
                    left = [a for a in axes if a not in order and self.degree[a] > 1]
                    need(not left and len(set(order)) == len(order), f"topology '{text}': order lacks or repeats an axis {left}")
                    axes = order + [a for a in axes if a not in order]
            stride = 1
            for a in axes:
                need(self.degree[a] == 1 or self.stride.get(a, stride) == stride,
                     f"topology '{text}': the meshes disagree on which ranks share a {a} coordinate")
                self.stride[a] = stride
                stride *= self.degree[a]
        for order in orders:
            need(any(set(order) <= {a for a, _ in m} for m in layout.meshes), f"topology '{text}': order fits no mesh")
        need(self.ranks <= RANKS_MAX, f"topology '{text}': {self.ranks} ranks, at most {RANKS_MAX}")
        self.chunks = self.degree.get("pp", 1) * self.degree["vp"]
        need(not self.stages or len(self.stages) == self.chunks,
             f"topology '{text}': stages lists {len(self.stages or [])}, pp*vp is {self.chunks}")

    def coords(self, rank):
        return {a: rank // s % self.degree[a] for a, s in self.stride.items()}

    def of(self, axes):
        return math.prod(self.degree[a] for a in axes)

    def split(self, axes, index):
        """Index in a compound axis -> coordinates; the axis of the smaller stride is the faster one."""
        out = {}
        for a in sorted(axes, key=lambda a: (self.stride[a], self.degree[a])):
            index, out[a] = divmod(index, self.degree[a])
        return out

    def index(self, axes, coords):
        at, mul = 0, 1
        for a in sorted(axes, key=lambda a: (self.stride[a], self.degree[a])):
            at, mul = at + coords[a] * mul, mul * self.degree[a]
        return at

    def starts(self, layers):
        """First layer of every chunk, and the end; chunk c lies on stage c % pp, as its virtual chunk c // pp."""
        need(self.stages or layers % self.chunks == 0, f"topology '{self.text}': {layers} layers do not divide over "
             f"pp*vp={self.chunks}; say stages=")
        sizes = self.stages or [layers // self.chunks] * self.chunks
        need(sum(sizes) == layers, f"topology '{self.text}': stages add up to {sum(sizes)}, the job has {layers} layers")
        return [0, *itertools.accumulate(sizes)]


# --- patterns ---------------------------------------------------------------------------------------------------

NUMBERS = set("LGEXVB")        # every other capture in capitals is text; in small letters: a coordinate of the rank
fresh = itertools.count()


def parse(text):
    """Pattern -> ((kind, value, width), ...), kind one of lit, num, text, choice (its value: a number, then the words)."""
    out = []
    for m in re.finditer(r"\{(\w+)(?::0(\d))?\}|(\*)|([^{}*]+)|\{(\w+(?:\|\w+)+)\}|(.)", text):
        name, width, star, lit, words, bad = m.groups()
        need(not bad, f"pattern '{text}': stray {bad}")
        kind = "lit" if lit else "choice" if words else "num" if name and (name in NUMBERS or name[0].islower()) else "text"
        need(not out or kind == "lit" or out[-1][0] != kind, f"pattern '{text}': two captures of a kind touch")
        value = f"{next(fresh)}|{words}" if words else lit or name or f"*{next(fresh)}"
        out.append((kind, value, int(width or 0)))
    names = [v for k, v, _ in out if k != "lit"]
    need(len(names) == len(set(names)), f"pattern '{text}': a capture is used twice")
    return tuple(out)


def match(pattern, s):
    """Captures or None.  A number takes its whole run of digits, a text as little as it can; only the last text is
    ever tried again, so the cost is at most len(pattern) * len(s)."""
    caps, i, p, back = {}, 0, 0, None
    while p < len(pattern) or i < len(s):
        if p < len(pattern):
            kind, value, width = pattern[p]
            if kind == "text" and p + 1 == len(pattern):
                return {**caps, value: s[i:]}
            if kind == "text":
                back, caps[value], p = (p, i, i), "", p + 1
                continue
            if kind == "lit" and s.startswith(value, i):
                i, p = i + len(value), p + 1
                continue
            if kind == "choice":
                fits = [w for w in value.split("|")[1:] if s.startswith(w, i)]
                if fits:
                    caps[value] = max(fits, key=len)
                    i, p = i + len(caps[value]), p + 1
                    continue
            if kind == "num":
                run = re.compile(r"[0-9]{0,9}").match(s, i).group()
                if (value == "V" and not run) or (run and f"{int(run):0{width}}" == run):
                    caps[value], i, p = int(run) if run else None, i + len(run), p + 1
                    continue
        if back is None or back[2] == len(s):
            return None
        p, start, end = back
        back, i, p = (p, start, end + 1), end + 1, p + 1
        caps[pattern[back[0]][1]] = s[start:i]
    return caps


def render(pattern, caps):
    return "".join(v if k == "lit" else caps[v] if k in ("text", "choice") else "" if caps[v] is None else f"{caps[v]:0{w}}"
                   for k, v, w in pattern)


def where_less(pattern):
    """A stored name's pattern without the captures that only say where: {V}, {B} and coordinates."""
    return tuple(t for t in pattern if not (t[0] == "num" and t[1] not in set("LGEX")))


# --- rules ------------------------------------------------------------------------------------------------------

@dataclass
class Rule:
    text: str
    file: tuple                # stored name = file:name
    name: tuple
    goal: tuple = None         # pattern of the logical name, without the file
    base: tuple = None         # that of the tensor a `like` rule copies
    cuts: list = field(default_factory=list)
    stage: list = field(default_factory=list)
    each: tuple = ()
    wrap: bool = False
    tied: bool = False
    concat: list = None        # globs of members
    order: str = "rules"
    align: int = 1
    bucket: int = 0
    alone: tuple = None
    index: int = 0

    def has(self, *captures):
        return any(k != "lit" and v in captures for k, v, _ in self.file + self.name)

    def axes(self):
        return {a for c in self.cuts for a in c.axes} | set(self.each) | ({"pp"} if self.stage or self.has("L", "G") else
                                                                          set()) | ({"ep"} if self.has("E", "X") else set())

    def match(self, key, logical=False):
        file, name = key.split(":", 1)
        a = match(where_less(self.file) if logical else self.file, file)
        b = match(self.goal if logical else self.name, name)
        return None if a is None or b is None else {**a, **b}

    def key(self, caps, logical=False):
        return (render(where_less(self.file) if logical else self.file, caps) + ":" +
                render(self.goal if logical else self.name, caps))


class Layout:
    def __init__(self, text):
        self.meshes, self.axes, self.firsts, self.plain, lines = [], [], {}, [], []
        self.read(text, {}, lines, 0)
        plain = {line: self.rule(line) for line in lines if " like=" not in line}
        self.all = [r for line in lines for r in ([plain[line]] if line in plain else self.like(line, plain.values()))]
        self.rules, self.concats = [r for r in self.all if not r.concat], [r for r in self.all if r.concat]
        for i, r in enumerate(self.rules):
            r.index = i

    def read(self, text, variables, lines, depth):
        need(depth < 8, "use: presets nest too deep")
        file = "*"                                          # of the rules that name none
        for line in text.splitlines():
            line = re.sub(r"(^|\s)#.*", "", line).strip()
            for name in re.findall(r"\$(\w+)", line):
                need(name in variables, f"layout '{line}': no variable {name}; write 'let {name}='")
            line = re.sub(r"\$(\w+)", lambda m: variables[m.group(1)], line)
            word, _, rest = line.partition(" ")
            if word == "let":
                for name, _, value in (w.partition("=") for w in rest.split()):
                    variables.setdefault(name, value)
            elif word == "use":
                name, *settings = rest.split()
                need(name in presets(), f"layout '{line}': no preset '{name}'; there are {' '.join(presets())}")
                self.read(presets()[name], {**variables, **dict(s.split("=", 1) for s in settings)}, lines, depth + 1)
            elif word == "mesh":
                mesh = [(a, d or "1") for a, _, d in (w.partition("=") for w in rest.split())]
                if mesh not in self.meshes:
                    self.meshes.append(mesh)
                    self.axes += [a for a, _ in mesh if a not in self.axes]
            elif word == "file":
                file = rest.strip()
            elif word in ("plain", "log"):                  # a log is plain: what more it is says a commit
                need(len(rest.split()) == 1, f"layout '{line}': a {word} line has one pattern of a file")
                need(not re.search(r"[{}]", rest), f"layout '{line}': a {word} file has no captures; write * for any text")
                self.plain.append(parse(rest))
            elif line:
                named = ":" in re.sub(r"\{[^}]*\}", "", word)
                lines.append(line if named else f"{file}:{line}")

    def rule(self, line, into=None):
        pattern, *words = line.split()
        def keyed(text, file="*"):
            named = ":" in re.sub(r"\{[^}]*\}", "", text)
            f, n = re.match(r"((?:\{[^}]*\}|[^{:])*):(.*)", text).groups() if named else (file, text)
            return parse(f), parse(n)
        r = into or Rule(line, *keyed(pattern))
        fresh_goal, done = where_less(r.name), bool(into)
        def on_last(key, **change):
            need(r.cuts and r.cuts[-1] != FLAT, f"layout '{line}': {key} follows no cut")
            r.cuts[-1] = r.cuts[-1]._replace(**change)
        for word in words:
            key, eq, value = word.partition("=")
            done = True
            if eq and not value or key == "like":
                continue                                   # an empty variable: as if it were not written
            axes = key.split("*")
            if all(a in self.axes for a in axes) and eq:
                need(re.fullmatch(r"-?\d", value), f"layout '{line}': '{word}': a dimension is a number")
                r.cuts.append(Cut(tuple(axes), int(value)))
            elif word == "flat":
                r.cuts.append(FLAT)
            elif key == "sections":
                on_last(key, sections=tuple(number(n, key) for n in value.split(":")))
            elif key == "pad":
                m = re.fullmatch(r"lcm\((\d+)\)|(\d+)", value)
                need(m, f"layout '{line}': '{word}'")
                on_last(key, pad=int(m.group(1) or m.group(2)), lcm=bool(m.group(1)))
            elif key == "size":
                on_last(key, size=number(value, key))
            elif word == "chunk":
                on_last(key, chunk=True)
            elif key == "stage":
                r.stage = [{"first": 0, "last": -1}.get(v) if v in ("first", "last") else number(v, key) for v in value.split(",")]
            elif key == "each":
                r.each = tuple(axes if not eq else value.split("*"))
            elif key in ("name", "tied"):
                r.goal, r.tied = parse(value), key == "tied"
            elif key == "concat":
                r.concat = [(g[0] != "!", Rule(g, *keyed(g.lstrip("!")))) for g in value.split(",")]
            elif key == "alone":
                r.alone = parse(value)
            elif key in ("align", "bucket"):
                setattr(r, key, number(value, key))
            elif key == "order":
                r.order = value
            elif word == "wrap":
                r.wrap = True
            else:
                need(word == "copy", f"layout '{line}': '{word}' is no attribute (or no axis of this layout)")
        need(done, f"layout '{line}': no attribute; whole on every rank is 'copy'")
        need(not r.stage or not r.has("L", "G"), f"layout '{line}': a layer's number says its stage")
        r.goal = r.goal or fresh_goal
        need(into or self.one_mesh(r.axes()), f"layout '{line}': no mesh has all of {sorted(r.axes())}")
        for i, c in enumerate(r.cuts):
            before = r.cuts[max([j for j in range(i) if r.cuts[j] == FLAT], default=0):i]
            need(not (c.pad or c.size) or c.dim not in [b.dim for b in before],
                 f"layout '{line}': pad and size belong to the first cut of a dimension")
            need(FLAT not in r.cuts[:i] or c.dim == 0, f"layout '{line}': after flat only dimension 0 is left")
        cut_axes = [a for c in r.cuts for a in c.axes]
        need(len(cut_axes) == len(set(cut_axes)), f"layout '{line}': an axis cuts twice")
        return r

    def one_mesh(self, axes):
        axes = axes - ({"pp", "ep"} - set(self.axes))       # of a layout without them: degree 1
        return any(axes <= {a for a, _ in m} for m in self.meshes)

    def like(self, line, rules):
        """What a `like` line stands for: a copy of every rule that shares a mesh with the line's own axes, names
        wrapped, the line's attributes appended."""
        outer, out = self.rule(line.split()[0] + " copy"), []
        at = [i for i, t in enumerate(outer.name) if t[1] == "P"]
        need(len(at) == 1 and " like={P}" in line, f"layout '{line}': like wants one {{P}} in its pattern")
        wrap = lambda inner: outer.name[:at[0]] + inner + outer.name[at[0] + 1:]
        for r in rules:
            if not r.concat:
                copy = self.rule(line, replace(r, text=f"{line} <- {r.text}", file=outer.file, name=wrap(r.name), goal=wrap(r.goal),
                                               base=r.goal, cuts=list(r.cuts)))
                out += [copy] if self.one_mesh(copy.axes()) else []
        return out

    def is_plain(self, file):
        """Files that are kept as they are, whatever they hold."""
        return any(match(p, file) is not None for p in self.plain)

    def first(self, key, topo):
        """The rule of a stored name: the first that matches.  Tied copies are there only if pp > 1."""
        need(not self.is_plain(key.split(":", 1)[0]), f"'{key}': the file is plain")
        at = key, topo.degree.get("pp", 1) > 1
        if at not in self.firsts:
            self.firsts[at] = next(((r, c) for r in self.all if at[1] or not r.tied for c in [r.match(key)] if c is not None), None)
        need(self.firsts[at], f"no rule matches '{key}'")
        r, caps = self.firsts[at]
        return r, dict(caps)


_presets = {}


def presets():
    if not _presets:
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "meta", "model", "presets")
        for file in sorted(os.listdir(folder)):
            with open(os.path.join(folder, file)) as f:
                _presets[file.removesuffix(".layout")] = f.read()
    return _presets
