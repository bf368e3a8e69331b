# SPDX-License-Identifier: Apache-2.0
"""Calls at random: two trees, one history."""
import os
import random

from common import check, get, names, said


@check
def random_histories(d):
    """2,000 calls at random on a few names; the answers and the tree at the end."""
    rng = random.Random(7)
    paths = ["a", "b", "c", "d/a", "d/b", "e", "e/a", "d"]
    fds, log = [], []

    def write():
        data = bytes([rng.randrange(256)]) * rng.randrange(1, 5000)
        at = rng.randrange(20000)
        return said(os.pwrite, rng.choice(fds), data, at) if fds else None

    def opened(flags):
        fd = said(os.open, d + "/" + rng.choice(paths), flags, 0o644)
        if isinstance(fd, int):
            fds.append(fd)
            return "open"
        return fd

    def close():
        return os.close(fds.pop(rng.randrange(len(fds)))) if fds else None
    calls = [
        lambda: opened(os.O_RDWR | os.O_CREAT), lambda: opened(os.O_RDWR | os.O_CREAT | os.O_EXCL), lambda: opened(os.O_RDWR),
        lambda: opened(os.O_RDWR | os.O_TRUNC), write, write, write, close, close, close,
        lambda: said(os.pread, rng.choice(fds), 3000, rng.randrange(20000)) if fds else None,
        lambda: said(os.ftruncate, rng.choice(fds), rng.randrange(20000)) if fds else None,
        lambda: os.fstat(rng.choice(fds)).st_size if fds else None,
        lambda: said(os.unlink, d + "/" + rng.choice(paths)), lambda: said(os.mkdir, d + "/" + rng.choice(paths)),
        lambda: said(os.rmdir, d + "/" + rng.choice(paths)),
        lambda: said(os.rename, d + "/" + rng.choice(paths), d + "/" + rng.choice(paths)),
        lambda: said(os.truncate, d + "/" + rng.choice(paths), rng.randrange(9000)),
        lambda: said(lambda p: get(p) if not os.path.isdir(p) else names(p), d + "/" + rng.choice(paths)),
    ]
    for _ in range(2000):
        log.append(rng.choice(calls)())
    for fd in fds:
        os.close(fd)
    tree = [(r[len(d):], sorted(x), [(n, get(r + "/" + n)) for n in sorted(f)]) for r, x, f in os.walk(d)]
    return log, sorted(tree, key=lambda t: t[0])
