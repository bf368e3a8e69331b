#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad files and folders by name: a commit that meets one is refused with its reason, and leaves all as it was.

    hostile_cases.py JOB STORE SAMPLES      a job with a version; its store; folders dcp and deepspeed, copies of which are changed

As it was: every file of the job and of its versions, settings, and the catalog, without its tables of the working tree, which are written
some time after it, and of paths, where names stay that somebody used.
"""
import hashlib
import io
import os
import re
import shutil
import sqlite3
import struct
import sys
import tempfile
import warnings
import zipfile

import torch

import checkpoint_folders
import deepspeed_folders

WORKING = "inode|entry|tail|blob|path|sqlite_sequence"


def archive(pickle, records=(("data/0", bytes(16)), ("version", b"3\n")), kind=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", kind) as z:
        warnings.simplefilter("ignore")                # names that are there twice
        for name, data in (("data.pkl", pickle), *records):
            z.writestr("a/" + name, data)
    return bytearray(out.getvalue())


def tensor(numel=b"K\4", offset=b"K\0", shape=b"K\4\x85", stride=b"K\1\x85", key=b"0"):
    """{"w": a tensor of floats}; numbers are pickled."""
    return (b"\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((U\7storagectorch\nFloatStorage\nU" + bytes([len(key)]) + key +
            b"U\3cpu" + numel + b"tQ" + offset + shape + stride + b"\x89}tRs.")


def patched(data, *changes):
    """Numbers put at (record, byte, format, number): record -1 is the end, others are of the directory."""
    at = [m.start() for m in re.finditer(b"PK\1\2", data)] + [data.rfind(b"PK\5\6")]
    for record, byte, how, number in changes:
        struct.pack_into(how, data, at[record] + byte, number)
    return data


def of_2_32_records(data):
    """Its end says so in a zip64 record."""
    end = data.rfind(b"PK\5\6")
    size, start = struct.unpack_from("<II", data, end + 12)
    big = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 2**32, 2**32, size, start) + struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
    data[end:end] = big
    return patched(data, (-1, 10, "<H", 0xffff))


def pickles():
    laughs = b"".join(b"0](h" + bytes([i, 104, i]) + b"eq" + bytes([i + 1]) for i in range(60))
    deep = b"\x8a\6\0\0\0\0\0\1"                        # 2^40
    return {
        "a storage longer than its record": (tensor(numel=b"K\5"), "has 20 bytes, its record 16"),
        "a shape whose product overflows": (tensor(shape=deep + deep + b"\x86", stride=b"K\0K\0\x86"), "its size overflows"),
        "strides past the storage": (tensor(shape=b"K\2K\2\x86", stride=b"K\3K\1\x86"), "runs past its storage"),
        "a storage that climbs": (tensor(key=b"../../etc/passwd"), "has no record"),
        "2^60 paths": (b"\x80\2]q\0" + laughs + b".", "too many paths"),
        "100,000 levels": (b"\x80\2" + b"]" * 100000 + b"a" * 99999 + b".", "too deep"),
        "an object that holds itself": (b"\x80\2]q\0h\0a.", "holds itself"),
        "bytes of 2^63": (b"\x80\4\x8e" + struct.pack("<Q", 2**63) + b"abc.", "bytes are announced"),
        "a frame of 2^63": (b"\x80\4\x95" + struct.pack("<Q", 2**63) + b"N.", "bytes are announced|a frame"),
        "a text of 4 GiB": (b"\x80\2X\xff\xff\xff\xffabc.", "bytes are announced"),
        "memo 2^32-1": (b"\x80\2]j\xff\xff\xff\xff.", "memo 4294967295 was never set"),
    }


def names_only():
    """What harms only those who believe it: a call is a name, and a number of a memo no room for so many."""
    return {"os.system": b"\x80\2cos\nsystem\nX\x0e\0\0\0touch executed\x85R.", "memo 2^32-1, set": b"\x80\2]r\xff\xff\xff\xff."}


def archives():
    good = tensor()
    none = bytes(16)
    return {
        "compressed": (archive(good, kind=zipfile.ZIP_DEFLATED), "is compressed"),
        "encrypted": (patched(archive(good), (0, 8, "<H", 1)), "is encrypted"),
        "overlapping": (patched(archive(good), (1, 20, "<I", 50), (1, 24, "<I", 50)), "overlap"),
        "doubled": (archive(good, (("data/0", none), ("data/0", none))), "is there twice"),
        "outside of the file": (patched(archive(good), (1, 42, "<I", 1 << 20)), "outside of the file"),
        "ends that disagree": (patched(archive(good), (-1, 10, "<H", 9)), "does not fit|damaged"),
        "zip64 ends that disagree": (patched(of_2_32_records(archive(good)), (-1, 10, "<H", 3)), "disagree"),
        "2^32 records": (of_2_32_records(archive(good)), "4294967296 records"),
        "cut short": (archive(good)[:-5], "no end of a directory"),
        "a pickle of 129 MiB": (archive(bytes(129 << 20)), "at most"),
    }


def sharded(t):
    """A ShardedTensor of one rank, and a DTensor."""
    import torch.distributed as dist
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    with tempfile.TemporaryDirectory() as meet:
        dist.init_process_group("gloo", init_method=f"file://{meet}/store", rank=0, world_size=1)
        try:
            return {"ShardedTensor": (saved(sharded_tensor.rand(ChunkShardingSpec(dim=0, placements=["rank:0/cpu"]), 4)), "stays as it is"),
                    "DTensor": (saved(distribute_tensor(t, init_device_mesh("cpu", (1,)), [Shard(0)])), "is a DTensor")}
        finally:
            dist.destroy_process_group()


def saved(t, **options):
    out = io.BytesIO()
    torch.save({"w": t}, out, **options)
    return out.getvalue()


def kinds():
    """What torch itself writes, under a rule that cuts it."""
    t, script = torch.arange(4.), io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(4, 4)), script)
    return {
        "legacy": (saved(t, _use_new_zipfile_serialization=False), "before torch 1.6"),
        "TorchScript": (script.getvalue(), "is compressed|holds a program"),
        "TorchScript, not compressed": (archive(b"\x80\2N.", (("constants.pkl", b"\x80\2)."),)), "holds a program"),
        "meta": (saved(t.to("meta")), "stays as it is"),
        "conjugated": (saved(t.to(torch.complex64).conj()), "stays as it is"),
        "negative": (saved(t.to(torch.complex64).conj().imag), "stays as it is"),
        "quantized": (saved(torch.quantize_per_tensor(t, 0.1, 0, torch.qint8)), "stays as it is"),
        "sparse": (saved(t.to_sparse()), "stays as it is"),
        "a slice": (saved(torch.ones(4, 4)[:, :2]), r"\.contiguous\(\)"),
        **sharded(t),
    }


def folders(folder):
    """What .metadata is made into; a name of a file is replaced by one that is as long."""
    with open(f"{folder}/.metadata", "rb") as f:
        good = f.read()
    name = b"__0_0.distcp"
    return {
        "an absolute path": (good.replace(name, b"/etc/passwd0"), "is outside of the folder"),
        "a path that climbs": (good.replace(name, b"../../passwd"), "is outside of the folder"),
        "a file that is not there": (good.replace(name, b"__9_0.distcp"), "which is not there"),
        "cut": (good[:len(good) // 2], r"\.metadata"),
        **{what: (pickle, r"\.metadata") for what, (pickle, why) in pickles().items() if "memo" in why or "announced" in why},
    }


def spoilt(samples):
    """-> (what, who spoils it, with what, why) of folders whose other files do not fit."""
    dcp, deepspeed = checkpoint_folders.spoil_one, deepspeed_folders.spoil_one
    for how, why in (("missing", "which is not there"), ("cut", "the file is cut"), ("gap", "the pieces hold"), ("overlap", "overlap|is no tensor of the type"),
                     ("outside", "a chunk is outside"), ("type", "is no tensor of the type"), ("huge", "the file is cut")):
        yield f"dcp, {how}", dcp, (how, f"{samples}/dcp"), why
    for how, why in (("missing", "is not there"), ("another", "of another save"), ("cut", "is cut short"), ("larger", "ends at|ends before"),
                     ("fewer", "more than its parameters"), ("order", "round_robin_gradients is not read"), ("parts", "different lengths|ends before|ends at")):
        for stage in (1, 3) if how != "order" else (1, 2):
            yield f"deepspeed {stage}, {how}", lambda how, source, to, stage=stage: deepspeed(how, source, to, stage), (how, f"{samples}/deepspeed/z{stage}/global_step2"), why


def files_in(folder):
    return {f: get(os.path.join(at, f)) for at, _, files in os.walk(folder) for f in files}


def get(path, how="rb"):
    with open(path, how) as f:
        return f.read()


def seen(job, store):
    """-> digests of what there is, by name."""
    out = {}
    for top in (job, f"{job}/.v"):
        for at, names, files in os.walk(top):
            if at == job:
                names[:] = [n for n in names if n != ".ctl"]
            for f in files:
                if "error" not in f:
                    out[os.path.join(at, f)] = hashlib.sha256(get(os.path.join(at, f))).hexdigest()
    for setting in ("layout", "topology", "config", "versions"):
        out[setting] = get(f"{job}/.ctl/{setting}")
    db = sqlite3.connect(f"file:{store}/scalai.db?mode=ro", uri=True)
    rows = [line for line in db.iterdump() if not re.match(rf'INSERT INTO "({WORKING})"', line)]
    db.close()
    out.update((row, 1) for row in rows)
    return out


def refused(job, store, what, why):
    before = seen(job, store)
    try:
        with open(f"{job}/.ctl/commit", "w") as f:
            f.write("note=bad\n")
    except OSError:
        said = get(f"{job}/.ctl/error", "r")
        assert re.search(why, said), f"{what}: {said!r}, not {why!r}"
        assert "bad" in said, f"{what}: {said!r} names no file"
    else:
        raise SystemExit(f"{what}: was taken")
    after = seen(job, store)
    differs = [k for k in before.keys() | after.keys() if before.get(k) != after.get(k)]
    assert not differs, f"{what}: {differs} are not as they were"


def main(job, store, samples):
    good = get(f"{job}/0/good.pt")
    cases = {**{what: (archive(p), why) for what, (p, why) in pickles().items()}, **archives(), **kinds()}
    for what, (data, why) in cases.items():
        with open(f"{job}/0/bad.pt", "wb") as f:
            f.write(data)
        refused(job, store, what, why)
        assert get(f"{job}/0/bad.pt") == data, f"{what}: the file has changed"
        os.unlink(f"{job}/0/bad.pt")
    shutil.copytree(f"{samples}/dcp", f"{job}/bad")
    bad = folders(f"{samples}/dcp")
    for what, (data, why) in bad.items():
        with open(f"{job}/bad/.metadata", "wb") as f:
            f.write(data)
        refused(job, store, "a folder, " + what, why)
        assert get(f"{job}/bad/.metadata") == data, f"{what}: the file has changed"
    shutil.rmtree(f"{job}/bad")
    others = list(spoilt(samples))
    for what, spoil, words, why in others:
        spoil(*words, "spoilt")
        shutil.copytree("spoilt", f"{job}/bad")
        refused(job, store, what, why)
        assert files_in(f"{job}/bad") == files_in("spoilt"), f"{what}: its files have changed"
        shutil.rmtree("spoilt")
        shutil.rmtree(f"{job}/bad")
    for what, data in names_only().items():
        with open(f"{job}/0/taken.pt", "wb") as f:
            f.write(archive(data))
        with open(f"{job}/.ctl/commit", "w") as f:
            f.write(f"note={what}\n")
        assert get(f"{job}/0/taken.pt") == archive(data) and get(f"{job}/0/good.pt") == good, what
    print(f"{len(cases)} files and {len(bad) + len(others)} folders were refused, and nothing has changed")


if __name__ == "__main__":
    main(*sys.argv[1:])
