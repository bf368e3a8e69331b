"""Reading and writing rank files: real ones, and views, against the same on the store's own file
system and against a FUSE server that does nothing."""
import contextlib
import json
import os
import shutil
import subprocess
import time

import numpy as np
from safetensors.numpy import save_file

from harness import TOOL, Disk, Mount, Null, Sample, io, may_ring, put, ring_switch, run, supply

LAYERS = 16


def cut_job(m, job, size, old=4):
    """Two files a rank; as tp=2 sees them each has `size` bytes: `rows` in long runs, `cols` in runs of 1 KiB."""
    m.job(job, "use hf-llama", f"tp={old}")
    rows = size // LAYERS // 2048
    for rank in range(old):
        home = os.path.join(m.at, job, str(rank))
        os.makedirs(home, exist_ok=True)
        for file, name, shape in (("rows", "q_proj", (rows * 2 // old, 1024)), ("cols", "o_proj", (rows, 2048 // old))):
            save_file({f"model.layers.{i}.self_attn.{name}.weight": np.full(shape, rank * LAYERS + i + 1, np.uint16)
                       for i in range(LAYERS)}, os.path.join(home, f"{file}.safetensors"))
    m.commit(job)
    m.verified(job)


SHORT = 3                 # times as many repetitions of what takes a fraction of a second


def views(report, a):
    """Through views: long runs, and rows of 1 KiB; then the same over io_uring."""
    for kind in ("tmpfs", "disk", "xfs"):
        with Disk(kind) as d:
            for rings in (False, True) if may_ring() else (False,):
                views_of(report, a, d, rings)


def views_of(report, a, d, rings):
    options, how = (("io_uring",), f"{d.fs}, io_uring") if rings else ((), d.fs)
    with ring_switch(rings), Mount(d, "views", options) as m:
        cut_job(m, "v", a.file_bytes)
        # never: on XFS the first open would make a real file of `rows`, which is another case
        put(m.ctl("v", "topology"), "tp=2")
        rows, cols = (os.path.join(m.at, "v/0", f"{f}.safetensors") for f in ("rows", "cols"))
        native = os.path.join(d.path, "native")
        shutil.copyfile(rows, native)
        with Null(d, os.path.getsize(rows), options) as null, Null(d, native, options) as some, contextlib.ExitStack() as stack:
            # over io_uring a server that gathers first would copy once more than a view does
            pieces = [] if rings else [stack.enter_context(Null(d, native, ("rows",))).file]
            for mode, cold, targets in (("read", "", (0.60, 0.9, 0.33, 0.6)), ("mmap", "cold:", (0.28, 0.9, 0.28, None))):
                if rings:
                    targets = (None,) * 4
                # the source is in memory in each case; what is cold is the mount's own page cache
                direct, nothing, least, r, c, *gathered = io(mode, SHORT * a.reps, [native, *(cold + f for f in (
                    null.file, some.file, rows, cols, *pieces))], d.fs, "source warm")
                what = {"read": "1 MiB read()", "mmap": "mmap"}[mode]
                report.ratio(f"{how}: view, long runs, {what}", "native", r, direct, targets[0] if d.kind == "tmpfs" else None,
                             f"{r.rate:.2f} of {direct.rate:.2f} GB/s")
                report.ratio(f"{how}: view, long runs, {what}", "null FUSE server", r, nothing, targets[1], f"null {nothing.rate:.2f} GB/s")
                report.ratio(f"{how}: view, long runs, {what}", "FUSE server of one mapping (the limit)", r, least, None,
                             f"it {least.rate:.2f} GB/s")
                report.ratio(f"{how}: view, rows of 1 KiB, {what}", "native", c, direct, targets[2] if d.kind == "tmpfs" else None,
                             f"{c.rate:.2f} GB/s")
                report.ratio(f"{how}: view, rows of 1 KiB, {what}", "null FUSE server", c, nothing, targets[3])
                for g in gathered:
                    report.ratio(f"{how}: view, rows of 1 KiB, {what}", "FUSE server of such rows of one mapping (the limit)", c, g, None,
                                 f"it {g.rate:.2f} GB/s: {g.rate / nothing.rate:.2f} of the null server")
                if mode == "read":
                    by_read = r
                else:
                    report.add(f"{how}: view, long runs, mmap", "its own read(): times slower", round(r.median / by_read.median, 2),
                               "x", None if rings else 3, "low", (r, by_read))
                if d.kind == "tmpfs":
                    report.add(f"{how}: null FUSE server, {what}", "native (the limit of any view)", round(direct.median / nothing.median, 3),
                               "x", samples=(direct, nothing))
            if d.kind == "tmpfs":
                r, nothing = io("random", a.reps, [rows, null.file], d.fs, "source warm", IO_CALLS=20000, IO_CPU=0)
                report.ratio(f"{how}: view, long runs, 4 KiB random read, reader bound to a core", "null FUSE server", r, nothing, None,
                             f"{r.median / 2e4 * 1e6:.1f} us a call; null {nothing.median / 2e4 * 1e6:.1f}")
        shutil.rmtree(m.store, ignore_errors=True)


def blob_of(m, path):
    """The file in the store whose bytes these are: both sides then read the same pages of memory. Older
    versions may have equal files with pages of their own: the newest is the head's."""
    size = os.path.getsize(path)
    blobs = [b for folder, _, names in os.walk(os.path.join(m.store, "blobs")) for b in (os.path.join(folder, n) for n in names if n.isdigit())
             if os.path.getsize(b) == size]
    for blob in sorted(blobs, key=lambda b: int(os.path.basename(b)), reverse=True):
        if subprocess.run(["cmp", "-s", blob, path]).returncode == 0:
            return blob
    raise LookupError(path)


def real_files(report, a):
    """Materialized files, and new ones."""
    for kind in ("tmpfs", "disk", "xfs"):
        with Disk(kind) as d, Mount(d, "files") as m:
            cut_job(m, "v", a.file_bytes)
            put(m.ctl("v", "topology"), "tp=2")
            m.materialize("v")
            cols = os.path.join(m.at, "v/0/cols.safetensors")
            native, blob = os.path.join(d.path, "native"), blob_of(m, cols)
            for mode, target in (("read", 0.95), ("mmap", 0.95), ("random", 0.85)):
                direct, ours = io(mode, SHORT * a.reps, [blob, cols], d.fs, "warm")
                what = {"read": "1 MiB read()", "mmap": "mmap", "random": "4 KiB random read"}[mode]
                detail = f"{ours.rate:.2f} of {direct.rate:.2f} GB/s" if mode != "random" else \
                    f"{ours.median * 1e4:.0f} of {direct.median * 1e4:.0f} ns a call"
                report.ratio(f"{d.fs}: real file, {what}", "native", ours, direct, target, detail)
            os.mkdir(os.path.join(m.at, "v", "0", "new"))
            direct, ours = io("write", a.reps, [native + ".new", os.path.join(m.at, "v/0/new/file")], d.fs, "",
                              IO_BYTES=a.file_bytes)
            report.ratio(f"{d.fs}: new rank file, 1 MiB write()", "native", ours, direct, 0.90, f"{ours.rate:.2f} of {direct.rate:.2f} GB/s")


def unneeded_views(report, a):
    """Where an equal blob or reflink makes the view unnecessary, without waiting for anything."""
    for kind, case, topology in (("disk", "a replica more (dp)", "tp=4 dp=2"), ("xfs", "a replica more (dp)", "tp=4 dp=2"),
                                 ("xfs", "row cuts, reflink in open", "tp=2")):
        with Disk(kind) as d, Mount(d, "unneeded") as m:
            cut_job(m, "v", a.file_bytes)
            # resharded twice before: clones of clones, where the file system has them
            put(m.ctl("v", "topology"), "tp=8")
            m.materialize("v")
            put(m.ctl("v", "topology"), "tp=4")
            m.materialize("v")
            put(m.ctl("v", "config"), "materialize=lazy")
            put(m.ctl("v", "topology"), topology)
            rank = 4 if "dp" in topology else 0
            ours_path = os.path.join(m.at, f"v/{rank}/rows.safetensors")
            with open(ours_path, "rb"): # the first open makes it real, where that is cheap
                pass
            direct, ours = io("mmap", a.reps, [blob_of(m, ours_path), ours_path], d.fs, "warm")
            report.ratio(f"{d.fs}: {case}: mmap", "native", ours, direct, 0.95, f"{ours.rate:.2f} of {direct.rate:.2f} GB/s")


def materialize(report, a):
    """Making real files, against cp of the same bytes with the same durability."""
    for kind, file, target in (("xfs", "rows", 20), ("xfs", "cols", 0.7), ("disk", "rows", 0.9), ("disk", "cols", 0.7)):
        with Disk(kind) as d, Mount(d, "materialize") as m:
            size = a.file_bytes
            cut_job(m, "v", size // 2)
            for rank in range(4):
                os.unlink(os.path.join(m.at, f"v/{rank}", "cols.safetensors" if file == "rows" else "rows.safetensors"))
            m.commit("v", 2)
            m.verified("v")
            put(m.ctl("v", "config"), "keep=1")
            ours, theirs = [], []
            source, copy = os.path.join(d.path, "source"), os.path.join(d.path, "copy")
            os.mkdir(source)
            for i in range(a.reps + 1):
                put(m.ctl("v", "topology"), "tp=2" if i % 2 == 0 else "tp=4")
                os.sync()
                supply(2 * size)
                ours.append(m.materialize("v"))
                if i == 0: # the same bytes as plain files of the same file system
                    for r in range(2):
                        shutil.copyfile(os.path.join(m.at, f"v/{r}/{file}.safetensors"), os.path.join(source, str(r)))
                shutil.rmtree(copy, ignore_errors=True)
                os.mkdir(copy)
                os.sync()
                supply(2 * size)
                theirs.append(cp_flushed([os.path.join(source, str(r)) for r in range(2)], copy))
            # the first of both pays for memory that the machine has not used lately
            del ours[0], theirs[0]
            o, t = Sample(ours, size, d.fs, "warm"), Sample(theirs, size, d.fs, "warm")
            what = {"rows": "row cuts", "cols": "column cuts (rows of 1 KiB)"}[file]
            if kind == "xfs" and file == "rows":
                what += ", reflink"
            report.ratio(f"{d.fs}: materialize {what}", "cp --reflink=never, flushed", o, t, target, f"{o.rate:.2f} of {t.rate:.2f} GB/s")


def engines(report, a):
    """The engine alone, against the null engine, which reads all and writes nothing: how much of a reshard is writing."""
    for kind in ("tmpfs", "disk"):
        with Disk(kind) as d:
            with Mount(d, "engines") as m:
                for file, other in (("rows", "cols"), ("cols", "rows")):
                    cut_job(m, file, a.file_bytes)
                    for rank in range(4):
                        os.unlink(os.path.join(m.at, f"{file}/{rank}/{other}.safetensors"))
                    m.commit(file, 2)
                    m.verified(file)
            for file, what in (("rows", "row cuts"), ("cols", "column cuts (rows of 1 KiB)")):
                took = {"host": [], "null": []}
                for _ in range(a.reps + 1):
                    for name, seconds in took.items():
                        supply(2 * a.file_bytes)
                        out = json.loads(run(TOOL["engine"], m.store, file, "tp=2", name))
                        seconds.append(out["seconds"])
                host, null = (Sample(took[name][1:], out["bytes"], d.fs, "warm") for name in ("host", "null"))
                report.ratio(f"{d.fs}: host engine, {what}, not flushed", "null engine: reads all, writes nothing", host, null, None,
                             f"{host.rate:.2f} of {null.rate:.2f} GB/s")


def cp_flushed(names, to):
    began = time.perf_counter()
    for i, n in enumerate(names):
        run("cp", "--reflink=never", n, os.path.join(to, str(i)))
    run("sync", *[os.path.join(to, str(i)) for i in range(len(names))])
    return time.perf_counter() - began
