# SPDX-License-Identifier: Apache-2.0
"""A rank directory beside a directory of a real file system: the same calls, and the same answers.

    posix.py NATIVE_DIR RANK_DIR [CHECK | -CHECK...]      only these; all but these

Each check is a function that does something in a directory and returns what came of it: values, or the
names of errors.  Where Scalai answers otherwise, DIFFERENT says what, and docs/durability.md why.  Root
only: the checks of permissions change the user.
"""
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import random
import stat
import struct
import sys
import time

CHECKS = []
# what Scalai answers instead: these names do not exist inside of jobs
DIFFERENT = {
    "symbolic_link": "EPERM",
    "hard_link": "EPERM",
    "fifo": "EPERM",
    "socket_node": "EPERM",
    "device_node": "EPERM",
    "xattrs": "ENOTSUP ENOTSUP ENOTSUP",
    "rename_exchange": "EINVAL",
    "rename_whiteout": "EINVAL",
    "tmpfile": "ENOTSUP",
}


def check(f):
    CHECKS.append(f)
    return f


def said(call, *a, **k):
    """What a call returns, or the name of its error."""
    try:
        return call(*a, **k)
    except OSError as e:
        return errno.errorcode[e.errno]


def put(path, data=b"", mode=0o644):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        while data:
            data = data[os.write(fd, data):]
    finally:
        os.close(fd)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def names(d):
    return sorted(os.listdir(d))


def mode(path):
    return stat.S_IFMT(os.lstat(path).st_mode) >> 12, oct(stat.S_IMODE(os.lstat(path).st_mode))


# --- open, create ---

@check
def create_and_read(d):
    put(d + "/f", b"abc")
    return get(d + "/f"), mode(d + "/f"), os.stat(d + "/f").st_size, os.stat(d + "/f").st_nlink


