# SPDX-License-Identifier: Apache-2.0
"""Reads torch .pt/.pth/.bin/.ckpt files (the zip format) without torch, without executing anything, without copying data.

    pt = read_pt(path)              # or read_pt_at(file, base, length) for a part of a file (DCP items)
    pt.tensors                      # [TensorAt]: path, dtype, shape, stride, at (byte of the first element), ...
    pt.tree                         # everything, tensors as Tensor leaves: see pkl.py
    pt.records                      # {record: (offset, length)}, absolute offsets
    pt.inside                       # paths of tensors inside objects that are not understood (sparse, quantized, meshes)

A path joins the keys of nested dicts and lists with "/": `model/decoder.layers.0.mlp.linear_fc1.weight`,
`optimizer/state/0/exp_avg`.  A text key that looks like a number gets a quote in front (`'0`).
"""
import os
from collections import namedtuple

import pkl
from pkl import Dict, Global, Obj, Persist, Refused, need

# Names of types are those of safetensors; None: torch has it, safetensors has not (kept, not catalogued).
STORAGES = {"DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "LongStorage": "I64",
            "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL",
            "ComplexFloatStorage": "C64", "ComplexDoubleStorage": "C128", "UntypedStorage": "U8",
            "QInt8Storage": "I8", "QUInt8Storage": "U8", "QInt32Storage": "I32"}
DTYPES = {"float64": "F64", "double": "F64", "float32": "F32", "float": "F32", "float16": "F16", "half": "F16", "bfloat16": "BF16",
          "int64": "I64", "long": "I64", "int32": "I32", "int": "I32", "int16": "I16", "short": "I16", "int8": "I8", "uint8": "U8",
          "bool": "BOOL", "uint16": "U16", "uint32": "U32", "uint64": "U64", "complex64": "C64", "complex128": "C128",
          "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
          "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4"}
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "U16": 2, "U32": 4,
         "U64": 8, "C64": 8, "C128": 16, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1, "F4": 1}
DIMS_MAX, SIZE_MAX = 64, 1 << 62

ENTRIES_MAX = 1_000_000             # records of an archive
DIRECTORY_MAX = 256 << 20           # bytes of its central directory
PICKLE_MAX = 128 << 20              # bytes of data.pkl

Storage = namedtuple("Storage", "key dtype numel location at bytes")
TensorAt = namedtuple("TensorAt", "path dtype shape stride at storage kind requires_grad record offset")


class Tensor:
    """A leaf of the tree.  stride in elements; offset: element of the storage."""
    __slots__ = ("storage", "dtype", "shape", "stride", "offset", "requires_grad", "kind")

    def __init__(self, storage, dtype, shape, stride, offset, requires_grad=False, kind="tensor"):
        self.storage, self.dtype, self.shape, self.stride = storage, dtype, shape, stride
        self.offset, self.requires_grad, self.kind = offset, requires_grad, kind

    @property
    def at(self):
        return self.storage.at + self.offset * BYTES[self.dtype]

    def contiguous(self):
        want = 1
        for n, s in zip(reversed(self.shape), reversed(self.stride)):
            if n != 1 and s != want:
                return False
            want *= n
        return True


def count(x, what):
    need(type(x) is int and 0 <= x < SIZE_MAX, f"{what}: {x!r} is no size")
    return x


def elements(shape):
    n = 1
    for d in shape:
        n *= d
    need(n < SIZE_MAX, f"a tensor of {list(shape)}: its size overflows")
    return n


# --- the archive ------------------------------------------------------------------------------------------------------

def le(b, at, n):
    return int.from_bytes(b[at:at + n], "little")


class Window:
    """Bytes [base, base + length) of a file."""

    def __init__(self, f, base, length):
        self.f, self.base, self.length = f, base, length

    def read(self, at, n, what):
        need(0 <= at and n <= self.length - at, f"zip: {what} lies outside the file (byte {at}, {n} bytes, the file has {self.length})")
        self.f.seek(self.base + at)
        got = self.f.read(n)
        need(len(got) == n, f"zip: {what}: the file ends before it")
        return got


