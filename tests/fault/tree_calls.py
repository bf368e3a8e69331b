# SPDX-License-Identifier: Apache-2.0
"""What tree.py calls on both sides: each call in a folder of the mount and in a plain one, and whole trees of both."""
import collections
import contextlib
import ctypes
import errno
import os
import stat
import time

REALMS = (b"0/t", b"t")  # a folder of a rank, a folder of the job: no object leaves its own
USERS = ((0, 0, []), (1000, 1000, [1000]), (1001, 1001, [1000, 1001]))
LONG_AGO = 10**18  # ns: times before it were set by a program
libc = ctypes.CDLL(None, use_errno=True)
libc.getdents64.restype = ctypes.c_ssize_t
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def checked(rc):
    if rc < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return rc


def put(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("at", ctypes.c_ubyte * 128)]


def handle(path, at=None, follow=False):
    """What no other object of a plain file system ever has: inode number and generation."""
    h, mount = Handle(bytes=128), ctypes.c_int()
    flags = 0x400 if follow else 0
    if isinstance(path, int):
        path, at, flags = b"", path, 0x1000
    checked(libc.name_to_handle_at(-100 if at is None else at, path, ctypes.byref(h), ctypes.byref(mount), flags))
    return bytes(h.at[:h.bytes])


class Stat(collections.namedtuple("Stat", "mode nlink uid gid size rdev mtime who")):
    """`who` is the object: on the mount st_ino, on the plain side its handle."""

    def same(self, other):
        return self[:-1] == other[:-1]


def stat_of(st, who):
    return Stat(oct(st.st_mode), st.st_nlink, st.st_uid, st.st_gid,
                st.st_size if stat.S_ISREG(st.st_mode) or stat.S_ISLNK(st.st_mode) else 0,
                st.st_rdev if stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode) else 0,
                st.st_mtime_ns if st.st_mtime_ns < LONG_AGO and not stat.S_ISFIFO(st.st_mode) else None, who)


@contextlib.contextmanager
def as_user(nr):
    uid, gid, groups = USERS[nr]
    if uid:
        os.setgroups(groups), os.setegid(gid), os.seteuid(uid)
    try:
        yield
    finally:
        if uid:
            os.seteuid(0), os.setegid(0), os.setgroups([])


def dents(fd, size=600):
    buf = ctypes.create_string_buffer(size)
    nr, at, out = checked(libc.getdents64(fd, buf, size)), 0, []
    while at < nr:
        length = int.from_bytes(buf.raw[at + 16:at + 18], "little")
        out.append(buf.raw[at + 19:at + length].split(b"\0", 1)[0])
        at += length
    return out