@check
def exclusive(d):
    put(d + "/f")
    return (said(os.open, d + "/f", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
            said(os.open, d + "/none", os.O_WRONLY), said(os.open, d + "/no/f", os.O_CREAT | os.O_WRONLY))


@check
def open_kinds(d):
    put(d + "/f", b"abc")
    os.mkdir(d + "/dir")
    return (said(os.open, d + "/dir", os.O_WRONLY), said(os.open, d + "/dir", os.O_RDWR | os.O_CREAT),
            said(os.open, d + "/f", os.O_RDONLY | os.O_DIRECTORY), said(os.open, d + "/f/x", os.O_RDONLY),
            said(os.mkdir, d + "/f/x"), said(os.unlink, d + "/f/x"), said(os.listdir, d + "/f"),
            said(os.open, d + "/f/", os.O_RDONLY))


@check
def wrong_direction(d):
    put(d + "/f", b"abc")
    r, w = os.open(d + "/f", os.O_RDONLY), os.open(d + "/f", os.O_WRONLY)
    a = said(os.write, r, b"x"), said(os.read, w, 1), said(os.ftruncate, r, 1)
    os.close(r), os.close(w)
    return a


@check
def truncating_open(d):
    put(d + "/f", b"abcdef")
    fd = os.open(d + "/f", os.O_WRONLY | os.O_TRUNC)
    size = os.fstat(fd).st_size
    os.close(fd)
    return size, get(d + "/f")


@check
def umask(d):
    old = os.umask(0o027)
    put(d + "/f", mode=0o666)
    os.mkdir(d + "/dir", 0o777)
    os.umask(old)
    return mode(d + "/f"), mode(d + "/dir")


@check
def mode_does_not_bind_who_creates(d):
    fd = os.open(d + "/f", os.O_WRONLY | os.O_CREAT, 0o000)
    n = os.write(fd, b"x")
    os.close(fd)
    return n, mode(d + "/f")


# --- reading and writing ---

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


libc = ctypes.CDLL(None, use_errno=True)
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


# --- mappings ---

@check
def shared_mapping(d):
    put(d + "/f", b"a" * 10000)
    fd = os.open(d + "/f", os.O_RDWR)
    m = mmap.mmap(fd, 0)
    m[5000:5003] = b"new"
    seen = os.pread(fd, 5, 4999)
    os.pwrite(fd, b"written", 0)
    back = m[:7]
    m.flush()
    os.close(fd)
    m[9000:9001] = b"!"
    m.close()
    return seen, back, get(d + "/f")[9000:9002]


@check
def private_mapping(d):
    put(d + "/f", b"a" * 5000)
    fd = os.open(d + "/f", os.O_RDONLY)
    m = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    os.close(fd)
    m[0:3] = b"bbb"
    a = m[:4], get(d + "/f")[:4]
    m.close()
    return a


@check
def mapping_between_processes(d):
    put(d + "/f", b"\0" * 4096)
    fd = os.open(d + "/f", os.O_RDWR)
    m = mmap.mmap(fd, 4096)
    pid = os.fork()
    if pid == 0:
        other = os.open(d + "/f", os.O_RDWR)
        n = mmap.mmap(other, 4096)
        n[10:15] = b"child"
        os._exit(0)
    os.waitpid(pid, 0)
    a = m[10:15]
    m.close(), os.close(fd)
    return a


# --- names ---

@check
def unlink_while_open(d):
    put(d + "/f", b"still here")
    fd = os.open(d + "/f", os.O_RDWR)
    os.unlink(d + "/f")
    a = os.pread(fd, 100, 0), os.write(fd, b"STILL"), os.pread(fd, 100, 0), said(os.stat, d + "/f"), names(d)
    st = os.fstat(fd)
    b = st.st_size, st.st_nlink, said(os.ftruncate, fd, 100), os.fstat(fd).st_size, said(os.fsync, fd), said(os.fchmod, fd, 0o600)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    b += os.pread(again, 5, 0), os.lseek(again, 0, os.SEEK_END), said(os.posix_fallocate, fd, 0, 200), os.fstat(again).st_size
    os.close(fd), os.close(again)
    return a, b


@check
def recreate_while_open(d):
    put(d + "/f", b"old")
    fd = os.open(d + "/f", os.O_RDONLY)
    os.unlink(d + "/f")
    put(d + "/f", b"new one")
    a = os.read(fd, 10), get(d + "/f")
    os.close(fd)
    return a


@check
def rename_file(d):
    put(d + "/a", b"a"), put(d + "/b", b"bb")
    fd = os.open(d + "/b", os.O_RDONLY)
    os.rename(d + "/a", d + "/b")
    a = names(d), get(d + "/b"), os.read(fd, 10), said(os.rename, d + "/none", d + "/c"), said(os.rename, d + "/b", d + "/b")
    os.close(fd)
    return a


@check
def rename_keeps_the_inode(d):
    put(d + "/a", b"a")
    ino = os.stat(d + "/a").st_ino
    os.rename(d + "/a", d + "/b")
    return os.stat(d + "/b").st_ino == ino


@check
def rename_open_file(d):
    fd = os.open(d + "/a", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"before")
    os.rename(d + "/a", d + "/b")
    os.write(fd, b" after")
    os.close(fd)
    return get(d + "/b"), said(os.stat, d + "/a")


@check
def rename_folders(d):
    os.makedirs(d + "/a/b"), os.mkdir(d + "/e"), os.makedirs(d + "/full/x")
    put(d + "/a/b/f", b"f"), put(d + "/file")
    return (said(os.rename, d + "/a", d + "/c"), get(d + "/c/b/f"), said(os.rename, d + "/c", d + "/e"), get(d + "/e/b/f"),
            said(os.rename, d + "/e", d + "/full"), said(os.rename, d + "/e", d + "/e/b/inside"),
            said(os.rename, d + "/e", d + "/file"), said(os.rename, d + "/file", d + "/e"), names(d))


libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]


def renameat2(a, b, flags):
    return "ok" if libc.renameat2(-100, a.encode(), -100, b.encode(), flags) == 0 else errno.errorcode[ctypes.get_errno()]


@check
def rename_noreplace(d):
    put(d + "/a", b"a"), put(d + "/b", b"b")
    return renameat2(d + "/a", d + "/b", 1), renameat2(d + "/a", d + "/c", 1), names(d)