def zip_records(w):
    """{name without the archive's folder: (offset in the window, bytes)}.  Every rule that a reader in place relies on is
    checked: stored (not compressed, not encrypted), inside the file, not overlapping, names that occur once."""
    need(w.length >= 22, f"zip: the file has {w.length} bytes")
    tail_at = max(0, w.length - 22 - 65535)
    tail = w.read(tail_at, w.length - tail_at, "its end")
    i = len(tail) - 22                                  # the last record that says it ends where the file ends
    while i >= 0 and not (tail[i:i + 4] == b"PK\5\6" and i + 22 + le(tail, i + 20, 2) == len(tail)):
        i = tail.rfind(b"PK\5\6", 0, i + 3)
    need(i >= 0, "zip: no end of a central directory: the file is cut short, or no zip file")
    end_at = tail_at + i
    disk, nr, size, start = le(tail, i + 4, 2), le(tail, i + 10, 2), le(tail, i + 12, 4), le(tail, i + 16, 4)
    need(disk == 0 and le(tail, i + 6, 2) == 0, "zip: an archive of several volumes")
    if end_at >= 20 and w.read(end_at - 20, 4, "the zip64 locator") == b"PK\6\7":
        loc = w.read(end_at - 20, 20, "the zip64 locator")
        at64 = le(loc, 8, 8)
        e = w.read(at64, 56, "the zip64 end record")
        need(e[:4] == b"PK\6\6", "zip: the zip64 end record is not where the locator says")
        need(le(e, 16, 4) == 0 and le(e, 20, 4) == 0, "zip: an archive of several volumes")
        nr64, size64, start64 = le(e, 32, 8), le(e, 40, 8), le(e, 48, 8)
        need(nr in (nr64, 0xFFFF) and size in (size64, 0xFFFFFFFF) and start in (start64, 0xFFFFFFFF), "zip: its two end records disagree")
        nr, size, start, end_at = nr64, size64, start64, at64
    need(nr <= ENTRIES_MAX and size <= DIRECTORY_MAX, f"zip: {nr} records in a directory of {size} bytes, at most {ENTRIES_MAX} and {DIRECTORY_MAX}")
    need(nr * 46 <= size and start + size <= end_at, f"zip: a directory of {nr} records and {size} bytes at byte {start} does not fit")
    d, p, out, spans, folder = w.read(start, size, "the directory"), 0, {}, [(start, w.length, "the directory")], None
    for k in range(nr):
        need(p + 46 <= size and d[p:p + 4] == b"PK\1\2", f"zip: record {k} of the directory is damaged")
        flags, method, csize, usize = le(d, p + 8, 2), le(d, p + 10, 2), le(d, p + 20, 4), le(d, p + 24, 4)
        n, x, c, at = le(d, p + 28, 2), le(d, p + 30, 2), le(d, p + 32, 2), le(d, p + 42, 4)
        need(p + 46 + n + x + c <= size, f"zip: record {k} of the directory is damaged")
        try:
            name = d[p + 46:p + 46 + n].decode("utf-8")
        except UnicodeDecodeError:
            raise Refused(f"zip: the name of record {k} is not UTF-8") from None
        extra, q = d[p + 46 + n:p + 46 + n + x], 0
        p += 46 + n + x + c
        while q + 4 <= len(extra):
            tag, m = le(extra, q, 2), le(extra, q + 2, 2)
            need(q + 4 + m <= len(extra), f"zip: '{name}': an extra field is damaged")
            if tag == 1:
                r = q + 4
                for big in ("usize", "csize", "at"):
                    if {"usize": usize, "csize": csize, "at": at}[big] == 0xFFFFFFFF:
                        need(r + 8 <= q + 4 + m, f"zip: '{name}': the zip64 field is short")
                        v, r = le(extra, r, 8), r + 8
                        usize, csize, at = (v, csize, at) if big == "usize" else (usize, v, at) if big == "csize" else (usize, csize, v)
            q += 4 + m
        need(method == 0, f"zip: '{name}' is compressed (method {method}): it cannot be read in place")
        need(flags & 1 == 0, f"zip: '{name}' is encrypted")
        need(csize == usize, f"zip: '{name}' has two sizes, {csize} and {usize}")
        h = w.read(at, 30, f"the header of '{name}'")
        need(h[:4] == b"PK\3\4" and le(h, 8, 2) == 0, f"zip: the header of '{name}' is damaged")
        need(w.read(at + 30, le(h, 26, 2), f"the header of '{name}'") == name.encode(), f"zip: '{name}' has another name in its own header")
        data = at + 30 + le(h, 26, 2) + le(h, 28, 2)
        need(data + usize <= start, f"zip: '{name}' runs into the directory or past the end")
        head, slash, rest = name.partition("/")
        need(slash and (folder is None or folder == head), f"zip: '{name}' is not in the archive's folder")
        need(rest not in out, f"zip: '{name}' is there twice")
        folder, out[rest] = head, (data, usize)
        spans.append((at, data + usize, name))
    need(p == size, "zip: bytes are left behind the last record of the directory")
    spans.sort()
    for (a, b, x), (c, _, y) in zip(spans, spans[1:]):
        need(b <= c, f"zip: '{x}' and '{y}' overlap")
    return out


