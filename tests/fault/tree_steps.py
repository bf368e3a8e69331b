# SPDX-License-Identifier: Apache-2.0
"""What tree.py does next, at random: a step is (name, user, whether times are watched, arguments...)."""
import os
import stat

from tree_calls import REALMS, handle

NAMES = [b"a", b"b", b"c", b"d", b"e", b".f", "é".encode(), b"g\xff", b"7", b"model.pt", b"x" * 255]
FILES, FOLDERS = range(6), range(10, 14)
MODES = (0o644, 0o755, 0o600, 0o777, 0o666, 0o700, 0o6755, 0o2775, 0o3777, 0o1777, 0o4711, 0o500, 0o440, 0)
IDS = (-1, 0, 1000, 1001, 12345)
COMMANDS = {"commit": 40, "discard": 8, "rollback": 8, "topology": 5, "mount": 5, "caches": 1, "compare": 14}
WEIGHTS = {
    "open": 70, "close": 40, "put": 60, "read": 25, "mkdir": 45, "mknod": 12, "symlink": 20, "link": 25, "unlink": 45, "rmdir": 22,
    "rename": 60, "exchange": 15, "noreplace": 12, "chmod": 25, "chown": 15, "utime": 15, "readlink": 8, "access": 10, "stat": 30,
    "list": 12, "rmtree": 5, "fill": 1, "truncate": 15, "setxattr": 20, "removexattr": 8, "getxattr": 8, "listxattr": 8,
    "f_write": 20, "f_pwrite": 25, "f_read": 12, "f_pread": 20, "f_seek": 6, "f_stat": 30, "f_truncate": 12, "f_allocate": 10,
    "f_chmod": 8, "f_chown": 6, "f_utime": 6, "f_setxattr": 8, "f_removexattr": 3, "f_getxattr": 4, "f_sync": 1, "f_list": 8,
    "f_link": 3, "parts": 25, "umask": 3, "command": 8,
}


def written(side, name, args):
    """The plain object whose bytes a call is about to write, None: none, or it is not there."""
    if name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
        return None
    if name not in ("open", "put", "truncate"):
        return None
    try:
        path, at = side.at(args[0])
        return handle(path, at, follow=True)
    except OSError:
        return None
    finally:
        os.chdir("/")


