# SPDX-License-Identifier: Apache-2.0
"""Reads PyTorch distributed checkpoints (DCP: `.metadata` and `__R_N.distcp`) without torch.

    dcp = read_dcp(folder)
    dcp.tensors         # {name: Logical(dtype, shape, chunks)}; chunk: offset and size in the whole, file, byte of its data, strides
    dcp.objects         # {name: (file, offset, length)}: torch.save archives or raw bytes of what is no tensor
    dcp.paths           # {name: path before flattening}, or None
    dcp.check()         # chunks cover each tensor exactly once, or a refusal
"""
import os
from collections import namedtuple

import pkl
from pkl import Dict, Global, Obj, Refused, need
from read_pt import BYTES, DTYPES, count, elements, read_pt_at

METADATA_MAX = 1 << 30
CHUNKS_MAX = 50_000_000

Logical = namedtuple("Logical", "dtype shape chunks")
Chunk = namedtuple("Chunk", "off ext file at stride item")      # at: byte of the first element; stride in elements; item: (offset, length)


def fields(o, module, name, what):
    """State of an instance of a known class."""
    need(type(o) is Obj and type(o.func) is Global, f"{what}: no {name}")
    need((o.func.module, o.func.name) == (module, name), f"{what}: a {o.func!r} where {name} is wanted")
    need(o.how == "newobj" and o.args == (), f"{what}: {name} with arguments")
    need(type(o.state) in (Dict, tuple), f"{what}: {name} without fields")
    return o.state


META, STORE = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"


def size_of(o, what):
    """torch.Size"""
    if type(o) is Obj and pkl.is_global(o.func, "torch", "Size") and len(o.args) == 1:
        o = o.args[0]
    need(type(o) in (tuple, list) and len(o) <= 64, f"{what}: no torch.Size")
    return tuple(count(x, what) for x in o)


def safe_path(folder, name, what):
    need(type(name) is str and name and "\0" not in name, f"{what}: no file name")
    parts = name.split("/")
    need(not name.startswith("/") and ".." not in parts, f"{what}: file '{name}' lies outside the checkpoint")
    return os.path.join(folder, name)


