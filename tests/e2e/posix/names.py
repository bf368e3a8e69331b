# SPDX-License-Identifier: Apache-2.0
"""Names: made, opened, renamed, removed, listed; links of both kinds, and special files."""
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
    put(d + "/a", b"a"), put(d + "/b", b"b"), os.makedirs(d + "/x/in"), os.mkdir(d + "/y")
    numbers = {n: os.stat(f"{d}/{n}").st_ino for n in "abxy"}
    return (renameat2(d + "/a", d + "/b", 2), get(d + "/a"), get(d + "/b"), renameat2(d + "/x/in", d + "/a", 2), get(d + "/x/in"),
            names(d + "/a"), renameat2(d + "/x", d + "/none", 2), renameat2(d + "/x", d + "/x/in", 2), renameat2(d + "/x", d + "/y", 2),
            names(d + "/y"), [os.stat(d + "/" + n).st_nlink for n in "axy"], os.stat(d + "/x").st_ino == numbers["y"],
            os.stat(d + "/b").st_ino == numbers["a"])


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


# --- links, special files, attributes ---

@check
def symbolic_link(d):
    put(d + "/f", b"f"), os.mkdir(d + "/g"), put(d + "/g/in", b"in")
    links = (("f", "l"), ("g", "lg"), ("none", "dead"), ("loop", "loop"), ("f", "l"), ("x" * 4095, "long"), ("", "empty"), ("../f", "g/up"))
    made = [said(os.symlink, target, f"{d}/{name}") for target, name in links]
    return (made, os.readlink(d + "/l"), get(d + "/l"), get(d + "/lg/in"), get(d + "/g/up"), mode(d + "/l"), os.lstat(d + "/l").st_size,
            said(get, d + "/dead"), said(get, d + "/loop"), said(os.readlink, d + "/f"), len(os.readlink(d + "/long")),
            said(os.open, d + "/l", os.O_RDONLY | os.O_NOFOLLOW), said(os.rmdir, d + "/lg"), said(os.rename, d + "/l", d + "/l2"),
            os.readlink(d + "/l2"), said(os.chown, d + "/l2", 7, 8, follow_symlinks=False),
            (os.lstat(d + "/l2").st_uid, os.stat(d + "/f").st_uid),
            said(put, d + "/dead", b"alive"), get(d + "/none"), os.unlink(d + "/l2"), names(d))


@check
def hard_link(d):
    put(d + "/f", b"one"), os.mkdir(d + "/g")
    made = (said(os.link, d + "/f", d + "/g/f"), said(os.link, d + "/f", d + "/g/f"), said(os.link, d + "/g", d + "/h"),
            said(os.link, d + "/none", d + "/h"), said(os.link, d + "/f", d + "/none/h"))
    same = os.path.samefile(d + "/f", d + "/g/f"), os.stat(d + "/f").st_nlink
    put(d + "/g/f", b"written by another name")
    os.chmod(d + "/f", 0o600)
    seen = get(d + "/f"), mode(d + "/g/f")
    kept = said(os.rename, d + "/f", d + "/g/f"), names(d), names(d + "/g")   # of one file: nothing happens
    os.unlink(d + "/f")
    return made, same, seen, kept, get(d + "/g/f"), os.stat(d + "/g/f").st_nlink


@check
def link_of_a_removed_file(d):
    put(d + "/f", b"f")
    fd = os.open(d + "/f", os.O_RDWR)
    os.unlink(d + "/f")
    a = said(os.link, f"/proc/self/fd/{fd}", d + "/g", follow_symlinks=True)
    os.close(fd)
    return a, names(d)


@check
def folder_links(d):
    os.makedirs(d + "/a/b"), os.mkdir(d + "/a/c"), put(d + "/a/f")
    before = os.stat(d + "/a").st_nlink
    os.rename(d + "/a/b", d + "/b"), os.rmdir(d + "/a/c")
    return before, os.stat(d + "/a").st_nlink, os.stat(d).st_nlink, os.stat(d + "/b").st_nlink


@check
def fifo(d):
    made = said(os.mkfifo, d + "/p", 0o640), said(os.mkfifo, d + "/p"), mode(d + "/p")
    r = os.open(d + "/p", os.O_RDONLY | os.O_NONBLOCK)
    w = os.open(d + "/p", os.O_WRONLY)
    n = os.write(w, b"through")
    got = os.read(r, 10)
    os.close(r), os.close(w)
    return made, n, got, os.unlink(d + "/p"), names(d)