class Side:
    """One of both.  A spec is ("p", realm, path), ("d", slot, path) by dirfd or ("c", slot, path) from a cwd."""

    def __init__(self, root, is_mount):
        self.root, self.is_mount, self.fds = os.fsencode(root), is_mount, {}
        self.tries = self.cut = 0

    def at(self, spec):
        kind, key, rel = spec
        if kind == "p":
            return self.root + b"/" + REALMS[key] + (b"/" + rel if rel else b""), None
        if kind == "d":
            return rel or b".", self.fds[key]
        os.fchdir(self.fds[key])
        return rel or b".", None

    def do(self, name, user, args):
        """The result, or the name of the error."""
        try:
            where = [self.at(a) for a in args if isinstance(a, tuple) and a and a[0] in ("p", "d", "c")]
            rest = [a for a in args if not (isinstance(a, tuple) and a and a[0] in ("p", "d", "c"))]
            with as_user(user):
                return getattr(self, name)(*where, *rest)
        except OSError as e:
            return errno.errorcode[e.errno]
        finally:
            os.chdir("/")

    def close_all(self):
        for slot in list(self.fds):
            self.close(slot)

    # --- by name ---

    def open(self, at, flags, mode, slot):
        fd = os.open(at[0], flags | os.O_NONBLOCK | os.O_NOCTTY, mode, dir_fd=at[1])
        if slot is None:
            os.close(fd)
        else:
            self.fds[slot] = fd
        return "opened"

    def put(self, at, flags, data):
        fd = os.open(at[0], flags | os.O_NONBLOCK, 0o644, dir_fd=at[1])
        try:
            return os.write(fd, bytes([data[0]]) * data[1])
        finally:
            os.close(fd)

    def read(self, at):
        fd = os.open(at[0], os.O_RDONLY | os.O_NONBLOCK, dir_fd=at[1])
        try:
            return os.read(fd, 1 << 21)
        finally:
            os.close(fd)

    def mkdir(self, at, mode):
        os.mkdir(at[0], mode, dir_fd=at[1])

    def mknod(self, at, mode, rdev):
        os.mknod(at[0], mode, rdev, dir_fd=at[1])

    def symlink(self, at, target):
        os.symlink(target, at[0], dir_fd=at[1])

    def link(self, a, b, follow):
        os.link(a[0], b[0], src_dir_fd=a[1], dst_dir_fd=b[1], follow_symlinks=follow)

    def unlink(self, at):
        os.unlink(at[0], dir_fd=at[1])

    def rmdir(self, at):
        os.rmdir(at[0], dir_fd=at[1])

    def rename(self, a, b, flags):
        checked(libc.renameat2(-100 if a[1] is None else a[1], a[0], -100 if b[1] is None else b[1], b[0], flags))

    def chmod(self, at, mode):
        os.chmod(at[0], mode, dir_fd=at[1])

    def chown(self, at, uid, gid, follow):
        os.chown(at[0], uid, gid, dir_fd=at[1], follow_symlinks=follow)

    def utime(self, at, times, follow):
        os.utime(at[0], dir_fd=at[1], follow_symlinks=follow, **({"ns": times} if times else {}))

    def readlink(self, at):
        return os.readlink(at[0], dir_fd=at[1])

    def access(self, at, bits):
        return os.access(at[0], bits, dir_fd=at[1], effective_ids=True)

    def stat(self, at, follow):
        st = os.stat(at[0], dir_fd=at[1], follow_symlinks=follow)
        return stat_of(st, st.st_ino if self.is_mount else handle(*at, follow=follow))

    def list(self, at):
        fd = os.open(at[0], os.O_RDONLY | os.O_DIRECTORY, dir_fd=at[1])
        try:
            return sorted(os.fsencode(n) for n in os.listdir(fd))
        finally:
            os.close(fd)

    def rmtree(self, at):
        self.rmtree_at(at[0], at[1])

    def rmtree_at(self, name, parent):
        st = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(st.st_mode):
            os.unlink(name, dir_fd=parent)
            return
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)
        try:
            for n in sorted(os.fsencode(n) for n in os.listdir(fd)):
                self.rmtree_at(n, fd)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=parent)

    def fill(self, at, nr):
        """Many names in a folder."""
        os.mkdir(at[0], dir_fd=at[1])
        fd = os.open(at[0], os.O_RDONLY | os.O_DIRECTORY, dir_fd=at[1])
        try:
            for i in range(nr):
                os.close(os.open(b"%d" % i, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        finally:
            os.close(fd)

    # without dir_fd: a path or a cwd
    def truncate(self, at, size):
        os.truncate(at[0], size)

    def setxattr(self, at, name, value, flags, follow):
        os.setxattr(at[0], name, value, flags, follow_symlinks=follow)

    def removexattr(self, at, name, follow):
        os.removexattr(at[0], name, follow_symlinks=follow)

    def getxattr(self, at, name, follow):
        return os.getxattr(at[0], name, follow_symlinks=follow)

    def listxattr(self, at, follow):
        return sorted(os.listxattr(at[0], follow_symlinks=follow))

    # --- by descriptor ---

    def close(self, slot):
        os.close(self.fds.pop(slot))

    def f_write(self, slot, data):
        return os.write(self.fds[slot], bytes([data[0]]) * data[1])

    def f_pwrite(self, slot, data, at):
        return os.pwrite(self.fds[slot], bytes([data[0]]) * data[1], at)

    def f_read(self, slot, nr):
        return os.read(self.fds[slot], nr)

    def f_pread(self, slot, nr, at):
        return os.pread(self.fds[slot], nr, at)

    def f_seek(self, slot, at, whence):
        return os.lseek(self.fds[slot], at, whence)

    def f_stat(self, slot):
        fd = self.fds[slot]
        st = os.fstat(fd)
        return stat_of(st, st.st_ino if self.is_mount else handle(fd))

    def f_truncate(self, slot, size):
        os.ftruncate(self.fds[slot], size)

    def f_allocate(self, slot, mode, at, nr):
        checked(libc.fallocate(self.fds[slot], mode, at, nr))

    def f_chmod(self, slot, mode):
        os.fchmod(self.fds[slot], mode)

    def f_chown(self, slot, uid, gid):
        os.fchown(self.fds[slot], uid, gid)

    def f_utime(self, slot, times):
        os.utime(self.fds[slot], **({"ns": times} if times else {}))

    def f_setxattr(self, slot, name, value, flags):
        os.setxattr(self.fds[slot], name, value, flags)

    def f_removexattr(self, slot, name):
        os.removexattr(self.fds[slot], name)

    def f_getxattr(self, slot, name):
        return os.getxattr(self.fds[slot], name)

    def f_sync(self, slot):
        os.fsync(self.fds[slot])

    def f_list(self, slot):
        return sorted(os.fsencode(n) for n in os.listdir(self.fds[slot]))

    def f_link(self, at, slot):
        checked(libc.linkat(self.fds[slot], b"", -100 if at[1] is None else at[1], at[0], 0x1000))

    # --- what is looked at beside ---

    def glance(self, what):
        """[(inode, mtime, ctime)] of specs and slots before or after a step; None: nothing there."""
        out = []
        for w in what:
            st = None
            with contextlib.suppress(OSError, KeyError):
                st = self.patient(lambda: os.fstat(self.fds[w]) if isinstance(w, int) else self.stat_at(*self.at(w)))
            out.append((st.st_ino, st.st_mtime_ns, st.st_ctime_ns) if st and not stat.S_ISFIFO(st.st_mode) else None)
        os.chdir("/")
        return out

    def stat_at(self, path, fd):
        return os.stat(path, dir_fd=fd, follow_symlinks=False)

    def patient(self, f):
        """Calls it again after an EIO: the daemon was killed, and the kernel was just handing the request over."""
        for left in range(self.tries, -1, -1):
            try:
                return f()
            except OSError as e:
                if e.errno != errno.EIO or not left:
                    raise
                self.cut += 1
                time.sleep(0.05)
        return None


def moved(before, after):
    """For each that was there: whether its mtime and ctime have changed, and when ctime was."""
    now = {a[0]: a for a in after if a}
    return [None if b is None else "gone" if b[0] not in now else (now[b[0]][1] != b[1], now[b[0]][2] != b[2], b[2])
            for b in before]


def moved_alike(p, m, begin, copied_up):
    """The clock of a change by the kernel alone is some ms behind that of the daemon: then ctime does not move.  A copy
    of a committed file for who opens it for writing has another ctime."""
    if not (isinstance(p, tuple) and isinstance(m, tuple)):
        return p == m
    return p[0] == m[0] and (p[1] == m[1] or (m[1] and copied_up) or (p[1] and m[2] > begin - 12_000_000))


# --- whole trees ---

Entry = collections.namedtuple("Entry", "st bytes target xattrs mtime ctime")


def entry_of(path, st, is_mount):
    kind = stat.S_IFMT(st.st_mode)
    data = target = None
    xattrs = {}
    if kind == stat.S_IFREG:
        with open(path, "rb") as f:
            data = f.read()
    elif kind == stat.S_IFLNK:
        target = os.readlink(path)
    if kind in (stat.S_IFREG, stat.S_IFDIR):
        xattrs = {n: os.getxattr(path, n) for n in os.listxattr(path) if n.startswith("user.")}
    return Entry(stat_of(st, st.st_ino if is_mount else handle(path)), data, target, xattrs, st.st_mtime_ns, st.st_ctime_ns)


def whole(root, is_mount):
    """-> {path below the root: Entry}, and what is wrong with it by itself."""
    out, wrong = {}, []
    for realm in REALMS:
        path = os.fsencode(root) + b"/" + realm
        folders = [(path, realm)]
        out[realm] = entry_of(path, os.lstat(path), is_mount)
        while folders:
            path, rel = folders.pop()
            seen = set()
            with os.scandir(path) as entries:
                for e in entries:
                    st = os.lstat(e.path)
                    name = rel + b"/" + e.name
                    if is_mount and e.inode() != st.st_ino:
                        wrong.append(f"{name}: d_ino {e.inode()}, st_ino {st.st_ino}")
                    if e.is_dir(follow_symlinks=False) != stat.S_ISDIR(st.st_mode) or e.is_symlink() != stat.S_ISLNK(st.st_mode):
                        wrong.append(f"{name}: d_type")
                    if name in seen:
                        wrong.append(f"{name}: listed twice")
                    seen.add(name)
                    out[name] = entry_of(e.path, st, is_mount)
                    if stat.S_ISDIR(st.st_mode):
                        folders.append((e.path, name))
    return out, wrong


def is_special(e):
    return stat.S_IFMT(int(e.st.mode, 8)) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def names_of(tree):
    """The names that are one object, of all that have several."""
    names = collections.defaultdict(list)
    for path in sorted(tree):
        names[tree[path].st.who].append(path)
    return sorted(n for n in names.values() if len(n) > 1)


def unlike(a, b):
    """What differs between two trees, first `a` and then `b`; numbers and times of now aside."""
    out = [f"{p}: only {'plain' if p in a else 'mount'}" for p in sorted(set(a) ^ set(b))]
    for p in sorted(set(a) & set(b)):
        x, y = a[p], b[p]
        if not x.st.same(y.st):
            out.append(f"{p}: plain {x.st}, mount {y.st}")
        if x.bytes != y.bytes:
            out.append(f"{p}: bytes: plain {len(x.bytes)} {x.bytes[:40]}, mount {len(y.bytes)} {y.bytes[:40]}")
        if x.target != y.target:
            out.append(f"{p}: target: plain {x.target}, mount {y.target}")
        if x.xattrs != y.xattrs:
            out.append(f"{p}: attributes: plain {x.xattrs}, mount {y.xattrs}")
    if names_of(a) != names_of(b):
        out.append(f"names of one object: plain {names_of(a)}, mount {names_of(b)}")
    return out


def order(a, b):
    """Where two trees disagree about which mtime was first."""
    paths = sorted((p for p in a if p in b and not is_special(a[p])), key=lambda p: a[p].mtime)
    for p, q in zip(paths, paths[1:]):
        if a[q].mtime - a[p].mtime > 20_000_000 and b[q].mtime < b[p].mtime - 8_000_000:  # two clocks: see moved_alike()
            return [f"{p} was changed before {q}: {a[p].mtime} and {a[q].mtime}; on the mount {b[p].mtime} and {b[q].mtime}"]
    return []


def rebuild(root, tree):
    """A plain folder becomes a tree again."""
    root = os.fsencode(root)
    side = Side(root, False)
    for realm in REALMS:
        for name in os.listdir(root + b"/" + realm):
            side.rmtree_at(root + b"/" + realm + b"/" + name, None)
    first = {}
    for p in sorted(tree):
        e, path = tree[p], root + b"/" + p
        mode = int(e.st.mode, 8)
        if p in REALMS:
            pass
        elif e.st.who in first:
            os.link(first[e.st.who], path, follow_symlinks=False)
            continue
        elif stat.S_ISDIR(mode):
            os.mkdir(path)
        elif stat.S_ISLNK(mode):
            os.symlink(e.target, path)
        else:
            with open(path, "wb") as f:
                f.write(e.bytes)
        first[e.st.who] = path
    for p in sorted(tree, reverse=True):
        e, path = tree[p], root + b"/" + p
        if first.get(e.st.who) != path:
            continue
        for name in os.listxattr(path, follow_symlinks=False) if p in REALMS else ():
            os.removexattr(path, name)
        for name, value in e.xattrs.items():
            os.setxattr(path, name, value)
        os.chown(path, e.st.uid, e.st.gid, follow_symlinks=False)
        if not stat.S_ISLNK(int(e.st.mode, 8)):
            os.chmod(path, stat.S_IMODE(int(e.st.mode, 8)))
        os.utime(path, ns=(e.mtime, e.mtime), follow_symlinks=False)
