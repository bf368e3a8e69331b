"""Datasets: partitions read beside the plain source, and beside the samplers of training frameworks."""
import importlib.util
import os
import time

import numpy as np

from harness import Disk, Mount, Null, Sample, get, io, pick, put, python

BATCH = 4096
READS = 100_000


def add(m, job, text):
    try:
        put(m.ctl(job, "data"), text)
    except OSError as e:
        raise SystemExit(f"{text}: {e}: {get(m.ctl(job, 'error'))}")


def numbered(path, record, size, batch):
    """Records that begin with their number, so that a reader knows which ones it got."""
    n = size // record // batch * batch
    a = np.zeros((n, record // 8), "<u8")
    a[:, 0] = np.arange(n)
    a.tofile(path)
    return n


def reading(report, a):
    """1 MiB reads of a partition, against one pread for each sample in the same order, or the same bytes in a row."""
    batch = pick(a, BATCH, BATCH, BATCH // 8)
    for kind in ("tmpfs", "disk"):
        with Disk(kind) as d, Mount(d, "data") as m:
            source, order = os.path.join(d.path, "source.bin"), os.path.join(d.path, "order")
            m.job("j", "use replicated", "dp=4")
            for record in (2048, 4096, 8192):
                numbered(source, record, a.file_bytes, batch)
                add(m, "j", f"add name=s path={source} format=records record={record} global_batch={batch}")
                ours = os.path.join(m.at, "j/0/data/s.bin")
                ids = np.fromfile(ours, "<u8").reshape(-1, record // 8)[:, 0]
                np.stack([ids * record, np.full_like(ids, record)], 1).tofile(order)
                direct, part = io("read", a.reps, [f"by:{order}:{source}", ours], d.fs, "warm")
                report.ratio(f"{d.fs}: shuffled partition, samples of {record} bytes, 1 MiB read()", "a pread() for each sample, same order",
                             part, direct, 0.5, f"{part.rate:.2f} of {direct.rate:.2f} GB/s")
                add(m, "j", "remove name=s")
            add(m, "j", f"add name=s path={source} format=records record=4096 global_batch={batch} shuffle=none")
            put(m.ctl("j", "topology"), "dp=1")
            ours = os.path.join(m.at, "j/0/data/s.bin")
            with Null(d, os.path.getsize(source)) as null:
                direct, nothing, part = io("read", a.reps, [source, null.file, ours], d.fs, "warm")
            report.ratio(f"{d.fs}: partition in order, 1 MiB read()", "native read()", part, direct, 0.75, f"{part.rate:.2f} of {direct.rate:.2f} GB/s")
            report.ratio(f"{d.fs}: partition in order, 1 MiB read()", "null FUSE server", part, nothing, detail=f"null {nothing.rate:.2f} GB/s")


def start(report, a):
    """Ten million samples: from a new number of ranks to the first batch of rank 0, and samples a second."""
    n = pick(a, 10_000_000, 200_000, 20_000)
    reads = min(READS, n // 16) # a rank of eight has as many
    with Disk("disk") as d, Mount(d, "data start") as m:
        prefix = os.path.join(d.path, "corpus")
        python("peers/samplers.py", "make", prefix, n)
        m.job("j", "use replicated", "dp=4")
        began = time.perf_counter()
        add(m, "j", f"add name=c path={prefix}.bin format=megatron global_batch={BATCH}")
        report.add(f"{n:,} documents are added", "", round(time.perf_counter() - began, 2), "s")
        firsts, rates = [], []
        for i in range(a.peer_reps):
            put(m.ctl("j", "topology"), "dp=4" if i % 2 else "dp=8")
            out = python("peers/samplers.py", "scalai", m.ctl("j", "topology"), "dp=8" if i % 2 else "dp=4", os.path.join(m.at, "j/0/data/c"), reads)
            firsts.append(out["first"])
            rates.append(out["rest"])
        ours, ours_rate = Sample(firsts, 1, d.fs, ""), Sample(rates, out["read"], d.fs, "warm")
        megatron = [python("peers/samplers.py", "megatron", prefix, n, reads) for _ in range(a.peer_reps)]
        streaming = []
        if a.check and not importlib.util.find_spec("streaming"):
            report.skip("data_start", "without mosaicml-streaming, which tools/bench --long installs")
        else:
            streaming = [python("peers/samplers.py", "streaming", prefix, n) for _ in range(a.peer_reps)]
        for label, seconds in (("Megatron-Core's GPTDataset, building its indices", [r["first"] for r in megatron]),
                               ("the same, finding them on disk", [r["again"] for r in megatron]),
                               ("MosaicML streaming's partition and shuffle alone", [r["first"] for r in streaming])):
            if not seconds:
                continue
            theirs = Sample(seconds, 1, d.fs, "")
            report.ratio(f"{n:,} documents: dp changes, until rank 0 has a sample", label, ours, theirs, None,
                         f"{ours.median * 1e3:.0f} ms; {theirs.median * 1e3:.0f} ms")
        theirs = Sample([r["rest"] for r in megatron], megatron[0]["read"], d.fs, "warm")
        report.ratio(f"{n:,} documents: {megatron[0]['read']:,} read one by one by IndexedDataset", "the same of the source, in random order",
                     ours_rate, theirs, None, f"{ours_rate.bytes / ours_rate.median:,.0f} of {theirs.bytes / theirs.median:,.0f} samples/s")