@check
def socket_node(d):
    return (said(os.mknod, d + "/s", stat.S_IFSOCK | 0o600), mode(d + "/s"), said(os.open, d + "/s", os.O_RDONLY), os.unlink(d + "/s"),
            names(d))


@check
def device_node(d):
    """Not opened: the mount is nodev."""
    return (said(os.mknod, d + "/n", stat.S_IFCHR | 0o600, os.makedev(1, 3)), mode(d + "/n"), os.stat(d + "/n").st_rdev == os.makedev(1, 3),
            os.unlink(d + "/n"), names(d))


@check
def regular_node(d):
    return said(os.mknod, d + "/n", stat.S_IFREG | 0o640), mode(d + "/n"), said(os.mknod, d + "/n", stat.S_IFREG | 0o640)


@check
def xattrs(d):
    put(d + "/f"), os.mkdir(d + "/g"), os.link(d + "/f", d + "/h")
    out = []
    for path in (d + "/f", d + "/g"):
        out.append((said(os.setxattr, path, "user.a", b"1"), said(os.setxattr, path, "user.b", b""), said(os.getxattr, path, "user.a"),
                    said(os.setxattr, path, "user.a", b"2", os.XATTR_CREATE), said(os.setxattr, path, "user.c", b"2", os.XATTR_REPLACE),
                    said(os.setxattr, path, "user.a", b"\0three\0", os.XATTR_REPLACE), said(os.getxattr, path, "user.a"),
                    said(os.getxattr, path, "user.b"), said(os.getxattr, path, "user.none"),
                    sorted(n for n in os.listxattr(path) if n.startswith("user.")),
                    said(os.removexattr, path, "user.a"), said(os.removexattr, path, "user.a"),
                    sorted(n for n in os.listxattr(path) if n.startswith("user."))))
    return out, said(os.getxattr, d + "/h", "user.b")


@check
def folders_change_with_their_names(d):
    """What changes the times of a folder, and what does not."""
    put(d + "/f", b"f"), os.mkdir(d + "/g"), put(d + "/g/in")
    acts = {
        "create": lambda: put(d + "/new"), "write": lambda: put(d + "/f", b"more"), "chmod": lambda: os.chmod(d + "/f", 0o600),
        "mkdir": lambda: os.mkdir(d + "/h"), "rmdir": lambda: os.rmdir(d + "/h"), "link": lambda: os.link(d + "/f", d + "/k"),
        "symlink": lambda: os.symlink("f", d + "/l"), "rename": lambda: os.rename(d + "/f", d + "/f2"), "inside": lambda: put(d + "/g/in2"),
        "away": lambda: os.rename(d + "/f2", d + "/g/f2"), "unlink": lambda: os.unlink(d + "/k"), "read": lambda: names(d),
    }
    out = []
    for what, act in acts.items():
        os.utime(d, ns=(10 ** 9, 10 ** 9)), os.utime(d + "/g", ns=(10 ** 9, 10 ** 9))
        act()
        out.append((what, os.stat(d).st_mtime_ns > 10 ** 9, os.stat(d + "/g").st_mtime_ns > 10 ** 9))
    os.utime(d, ns=(10 ** 9, 10 ** 9))
    os.chmod(d, 0o700)
    return out, os.stat(d).st_mtime_ns


@check
def folder_made_again_under_a_process(d):
    """rmdir and mkdir of a folder that is held: the new one lives."""
    os.mkdir(d + "/a")
    fd = os.open(d + "/a", os.O_RDONLY)
    os.rmdir(d + "/a"), os.mkdir(d + "/a")
    put(d + "/a/f", b"f")
    a = get(d + "/a/f"), said(os.open, "f", os.O_CREAT | os.O_WRONLY, dir_fd=fd), names(d + "/a"), os.fstat(fd).st_nlink
    os.close(fd)
    return a


@check
def folder_renamed_under_a_process(d):
    os.makedirs(d + "/a/deep"), os.mkdir(d + "/b")
    fd, deep = os.open(d + "/a", os.O_RDONLY), os.open(d + "/a/deep", os.O_RDONLY)
    os.rename(d + "/a", d + "/b/c")
    for at, name in ((fd, "f"), (deep, "g")):
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(fd), os.close(deep)
    return names(d), names(d + "/b/c"), names(d + "/b/c/deep")


@check
def tmpfile(d):
    a = said(os.open, d, os.O_TMPFILE | os.O_RDWR, 0o600)
    if isinstance(a, int):
        os.close(a)
        return "ok"
    return a
