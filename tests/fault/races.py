#!/usr/bin/env python3
"""Writers and readers that meet commits and topology writes, on mounts of their own.

    races.py SCALAI FOLDER [--seconds S] [--cases N] [--seed SEED] [--only REGEX] [--hours H] [--list]

A case is KIND/LOAD/MODE: a kind of program, how starved of CPU it is, and how Scalai is mounted.  Each case mounts an
empty store in FOLDER, runs for S seconds, unmounts and checks:

  - a version has, at the end, the bytes that it had when its commit returned;
  - no program sees an error (a commit is EBUSY while files are open, and refused while nothing was written);
  - one open committed file has one size and one content;
  - the daemon lives, but where the case kills it; `scalai fsck` finds the store clean.

Without --cases all cases run; with it, each kind once and so many of the others, drawn by SEED.  Writers of four ranks
rewrite one file each while one process commits in a loop; readers read while one process changes the topology.
"""
import argparse
import ctypes
import errno
import hashlib
import itertools
import mmap
import multiprocessing as mp
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

RANKS, SIZE = 4, 65536
PIECE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bench")
NO_ERRORS = 200  # of a process, before it gives up


def put(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def get(path):
    with open(path, "rb") as f:
        return f.read().decode()


# --- writers: each rewrites one file, over and over; `n` counts ---

def fill(n):
    return bytes([n % 251 + 1]) * SIZE


def open_wb(path, n):
    with open(path, "wb") as f:
        f.write(fill(n))


def pwrite(path, n):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, fill(n), 0)
    finally:
        os.close(fd)


def truncate(path, n):
    os.truncate(path, 100 + n * 7919 % SIZE)


def ftruncate(path, n):
    fd = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(fd, 100 + n * 7919 % SIZE)
        os.pwrite(fd, bytes([n % 251 + 1]) * 100, 0)
    finally:
        os.close(fd)


def fallocate(path, n):
    fd = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(fd, 0, SIZE + n % 8 * 4096)
        os.pwrite(fd, bytes([n % 251 + 1]) * 100, 0)
    finally:
        os.close(fd)


def mapped(path, n):
    fd = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(fd, SIZE)
        m = mmap.mmap(fd, SIZE)
    finally:
        os.close(fd)
    m[:] = fill(n)  # after close(2): only the mapping is left
    m.close()


def rename_over(path, n):
    with open(path + ".new", "wb") as f:
        f.write(fill(n))
    os.rename(path + ".new", path)


def rename_away(path, n):
    """A committed file moves, and comes back."""
    os.rename(path, path + ".old")
    os.rename(path + ".old", path)


def unlink_create(path, n):
    os.unlink(path)
    open_wb(path, n)


def copy_range(path, n):
    source = os.path.dirname(path) + "/source"
    if not os.path.exists(source):
        with open(source, "wb") as f:
            f.write(os.urandom(2 * SIZE))
    a, b = os.open(source, os.O_RDONLY), os.open(path, os.O_RDWR)
    try:
        os.copy_file_range(a, b, SIZE, n % SIZE, 0)
    finally:
        os.close(a), os.close(b)


def chmod(path, n):
    os.chmod(path, 0o600 + n % 2 * 0o44)


def times(path, n):
    os.utime(path, (n, n))


def read_trunc(path, n):
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    open_wb(path, n)


