# SPDX-License-Identifier: Apache-2.0
"""What all checks use."""
import ctypes
import errno
import os
import stat

CHECKS = []
libc = ctypes.CDLL(None, use_errno=True)


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