# --- the pickle: tensors ----------------------------------------------------------------------------------------------

class Reader:
    def __init__(self, records, base):
        self.records, self.base, self.storages, self.made = records, base, {}, {}

    def storage(self, p):
        pid = p.pid
        need(type(pid) is tuple and len(pid) == 5 and pid[0] in ("storage", b"storage"), "a persistent id that is no storage")
        _, cls, key, location, numel = pid
        key = key.decode() if type(key) is bytes else str(key)
        need(type(cls) is Global and cls.name in STORAGES, f"storage '{key}': type {cls!r} is not known")
        numel, dtype = count(numel, f"storage '{key}'"), STORAGES[cls.name]
        if key not in self.storages:
            need(f"data/{key}" in self.records, f"storage '{key}' has no record")
            at, n = self.records[f"data/{key}"]
            need(numel * BYTES[dtype] == n, f"storage '{key}': {numel} elements of {dtype}, its record has {n} bytes")
            self.storages[key] = Storage(key, dtype, numel, str(location), self.base + at, n)
        s = self.storages[key]
        need(s.dtype == dtype and s.numel == numel, f"storage '{key}' is used as two types or sizes")
        return s

    def size(self, x, what):
        if type(x) is Obj and pkl.is_global(x.func, "torch", "Size") and len(x.args) == 1:
            x = x.args[0]
        need(type(x) in (tuple, list) and len(x) <= DIMS_MAX, f"{what}: {type(x).__name__} is no shape")
        return tuple(count(d, what) for d in x)

    def tensor(self, o):
        """Obj -> Tensor where the call is one that makes a dense tensor of a storage; else None."""
        f, a = o.func, o.args
        if type(f) is not Global or o.how != "reduce":
            return None
        if f.module == "torch._utils" and f.name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_tensor"):
            need(len(a) >= (4 if f.name == "_rebuild_tensor" else 6), f"{f.name} with {len(a)} arguments")
            need(type(a[0]) is Persist, f"{f.name} of what is no storage")
            s, offset = self.storage(a[0]), count(a[1], "storage offset")
            shape, stride = self.size(a[2], "shape"), self.size(a[3], "strides")
            need(len(shape) == len(stride), f"a tensor of {len(shape)} dimensions and {len(stride)} strides")
            dtype = s.dtype
            if f.name == "_rebuild_tensor_v3":
                need(len(a) >= 7 and type(a[6]) is Global and a[6].module == "torch" and a[6].name in DTYPES, f"a tensor of an unknown type {a[6:7]}")
                dtype = DTYPES[a[6].name]
            if elements(shape):
                last = offset + sum((n - 1) * t for n, t in zip(shape, stride))
                need((last + 1) * BYTES[dtype] <= s.bytes, f"a tensor of {list(shape)}, strides {list(stride)}, at element {offset} of storage "
                     f"'{s.key}', which has {s.bytes} bytes")
            if f.name == "_rebuild_tensor_v2" and len(a) > 6 and children_true(a[6]) or f.name == "_rebuild_tensor_v3" and len(a) > 7 and children_true(a[7]):
                return None                             # conjugate or negative bit: the bytes are not the values
            return Tensor(s, dtype, shape, stride, offset, bool(a[4]) if len(a) > 4 else False)
        if f.module == "torch._utils" and f.name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
            inner = self.made.get(id(a[0])) if a else None
            if inner is None:
                return None
            return Tensor(inner.storage, inner.dtype, inner.shape, inner.stride, inner.offset, bool(a[1]), "parameter")
        if f.module == "torch._tensor" and f.name == "_rebuild_from_type_v2" and len(a) == 4 and type(a[2]) is tuple:
            if repr(a[1]) in ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"):     # with Python attributes
                return self.tensor(Obj("reduce", a[0], a[2]))
            if repr(a[1]) == "torch.distributed.tensor.DTensor" and type(a[3]) in (Dict, tuple):
                state = a[3] if type(a[3]) is Dict else a[3][-1]        # (None, slots)
                inner = self.made.get(id(state.get("_local_tensor"))) if type(state) is Dict else None
                if inner is not None:
                    return Tensor(inner.storage, inner.dtype, inner.shape, inner.stride, inner.offset, inner.requires_grad, "dtensor")
        return None

    def run(self, tree):
        """Finds the tensors (bottom-up over all objects, each once)."""
        order, seen, stack = [], set(), [tree]
        while stack:
            x = stack.pop()
            if type(x) not in (Dict, pkl.Set, Obj, Persist, list, tuple) or id(x) in seen:
                continue
            seen.add(id(x))
            order.append(x)
            if type(x) is Dict:
                stack += [y for p in x.pairs for y in p]
            elif type(x) is Obj:
                stack += [x.args, x.state, *x.items, *(y for p in x.pairs for y in p)]
            elif type(x) is Persist:
                stack.append(x.pid)
            else:
                stack += list(x.items) if type(x) is pkl.Set else list(x)
        for _ in range(3):                              # tensors, parameters and wrappers of them, parameters of wrappers
            for x in reversed(order):
                if type(x) is Obj and id(x) not in self.made:
                    t = self.tensor(x)
                    if t is not None:
                        self.made[id(x)] = t


