# SPDX-License-Identifier: Apache-2.0
"""Mappings."""
import mmap
import os

from common import check, get, put


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
