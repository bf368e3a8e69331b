# SPDX-License-Identifier: Apache-2.0
"""Flushing, and locks."""
import fcntl
import os
import struct

from common import check, in_child, put, said


@check
def flushing(d):
    put(d + "/f", b"x")
    fd, folder = os.open(d + "/f", os.O_RDWR), os.open(d, os.O_RDONLY)
    a = said(os.fsync, fd), said(os.fdatasync, fd), said(os.fsync, folder), said(os.sync)
    os.close(fd), os.close(folder)
    return a


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
