"""Whole reshards and whole saves, against PyTorch DCP and the script that users write."""
import contextlib
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

import torch  # noqa: F401 (safe_open loads it at its first tensor: not on the clock)
from safetensors import safe_open

from files import cp_flushed, cut_job
from harness import HERE, ROOT, Disk, Mount, Null, Sample, drop_caches, io, may_ring, pick, put, python, ring_switch, run, supply

TENPLEX = {"DP": ((4, 2, 1), (4, 2, 2)), "TP": ((4, 2, 1), (8, 2, 1)), "PP": ((4, 2, 1), (4, 4, 1)),
           "8to16": ((2, 4, 1), (4, 2, 2)), "16to8": ((4, 2, 2), (2, 4, 1))}
SERVED = "FUSE servers of one mapping each (the limit)"
MODELS = {"1 GB": ("xl", "1.1e9"), "4 GB": ("xl", "4.3e9"), "0.7 GB": ("xl", "7e8"), "4 MB": ("tiny", "4e6")}


def text(t, between=" "):
    return between.join(f"{n}={x}" for n, x in zip(("tp", "pp", "dp"), t))


def world(t):
    return t[0] * t[1] * t[2]


def vocab(label):
    """Divides by 1024: DCP can't take part with one that is padded."""
    return 1024 if MODELS[label][0] == "tiny" else 51200


def layout(label):
    return f"use megatron-gpt vocab={vocab(label)} tied=embedding.word_embeddings.weight"


def make(folder, t, label):
    model, size = MODELS[label]
    return python(os.path.join(ROOT, "tests/support/gpt/make_job.py"), folder, "--size", model, "--bytes", size, "--vocab", vocab(label),
                  "--topology", text(t, ","))["state_bytes"]


def import_job(m, job, source, t, label, config="materialize=never keep=2"):
    m.job(job, layout(label), text(t), config)
    for rank in range(world(t)):
        shutil.copytree(os.path.join(source, str(rank)), os.path.join(m.at, job, str(rank)), dirs_exist_ok=True)
    m.commit(job)
    m.verified(job)


class Loaders:
    """One process a core that loads ranks by safetensors.torch.load_file and touches every page."""

    def __init__(self, readers=2):
        self.procs = [subprocess.Popen([sys.executable, os.path.join(HERE, "load.py")], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True) for _ in range(readers)]
        for p in self.procs:
            assert p.stdout.readline() == "ready\n"

    def load(self, files):
        for i, p in enumerate(self.procs):
            p.stdin.write(json.dumps(files[i::len(self.procs)]) + "\n")
            p.stdin.flush()
        for p in self.procs:
            assert p.stdout.readline() == "done\n"

    def close(self):
        for p in self.procs:
            p.stdin.close()
            p.wait()


def ours(m, old, new, a, state, loaders=None, cold=False):
    """
    -> seconds of each way to use the new topology, by name.  One way after another, and load_file last: the kernel frees what was
    mapped under the old names when the new ones are first looked up, which is the time of that loop and not of the next.
    """
    job, ranks = "gpt", world(new)
    put(m.ctl(job, "topology"), text(new))
    files = m.files(job, ranks)
    took = 0

    def first():
        with safe_open(os.path.join(m.at, job, "0/model.safetensors"), "pt") as f:
            f.get_tensor(next(iter(f.keys())))

    def read():
        nonlocal took
        took = io("all", 1, files, "", "")[0].bytes

    def times(use, memory=0):
        seconds = []
        for _ in range(a.peer_reps):
            put(m.ctl(job, "topology"), text(old))
            if memory:
                supply(memory)
            if cold:
                drop_caches()
            began = time.perf_counter()
            put(m.ctl(job, "topology"), text(new))
            use()
            seconds.append(time.perf_counter() - began)
        return seconds

    out = {"first": times(first), "read": times(read)}
    if loaders:
        out["load_file"] = times(lambda: loaders.load(files), int(2.5 * state))
    return {**out, "bytes": took}


def first_tensor(report, a):
    """Until the first tensor of the first rank, with and without much mapped under the old names."""
    old, new = TENPLEX["TP"]
    label = pick(a, "1 GB", "0.7 GB", "4 MB")
    with Disk("tmpfs") as d, Mount(d, "first tensor") as m:
        source = os.path.join(d.path, "source")
        make(source, old, label)
        import_job(m, "gpt", source, old, label)
        for mapped in (False, True):
            times = []
            for i in range(a.reps):
                put(m.ctl("gpt", "topology"), text(old if i % 2 else new))
                if mapped:
                    for f in m.files("gpt", 8):
                        io("mmap", 1, ["cold:" + f], d.fs, "cold")
                began = time.perf_counter()
                put(m.ctl("gpt", "topology"), text(new if i % 2 else (2, 2, 1)))
                with safe_open(os.path.join(m.at, "gpt/0/model.safetensors"), "pt") as f:
                    f.get_tensor(next(iter(f.keys())))
                times.append(time.perf_counter() - began)
            report.add("first tensor after a topology write" + (", all old ranks read by mmap before it" if mapped else ""), "",
                       round(statistics.median(times) * 1e3, 1), "ms", samples=(Sample(times, 0, "", ""),))


