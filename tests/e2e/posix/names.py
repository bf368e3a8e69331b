# SPDX-License-Identifier: Apache-2.0
"""Names: made, opened, renamed, removed, listed, and those that do not exist inside of jobs."""
import ctypes
import errno
import os
import stat

from common import check, get, libc, mode, names, put, said


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