def inside_object(path):
    """Below the arguments or the state of something that is not understood: kept with it, not a tensor of the job."""
    return any(x[:1] in "@#" and x for x in path.split("/"))


def children_true(x):
    return type(x) is Dict and any(v is True for _, v in x.pairs)


class Pt:
    def __init__(self, tree, reader, records, base, steps):
        self.tree, self.reader, self.base = tree, reader, base
        self.records = {k: (base + at, n) for k, (at, n) in records.items()}
        self.tensors, self.inside = [], []
        pkl.walk(tree, self.visit, steps)

    def tensor_of(self, node):
        return self.reader.made.get(id(node))

    def visit(self, path, node):
        t = self.tensor_of(node) if type(node) is Obj else None
        if t is not None and not inside_object(path):
            self.tensors.append(TensorAt(path, t.dtype, t.shape, t.stride, t.at, t.storage, t.kind, t.requires_grad, f"data/{t.storage.key}", t.offset))
            return True
        if t is not None:
            self.inside.append(path)
            return True
        return None


def sniff(head):
    """What a file's first bytes say it is."""
    if head[:4] == b"PK\3\4":
        return "zip"
    if head[:1] == b"\x80" and b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19" in head[:16]:
        return "legacy"
    if head[:1] == b"\x80":
        return "pickle"
    if head[8:9] == b"{" and le(head, 0, 8) <= 100_000_000:
        return "safetensors"
    return "unknown"


def read_pt_at(f, base, length):
    w = Window(f, base, length)
    head = w.read(0, min(16, length), "its beginning")
    kind = sniff(head)
    need(kind != "legacy", "torch's format from before 1.6 (no zip archive): load it and save it again with torch.save")
    need(kind != "pickle", "a bare pickle, no torch zip archive")
    need(kind == "zip", "no torch zip archive")
    records = zip_records(w)
    need("constants.pkl" not in records, "a TorchScript archive holds a program, not only tensors")
    need("data.pkl" in records, "zip: no data.pkl: not made by torch.save")
    need(records["data.pkl"][1] <= PICKLE_MAX, f"data.pkl has {records['data.pkl'][1]} bytes, at most {PICKLE_MAX}")
    text = lambda k: w.read(records[k][0], min(records[k][1], 64), k).strip() if k in records else None
    version = text(".data/version") or text("version")
    need(version is None or version.isdigit() and 1 <= int(version) <= 10, f"an archive of version {version!r}")
    need(text("byteorder") in (None, b"little"), f"byte order {text('byteorder')!r}: only little endian is read in place")
    data = w.read(*records["data.pkl"], "data.pkl")
    tree = pkl.parse(data)
    reader = Reader(records, base)
    reader.run(tree)
    return Pt(tree, reader, records, base, pkl.steps_for(data))


def read_pt(path):
    with open(path, "rb") as f:
        return read_pt_at(f, 0, os.fstat(f.fileno()).st_size)