def served(m, d, new, a, state):
    """
    -> seconds of the same two ways to use the same files, each from a FUSE server of its own that only answers from
    a mapping of it: no server of these bytes is faster.  Neither a topology write nor a first open is on its clock.
    """
    to = os.path.join(d.path, "served")
    os.mkdir(to)
    with contextlib.ExitStack() as stack:
        files = []
        for i, f in enumerate(m.files("gpt", world(new))):
            shutil.copyfile(f, os.path.join(to, str(i)))
            files.append(stack.enter_context(Null(d, os.path.join(to, str(i)))).file)
        loaders = Loaders()
        stack.callback(loaders.close) # before the servers: it has the last file mapped
        out = {"read": [], "load_file": []}
        for _ in range(a.peer_reps):
            out["read"] += io("all", 1, files, "", "")[0].seconds
            supply(int(2.5 * state))
            began = time.perf_counter()
            loaders.load(files)
            out["load_file"].append(time.perf_counter() - began)
    shutil.rmtree(to)
    return out


def durable(m, old, new, a, state):
    """-> seconds until everything is real files on stable storage, and how many bytes of them no reflink could share."""
    times, written = [], 0
    for i in range(a.peer_reps + 1):
        put(m.ctl("gpt", "topology"), text(old))
        m.materialize("gpt")
        os.sync()
        supply(int(2.5 * state))
        was = m.written()
        began = time.perf_counter()
        put(m.ctl("gpt", "topology"), text(new))
        m.materialize("gpt")
        times.append(time.perf_counter() - began)
        written = m.written() - was
    return times[1:], written


def copied(files, d, a, state):
    """Seconds to write as many bytes as these files have, by cp, and flush them."""
    times, to = [], os.path.join(d.path, "copied")
    for _ in range(a.peer_reps):
        shutil.rmtree(to, ignore_errors=True)
        os.mkdir(to)
        os.sync()
        supply(int(2.5 * state))
        times.append(cp_flushed(files, to))
    shutil.rmtree(to, ignore_errors=True)
    return times


