"""What the cases share: samples and honest ratios, mounts, stores on several file systems."""
import contextlib
import dataclasses
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SCALAI = os.path.join(ROOT, "build/fs/scalai")
TOOL = {n: os.path.join(ROOT, f"build/tests/bench/bench_{n}") for n in ("io", "names", "null", "plan", "engine", "parse")}
NOISY = 0.20


class Refused(Exception):
    """A ratio of two things that can't be compared."""


@dataclasses.dataclass
class Sample:
    """Seconds of every repetition, and what was done: ratios are refused unless all of it is equal."""
    seconds: list
    bytes: int            # that were asked for, whoever answers
    fs: str               # file system that holds the bytes; "" where none does
    cache: str            # state of the page cache

    @property
    def median(self):
        return statistics.median(self.seconds)

    @property
    def spread(self):
        """Distance of the quartiles over the median: one disturbed repetition is not the machine."""
        if len(self.seconds) < 4:
            return (max(self.seconds) - min(self.seconds)) / self.median
        q = statistics.quantiles(self.seconds, n=4)
        return (q[2] - q[0]) / self.median

    @property
    def rate(self):
        return self.bytes / self.median / 1e9


def times_faster(ours, theirs):
    """How many times as fast ours is; refused unless both did the same."""
    for what in ("bytes", "fs", "cache"):
        if getattr(ours, what) != getattr(theirs, what):
            raise Refused(f"{what}: {getattr(ours, what)!r} against {getattr(theirs, what)!r}")
    return theirs.median / ours.median


LOW = ("s", "ms", "MiB", "%")


def pick(a, full, quick, check):
    """A size, as bench.py was told: to measure, to see whether it works, to see in the gate whether it works."""
    return check if a.check else quick if a.quick else full


class Report:
    """Rows of the table, as they are measured."""

    def __init__(self):
        self.rows, self.skips = [], []
        self.same_sizes = True # as in the committed figures; a case that has others says so

    def add(self, case, against, value, unit, target=None, best=None, samples=(), detail="", must=False):
        """must: the value does not depend on the machine, and --check fails where it misses its target."""
        best = best or ("low" if unit in LOW else "high")
        noisy = [round(s.spread, 2) for s in samples if s.spread > NOISY]
        met = None if target is None else (value >= target if best == "high" else value <= target)
        row = {"case": case, "against": against, "value": value, "unit": unit, "target": target, "best": best,
               "met": met, "noisy": noisy, "detail": detail,
               "spread": round(max((s.spread for s in samples), default=0), 3), "must": must, "same_sizes": self.same_sizes}
        self.rows.append(row)
        goal = "" if target is None else f"  target {'>=' if best == 'high' else '<='} {target:g}: {'yes' if met else 'NO'}"
        print(f"{case:58s} {against:34s} {value:9.3g} {unit:4s}{goal}"
              f"{'  TOO NOISY: spread ' + '/'.join(map(str, noisy)) if noisy else ''}{'  ' + detail if detail else ''}", flush=True)
        return row

    def skip(self, case, why):
        """A part of a case that can't run where --check does."""
        self.skips.append(f"bench {case}, a part: {why}")
        print(f"skipped: {self.skips[-1]}", flush=True)

    def ratio(self, case, against, ours, theirs, target=None, detail=""):
        try:
            value = times_faster(ours, theirs)
        except Refused as e:
            print(f"{case}: REFUSED: {e}", flush=True)
            raise
        return self.add(case, against, round(value, 3), "x", target, "high", (ours, theirs), detail)


def run(*words, env=None, timeout=900, check=True):
    return subprocess.run([str(w) for w in words], check=check, stdout=subprocess.PIPE, text=True, timeout=timeout,
                          env={**os.environ, **(env or {})}).stdout


def io(mode, reps, files, fs, cache, **env):
    """-> a Sample for each file (one for `all`)."""
    out = json.loads(run(TOOL["io"], mode, reps, *files, env={k: str(v) for k, v in env.items()}))
    return [Sample(s, out["bytes"], fs, cache) for s in out["seconds"]]


def put(path, text):
    """One write(2): a control file's command."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def get(path):
    with open(path) as f:
        return f.read()


def until(what, seconds=600, step=0.02):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError("waited too long")
        time.sleep(step)


def drop_caches():
    os.sync()
    put("/proc/sys/vm/drop_caches", "3")


def supply(size):
    """Touch that much memory and give it back: pages that a virtual machine has not used for some
    seconds cost a fault of the host, 1 s/GB, whoever touches them next.  Before each side of a
    comparison that fills new memory, so that neither pays for the other."""
    run(sys.executable, os.path.join(HERE, "load.py"), "--touch", size)


@contextlib.contextmanager
def host_leaves_memory():
    """Ask the kernel of a virtual machine not to give free memory back to its host while this lasts.

    Free page reporting gives pages back within 2 seconds of their release, so what supply() touched was at times gone
    when a copy began, which then took twice as long: saves spread by 30-60 %, and by 10 % without.  Not every kernel
    can be asked (the file has to exist and be writable); where it can't, this does nothing.
    """
    folder, wanted, was = "/sys/module/page_reporting/parameters", {"min_free_ms": "60000", "max_waiting_mib": "1048576"}, {}
    try:
        for name, value in wanted.items():
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "r+") as f:
                old = f.read().strip()
                f.seek(0)
                f.write(value)
                f.flush()
                was[name] = old
        yield
    finally:
        for name, value in was.items():
            with open(os.path.join(folder, name), "w") as f:
                f.write(value)


class Disk:
    """A folder on tmpfs, on ext4 (wherever /tmp is) or on a fresh XFS with reflink in a loop device."""

    def __init__(self, kind, gib=14):
        self.kind = kind
        base = "/dev/shm" if kind == "tmpfs" else os.environ.get("BENCH_DISK", "/tmp")
        self.folder = os.path.join(base, f"scalai-bench-{os.getpid()}-{kind}")
        os.makedirs(self.folder)
        self.path = self.folder
        if kind == "xfs":
            image = os.path.join(self.folder, "image")
            with open(image, "wb") as f:
                f.truncate(gib << 30)
            self.path = os.path.join(self.folder, "mnt")
            os.mkdir(self.path)
            run("mkfs.xfs", "-q", "-m", "reflink=1", image)
            run("mount", "-o", "loop", image, self.path)
        self.fs = {"disk": "ext4"}.get(kind, kind)

    def close(self):
        if self.kind == "xfs":
            run("umount", self.path, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


RINGS = "/sys/module/fuse/parameters/enable_uring"


def may_ring():
    return os.access(RINGS, os.W_OK)


@contextlib.contextmanager
def ring_switch(on):
    """The kernel's switch of FUSE over io_uring, for mounts made meanwhile."""
    was = get(RINGS).strip() if on else None
    try:
        if on:
            put(RINGS, "Y")
        yield
    finally:
        if on:
            put(RINGS, was)


