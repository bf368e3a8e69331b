"""
FOLDER SECONDS KILLS: four threads change names and attributes in FOLDER/0 to FOLDER/3, where each knows what every answer has to
be, while the daemon of `mount -o hold` is killed again and again: a request that comes again is answered as it would have been.

An errno does not tell whether a request was carried out before the daemon died.  So each round asks for the same twice, for
what cannot be done, and for what nothing but its number can tell: an exchange of two names, which done twice is not done.
A kill in the middle of a read or answer costs the request EIO (docs/durability.md): then the round begins again.
"""
import ctypes
import errno
import os
import pathlib
import signal
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
root, seconds, least = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
health = root.parents[2] / ".ctl/health"
EXCHANGE = 2


def rename2(a, b, flags):
    if libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(a))


def fails(code, f, *args):
    try:
        f(*args)
    except OSError as e:
        if e.errno != code:
            raise AssertionError(f"{f.__name__}{args}: {errno.errorcode[e.errno]}, not {errno.errorcode[code]}") from e
    else:
        raise AssertionError(f"{f.__name__}{args}: done, not {errno.errorcode[code]}")


def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def one_round(d):
    names = [d / name for name in "abcdefg"]
    a, b, c, e, f, g, gone = names
    create(a)
    fails(errno.EEXIST, create, a)
    a.write_text("a")
    os.link(a, b)
    fails(errno.EEXIST, os.link, a, b)
    os.unlink(b)
    fails(errno.ENOENT, os.unlink, b)
    b.write_text("b")
    for first in "ba":
        rename2(a, b, EXCHANGE)
        assert (a.read_text(), b.read_text()) == (first, "ab"[first == "a"]), "an exchange was done twice, or never"
    os.rename(a, c)
    fails(errno.ENOENT, os.rename, a, c)
    os.mkdir(e)
    fails(errno.EEXIST, os.mkdir, e)
    os.rmdir(e)
    fails(errno.ENOENT, os.rmdir, e)
    os.symlink("x", f)
    fails(errno.EEXIST, os.symlink, "x", f)
    os.mkfifo(g)
    fails(errno.EEXIST, os.mkfifo, g)
    os.setxattr(c, "user.x", b"1", os.XATTR_CREATE)
    fails(errno.EEXIST, os.setxattr, c, "user.x", b"1", os.XATTR_CREATE)
    os.removexattr(c, "user.x")
    fails(errno.ENODATA, os.removexattr, c, "user.x")
    fails(errno.ENOENT, os.unlink, gone)
    for name in (b, c, f, g):
        os.unlink(name)
    assert os.listdir(d) == [], os.listdir(d)


def clear(d):
    while True:
        try:
            for entry in os.scandir(d):
                (os.rmdir if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)
            return
        except OSError as e:
            if e.errno not in (errno.EIO, errno.ENOENT):
                raise


failed, lost, rounds, stop = [], [], [0] * 4, threading.Event()


def run(nr):
    d = root / str(nr)
    try:
        d.mkdir()
        while not stop.is_set():
            try:
                one_round(d)
                rounds[nr] += 1
            except (AssertionError, OSError) as e:
                if "EIO" not in str(e) and getattr(e, "errno", 0) != errno.EIO:
                    raise
                lost.append(e)
                clear(d)
    except (AssertionError, OSError) as e:
        failed.append(f"folder {nr}, round {rounds[nr]}: {e!r}")
        stop.set()


root.mkdir()
threads = [threading.Thread(target=run, args=(nr,)) for nr in range(4)]
for t in threads:
    t.start()
kills, began = 0, time.time()
# so long, and longer on a busy machine
while not stop.is_set() and (time.time() < began + seconds or kills < least or min(rounds) < 10) and time.time() < began + 20 * seconds:
    time.sleep(0.03 + kills % 7 * 0.01)
    try:
        pid = next(int(line.split()[1]) for line in health.read_text().splitlines() if line.startswith("pid:"))
        os.kill(pid, signal.SIGKILL)
        kills += 1
    except (OSError, StopIteration):
        pass  # this very daemon was asked
stop.set()
for t in threads:
    t.join()
print(f"{sum(rounds)} rounds, {kills} kills, {len(lost)} requests lost")
assert not failed, failed
assert len(lost) <= kills / 4, lost
assert kills >= least and min(rounds) >= 10, (kills, rounds)