def interrupted(path, n):
    """Opens that a timer interrupts, and that do not wait."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    try:
        fd = os.open(path, os.O_RDWR | (os.O_NONBLOCK if n % 2 else 0))
        os.pwrite(fd, fill(n), 0)
        os.close(fd)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Ring:
    """write(2) by io_uring, by hand: a registered file outlives close(2)."""
    SETUP, ENTER, REGISTER, WRITE, REGISTER_FILES, FIXED, GETEVENTS = 425, 426, 427, 23, 2, 1, 1

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        params = bytearray(120)
        p = (ctypes.c_char * 120).from_buffer(params)
        self.fd = self.libc.syscall(self.SETUP, 4, p)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")
        u = lambda at: int.from_bytes(params[at:at + 4], sys.byteorder)
        # struct io_uring_params: sq_off at 40, cq_off at 80
        self.sq_head, self.sq_tail, self.sq_mask, self.array = u(40), u(44), u(48), u(64)
        self.cq_head, self.cq_tail, self.cq_mask, self.cqes = u(80), u(84), u(88), u(100)
        self.sq = mmap.mmap(self.fd, self.array + 4 * 4, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=0)
        self.cq = mmap.mmap(self.fd, self.cqes + 8 * 16, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=0x8000000)
        self.entries = mmap.mmap(self.fd, 4 * 64, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=0x10000000)

    def number(self, m, at, value=None):
        if value is None:
            return int.from_bytes(m[at:at + 4], sys.byteorder)
        m[at:at + 4] = (value & 0xffffffff).to_bytes(4, sys.byteorder)

    def write(self, fd, data):
        files = (ctypes.c_int * 1)(fd)
        if self.libc.syscall(self.REGISTER, self.fd, self.REGISTER_FILES, files, 1) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_register")
        os.close(fd)
        buffer = ctypes.create_string_buffer(data, len(data))
        entry = bytearray(64)
        entry[0], entry[1] = self.WRITE, self.FIXED
        entry[16:24] = ctypes.addressof(buffer).to_bytes(8, sys.byteorder)
        entry[24:28] = len(data).to_bytes(4, sys.byteorder)
        tail = self.number(self.sq, self.sq_tail)
        at = tail & self.number(self.sq, self.sq_mask)
        self.entries[at * 64:at * 64 + 64] = bytes(entry)
        self.number(self.sq, self.array + 4 * at, at)
        self.number(self.sq, self.sq_tail, tail + 1)
        if self.libc.syscall(self.ENTER, self.fd, 1, 1, self.GETEVENTS, None, 0) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_enter")
        head = self.number(self.cq, self.cq_head)
        at = self.cqes + 16 * (head & self.number(self.cq, self.cq_mask))
        result = int.from_bytes(self.cq[at + 8:at + 12], sys.byteorder, signed=True)
        self.number(self.cq, self.cq_head, head + 1)
        self.close()
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def close(self):
        self.sq.close(), self.cq.close(), self.entries.close(), os.close(self.fd)


def io_uring(path, n):
    Ring().write(os.open(path, os.O_RDWR), fill(n))


WRITERS = {f.__name__: f for f in (open_wb, pwrite, truncate, ftruncate, fallocate, mapped, rename_over, rename_away, unlink_create,
                                   copy_range, chmod, times, read_trunc, interrupted, io_uring)}


# --- readers: each opens a file whose bytes are known ---

def whole(tp, rank):
    import numpy as np
    a = np.arange(1 << 14, dtype="<u4").reshape(128, 128)
    return {"rows": np.ascontiguousarray(a[rank * 128 // tp:(rank + 1) * 128 // tp]),
            "columns": np.ascontiguousarray(a[:, rank * 128 // tp:(rank + 1) * 128 // tp]), "both": a[:3]}


def check(raw, tp, rank):
    import numpy as np
    from safetensors.numpy import load
    got, want = load(bytes(raw)), whole(tp, rank)
    if set(got) != set(want) or not all(np.array_equal(got[k], want[k]) for k in want):
        raise AssertionError(f"wrong bytes of rank {rank} at tp={tp}")


def by_read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        raw = b"".join(iter(lambda: os.read(fd, 30000), b""))
        if not size == len(raw) == os.fstat(fd).st_size:
            raise AssertionError(f"fstat says {size}, then {os.fstat(fd).st_size}; {len(raw)} bytes were read")
        return raw
    finally:
        os.close(fd)


def by_mmap(path):
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        return m[:]


def by_sendfile(path):
    with open(path, "rb") as f, open(f"/tmp/scalai-races-{os.getpid()}", "w+b") as to:
        os.unlink(to.name)
        at = 0
        while n := os.sendfile(to.fileno(), f.fileno(), at, 1 << 20):
            at += n
        to.seek(0)
        return to.read()


def by_direct(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        size = os.fstat(fd).st_size
        buffer = mmap.mmap(-1, size + 8192)
        n = 0
        while n < size and (more := os.preadv(fd, [memoryview(buffer)[n:n + 65536]], n)):
            n += more
        return buffer[:n]
    finally:
        os.close(fd)


def by_load_file(path):
    from safetensors.numpy import load_file, save
    return save(load_file(path))


READERS = {"read": by_read, "mmap": by_mmap, "sendfile": by_sendfile, "direct": by_direct, "load_file": by_load_file}

# --- processes ---


def starve(load, cores):
    """`idle`: beside a hog, and behind everything else."""
    if load == "idle":
        os.sched_setaffinity(0, {cores[-1]})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def hog(cores):
    os.sched_setaffinity(0, {cores[-1]})
    while True:
        pass


def repeat(body, stop, errors, did, kills):
    """Calls body(n) until it is time; what it raises is kept, but for what a killed daemon may cost."""
    n, bad = 0, 0
    while not stop.is_set() and bad < NO_ERRORS:
        n += 1
        try:
            body(n)
            with did.get_lock():
                did.value += 1
        except (OSError, AssertionError, ValueError) as e:
            if kills and isinstance(e, OSError) and e.errno == errno.EIO:
                errors.put("EIO of a killed daemon")
                continue
            bad += 1
            name = errno.errorcode.get(e.errno, "?") if isinstance(e, OSError) else type(e).__name__
            errors.put(f"{name}: {e}")


def write(kind, job, rank, load, cores, *rest):
    starve(load, cores)
    repeat(lambda n: WRITERS[kind](f"{job}/{rank}/w{rank}", n), *rest)


def read(kind, job, load, cores, *rest):
    starve(load, cores)
    rng = random.Random(os.getpid())

    def one(n):
        tp = rng.choice((1, 2, 4))
        rank = rng.randrange(tp)
        place = rng.choice((f".as/tp={tp}/{rank}", ".full" if tp == 1 else f".as/tp={tp}/{rank}", "0"))
        raw = READERS[kind](f"{job}/{place}/model.safetensors")
        if place == "0":  # of whatever topology
            from safetensors.numpy import load as parse
            tp, rank = 128 // len(parse(bytes(raw))["rows"]), 0
        check(raw, tp, rank)
    repeat(one, *rest)


def pid_of(mount):
    return int(re.search(r"^pid: (\d+)", get(mount + "/.ctl/health"), re.M)[1])


class Case:
    def __init__(self, scalai, folder, name, seed):
        self.name, self.scalai = name, scalai
        self.kind, self.load, self.mode = name.split("/")
        self.folder, self.mount, self.store = folder, folder + "/mnt", folder + "/store"
        self.rng = random.Random(f"{seed} {name}")
        self.kills = "kill" in self.mode
        self.problems, self.counts = [], {}

    def up(self):
        options = [o for o in re.sub("-?kill", "", self.mode).split("-") if o not in ("plain", "sync", "scrub", "pidns")]
        if "scrub" in self.mode:
            options.append("scrub=1s")
        self.log = open(self.folder + "/log", "w")
        words = [self.scalai, "mount", "-f", *(["-o", ",".join(options)] if options else []), self.store, self.mount]
        if "pidns" in self.mode:  # clients have no thread's number there
            words = ["unshare", "--pid", "--fork", *words]
        self.daemon = subprocess.Popen(words, stderr=self.log, stdout=self.log)
        for _ in range(400):
            if self.daemon.poll() is not None:
                raise SystemExit(f"{self.name}: no mount: {get(self.log.name)}")
            if os.path.exists(self.mount + "/.ctl/health"):
                return
            time.sleep(0.05)

    def down(self):
        for _ in range(100):  # a ring lets go of its files some time after its end
            if subprocess.run([self.scalai, "umount", self.mount], check=False, capture_output=True).returncode == 0:
                break
            time.sleep(0.05)
        try:
            status = self.daemon.wait(30)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            subprocess.run(["umount", "-l", self.mount], check=False)
            status = "it does not end"
        if status != 0:
            self.problems.append(f"the daemon's status: {status}")
        fsck = subprocess.run([self.scalai, "fsck", self.store], check=False, capture_output=True, text=True)
        if fsck.returncode:
            self.problems.append(f"fsck: {fsck.stdout[-600:]}")

    def command(self, name, text):
        """True: done.  False: refused for a reason that may be."""
        try:
            put(f"{self.job}/.ctl/{name}", text)
            return True
        except OSError as e:
            if e.errno in (errno.EBUSY, errno.EINVAL) or (self.kills and e.errno == errno.EIO):
                return False
            self.problems.append(f"{name}: {e}: {get(self.job + '/.ctl/error')}")
            return False

    def version(self, nr):
        h = hashlib.sha256()
        for rank in range(RANKS):
            folder = f"{self.job}/.v/{nr}/{rank}"
            for name in sorted(os.listdir(folder)):
                with open(f"{folder}/{name}", "rb") as f:
                    h.update(f"{rank}/{name}".encode() + f.read())
        return h.hexdigest()

    def commit(self):
        if not self.command("commit", "note=x"):
            time.sleep(0.001)
            return
        nr = int(re.search(r"^version: (\d+)", get(f"{self.job}/.ctl/status"), re.M)[1])
        self.sealed[nr] = self.version(nr)

    def recheck(self):
        left = {int(w) for w in os.listdir(self.job + "/.v")}
        for nr in left & set(self.sealed):
            if self.version(nr) != self.sealed[nr]:
                self.problems.append(f"version {nr} has changed")
        return len(left)

    def setup(self):
        self.job, self.sealed = self.mount + "/job", {}
        os.mkdir(self.job)
        readers = self.kind in READERS
        put(self.job + "/.ctl/layout", "mesh tp dp\nrows tp=0\ncolumns tp=1\nboth copy\n" if readers else "use replicated")
        put(self.job + "/.ctl/topology", "tp=2" if readers else f"dp={RANKS}")
        put(self.job + "/.ctl/config", f"keep={4 if readers else 60}\nsync={'on' if 'sync' in self.mode else 'off'}")
        for rank in range(2 if readers else RANKS):
            os.mkdir(f"{self.job}/{rank}")
            if readers:
                from safetensors.numpy import save_file
                save_file(whole(2, rank), f"{self.job}/{rank}/model.safetensors", metadata={"by": "races"})
            else:
                open_wb(f"{self.job}/{rank}/w{rank}", 0)
        self.commit() if not readers else put(self.job + "/.ctl/commit", "step=1")

    def step(self):
        if self.kind in READERS:
            text = f"tp={self.rng.choice((1, 2, 4))} dp={self.rng.choice((1, 2))}"
            if self.command("topology", text) and self.rng.random() < 0.2:
                self.command("wait", "")
            if self.rng.random() < 0.05:
                self.command("rollback", str(self.rng.choice(os.listdir(self.job + "/.v"))))
            return
        self.commit()
        if self.rng.random() < 0.02:
            self.command("verify", "head")
        if self.rng.random() < 0.02:
            self.command("config", f"keep={self.rng.choice((40, 60))}")

    def run(self, seconds):
        cores = sorted(os.sched_getaffinity(0))
        stop, errors, did = mp.Event(), mp.Queue(), mp.Value("Q")
        os.makedirs(self.mount)
        self.up()
        try:
            self.setup()
            rest = (stop, errors, did, self.kills)
            target, who = (read, [()] * 3) if self.kind in READERS else (write, [(r,) for r in range(RANKS)])
            all_ = [mp.Process(target=target, args=(self.kind, self.job, *w, self.load, cores, *rest), daemon=True) for w in who]
            hogs = [mp.Process(target=hog, args=(cores,), daemon=True)] if self.load == "idle" else []
            for p in all_ + hogs:
                p.start()
            end, kill_at = time.monotonic() + seconds, time.monotonic()
            steps = 0
            while time.monotonic() < end and not self.problems:
                self.step()
                steps += 1
                if self.kills and time.monotonic() > kill_at:
                    kill_at = time.monotonic() + self.rng.uniform(0.1, 0.5)
                    os.kill(pid_of(self.mount), signal.SIGKILL)
            stop.set()
            for p in hogs:
                p.kill()
            for p in all_:
                p.join(20)
                if p.is_alive():
                    self.problems.append("a program hangs")
                    p.kill()
            said = []
            while not errors.empty():
                said.append(errors.get())
            cut = said.count("EIO of a killed daemon")
            said = [s for s in said if s != "EIO of a killed daemon"]
            if said:
                self.problems.append(f"{len(said)} errors: {said[0]}")
            self.recheck()
            self.counts = {"versions": len(self.sealed) or steps, "operations": did.value, "cut": cut}
            if did.value == 0 or (not self.sealed and self.kind in WRITERS):
                self.problems.append("nothing was done")
        except (OSError, ValueError) as e:
            self.problems.append(f"{type(e).__name__}: {e}")
        finally:
            stop.set()
            self.down()
        return not self.problems


def names():
    modes = ["plain", "sync", "no_passthrough", "scrub", "pidns", "hold", "hold-kill", "hold-no_passthrough-kill"]
    try:
        if get("/sys/module/fuse/parameters/enable_uring").startswith("Y"):
            modes.append("io_uring")
    except OSError:
        pass
    return [f"{k}/{l}/{m}" for k, l, m in itertools.product([*WRITERS, *READERS], ("normal", "idle"), modes)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("scalai")
    p.add_argument("folder")
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--cases", type=int)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", default="")
    p.add_argument("--hours", type=float, default=0, help="repeat, with other seeds, for so long")
    p.add_argument("--list", action="store_true")
    a = p.parse_args()
    all_ = [n for n in names() if re.search(a.only, n)]
    if a.list:
        print("\n".join(all_))
        return 0
    until, seed, failed, ran = time.monotonic() + a.hours * 3600, a.seed, 0, 0
    total = {}
    while True:
        rng = random.Random(seed)
        some = all_
        if a.cases is not None:
            some = [n for n in all_ if n.endswith("/normal/plain")] + rng.sample(all_, min(a.cases, len(all_)))
        for name in some:
            folder = os.path.join(a.folder, "case")
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            case = Case(a.scalai, folder, name, seed)
            ok = case.run(a.seconds)
            ran += 1
            for k, v in case.counts.items():
                total[k] = total.get(k, 0) + v
            if not ok:
                failed += 1
                print(f"FAILED {name} seed {seed}: " + "; ".join(case.problems), flush=True)
                shutil.copy(folder + "/log", os.path.join(a.folder, f"failed-{failed}.log"))
            elif a.cases is None:
                print(f"ok     {name}: {case.counts}", flush=True)
        seed += 1
        if time.monotonic() >= until:
            break
    print("figure: " + ", ".join(f"{v} {k}" for k, v in total.items()) + f" in {ran} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
