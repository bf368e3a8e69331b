# SPDX-License-Identifier: Apache-2.0
"""Readers open ranks' files while the topology changes as fast as it can: none sees an error, and each file is whole.

    hammer.py JOB_DIR CHANGES|SECONDSs TOPOLOGY...      topologies under which rank 0's file is different each time
"""
import hashlib
import os
import sys

from waits import Amount

job, topologies = sys.argv[1], sys.argv[3:]
path = job + "/0/model.safetensors"


def ctl(name, text):
    fd = os.open(f"{job}/.ctl/{name}", os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def tensors(data):
    """Without the header: ranks' own files and those that are made of them may order it differently."""
    n = int.from_bytes(data[:8], "little")
    return hashlib.sha256(b"".join(sorted(data[i:i + 4096] for i in range(8 + n, len(data), 4096)))).hexdigest()


allowed = set()
for t in topologies:
    ctl("topology", t)
    allowed.add(tensors(open(path, "rb").read()))
    ctl("wait", "\n")
    allowed.add(tensors(open(path, "rb").read()))
amount = Amount(sys.argv[2])
readers = []
for _ in range(4):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        opens = 0
        try:
            while amount.goes_on():
                with open(path, "rb") as f:
                    assert tensors(f.read()) in allowed, "bytes of no topology"
                opens += 1
            os.write(w, b"%d" % opens)
        except BaseException as e:  # the parent says it
            os.write(w, f"after {opens} opens: {e!r}".encode())
        os._exit(0)
    os.close(w)
    readers.append((pid, r))
changes = 0
while amount.more(changes):
    ctl("topology", topologies[changes % len(topologies)])
    changes += 1
said = [os.read(r, 1000).decode() for _, r in readers]
for pid, _ in readers:
    os.waitpid(pid, 0)
bad = [s for s in said if not s.isdigit()]
print(f"figure: {sum(int(s) for s in said if s.isdigit())} opens of 4 readers during {changes} changes of topology, {len(bad)} errors")
sys.exit(f"FAIL: {bad}" if bad or not changes else 0)