@check
def rename_exchange(d):
    put(d + "/a", b"a"), put(d + "/b", b"b")
    return renameat2(d + "/a", d + "/b", 2)


@check
def rename_whiteout(d):
    put(d + "/a", b"a")
    return renameat2(d + "/a", d + "/b", 4)


@check
def long_names(d):
    ok, long = "x" * 255, "x" * 256
    put(d + "/" + ok, b"1")
    return (names(d) == [ok], get(d + "/" + ok), said(os.open, d + "/" + long, os.O_CREAT | os.O_WRONLY), said(os.stat, d + "/" + long),
            said(os.mkdir, d + "/" + long), said(os.rename, d + "/" + ok, d + "/" + long), said(os.unlink, d + "/" + long))


@check
def odd_names(d):
    odd = ["with space", "new\nline", "tab\t", "-rf", "...", ".hidden", "äöü", "\u202e", "a'b\"c", "%s%n", "Case", "case", "*?[", "\\"]
    raw = os.fsencode(d)
    for n in odd:
        put(d + "/" + n, n.encode())
    put(raw + b"/\xff\xfe", b"no utf-8")
    out = [n for n in odd if get(d + "/" + n) != n.encode()], get(raw + b"/\xff\xfe"), sorted(os.listdir(raw)) == sorted(
        [n.encode() for n in odd] + [b"\xff\xfe"])
    for n in os.listdir(raw):
        os.unlink(raw + b"/" + n)
    return out, names(d)


@check
def folders(d):
    os.mkdir(d + "/a")
    return (said(os.mkdir, d + "/a"), said(os.rmdir, d + "/none"), said(os.unlink, d + "/a"), os.mkdir(d + "/a/b"),
            said(os.rmdir, d + "/a"), os.rmdir(d + "/a/b"), os.rmdir(d + "/a"), names(d), said(os.rmdir, d + "/."))


@check
def folder_removed_under_a_process(d):
    os.mkdir(d + "/a")
    fd = os.open(d + "/a", os.O_RDONLY)
    os.rmdir(d + "/a")
    a = said(os.open, "f", os.O_CREAT | os.O_WRONLY, dir_fd=fd), said(os.listdir, d + "/a")
    os.close(fd)
    return a


@check
def many_names(d):
    for i in range(500):
        put(f"{d}/{i:04}")
    listed = names(d)
    for n in listed[::2]:
        os.unlink(d + "/" + n)
    return len(listed), len(names(d)), len({os.stat(d + "/" + n).st_ino for n in names(d)})


@check
def remove_while_listing(d):
    for i in range(300):
        put(f"{d}/{i}")
    seen = 0
    with os.scandir(d) as it:
        for e in it:
            os.unlink(e.path)
            seen += 1
    return seen, names(d)


@check
def inode_of_entries(d):
    put(d + "/f"), os.mkdir(d + "/g")
    with os.scandir(d) as it:
        return sorted((e.name, e.is_dir(), e.is_file()) for e in it), os.stat(d).st_nlink >= 1


@check
def stable_inodes(d):
    put(d + "/f", b"1")
    ino = os.stat(d + "/f").st_ino
    fd = os.open(d + "/f", os.O_RDWR)
    os.write(fd, b"22")
    a = os.fstat(fd).st_ino == ino
    os.close(fd)
    return a, os.stat(d + "/f").st_ino == ino


@check
def dot_dot(d):
    os.makedirs(d + "/a/b")
    put(d + "/f", b"up")
    return get(d + "/a/b/../../f"), os.path.samefile(d + "/a/b/..", d + "/a"), os.path.samefile(d + "/a/.", d + "/a")


# --- what does not exist inside of jobs ---

@check
def symbolic_link(d):
    return said(os.symlink, "x", d + "/l")


@check
def hard_link(d):
    put(d + "/f")
    return said(os.link, d + "/f", d + "/g")


@check
def fifo(d):
    return said(os.mkfifo, d + "/p")


@check
def socket_node(d):
    return said(os.mknod, d + "/s", stat.S_IFSOCK | 0o600)


@check
def device_node(d):
    return said(os.mknod, d + "/n", stat.S_IFCHR | 0o600, os.makedev(1, 3))