class Mount:
    """A daemon of its own over DISK/store; its anonymous memory is watched all the time."""
    most_rss = {}         # name -> MiB, of all mounts

    def __init__(self, disk, name="", options=()):
        self.store, self.at, self.name = os.path.join(disk.path, "store"), os.path.join(disk.folder, "scalai"), name
        self.disk = disk
        os.makedirs(self.at, exist_ok=True)
        words = [w for o in options for w in ("-o", o)]
        log = os.path.join(disk.folder, "log")
        with open(log, "w") as f:
            self.daemon = subprocess.Popen([SCALAI, "mount", "-f", *words, self.store, self.at], stderr=f)
        until(lambda: os.path.exists(os.path.join(self.at, ".ctl/health")) or self.daemon.poll() is not None, 60)
        if self.daemon.poll() is not None:
            raise RuntimeError(f"{SCALAI} did not mount: {get(log)}")
        self.peak = 0 # MiB, since somebody set it
        self.stop = threading.Event()
        self.watcher = threading.Thread(target=self.watch)
        self.watcher.start()

    def rss(self):
        return int(re.search(r"RssAnon:\s+(\d+)", get(f"/proc/{self.daemon.pid}/status"))[1]) / 1024

    def watch(self):
        while not self.stop.wait(0.02):
            try:
                now = self.rss()
                self.peak = max(self.peak, now)
                Mount.most_rss[self.name] = max(Mount.most_rss.get(self.name, 0), now)
            except (OSError, TypeError):
                return

    def most(self):
        """The highest of what rss() was since `peak` was set, at times 20 ms apart."""
        return max(self.peak, self.rss())

    def ctl(self, job, file):
        return os.path.join(self.at, job, ".ctl", file)

    def job(self, job, layout, topology, config="materialize=never"):
        os.mkdir(os.path.join(self.at, job))
        put(self.ctl(job, "layout"), layout)
        put(self.ctl(job, "config"), config)
        put(self.ctl(job, "topology"), topology)

    def commit(self, job, step=1):
        put(self.ctl(job, "commit"), f"step={step}")

    def verified(self, job):
        until(lambda: "copies: pending" not in get(self.ctl(job, "status")))

    def materialize(self, job):
        """Seconds until the head is real files."""
        began = time.perf_counter()
        put(self.ctl(job, "config"), "materialize=lazy")
        put(self.ctl(job, "wait"), "\n")
        took = time.perf_counter() - began
        put(self.ctl(job, "config"), "materialize=never")
        return took

    def written(self):
        """Bytes that were written to materialize, so far: what was not reflinked."""
        counts = dict(line.rsplit(" ", 1) for line in get(os.path.join(self.at, ".ctl/metrics")).splitlines() if line[0] != "#")
        return int(counts["scalai_materialized_bytes_total"]) - int(counts["scalai_reflinked_bytes_total"])

    def files(self, job, ranks):
        return [os.path.join(d, f) for r in range(ranks)
                for d in (os.path.join(self.at, job, str(r)),) for f in sorted(os.listdir(d))]

    def close(self):
        self.stop.set()
        self.watcher.join()
        run("umount", "-l", self.at, check=False)
        try:
            self.daemon.wait(10)
        except subprocess.TimeoutExpired:
            self.daemon.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Null:
    """The null FUSE server with one file of so many bytes, or with those of a file."""

    def __init__(self, disk, what, options=()):
        self.at = os.path.join(disk.folder, "-".join(("null", os.path.basename(str(what)), *options)))
        os.makedirs(self.at, exist_ok=True)
        self.daemon = subprocess.Popen([TOOL["null"], self.at, str(what), *options])
        self.file = os.path.join(self.at, "f")
        until(lambda: os.path.exists(self.file))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        run("umount", "-l", self.at, check=False)
        self.daemon.wait(10)


def python(script, *words, timeout=900):
    """A sibling script; -> the JSON of its last line."""
    path = os.pathsep.join([os.path.join(ROOT, "tests/support/gpt"), HERE])
    return json.loads(run(sys.executable, os.path.join(HERE, script), *words, env={"PYTHONPATH": path},
                          timeout=timeout).splitlines()[-1])
