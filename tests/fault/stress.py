#!/usr/bin/env python3
"""Eight processes that write, commit, reshard, roll back, read and verify at random, on two jobs.

    stress.py MOUNT OPERATIONS|SECONDSs [SEED]      12000: so many operations, drawn by SEED; 60s: for so long

Every tensor element is a function of the commit that wrote it (its note) and of its place, so each byte
that is read is checked, whatever versions and topologies come and go.  Prints what was done.
"""
import collections
import errno
import fcntl
import multiprocessing
import os
import random
import re
import sys
import time

import numpy as np
from safetensors.numpy import load, save

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bench"))
from harness import get, put # noqa: E402

WORKERS = 8
JOBS, ROWS, COLUMNS = ("left", "right"), 64, 96
DEGREES = (1, 2, 4, 8)
LAYOUT = "mesh tp dp\nrows tp=0\ncolumns tp=1\nboth copy\n"
BUSY = {errno.EBUSY, errno.ENOENT, errno.ESTALE, errno.EINVAL, errno.EROFS, errno.EEXIST, errno.ENODEV}


def whole(k):
    a = np.arange(ROWS * COLUMNS, dtype="<u4").reshape(ROWS, COLUMNS) + np.uint32(k) * 65536
    return {"rows": a, "columns": a + 7, "both": a[:3] + 9}