class Dcp:
    def __init__(self, folder):
        self.folder, self.tensors, self.objects, self.paths, self.extra, self.version = folder, {}, {}, None, {}, None

    def read_metadata(self, name=".metadata", items=True):
        path = os.path.join(self.folder, name)
        need(os.path.getsize(path) <= METADATA_MAX, f"{name}: more than {METADATA_MAX} bytes")
        with open(path, "rb") as f:
            m = fields(pkl.parse(f.read()), META, "Metadata", name)
        need(type(m) is Dict, f"{name}: Metadata without fields")
        self.version = m.get("version")
        self.extra = {k: v for k, v in m.pairs if k not in ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version")}
        sizes, objects, found = {}, [], m.get("state_dict_metadata")
        need(type(found) is Dict, f"{name}: no state_dict_metadata")
        for fqn, o in found.pairs:
            need(type(fqn) is str and fqn not in sizes, f"{name}: a tensor's name is no text, or there twice")
            need(type(o) is Obj and type(o.func) is Global and o.func.module == META, f"{name}: '{fqn}': an unknown kind of item")
            if o.func.name == "BytesStorageMetadata":
                objects.append(fqn)
                continue
            t = fields(o, META, "TensorStorageMetadata", f"'{fqn}'")
            p = fields(t.get("properties"), META, "TensorProperties", f"'{fqn}'")
            dtype = p[0] if type(p) is tuple and p else p.get("dtype") if type(p) is Dict else None
            need(type(dtype) is Global and dtype.module == "torch" and dtype.name in DTYPES, f"'{fqn}': type {dtype!r} is not known")
            chunks = []
            need(type(t.get("chunks")) is list and len(t.get("chunks")) <= CHUNKS_MAX, f"'{fqn}': no chunks")
            for c in t.get("chunks"):
                c = fields(c, META, "ChunkStorageMetadata", f"'{fqn}'")
                chunks.append((size_of(c.get("offsets"), f"'{fqn}'"), size_of(c.get("sizes"), f"'{fqn}'")))
            sizes[fqn] = (DTYPES[dtype.name], size_of(t.get("size"), f"'{fqn}'"), chunks)
        where = {}
        storage = m.get("storage_data")
        need(type(storage) is Dict, f"{name}: no storage_data")
        for key, info in storage.pairs:
            k, s = fields(key, META, "MetadataIndex", name), fields(info, STORE, "_StorageInfo", name)
            need(not s.get("transform_descriptors"), f"'{k.get('fqn')}' is stored through {s.get('transform_descriptors')!r}: not readable in place")
            off = k.get("offset")
            off = None if off is None else size_of(off, f"'{k.get('fqn')}'")
            where[k.get("fqn"), off] = (s.get("relative_path"), count(s.get("offset"), "offset"), count(s.get("length"), "length"))
        for fqn in objects:
            got = [v for (n, _), v in where.items() if n == fqn] if (fqn, None) not in where else [where[fqn, None]]
            need(len(got) == 1, f"'{fqn}' is stored nowhere")
            safe_path(self.folder, got[0][0], f"'{fqn}'")
            self.objects[fqn] = got[0]
        for fqn, (dtype, shape, chunks) in sizes.items():
            out = []
            for off, ext in chunks:
                need(len(off) == len(ext) == len(shape), f"'{fqn}': a chunk of another number of dimensions")
                at = where.get((fqn, off), where.get((fqn, None)) if not shape else None)
                need(at is not None, f"'{fqn}': the chunk at {list(off)} is stored nowhere")
                out.append(Chunk(off, ext, at[0], None, None, at[1:]))
            self.tensors[fqn] = Logical(dtype, shape, out)
        p = m.get("planner_data")
        if type(p) is Dict:
            self.paths = {k: v for k, v in p.pairs if type(v) is tuple}
        if items:
            self.locate()

    def locate(self):
        """Where the data of every chunk are: opens each item's own zip directory (two reads and a pickle of 200 bytes)."""
        files = {}
        try:
            for fqn, t in self.tensors.items():
                for i, c in enumerate(t.chunks):
                    path = safe_path(self.folder, c.file, f"'{fqn}'")
                    if c.file not in files:
                        files[c.file] = open(path, "rb")
                    f = files[c.file]
                    need(sum(c.item) <= os.fstat(f.fileno()).st_size, f"'{fqn}': '{c.file}' is cut short")
                    pt = read_pt_at(f, *c.item)
                    need(len(pt.tensors) == 1 and pt.tensors[0].path == "", f"'{fqn}': an item that is not one tensor")
                    x = pt.tensors[0]
                    need((x.dtype, x.shape) == (t.dtype, c.ext), f"'{fqn}' at {list(c.off)}: the item is {x.dtype} {list(x.shape)}, .metadata says {t.dtype} {list(c.ext)}")
                    t.chunks[i] = c._replace(at=x.at, stride=x.stride)
        finally:
            for f in files.values():
                f.close()

    def check(self):
        """Each element is in exactly one chunk: no overlap, and volumes add up."""
        for fqn, t in self.tensors.items():
            boxes = sorted({(c.off, c.ext) for c in t.chunks if elements(c.ext)})
            for off, ext in boxes:
                need(all(a + n <= s for a, n, s in zip(off, ext, t.shape)), f"'{fqn}': the chunk at {list(off)} of {list(ext)} lies outside {list(t.shape)}")
            need(sum(elements(e) for _, e in boxes) == elements(t.shape), f"'{fqn}': chunks hold {sum(elements(e) for _, e in boxes)} of {elements(t.shape)} elements")
            live = []                                       # sweep over the first dimension
            for off, ext in boxes:
                live = [b for b in live if not t.shape or b[0][0] + b[1][0] > off[0]]
                for o, e in live:
                    need(any(a + n <= b or b + m <= a for a, n, b, m in zip(off, ext, o, e)), f"'{fqn}': the chunks at {list(o)} and {list(off)} overlap")
                live.append((off, ext))


def read_dcp(folder, items=True):
    d = Dcp(folder)
    names = os.listdir(folder)
    if ".metadata" in names:
        d.read_metadata(items=items)
    elif any(n.startswith("__") and n.endswith(".metadata") for n in names):
        raise Refused("each rank wrote metadata of its own (no collectives): not one checkpoint")
    else:
        raise Refused(f"'{folder}' holds no .metadata: not a finished DCP checkpoint")
    d.check()
    return d
