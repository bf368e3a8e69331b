# SPDX-License-Identifier: Apache-2.0
"""What the package `scalai` does with a job: python_package.py MOUNT, without any other package."""
import contextlib
import errno
import json
import os
import sys
import threading

import scalai
import scalai.tensors  # reads no torch, and no safetensors

MOUNT = sys.argv[1]
assert not {"torch", "safetensors", "numpy"} & set(sys.modules)
assert scalai.__file__.startswith(os.getcwd() + "/site/"), scalai.__file__


@contextlib.contextmanager
def refused(number, *words):
    try:
        yield
    except OSError as e:
        assert e.errno == number and all(w in str(e) for w in words), e
        assert isinstance(e, scalai.Refused) == (number != errno.ENOENT), e
    else:
        raise AssertionError(f"not refused: {words}")


def write(job, rank, value):
    """A tensor of 4 numbers, of which each of the job's ranks has its part."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(value)], "data_offsets": [0, len(value)]}}).encode()
    with open(f"{job.folder(rank)}/model.safetensors", "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header + value)


def value(folder):
    with open(f"{folder}/model.safetensors", "rb") as f:
        return f.read()[8:].split(b"}}", 1)[1].lstrip()


job = scalai.Job(MOUNT, "gpt")
with refused(errno.ENOENT, "no such job", "create()", job.path):
    job.status()
with refused(errno.ENOENT, "no Scalai is mounted there", os.getcwd()):
    scalai.Job(os.getcwd(), "gpt").status()

# a new job
job.create("mesh dp\n{P} dp=0 chunk", "dp=2")
job.create("mesh dp\n{P} dp=0 chunk", "dp=2")  # again: another process does so, too
s = job.status()
assert (s.version, s.step, s.topology, s.ranks, s.copies) == (None, None, "dp=2", None, None), s
assert not s.materialized and not s.dirty
assert [job.resume("dp=2", r) for r in (0, 1)] == [None, None] and job.versions() == []
write(job, 0, b"ab"), write(job, 1, b"cd")
assert job.status().dirty and job.status().all("dirty") == ["0/model.safetensors", "1/model.safetensors"]
assert job.commit(20, note="the first") == 1
s = job.status()
assert (s.version, s.step, s.topology, s.ranks, s.dirty) == (1, 20, "dp=2", 2, False) and s.copies != "DIFFER", s
job.create("use replicated", "dp=1")  # it has a version: it stays as it is
assert job.read("layout") == "mesh dp\n{P} dp=0 chunk\n" and job.status().version == 1

# refusals have the sentence, change nothing, and the next command is taken
with refused(errno.EINVAL, "topology 'xp=3': no axis", job.path):
    job.reshard("xp=3")
write(job, 0, b"AB")
with refused(errno.EBUSY, "(rank 0: 'model.safetensors'); commit or discard"):
    job.reshard("dp=4")
with refused(errno.EINVAL, "would hold parts of two steps", "(rank 1: 'model.safetensors')"):
    job.commit(21)
with refused(errno.EINVAL, "layout", "nonsense"):  # judged at the end, by close(2)
    job.write("layout", "mesh dp\n{P} dp=0 nonsense\n")
assert job.status().version == 1

# a restart, at another topology: what nobody committed is dropped, and all ranks wait for each other
waits, steps = threading.Barrier(4, timeout=30), [None] * 4


def rank(r):
    steps[r] = job.resume("dp=4", r, waits.wait)
    assert value(job.folder(r)) == b"abcd"[r:r + 1]
    waits.wait()
    write(job, r, b"wxyz"[r:r + 1])
    job.commit_all(40, r, waits.wait)


ranks = [threading.Thread(target=rank, args=(r,)) for r in range(4)]
[t.start() for t in ranks], [t.join() for t in ranks]
assert steps == [20] * 4
assert [(v.number, v.head, v.step, v.topology, v.made_by) for v in job.versions()] == [
    (1, False, 20, "dp=2", "commit"), (2, False, 20, "dp=4", "topology"), (3, True, 40, "dp=4", "commit")]
first = job.versions()[0]
assert first.note == "the first" and first.tag is None and first.bytes > 4
assert job.resume("dp=4") == 40 and job.status().version == 3  # it has that topology: no version is made
alone = scalai.Job(MOUNT, "alone")
alone.create("use replicated", "dp=1")
with open(f"{alone.folder(0)}/state", "w") as file:  # the topology has made the folder
    file.write("1")
assert alone.status().dirty and alone.resume("dp=1") is None and not os.listdir(alone.folder(0))
with open(f"{alone.folder(0)}/state", "w") as file:
    file.write("2")
assert alone.commit(1) == 1 and alone.resume("dp=1") == 1 and alone.status().version == 1, alone.status()

# real files; versions and tags; another topology without a reshard
job.wait()
assert job.status().materialized
job.tag(1, "best")
assert job.versions()[0].tag == "best" and value(job.folder(1, version="best")) == b"cd"
assert value(job.folder(0, topology="dp=1")) == b"wxyz" and value(job.folder(0, topology="dp=1", version=1)) == b"abcd"
job.rollback("best")
assert job.status().step == 20 and job.status().topology == "dp=2"
job.untag(1)
assert all(v.tag is None for v in job.versions())

# who follows it
seen, known = [], job.status().version


def follower():
    for version in job.follow(timeout=30):
        seen.append(version)
        if len(seen) == 1:
            looks.set()
        elif version == known + 1:
            return


looks = threading.Event()
t = threading.Thread(target=follower)
t.start()
assert looks.wait(30)
write(job, 0, b"12"), write(job, 1, b"34")
assert job.commit(60) == known + 1
t.join(60)
assert seen == [known, known + 1], seen
assert list(job.follow(known + 1, timeout=0.01)) == []

write(job, 0, b"56")
job.discard()
assert not job.status().dirty and value(job.folder(0)) == b"12"
print("as a script asks")