@check
def regular_node(d):
    return said(os.mknod, d + "/n", stat.S_IFREG | 0o640), mode(d + "/n"), said(os.mknod, d + "/n", stat.S_IFREG | 0o640)


@check
def xattrs(d):
    put(d + "/f")
    return " ".join(str(x) for x in (said(os.setxattr, d + "/f", "user.a", b"1"), said(os.getxattr, d + "/f", "user.a"),
                                     said(os.removexattr, d + "/f", "user.a")))


@check
def tmpfile(d):
    a = said(os.open, d, os.O_TMPFILE | os.O_RDWR, 0o600)
    if isinstance(a, int):
        os.close(a)
        return "ok"
    return a


# --- attributes ---

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


# --- flush and locks ---

@check
def flushing(d):
    put(d + "/f", b"x")
    fd, folder = os.open(d + "/f", os.O_RDWR), os.open(d, os.O_RDONLY)
    a = said(os.fsync, fd), said(os.fdatasync, fd), said(os.fsync, folder), said(os.sync)
    os.close(fd), os.close(folder)
    return a


def in_child(f, user=None):
    """What a call returns in another process, or the name of its error; `user`: uid, gid, groups."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        if user:
            uid, gid, groups = user
            os.setgroups(groups), os.setresgid(gid, gid, gid), os.setresuid(uid, uid, uid)
            os.umask(0)
        os.write(w, repr(said(f)).encode())
        os._exit(0)
    os.close(w)
    got = b""
    while chunk := os.read(r, 65536):
        got += chunk
    os.close(r)
    os.waitpid(pid, 0)
    return got.decode()


@check
def whole_file_locks(d):
    put(d + "/f")
    a = open(d + "/f", "r+b")
    fcntl.flock(a, fcntl.LOCK_EX)

    def other():
        return fcntl.flock(open(d + "/f", "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    held = in_child(other)
    fcntl.flock(a, fcntl.LOCK_SH)
    shared = in_child(lambda: fcntl.flock(open(d + "/f", "r+b"), fcntl.LOCK_SH | fcntl.LOCK_NB)), in_child(other)
    fcntl.flock(a, fcntl.LOCK_UN)
    free = in_child(other)
    a.close()
    return held, shared, free


@check
def range_locks(d):
    put(d + "/f", b"0" * 100)
    a = open(d + "/f", "r+b")
    fcntl.lockf(a, fcntl.LOCK_EX, 10, 0)

    def at(start):
        return lambda: fcntl.lockf(open(d + "/f", "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB, 10, start)
    held = in_child(at(5)), in_child(at(10))
    asked = struct.unpack("hhqqi4x", fcntl.fcntl(a, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 100, 0)))[0] == fcntl.F_UNLCK
    open(d + "/f").close()  # POSIX: closing any descriptor of the file drops them
    free = in_child(at(5))
    a.close()
    return held, asked, free


# --- who may ---

def as_user(uid, gid, groups, f):
    return in_child(f, (uid, gid, groups))


USERS = [(1001, 1001, []), (1002, 1001, []), (1003, 1003, [1001]), (1004, 1004, [])]


def calls_on(d):
    f, g = d + "/dir/f", d + "/dir/g"
    return {
        "read": lambda: get(f), "append": lambda: os.close(os.open(f, os.O_WRONLY | os.O_APPEND)), "stat": lambda: os.stat(f).st_size,
        "both": lambda: os.close(os.open(f, os.O_RDWR)), "list": lambda: names(d + "/dir"), "chmod": lambda: os.chmod(f, 0o666),
        "chown": lambda: os.chown(f, 1002, -1), "chgrp": lambda: os.chown(f, -1, 1001), "utime": lambda: os.utime(f),
        "utime_set": lambda: os.utime(f, (1, 1)), "truncate": lambda: os.truncate(f, 3), "create": lambda: put(g),
        "mkdir": lambda: os.mkdir(d + "/dir/sub"), "rename": lambda: os.rename(f, g), "unlink": lambda: os.unlink(f),
        "rmdir": lambda: os.rmdir(d + "/dir/e"), "access": lambda: [os.access(f, m) for m in (os.R_OK, os.W_OK, os.X_OK)],
    }


@check
def permissions(d):
    """Every call by four users on files and folders of many modes; with cold names and after root has looked."""
    out = []
    for (fm, dm), warm in itertools.product(((0o600, 0o755), (0o640, 0o750), (0o666, 0o777), (0o604, 0o711), (0o060, 0o770),
                                             (0o444, 0o1777), (0o777, 0o555), (0o644, 0o700)), (False, True)):
        for user in USERS:
            for what in calls_on(d):
                root = f"{d}/{len(out)}"
                os.makedirs(root + "/dir/e")
                put(root + "/dir/f", b"data")
                os.chown(root + "/dir/f", 1001, 1001), os.chmod(root + "/dir/f", fm)
                os.chown(root + "/dir/e", 1001, 1001)
                os.chown(root + "/dir", 1001, 1001), os.chmod(root + "/dir", dm)
                os.chmod(root, 0o777)
                if warm:
                    names(root + "/dir"), get(root + "/dir/f"), os.stat(root + "/dir/e")
                out.append((oct(fm), oct(dm), warm, user[0], what, as_user(*user, calls_on(root)[what])))
    return out


@check
def new_files_belong_to_who_makes_them(d):
    os.chmod(d, 0o777)
    os.mkdir(d + "/set"), os.chown(d + "/set", 0, 77), os.chmod(d + "/set", 0o2777)

    def make():
        put(d + "/f"), os.mkdir(d + "/g"), put(d + "/set/f"), os.mkdir(d + "/set/g")
    done = as_user(1001, 1002, [], make)
    return done, [(n, os.stat(d + n).st_uid, os.stat(d + n).st_gid, mode(d + n)) for n in ("/f", "/g", "/set/f", "/set/g")]


@check
def writing_takes_setuid_away(d):
    os.chmod(d, 0o777)
    put(d + "/f", b"x"), os.chown(d + "/f", 1001, 1001), os.chmod(d + "/f", 0o6777)

    def write():
        fd = os.open(d + "/f", os.O_WRONLY)
        os.write(fd, b"y")
        os.close(fd)
    as_user(1002, 1002, [], write)
    written = mode(d + "/f")
    os.chmod(d + "/f", 0o6777)
    os.chown(d + "/f", 1002, 1002)
    return written, mode(d + "/f")


@check
def sticky_folder(d):
    os.mkdir(d + "/t"), os.chmod(d + "/t", 0o1777)
    as_user(1001, 1001, [], lambda: put(d + "/t/f", b"mine"))
    return (as_user(1002, 1002, [], lambda: os.unlink(d + "/t/f")), as_user(1002, 1002, [], lambda: os.rename(d + "/t/f", d + "/t/g")),
            as_user(1001, 1001, [], lambda: os.unlink(d + "/t/f")))


# --- at random: two trees, one history ---

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


def main():
    native, rank = sys.argv[1:3]
    wanted = [a for a in sys.argv[3:] if a[0] != "-"]
    unwanted = [a[1:] for a in sys.argv[3:] if a[0] == "-"]
    bad = done = 0
    for f in CHECKS:
        if f.__name__ in unwanted or (wanted and f.__name__ not in wanted):
            continue
        answers = []
        for root in (native, rank):
            d = f"{root}/{f.__name__}"
            os.mkdir(d)
            old = os.umask(0o022)
            try:
                answers.append(f(d))
            finally:
                os.umask(old)
        a, b = answers
        done += 1
        if f.__name__ in DIFFERENT:
            a = DIFFERENT[f.__name__]
        if a != b:
            bad += 1
            print(f"DIFFERENT  {f.__name__}")
            if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
                for x, y in list((x, y) for x, y in zip(a, b) if x != y)[:8]:
                    print(f"    native {x!r:.300}\n    scalai {y!r:.300}")
            else:
                print(f"    native {a!r:.300}\n    scalai {b!r:.300}")
    print(f"figure: {done} checks against a real file system, {bad} different; {len(DIFFERENT)} of them are what Scalai does not have")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
