# SPDX-License-Identifier: Apache-2.0
"""Times, modes, owners, space."""
import os
import time

from common import check, mode, put


@check
def times(d):
    put(d + "/f", b"x")
    os.utime(d + "/f", ns=(1_000_000_007, 2_000_000_009))
    s = os.stat(d + "/f")
    a = s.st_atime_ns, s.st_mtime_ns
    os.utime(d + "/f", ns=(s.st_atime_ns, 3_000_000_000))
    b = os.stat(d + "/f").st_mtime_ns
    before = time.time_ns()
    os.utime(d + "/f")
    return a, b, abs(os.stat(d + "/f").st_mtime_ns - before) < 2_000_000_000


@check
def writes_move_mtime(d):
    put(d + "/f", b"x")
    os.utime(d + "/f", ns=(0, 0))
    fd = os.open(d + "/f", os.O_WRONLY)
    zero = os.fstat(fd).st_mtime_ns
    os.write(fd, b"y")
    moved = os.fstat(fd).st_mtime_ns > 10 ** 18
    os.close(fd)
    os.utime(d + "/f", ns=(0, 0))
    os.truncate(d + "/f", 1)
    return zero, moved, os.stat(d + "/f").st_mtime_ns > 10 ** 18 or os.stat(d + "/f").st_size == 1


@check
def folder_times(d):
    os.mkdir(d + "/a")
    os.utime(d + "/a", ns=(5 * 10 ** 9, 5 * 10 ** 9))
    return os.stat(d + "/a").st_mtime_ns


@check
def modes(d):
    put(d + "/f"), os.mkdir(d + "/g")
    out = []
    for m in (0o777, 0o000, 0o4755, 0o2755, 0o1777, 0o640):
        os.chmod(d + "/f", m), os.chmod(d + "/g", m)
        out.append((mode(d + "/f"), mode(d + "/g")))
    fd = os.open(d + "/f", os.O_RDONLY)
    os.fchmod(fd, 0o600)
    os.close(fd)
    return out, mode(d + "/f")


@check
def owners(d):
    put(d + "/f"), os.mkdir(d + "/g")
    os.chown(d + "/f", 1234, 4321), os.chown(d + "/g", 5, -1), os.chown(d + "/g", -1, 6)
    return [(os.stat(d + n).st_uid, os.stat(d + n).st_gid) for n in ("/f", "/g")]


@check
def space(d):
    s = os.statvfs(d)
    return s.f_bsize > 0, s.f_blocks > s.f_bfree >= s.f_bavail > 0, s.f_namemax


@check
def blocks(d):
    put(d + "/f", b"x" * 100000)
    fd = os.open(d + "/f", os.O_RDWR)
    os.fsync(fd)
    os.close(fd)
    return os.stat(d + "/f").st_blocks * 512 >= 100000