def copied_part(files, d, a, state, size):
    """The same with that many bytes in as many files."""
    parts = os.path.join(d.path, "parts")
    os.mkdir(parts)
    for i, f in enumerate(files):
        with open(f, "rb") as whole, open(os.path.join(parts, str(i)), "wb") as part:
            part.write(whole.read(size // len(files)))
    times = copied([os.path.join(parts, str(i)) for i in range(len(files))], d, a, state)
    shutil.rmtree(parts)
    return times


def naive(source, work, new, a, state, flush, cold=False):
    total = []
    for _ in range(a.peer_reps):
        shutil.rmtree(work, ignore_errors=True)
        os.sync()
        supply(int(2.5 * state))
        if cold:
            drop_caches()
        total.append(python("peers/naive.py", source, work, "--to", text(new, ","), *["--fsync"] * flush)["total_s"])
    shutil.rmtree(work, ignore_errors=True)
    return total


def one_case(report, a, kind, case, label):
    old, new = TENPLEX[case]
    with Disk(kind) as d:
        source = os.path.join(d.path, "source")
        state = make(source, old, label)
        sample = lambda seconds, cache="warm": Sample(seconds, state, d.fs, cache)
        dcp = python("peers/dcp.py", source, "--to", text(new, ","), "--work", os.path.join(d.path, "dcp"), "--reps", a.peer_reps,
                     *([] if kind != "tmpfs" else ["--no-fsync"]))
        script = sample(naive(source, os.path.join(d.path, "out"), new, a, state, flush=kind != "tmpfs"))
        load = sample(dcp["load"]["all_s"])
        with Mount(d, f"reshard {label}") as m:
            import_job(m, "gpt", source, old, label)
            if kind == "tmpfs": # 4 GB and the memory of those who load them: not twice
                shutil.rmtree(source)
            loaders = Loaders()
            mine = ours(m, old, new, a, state, loaders)
            limit = served(m, d, new, a, state)
            loaders.close()
            read, torch, first = (sample(mine[k]) for k in ("read", "load_file", "first"))
            where = f"{label} {d.fs} {case}"
            detail = f"{read.median:.2f} s for {mine['bytes'] / 1e9:.2f} GB"
            report.ratio(f"{where}: all ranks read through views", "DCP's load", read, load, 5, f"{detail}; DCP {load.median:.2f} s")
            report.ratio(f"{where}: all ranks read through views", "naive script" + ("" if kind == "tmpfs" else " --fsync"), read, script,
                         4 if kind == "tmpfs" else 8, f"naive {script.median:.2f} s")
            report.ratio(f"{where}: all ranks read through views", SERVED, read, sample(limit["read"]), None,
                         f"they {statistics.median(limit['read']):.2f} s: {load.median / statistics.median(limit['read']):.1f} x DCP's load, "
                         f"{script.median / statistics.median(limit['read']):.1f} x the script")
            report.ratio(f"{where}: each rank by load_file, touched", "DCP's load", torch, load, 2, f"{torch.median:.2f} s; new memory alone "
                         f"{floor(mine['bytes']):.2f} s")
            report.ratio(f"{where}: each rank by load_file, touched", SERVED, torch, sample(limit["load_file"]), None,
                         f"they {statistics.median(limit['load_file']):.2f} s: {load.median / statistics.median(limit['load_file']):.1f} x DCP's load")
            report.ratio(f"{where}: first tensor", "DCP's load", first, load, 100, f"{first.median * 1e3:.1f} ms")
            report.ratio(f"{where}: first tensor", "naive script", first, script, 100)
            bars = {"dcp": load.median, "naive": script.median, "views": read.median, "load_file": torch.median, "first": first.median}
            report.curves.setdefault("peers", {})[where] = bars
            if kind != "tmpfs":
                seconds, written = durable(m, old, new, a, state)
                real = sample(seconds)
                report.ratio(f"{where}: all real files, flushed", "naive script --fsync", real, script, 8 if kind == "xfs" else 3, f"{real.median:.2f} s")
                files = m.files("gpt", world(new))
                plain = sample(copied(files, d, a, state))
                report.ratio(f"{where}: all real files, flushed", "cp of these very files, flushed (the disk's limit)", real, plain, None,
                             f"{plain.median:.2f} s: no more than {script.median / plain.median:.1f} x the script without reflink")
                if kind == "xfs" and written > len(files) << 20:
                    part = sample(copied_part(files, d, a, state, written))
                    report.ratio(f"{where}: all real files, flushed", "cp of what no reflink can share, flushed (the disk's limit)", real, part, None,
                                 f"{part.median:.2f} s for {written / 1e9:.2f} GB: no more than {script.median / part.median:.1f} x the script")
                bars["real"] = real.median
            if kind == "disk" and case == "TP" and not a.quick:
                cold_ours = sample(ours(m, old, new, a, state, cold=True)["read"], "cold")
                cold_script = sample(naive(source, os.path.join(d.path, "out"), new, a, state, flush=True, cold=True), "cold")
                report.ratio(f"{where}, page cache dropped: through views", "naive script --fsync", cold_ours, cold_script, None,
                             f"{cold_ours.median:.2f} s; {cold_limit(d):.2f} s to read the old files alone")
        if kind == "tmpfs" and may_ring():
            over_rings(report, a, d, where, old, new, state, load, script)


def over_rings(report, a, d, where, old, new, state, load, script):
    """The same store, mounted with -o io_uring."""
    with ring_switch(True), Mount(d, "reshard, io_uring", ("io_uring",)) as m:
        loaders = Loaders()
        mine = ours(m, old, new, a, state, loaders)
        loaders.close()
    read, torch = (Sample(mine[k], state, d.fs, "warm") for k in ("read", "load_file"))
    report.ratio(f"{where}, io_uring: all ranks read through views", "DCP's load", read, load, None,
                 f"{read.median:.2f} s for {mine['bytes'] / 1e9:.2f} GB")
    report.ratio(f"{where}, io_uring: all ranks read through views", "naive script", read, script)
    report.ratio(f"{where}, io_uring: each rank by load_file, touched", "DCP's load", torch, load, None, f"{torch.median:.2f} s")


def floor(size):
    """Seconds to touch that much new anonymous memory, one process a core."""
    times = []
    for _ in range(2):
        began = time.perf_counter()
        procs = [subprocess.Popen([sys.executable, os.path.join(HERE, "load.py"), "--touch", str(size // 2)]) for _ in range(2)]
        for p in procs:
            p.wait()
        times.append(time.perf_counter() - began)
    return min(times)


def cold_limit(d):
    """Seconds to read the store's blobs once from the device, whatever is done with them."""
    blobs = [os.path.join(r, f) for r, _, fs in os.walk(os.path.join(d.path, "store", "blobs")) for f in fs]
    times = []
    for _ in range(3):
        drop_caches()
        times += io("all", 1, blobs, d.fs, "cold")[0].seconds
    return statistics.median(times)


def peers(report, a):
    label = pick(a, "1 GB", "0.7 GB", "4 MB")
    for kind, cases in (("tmpfs", TENPLEX), ("disk", ("TP",)), ("xfs", ("PP",)))[:pick(a, 3, 3, 1)]:
        for case in ("TP",) if a.quick else cases:
            one_case(report, a, kind, case, label)


def peers_large(report, a):
    if not a.quick:
        one_case(report, a, "tmpfs", "TP", "4 GB")


def apart(report, a, kind, case, label):
    one_case(report, a, kind, case, pick(a, label, "0.7 GB", "4 MB"))


# what `peers` and `peers_large` leave out: an hour and a half more, so only where they are named
ON_DEMAND = {f"peers_{name}_{case}": functools.partial(apart, kind=kind, case=case, label="1 GB")
             for name, kind, done in (("ext4", "disk", "TP"), ("xfs", "xfs", "PP")) for case in TENPLEX if case != done}
ON_DEMAND["peers_ext4_4GB"] = functools.partial(apart, kind="disk", case="TP", label="4 GB")


def save(report, a):
    """All ranks' ready files are copied into the mount, and committed.

    A second is a short time on a shared machine, so there are three times as many repetitions as elsewhere.
    """
    reps = 3 * a.peer_reps
    label, (old, _) = pick(a, "1 GB", "0.7 GB", "4 MB"), TENPLEX["TP"]
    with Disk("disk") as d:
        source, copy = os.path.join(d.path, "source"), os.path.join(d.path, "copy")
        state = make(source, old, label)
        names = sorted(os.listdir(source))
        dcp = python("peers/dcp.py", source, "--to", text(old, ","), "--work", os.path.join(d.path, "dcp"), "--reps", reps)
        theirs = Sample(dcp["save"]["all_s"], state, d.fs, "warm")
        with Mount(d, "save") as m:
            m.job("gpt", layout(label), text(old), "materialize=never keep=1 verify=background")
            mine, plain = [], []
            ranks = [n for n in names if n.isdigit()]
            sources = [os.path.join(p, f) for n in ranks for p, _, fs in os.walk(os.path.join(source, n)) for f in fs]

            def prepare():
                os.sync()
                supply(int(2.5 * state))
                io("all", 1, sources, d.fs, "warm")  # what was written meanwhile may have taken their pages

            for i in range(reps + 1):
                prepare()
                began = time.perf_counter()
                for n in ranks:
                    run("cp", "-r", "--reflink=never", os.path.join(source, n), os.path.join(m.at, "gpt"))
                m.commit("gpt", i + 1)
                mine.append(time.perf_counter() - began)
                m.verified("gpt")
                shutil.rmtree(copy, ignore_errors=True)
                os.mkdir(copy)
                prepare()
                began = time.perf_counter()
                for n in ranks:
                    run("cp", "-r", "--reflink=never", os.path.join(source, n), copy)
                run("sync", *[os.path.join(p, f) for p, _, fs in os.walk(copy) for f in fs])
                plain.append(time.perf_counter() - began)
            mine, plain = Sample(mine[1:], state, d.fs, "warm"), Sample(plain[1:], state, d.fs, "warm")
            report.ratio(f"{d.fs}: save: cp of ready files and commit", "DCP's save", mine, theirs, 2,
                         f"{mine.median:.2f} s, spread {mine.spread:.0%}; DCP {theirs.median:.2f} s")
            report.ratio(f"{d.fs}: save: cp of ready files and commit", "cp to the store's file system, flushed", mine, plain, 0.9,
                         f"{plain.median:.2f} s")


def memory(report, a):
    """Anonymous memory while 1 and 8 GiB are committed, read through views and materialized."""
    for mib in pick(a, (1024, 8192), (1024,), (64,)):
        size = f"{mib >> 10} GiB" if mib >= 1024 else f"{mib} MiB"
        with Disk("disk") as d, Mount(d, size) as m:
            cut_job(m, "v", mib << 18)
            put(m.ctl("v", "topology"), "tp=2")
            io("all", 1, m.files("v", 2), d.fs, "warm")
            m.materialize("v")
            report.add(f"daemon's anonymous memory, {size} committed, read, materialized", "", round(Mount.most_rss[m.name]), "MiB", 256, "low", must=True)
