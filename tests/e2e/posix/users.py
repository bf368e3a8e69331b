# SPDX-License-Identifier: Apache-2.0
"""Who may do what."""
import itertools
import os

from common import check, get, in_child, mode, names, put


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
