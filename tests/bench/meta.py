"""What does not depend on bytes: topology writes, first opens, plans, many files."""
import json
import os
import resource
import statistics
import threading
import time

import llama
from harness import TOOL, Disk, Mount, Sample, get, io, pick, put, run, until
from files import SHORT, cut_job


def write_topologies(m, jobs, two, reps):
    """Samples of writes that go to and fro between two topologies, one of each job in turn."""
    times = [[] for _ in jobs]
    os.sync()
    for i in range(2 * reps + 2):
        for job, mine in zip(jobs, times):
            began = time.perf_counter()
            put(m.ctl(job, "topology"), two[i % 2])
            mine.append(time.perf_counter() - began)
    return [Sample(t[2:], 0, "", "") for t in times]


def llama_job(m, job, hidden):
    m.job(job, llama.LAYOUT, llama.topology(8, 2, 1), "materialize=never keep=2")
    size = llama.write_job(os.path.join(m.at, job), hidden, 8, 2)
    m.commit(job)
    m.verified(job)
    return size


def topology(report, a):
    big, label = pick(a, (1 << 30, "1 GiB"), (64 << 20, "64 MiB"), (8 << 20, "8 MiB"))
    with Disk("disk") as d, Mount(d, "topology") as m:
        for job, size in (("small", 1 << 20), ("large", big)):
            cut_job(m, f"gpt-{job}", size // 4)
            llama_job(m, f"llama-{job}", 16 if job == "small" else pick(a, 224, 48, 32))
        for ranks, kind, two, target in ((16, "gpt", ("tp=8 dp=2", "tp=4 dp=4"), 5),
                                         (1024, "llama", (llama.topology(8, 16, 8), llama.topology(16, 16, 4)), 20),
                                         (16384, "llama", (llama.topology(8, 16, 128), llama.topology(16, 16, 64)), 150)):
            small, large = write_topologies(m, [f"{kind}-{j}" for j in ("small", "large")], two, pick(a, 4 * a.reps, 4 * a.reps, 4))
            what = f"topology write, {ranks} ranks" + (", Llama-405B's 3,036 tensors" if kind == "llama" else "")
            report.add(f"{what}, {label}", "", round(large.median * 1e3, 2), "ms", target, "low", (large,),
                       f"1 MiB of state: {small.median * 1e3:.2f} ms")
            report.add(f"{what}: {label} of state", "1 MiB of state: more by", round(abs(large.median / small.median - 1) * 100, 1), "%", 10, "low",
                       (small, large))


def opens(report, a):
    """open, fstat and one byte, first after a topology write, and then of other ranks."""
    with Disk("disk") as d, Mount(d, "opens") as m:
        for tensors in (100, 1000):
            job = f"t{tensors}"
            thin_job(m, job, tensors)
            first, later = [], []
            for i in range(pick(a, 3 * a.reps, 3 * a.reps, 4)):
                put(m.ctl(job, "topology"), f"tp={2 if i % 2 == 0 else 8}") # both are views
                file = os.path.join(m.at, job, "{}", "model.safetensors")
                first += io("first", 1, [file.format(0)], d.fs, "warm")[0].seconds
                later += io("first", 1, [file.format(1)], d.fs, "warm")[0].seconds
            first, later = Sample(first, 1, d.fs, "warm"), Sample(later, 1, d.fs, "warm")
            report.add(f"first open of a job after a topology write, {tensors} tensors", "", round(first.median * 1e3, 2), "ms",
                       20 if tensors == 1000 else None, "low", (first,))
            report.add(f"open of another rank's file after it, {tensors} tensors", "", round(later.median * 1e3, 2), "ms",
                       1 if tensors == 100 else None, "low", (later,))


def thin_job(m, job, tensors):
    import numpy as np
    from safetensors.numpy import save_file
    m.job(job, "use hf-llama", "tp=4")
    for rank in range(4):
        os.makedirs(os.path.join(m.at, job, str(rank)), exist_ok=True)
        save_file({f"model.layers.{i}.self_attn.q_proj.weight": np.full((16, 64), rank, np.uint16) for i in range(tensors)},
                  os.path.join(m.at, job, str(rank), "model.safetensors"))
    m.commit(job)
    m.verified(job)


def plan(report, a):
    """Plans of Llama-405B with Adam in which tp, pp and dp all change, by nodes of 8 ranks."""
    curve = []
    steps = [("8,2,4", "4,3,4"), ("8,4,8", "4,6,8"), ("8,8,16", "4,12,16"), ("8,16,32", "4,12,64"), ("8,16,64", "16,12,32"),
             ("8,16,128", "16,12,64")]
    for old, new in steps:
        r = json.loads(run(TOOL["plan"], a.reps, old, new))
        r["plan_s"], r["view_s"] = statistics.median(r["plan_s"]), statistics.median(r["view_s"])
        curve.append(r)
    report.curves["plan"] = {str(r["from"]): r for r in curve}
    last, what = curve[-1], "plan of Llama-405B + Adam, 16,384 -> 12,288 ranks"
    report.add(what, "", round(last["plan_s"], 3), "s", 1, "low", detail=f"{last['pieces']} pieces, {last['moved'] / 1e12:.0f} TB between nodes")
    report.add(what + ": bytes between nodes", "proven lower bound", last["moved"] / last["bound"], "x", 1, "low", must=True)
    report.add(what + ": memory of the process", "", last["rss_mib"], "MiB", 1024, "low", must=True)
    per = [r["plan_s"] / r["pieces"] * 1e9 for r in curve]
    report.add("plan: time for a piece, 16,384 ranks", "64 ranks: times as much", round(per[-1] / per[0], 2), "x", 1.5, "low",
               detail=", ".join(f"{r['from']}: {p:.0f} ns" for r, p in zip(curve, per)))


def many(report, a):
    """10,000 files open through views at once, and 64 readers."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Disk("disk") as d, Mount(d, "10,000 files") as m:
        llama_job(m, "v", 16)
        put(m.ctl("v", "topology"), llama.topology(8, 16, 128))
        before, began = m.rss(), time.perf_counter()
        nr = pick(a, 10000, 1000, 1000)
        fds = [os.open(os.path.join(m.at, f"v/{r}/model.safetensors"), os.O_RDONLY) for r in range(nr)]
        opened = time.perf_counter() - began
        errors, at = [], iter(range(len(fds)))
        lock = threading.Lock()

        def reader():
            while True:
                with lock:
                    i = next(at, None)
                if i is None:
                    return
                try:
                    if not os.pread(fds[i], 1 << 20, 0):
                        errors.append("empty")
                except OSError as e:
                    errors.append(str(e))

        threads = [threading.Thread(target=reader) for _ in range(64)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        grown = m.rss() - before
        for fd in fds:
            os.close(fd)
        report.add(f"{nr} files open through views, 64 readers: errors", "", len(errors), "", 0, "low", detail=f"opened in {opened:.1f} s", must=True)
        report.add(f"{nr} files open through views: anonymous memory grows by", "", round(grown, 1), "MiB", 64, "low", must=True)


SCRAPE_S = 1


class Scraper:
    """Reads the metrics of a mount each second, as long as it is entered."""

    def __init__(self, m):
        self.file, self.stop = os.path.join(m.at, ".ctl/metrics"), threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.wait(SCRAPE_S):
            get(self.file)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def scrapes(report, a):
    """Metrics of 1,000 jobs: what a read of them takes, and what a read each second takes from views."""
    nr = pick(a, 1000, 1000, 20)
    with Disk("disk") as d, Mount(d, "1,000 jobs") as m:
        for i in range(nr):
            m.job(f"j{i}", "mesh tp\n* tp=0", "tp=1", "materialize=never sync=off")
            one = os.path.join(m.at, f"j{i}/0")
            os.makedirs(one, exist_ok=True)
            head = b'{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}   '
            with open(os.path.join(one, "model.safetensors"), "wb") as f:
                f.write(len(head).to_bytes(8, "little") + head + bytes(8))
            m.commit(f"j{i}", i)
        cut_job(m, "v", a.file_bytes)
        put(m.ctl("v", "topology"), "tp=2")
        until(lambda: "scalai_background_busy 0" in get(os.path.join(m.at, ".ctl/metrics")))
        times = []
        for _ in range(pick(a, 15 * a.reps, 15 * a.reps, 4)):
            began = time.perf_counter()
            text = get(os.path.join(m.at, ".ctl/metrics"))
            times.append(time.perf_counter() - began)
        sample = Sample(times, 0, "", "")
        report.add(f"metrics of {nr} jobs: a read", "", round(sample.median * 1e3, 2), "ms", 20, "low", (sample,), f"{len(text)} bytes")
        file = os.path.join(m.at, "v/0/rows.safetensors")
        alone, beside = [], []
        for _ in range(a.reps):  # in turns, each long enough for some scrapes
            alone += io("read", SHORT * a.reps, [file], d.fs, "source warm")[0].seconds
            with Scraper(m):
                beside += io("read", SHORT * a.reps, [file], d.fs, "source warm")[0].seconds
        size = os.path.getsize(file)
        report.ratio(f"view read while metrics of {nr} jobs are read each second", "they are not",
                     Sample(beside, size, d.fs, "source warm"), Sample(alone, size, d.fs, "source warm"), 0.95)


WRITES = 100


def heads(report, a):
    """
    Memory, while one topology after another of 16,384 ranks is written as fast as it goes: views of each version that leaves stay for two
    seconds.  To and fro between two topologies, and each another one, as an elastic run has them.
    """
    two = (llama.topology(8, 16, 128), llama.topology(16, 16, 64))
    others = [llama.topology(8, 16, dp) for dp in range(128 - WRITES, 128)]
    with Disk("disk") as d, Mount(d, "topologies") as m:
        llama_job(m, "v", 16)
        for what, topologies, most in (("to and fro", [two[i % 2] for i in range(WRITES)], 32), ("each another one", others, 64)):
            put(m.ctl("v", "topology"), two[1])
            before, times = m.rss(), []
            m.peak = 0
            for text in topologies:
                began = time.perf_counter()
                put(m.ctl("v", "topology"), text)
                times.append(time.perf_counter() - began)
            sample = Sample(times, 0, "", "")
            report.add(f"{WRITES} topologies of up to 16,384 ranks, {what}: anonymous memory grows by, at most", "", round(m.most() - before, 1), "MiB", most,
                       "low", detail=f"from {before:.0f} MiB", must=True)
            report.add(f"{WRITES} topologies of up to 16,384 ranks, {what}: a write", "", round(sample.median * 1e3, 2), "ms", None, "low", (sample,))
