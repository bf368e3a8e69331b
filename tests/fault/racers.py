# SPDX-License-Identifier: Apache-2.0
"""The programs of races.py: writers and readers of every kind, and what takes CPU, memory and disk from them."""
import contextlib
import ctypes
import errno
import mmap
import multiprocessing as mp
import os
import random
import shutil
import signal
import sys
import time

SIZE = 65536
NO_ERRORS = 200  # of a process, before it gives up


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
    if os.path.exists(path + ".old"):
        os.rename(path + ".old", path)  # of a time that a killed daemon has cut (EIO)
    os.rename(path, path + ".old")
    os.rename(path + ".old", path)


def rename_folder(path, n):
    """A folder with a committed file moves, and comes back; the file in it changes between."""
    shutil.rmtree(path + ".moved", ignore_errors=True)  # of a time that a killed daemon has cut
    os.makedirs(path + ".d/deep", exist_ok=True)
    os.rename(path + ".d", path + ".moved")
    open_wb(path + ".moved/deep/f", n)
    os.rename(path + ".moved", path + ".d")


def hard_links(path, n):
    """A second name of a committed file, and a write by it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path + ".link")
    os.link(path, path + ".link")
    if n % 2:
        open_wb(path + ".link", n)


def symlinks(path, n):
    """As `latest` is moved on: a link takes the place of a link."""
    os.makedirs(path + ".d", exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path + ".new")
    os.symlink(f"checkpoint-{n}", path + ".new")
    os.rename(path + ".new", path + ".latest")


def make_remove(path, n):
    """A tree comes, and goes as rm -r removes it."""
    shutil.rmtree(path + ".tree", ignore_errors=True)
    os.makedirs(path + ".tree/deep")
    open_wb(path + ".tree/deep/f", n)
    os.symlink("f", path + ".tree/deep/link")
    shutil.rmtree(path + ".tree")


def attributes(path, n):
    os.setxattr(path, "user.n", str(n).encode())
    if os.getxattr(path, "user.n") != str(n).encode():
        raise AssertionError("an attribute has another value than was set")


was_cut = False  # the last call failed because the daemon was killed, so what it should have made may not be there


def unlink_create(path, n):
    try:
        os.unlink(path)
    except FileNotFoundError:
        if not was_cut:
            raise
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


WRITERS = {f.__name__: f for f in (open_wb, pwrite, truncate, ftruncate, fallocate, mapped, rename_over, rename_away, rename_folder,
                                   hard_links, symlinks, make_remove, attributes, unlink_create, copy_range, chmod, times, read_trunc, interrupted, io_uring)}


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
    with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size  # mmap() would take its failure for a size of 0, which is EINVAL
        with mmap.mmap(f.fileno(), size, prot=mmap.PROT_READ) as m:
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
    try:
        return save(load_file(path))
    except FileNotFoundError as e:  # so safetensors names whatever an open failed with, without its number
        last = ctypes.CDLL(None).__errno_location
        last.restype = ctypes.POINTER(ctypes.c_int)
        number = last()[0]
        raise OSError(number, os.strerror(number), path) from e


READERS = {"read": by_read, "mmap": by_mmap, "sendfile": by_sendfile, "direct": by_direct, "load_file": by_load_file}

# --- processes ---


def ends_with_parent():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def starve(load, cores):
    """`idle`: beside a hog, and behind everything else."""
    ends_with_parent()
    if load == "idle":
        os.sched_setaffinity(0, {cores[-1]})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def hog(cores):
    ends_with_parent()
    os.sched_setaffinity(0, {cores[-1]})
    while True:
        pass


def spin(_):
    n = 0
    while n < 1 << 20:
        n += 1


def fill_disk(folder):
    path = f"{folder}/foreign-{os.getpid()}"
    with open(path, "wb") as f:
        for _ in range(64):
            f.write(bytes(1 << 20))
        f.flush()
        os.fsync(f.fileno())
    os.unlink(path)


def fill_memory(_):
    m = mmap.mmap(-1, 1 << 30)
    for at in range(0, len(m), 4096):
        m[at] = 1
    m.close()


def fork_and_run(_):
    os.waitpid(os.spawnlp(os.P_NOWAIT, "true", "true"), 0)


def as_long_as(parent, body, folder):
    ends_with_parent()
    while os.getppid() == parent:
        body(folder)


def foreign(folder):
    """Programs of somebody else: as many that compute as there are cores, one that writes and flushes, one that takes memory, one
    that starts others.  -> the processes, which end with this one."""
    bodies = [spin] * len(os.sched_getaffinity(0)) + [fill_disk, fill_memory, fork_and_run]
    all_ = [mp.Process(target=as_long_as, args=(os.getpid(), b, folder), daemon=True) for b in bodies]
    for p in all_:
        p.start()
    return all_


def is_now(e):
    """What the file is that an error names: whether the error lasts."""
    try:
        st = os.lstat(e.filename)
        return f" (now: number {st.st_ino}, {st.st_nlink} names, {st.st_size} bytes)"
    except (AttributeError, TypeError):
        return ""
    except OSError as now:
        return f" (now: {now.strerror})"


def scene(e):
    """What is around the file that an error names, just after it: so that one that is seen once can be explained."""
    def told(what, *args):
        try:
            return what(*args)
        except OSError as now:
            return now.strerror

    path = getattr(e, "filename", None)
    if not isinstance(path, str):
        return ""
    rank = os.path.dirname(path)
    job = rank[:rank.index("/mnt/job") + 8] if "/mnt/job" in rank else os.path.dirname(rank)
    names = told(os.listdir, rank)
    here = names if isinstance(names, str) else {name: getattr(told(os.lstat, f"{rank}/{name}"), "st_ino", "gone") for name in sorted(names)}
    folder = told(os.stat, rank)
    versions = told(lambda: open(job + "/.ctl/versions", encoding="utf-8").read().splitlines()[-1:])
    error = told(lambda: open(job + "/.ctl/error", encoding="utf-8").read().strip())
    return (f" [at {time.monotonic():.4f} s in process {os.getpid()}: '{rank}' is number "
            f"{getattr(folder, 'st_ino', folder)} and has {here}; the job has {told(os.listdir, job)}; newest: {versions!r}; error: {error!r}]")


def repeat(body, stop, errors, did, kills):
    """Calls body(n) until it is time; what it raises is kept, but for what a killed daemon may cost."""
    global was_cut
    n, bad = 0, 0
    while not stop.is_set() and bad < NO_ERRORS:
        n += 1
        try:
            body(n)
            was_cut = False
            with did.get_lock():
                did.value += 1
        except Exception as e:  # libraries have kinds of their own
            number = errno.ENOENT if isinstance(e, FileNotFoundError) else getattr(e, "errno", None)
            if kills and number == errno.EIO:
                errors.put("EIO of a killed daemon")
                was_cut = True
                continue
            bad += 1
            errors.put(f"{errno.errorcode.get(number, type(e).__name__)}: {e}{is_now(e)}{scene(e) if bad in (1, 2, 20) else ''}")


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