def part(k, tp, rank):
    t, i = whole(k), rank % tp
    return {"rows": t["rows"][i * ROWS // tp:(i + 1) * ROWS // tp], "columns": t["columns"][:, i * COLUMNS // tp:(i + 1) * COLUMNS // tp],
            "both": t["both"]}


class Worker:
    def __init__(self, mount, seed, counter):
        self.mount, self.rng, self.counter, self.did = mount, random.Random(seed), counter, collections.Counter()

    def at(self, job, *more):
        return os.path.join(self.mount, job, *map(str, more))

    def write_and_commit(self, job):
        """Writers agree among themselves, as ranks of a job do: a lock outside of the mount."""
        with open(f"/tmp/scalai-stress-{os.getppid()}-{job}", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            text = get(self.at(job, ".ctl", "topology"))
            degree = lambda axis: int((re.search(rf"{axis}=(\d+)", text) or [0, 1])[1])
            tp, dp = degree("tp"), degree("dp")
            with self.counter.get_lock():
                self.counter.value += 1
                k = self.counter.value
            try:
                for r in range(tp * dp):
                    os.makedirs(self.at(job, r), exist_ok=True)
                    temporary = self.at(job, r, ".tmp")
                    with open(temporary, "wb") as f:
                        f.write(save({n: np.ascontiguousarray(t) for n, t in part(k, tp, r).items()}))
                    os.rename(temporary, self.at(job, r, "model.safetensors"))
                put(self.at(job, ".ctl", "commit"), f"step={k} note={k}")
            except OSError:
                put(self.at(job, ".ctl", "discard"), "all")
                raise

    def reshard(self, job):
        put(self.at(job, ".ctl", "topology"), f"tp={self.rng.choice(DEGREES)} dp={self.rng.choice((1, 2, 3))}")

    def versions(self, job):
        """-> {number: (k, tp)}"""
        out = {}
        for line in get(self.at(job, ".ctl", "versions")).splitlines()[1:]:
            w = line.split("\t")
            tp = re.search(r"tp=(\d+)", w[2])
            out[int(w[0].rstrip("*"))] = (int(w[-1]), int(tp[1]) if tp else 1)
        return out

    def roll_back(self, job):
        put(self.at(job, ".ctl", "rollback"), str(self.rng.choice(list(self.versions(job)))))

    def check(self, raw, k, tp, rank, where):
        got, want = load(raw), part(k, tp, rank)
        if set(got) != set(want) or not all(np.array_equal(got[n], want[n]) for n in want):
            raise SystemExit(f"WRONG BYTES: {where}: commit {k} tp={tp} rank {rank}")

    def read_version(self, job):
        nr, (k, tp) = self.rng.choice(list(self.versions(job).items()))
        rank = self.rng.randrange(tp)
        with open(self.at(job, ".v", nr, rank, "model.safetensors"), "rb") as f:
            self.check(f.read(), k, tp, rank, f"{job} version {nr}")

    def read_as(self, job):
        """The head as another topology sees it: of one commit, whichever, and all of it."""
        tp = self.rng.choice(DEGREES)
        rank = self.rng.randrange(tp)
        with open(self.at(job, ".as", f"tp={tp}", rank, "model.safetensors"), "rb") as f:
            raw = f.read()
        self.check(raw, int(load(raw)["both"][0, 0] - 9) // 65536, tp, rank, f"{job} as tp={tp}")

    def read_head(self, job):
        with open(self.at(job, 0, "model.safetensors"), "rb") as f:
            raw = f.read()
        tensors = load(raw)
        self.check(raw, int(tensors["both"][0, 0] - 9) // 65536, ROWS // len(tensors["rows"]), 0, f"{job} head")

    def verify(self, job):
        put(self.at(job, ".ctl", "verify"), "head")

    def listing(self, job):
        for path, _, files in os.walk(self.at(job)):
            for f in files:
                os.stat(os.path.join(path, f))

    def run(self, until, operations):
        ways = [self.write_and_commit] * 3 + [self.reshard] * 3 + [self.roll_back, self.verify, self.listing] + \
            [self.read_version] * 5 + [self.read_as] * 4 + [self.read_head] * 4
        while time.monotonic() < until if not operations else self.did.total() < operations:
            what = self.rng.choice(ways)
            try:
                what(self.rng.choice(JOBS))
                self.did[what.__name__] += 1
            except OSError as e:
                if e.errno not in BUSY:
                    raise SystemExit(f"WRONG ERRNO: {what.__name__}: {e}") from e
                self.did[what.__name__ + " refused"] += 1
        return self.did


def worker(mount, seed, counter, until, operations, results):
    try:
        results.put(Worker(mount, seed, counter).run(until, operations))
    except BaseException as e: # noqa: BLE001 (told to the parent, whatever it is)
        results.put(f"{type(e).__name__}: {e}")


def anonymous(mount):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"scalai\0mount" in open(f"/proc/{pid}/cmdline", "rb").read() and mount.encode() in open(f"/proc/{pid}/cmdline", "rb").read():
                return int(re.search(r"RssAnon:\s+(\d+)", get(f"/proc/{pid}/status"))[1]) // 1024
        except (OSError, TypeError):
            continue
    return 0


def main():
    mount, much, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1
    seconds, operations = (float(much[:-1]), 0) if much.endswith("s") else (0, int(much) // WORKERS)
    counter = multiprocessing.Value("L", 0)
    first = Worker(mount, seed, counter)
    for job in JOBS:
        os.mkdir(first.at(job))
        with open(first.at(job, ".ctl", "layout"), "w") as f:
            f.write(LAYOUT)
        put(first.at(job, ".ctl", "topology"), "tp=2")
        first.write_and_commit(job)
    began, results = time.monotonic(), multiprocessing.Queue()
    workers = [multiprocessing.Process(target=worker, args=(mount, seed * 100 + i, counter, began + seconds, operations, results))
               for i in range(WORKERS)]
    for w in workers:
        w.start()
    memory = []
    while any(w.is_alive() for w in workers) and results.qsize() < WORKERS:
        memory.append(anonymous(mount))
        time.sleep(min(1, seconds / 20) or 0.2)
    seconds = time.monotonic() - began
    total = collections.Counter()
    for _ in workers:
        did = results.get(timeout=120)
        if isinstance(did, str):
            raise SystemExit(did)
        total += did
    for w in workers:
        w.join()
    for job in JOBS:
        put(first.at(job, ".ctl", "discard"), "all")
        first.verify(job)
    early, late = max(memory[len(memory) // 4:len(memory) // 2]), max(memory[-len(memory) // 4:])
    print(" ".join(f"{n}={c}" for n, c in sorted(total.items())))
    print(f"figure: seed {seed}: {sum(total.values())} operations by {WORKERS} processes in {seconds:.0f} s, 0 wrong bytes; anonymous memory {early} MiB early, {late} MiB late")
    if min(total["write_and_commit"], total["reshard"], total["roll_back"], total["read_version"]) < 3:
        raise SystemExit("too little was done to say anything")
    # in less time there are more and more versions in memory, up to those that are kept
    if seconds >= 60 and late > early * 1.25 + 16:
        raise SystemExit("memory grows")


if __name__ == "__main__":
    main()
