# SPDX-License-Identifier: Apache-2.0
"""Reading and writing."""
import ctypes
import errno
import mmap
import os

from common import check, get, libc, put, said


@check
def append(d):
    put(d + "/f", b"one")
    a, b = (os.open(d + "/f", os.O_WRONLY | os.O_APPEND) for _ in "ab")
    for i in range(50):
        os.write(a, b"a"), os.write(b, b"b")
    os.lseek(a, 0, os.SEEK_SET)
    os.write(a, b"!")
    os.close(a), os.close(b)
    return get(d + "/f")


@check
def append_by_many(d):
    put(d + "/f")
    children = []
    for c in range(4):
        pid = os.fork()
        if pid == 0:
            fd = os.open(d + "/f", os.O_WRONLY | os.O_APPEND)
            for i in range(200):
                os.write(fd, b"%d:%04d\n" % (c, i))
            os._exit(0)
        children.append(pid)
    bad = [os.waitpid(p, 0)[1] for p in children]
    lines = get(d + "/f").splitlines()
    return bad, len(lines), sorted(lines) == sorted(b"%d:%04d" % (c, i) for c in range(4) for i in range(200))


@check
def past_the_end(d):
    fd = os.open(d + "/f", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"x", 100000)
    a = os.fstat(fd).st_size, os.pread(fd, 10, 99995), os.pread(fd, 10, 100001), os.pread(fd, 10, 1 << 40)
    os.close(fd)
    return a


@check
def large_offsets(d):
    fd = os.open(d + "/f", os.O_RDWR | os.O_CREAT)
    a = (said(os.pwrite, fd, b"x", (1 << 40) + 7), os.fstat(fd).st_size, os.pread(fd, 3, (1 << 40) + 5),
         said(os.lseek, fd, -1, os.SEEK_SET), said(os.ftruncate, fd, -1))
    os.close(fd)
    return a


@check
def sizes(d):
    put(d + "/f", b"0123456789")
    out = []
    for n in (5, 12, 0, 3):
        os.truncate(d + "/f", n)
        out.append((n, os.stat(d + "/f").st_size, get(d + "/f")))
    return out, said(os.truncate, d + "/none", 1), said(os.truncate, d, 1)


@check
def truncate_while_open(d):
    put(d + "/f", b"x" * 10000)
    r = os.open(d + "/f", os.O_RDWR)
    os.truncate(d + "/f", 10)
    a = os.fstat(r).st_size, os.pread(r, 100, 0)
    os.ftruncate(r, 5000)
    b = os.stat(d + "/f").st_size, set(get(d + "/f")[10:])
    os.close(r)
    return a, b


@check
def vectors(d):
    fd = os.open(d + "/f", os.O_RDWR | os.O_CREAT)
    n = os.writev(fd, [b"ab", b"", b"cde" * 1000])
    a, b = bytearray(3), bytearray(4)
    m = os.preadv(fd, [a, b], 1)
    os.close(fd)
    return n, m, bytes(a), bytes(b)


@check
def holes(d):
    fd = os.open(d + "/f", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8 << 20)
    os.pwrite(fd, b"d" * 4096, 4 << 20)
    a = (os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 4 << 20, os.SEEK_HOLE), os.lseek(fd, 0, os.SEEK_HOLE),
         said(os.lseek, fd, (4 << 20) + 8192, os.SEEK_DATA), said(os.lseek, fd, 9 << 20, os.SEEK_HOLE))
    sparse = os.fstat(fd).st_blocks * 512 < 1 << 20
    os.close(fd)
    return a, sparse


libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def fallocate(fd, how, at, n):
    return "ok" if libc.fallocate(fd, how, at, n) == 0 else errno.errorcode[ctypes.get_errno()]


@check
def allocation(d):
    fd = os.open(d + "/f", os.O_RDWR | os.O_CREAT)
    a = said(os.posix_fallocate, fd, 0, 100000), os.fstat(fd).st_size, fallocate(fd, 1, 0, 300000), os.fstat(fd).st_size
    os.pwrite(fd, b"x" * 100000, 0)
    b = fallocate(fd, 3, 4096, 8192), os.pread(fd, 3, 4095), os.fstat(fd).st_size, fallocate(fd, 0, -1, 5), fallocate(fd, 0, 0, 0)
    os.close(fd)
    r = os.open(d + "/f", os.O_RDONLY)
    c = fallocate(r, 0, 0, 10)
    os.close(r)
    return a, b, c


@check
def copying_inside(d):
    put(d + "/f", bytes(range(256)) * 1000)
    a, b = os.open(d + "/f", os.O_RDONLY), os.open(d + "/g", os.O_RDWR | os.O_CREAT)
    n = os.copy_file_range(a, b, 100000, 1000, 5)
    same = os.pread(b, 100000, 5) == os.pread(a, 100000, 1000)
    back = said(os.copy_file_range, b, a, 10)
    end = os.copy_file_range(a, b, 100, 1 << 20)
    os.close(a), os.close(b)
    return n, same, back, end, os.stat(d + "/g").st_size


@check
def copying_out(d):
    put(d + "/f", b"z" * 300000)
    a = os.open(d + "/f", os.O_RDONLY)
    r, w = os.pipe()
    n = os.sendfile(w, a, 10, 30000)
    got = os.read(r, 50000)
    os.close(a), os.close(r), os.close(w)
    return n, got == b"z" * n


@check
def direct(d):
    fd = os.open(d + "/f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"a" * 8192)
    os.close(fd)
    fd = os.open(d + "/f", os.O_RDWR | os.O_DIRECT)
    m = mmap.mmap(-1, 4096)
    n = os.preadv(fd, [m], 4096)
    m[:3] = b"xyz"
    w = os.pwritev(fd, [m], 0)
    os.close(fd)
    return n, w, get(d + "/f")[:5], os.stat(d + "/f").st_size