class Steps:
    def __init__(self, run, rng, without):
        self.run, self.r, self.since, self.without = run, rng, 0, without
        self.names = [n for n in WEIGHTS if n not in without]
        self.weights = [WEIGHTS[n] for n in self.names]
        self.commands = [c for c in COMMANDS if c not in without]
        self.known, self.folders = [[], []], [[b""], [b""]]

    def look(self):
        """Learns the paths that there are, from the plain side."""
        for realm, _ in enumerate(REALMS):
            root = self.run.p.root + b"/" + REALMS[realm]
            known, folders = [], [b""]
            for path, dirs, files in os.walk(root):
                rel = os.path.relpath(path, root)
                rel = b"" if rel == b"." else rel + b"/"
                folders += [rel + d for d in dirs]
                known += [rel + n for n in dirs + files]
            self.known[realm], self.folders[realm] = sorted(known), sorted(folders)

    def next(self):
        if self.since % 20 == 0:
            self.look()
        self.since += 1
        if self.since % 100 == 0 and len(self.known[0]) + len(self.known[1]) > 160:
            realm = self.r.randrange(2)
            return ("rmtree", 0, False, ("p", realm, self.r.choice(self.folders[realm][1:] or [b"none"])))
        name = self.r.choices(self.names, self.weights)[0]
        user = self.r.choices((0, 1, 2), (80, 12, 8))[0]
        watch = self.r.random() < 0.3
        how = getattr(self, "make_" + name, None)
        args = how() if how else self.arguments(name)
        if name in ("command", "umask", "parts"):
            return (name, 0, False, *args)
        name = {"exchange": "rename", "noreplace": "rename"}.get(name, name)
        if name in ("rmtree", "fill", "f_list", "f_read", "list", "read"):
            watch = False
        return (name, 0 if name == "close" else user, watch, *args)

    # --- arguments ---

    def name(self):
        return self.r.choice(NAMES[:6] if self.r.random() < 0.8 else NAMES)

    def rel(self, realm, there):
        """A path: of something (it was there not long ago), or of anything."""
        if there and self.known[realm] and self.r.random() < 0.9:
            rel = self.r.choice(self.known[realm])
        else:
            rel = self.r.choice(self.folders[realm]) if self.r.random() < 0.9 else self.r.choice(self.known[realm] or [b"a"])
            if rel.count(b"/") > 5:
                rel = b""
            rel = (rel + b"/" if rel else b"") + self.name()
        odd = self.r.random()
        if odd < 0.01:
            rel += b"/"
        elif odd < 0.015:
            rel += b"/."
        elif odd < 0.018:
            rel += b"y" * 256
        elif odd < 0.02:
            rel = b""
        return rel

    def spec(self, there=True, kinds="ppppdc"):
        kind = self.r.choice(kinds)
        folders = [s for s in FOLDERS if s in self.run.slots]
        if kind == "p" or not folders:
            realm = self.r.randrange(2)
            return ("p", realm, self.rel(realm, there))
        rel = self.name() if self.r.random() < 0.85 else self.name() + b"/" + self.name()
        return (kind, self.r.choice(folders), rel)

    def two(self, there):
        a = self.spec()
        b = self.spec(there and self.r.random() < 0.5)
        if b[0] == "c":
            b = ("d", *b[1:])  # there is one cwd
        if a[0] == b[0] == "p" and self.r.random() < 0.97:
            b = ("p", a[1], self.rel(a[1], there and self.r.random() < 0.5))
        return a, b

    def file(self):
        return self.r.choice([s for s in FILES if s in self.run.slots and not self.run.slots[s].is_folder] or [-1])

    def slot(self):
        return self.r.choice(sorted(self.run.slots) or [0])

    def data(self):
        return (self.r.randrange(1, 256), self.r.choice((0, 1, 10, 100, 4096, 5000, 20000)))  # a byte, so many times

    def times(self):
        return self.r.choice((None, (5, 7), (10**17 + self.r.randrange(10**9), 10**17 + self.r.randrange(10**9))))

    def xattr(self):
        return "user." + self.r.choice("abcd")

    def arguments(self, name):
        r = self.r
        if name in ("unlink", "rmdir", "readlink", "read", "list", "rmtree"):
            return (self.spec(),)
        if name == "stat":
            return (self.spec(r.random() < 0.8), r.random() < 0.4)
        if name in ("chmod", "f_chmod"):
            return (self.spec() if name == "chmod" else self.slot(), r.choice(MODES))
        if name == "access":
            return (self.spec(), r.randrange(8))
        if name in ("f_stat", "close"):
            return (self.slot(),)
        if name in ("f_sync", "f_list"):
            return (self.slot() if name == "f_list" else self.file(),)
        raise AssertionError(name)

    def make_open(self):
        if self.r.random() < 0.35:
            realm = self.r.randrange(2)
            spec = ("p", realm, self.r.choice(self.folders[realm])) if self.r.random() < 0.8 else self.spec()
            return (spec, os.O_RDONLY | os.O_DIRECTORY, 0, self.r.choice(FOLDERS))
        flags = self.r.choice((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR))
        for bit, share in ((os.O_CREAT, 0.6), (os.O_EXCL, 0.15), (os.O_TRUNC, 0.15), (os.O_APPEND, 0.15), (os.O_NOFOLLOW, 0.05)):
            flags |= bit if self.r.random() < share else 0
        if not flags & os.O_CREAT:
            flags &= ~os.O_EXCL
        slot = self.r.choice(FILES) if self.r.random() < 0.6 else None
        return (self.spec(not flags & os.O_CREAT or self.r.random() < 0.4), flags, self.r.choice(MODES), slot)

    def make_put(self):
        flags = os.O_WRONLY | os.O_CREAT | self.r.choice((0, os.O_TRUNC, os.O_APPEND))
        return (self.spec(self.r.random() < 0.6), flags, self.data())

    def make_mkdir(self):
        return (self.spec(False), self.r.choice(MODES + (0o755, 0o755, 0o777, 0o777)))

    def make_mknod(self):
        kind = self.r.choice((stat.S_IFIFO, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFREG, stat.S_IFCHR))
        return (self.spec(False), kind | self.r.choice(MODES), os.makedev(1, 3) if kind == stat.S_IFCHR else 0)

    def make_symlink(self):
        return (self.spec(False), self.r.choice((b"a", b"b", b"d/a", b"no/where", b".", b"a/b", b"e", b"q" * 300, b"s" * 4095)))

    def make_link(self):
        return (*self.two(False), self.r.random() < 0.3)

    def make_rename(self):
        return (*self.two(True), 0)

    def make_exchange(self):
        a, b = self.two(True)
        return (a, b, 2)

    def make_noreplace(self):
        return (*self.two(False), 1)

    def owner(self):
        return self.r.choice([(u, g) for u in IDS for g in IDS if (u, g) != (-1, -1)])  # that may set ctime, or not

    def make_chown(self):
        return (self.spec(), *self.owner(), self.r.random() < 0.7)

    def make_f_chown(self):
        return (self.slot(), *self.owner())

    def make_utime(self):
        return (self.spec(), self.times(), self.r.random() < 0.7)

    def make_f_utime(self):
        return (self.slot(), self.times())

    def make_truncate(self):
        return (self.spec(kinds="pppc"), self.r.choice((0, 1, 100, 4096, 9000, 100000)))

    def make_f_truncate(self):
        return (self.file(), self.r.choice((0, 1, 100, 4096, 9000, 100000)))

    def make_f_allocate(self):
        mode = self.r.choice((0, 0, 1, 3, 16, 17))
        return (self.file(), mode, self.r.choice((0, 1, 4096, 10000)), self.r.choice((1, 4096, 9000)))

    def make_setxattr(self):
        value = bytes([self.r.randrange(256)]) * self.r.choice((0, 1, 10, 200))
        return (self.spec(kinds="pppc"), self.xattr(), value, self.r.choice((0, 0, os.XATTR_CREATE, os.XATTR_REPLACE)), self.r.random() < 0.6)

    def make_f_setxattr(self):
        return (self.slot(), self.xattr(), b"f" * self.r.randrange(100), self.r.choice((0, 0, os.XATTR_CREATE, os.XATTR_REPLACE)))

    def make_removexattr(self):
        return (self.spec(kinds="pppc"), self.xattr(), self.r.random() < 0.6)

    make_getxattr = make_removexattr

    def make_f_removexattr(self):
        return (self.slot(), self.xattr())

    make_f_getxattr = make_f_removexattr

    def make_listxattr(self):
        return (self.spec(kinds="pppc"), self.r.random() < 0.6)

    def make_f_write(self):
        return (self.file(), self.data())

    def make_f_pwrite(self):
        return (self.file(), self.data(), self.r.choice((0, 1, 100, 4096, 50000)))

    def make_f_read(self):
        return (self.file(), self.r.choice((1, 100, 4096, 20000)))

    def make_f_pread(self):
        return (self.file(), self.r.choice((1, 100, 4096, 200000)), self.r.choice((0, 0, 50, 4096)))

    def make_f_seek(self):
        return (self.file(), self.r.choice((0, 0, 10, 5000)), self.r.choice((0, 1, 2)))

    def make_f_link(self):
        return (self.spec(False), self.slot())

    def make_fill(self):
        return (self.spec(False), self.r.choice((20, 20, 40, 60)))

    def make_parts(self):
        folders = [s for s in FOLDERS if s in self.run.slots]
        going = sorted(self.run.listings)
        if going and self.r.random() < 0.85:
            return (self.r.choices(("go on", "again", "end"), (90, 5, 5))[0], self.r.choice(going))
        return ("begin", self.r.choice(folders or [10]))

    def make_umask(self):
        return (self.r.choice((0, 0, 0o22, 0o77)),)

    def make_command(self):
        what = self.r.choices(self.commands, [COMMANDS[c] for c in self.commands])[0]
        return (what, self.r.randrange(6)) if what == "rollback" else (what,)
