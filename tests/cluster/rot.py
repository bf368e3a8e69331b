# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: bytes change on the disk of the node that wrote them, and nobody has met that.  A node that is to keep a copy
finds it, keeps none, and says so to the node that has them, which mends its file from another copy; or nobody is given such
bytes any more.  A copy that changed is mended when the node that wrote the file is back.  A node whose disk is full refuses a
commit, and the cluster does not wait for it.
"""
import atexit
import os
import sqlite3
import subprocess
import sys
import time

from kept import check, clean, make, protected, save
from nodes import Cluster, run
from late import late

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=3, ttl_ms=2500, fresh_ms=800)
one, two, three = cluster.nodes


def is_hashed(store):
	db = sqlite3.connect(f"file:{store}/scalai.db?mode=ro", uri=True)
	return not db.execute("SELECT 1 FROM blob WHERE hash IS NULL AND NOT EXISTS (SELECT 1 FROM away WHERE blob = id AND NOT here)").fetchone()


def rot(node, whose="NOT IN (SELECT blob FROM away)"):
	"""Changes the newest file of tensors that a node wrote, and nothing says when.  Returns its path."""
	node.wait(lambda: is_hashed(node.store), 30, "all is hashed")
	db = sqlite3.connect(f"file:{node.store}/scalai.db?mode=ro", uri=True)
	number = db.execute(f"SELECT max(id) FROM blob WHERE bytes > 1 << 20 AND id {whose}").fetchone()[0]
	path = next(node.store.glob(f"blobs/*/{number}"))
	with open(path, "r+b") as f:
		f.seek(path.stat().st_size // 2)
		f.write(b"other bytes")
	os.utime(path, (1, 1))
	return path


def commit(seed):
	for rank, node in enumerate((one, two)):
		save(node, 2, rank, seed)
	one.must("gpt", "commit", f"step={seed}")


def mended():
	return one.log.read_text().count("another node's copy")


three.store.mkdir(exist_ok=True)
run("mount", "-t", "tmpfs", "-o", "size=64m", "none", str(three.store))
atexit.register(subprocess.run, ["umount", "-l", three.store])
for n in cluster.nodes:
	n.up()
make(cluster)
one.must("gpt", "config", "replicas=2 keep=2")
commit(1)
for n in cluster.nodes:
	n.wait(lambda: protected(n), 40, "all files are on two nodes")

# there is another copy: all have the right bytes in the end, and nobody has others in between
before = {p: p.read_bytes() for p in one.store.glob("blobs/*/*")}
path = rot(one)
one.must("gpt", "config", "replicas=3")
for n in cluster.nodes:
	n.wait(lambda: protected(n), 60, "all files are on three nodes")
for rank in range(2):
	check(three, 2, rank, 1), check(two, 2, rank, 1)
said = [line for n in (two, three) for line in n.log.read_text().splitlines() if "came with other bytes" in line]
assert said, "nobody has found bytes that changed"
one.wait(lambda: mended() == 1, 30, "what changed is mended")
assert path.read_bytes() == before[path], "what was mended has other bytes"

# a node reads wrong bytes, as nobody knows of them: it has the right ones, without an end, when that is found
def is_right(node):
	try:
		check(node, 2, 0, 7)
		return True
	except (SystemExit, OSError):  # who had it open gets nothing more
		return False


one.must("gpt", "config", "replicas=2")
commit(7)
for n in cluster.nodes:
	n.wait(lambda: protected(n), 40, "all files are on two nodes")
rot(one)
misled = [n for n in (two, three) if not is_right(n)]
assert len(misled) == 1, "one node has a copy, and one reads what the other has"
one.ctl("gpt", "verify", "\n")
one.wait(lambda: mended() == 2, 30, "what changed is mended")
misled[0].wait(lambda: is_right(misled[0]), 30, "the node that has read wrong bytes forgets them")

# there is none: nobody gets other bytes
one.must("gpt", "config", "replicas=1")
commit(2)
one.must("gpt", "wait", "\n")
rot(one)
one.must("gpt", "config", "replicas=2")
one.wait(lambda: "no replica has the same bytes" in one.log.read_text(), 60, "it knows that its file is damaged")
assert not one.health().startswith("ok")
for n in (two, three):
	try:
		check(n, 2, 0, 2)
		sys.exit(f"{n.name}: bytes that nobody has were read")
	except OSError as e:
		assert e.errno == 5, e
	check(n, 2, 1, 2)
assert not protected(two), "a copy of other bytes counts"

# it goes with its version
one.must("gpt", "config", "keep=1")
commit(3)
for n in cluster.nodes:
	n.wait(lambda: protected(n), 60, "all files are on two nodes")
	for rank in range(2):
		check(n, 2, rank, 3, f"rank {rank} seed 3\n")

# a copy changes, and is met while nobody has the right bytes: it is mended when others are back
one.must("gpt", "config", "replicas=3 verify=commit")
commit(4)
for n in cluster.nodes:
	n.wait(lambda: protected(n), 60, "all files are on three nodes")
path = rot(three, "IN (SELECT blob FROM away WHERE here)")
one.kill()
two.kill()
three.wait(lambda: three.ctl("gpt", "verify", "\n"), 60, "verify finds other bytes")
three.wait(lambda: not three.health().startswith("ok"), 60, "it knows that its copy is damaged")
one.up()
two.up()
three.wait(lambda: three.health().startswith("ok"), 60, f"its copy is mended: {three.health()}")
for n in cluster.nodes:
	for rank in range(2):
		check(n, 2, rank, 4)

# the disk of a node is full: it refuses what it cannot prepare, and says why
with open(three.store / "filler", "wb", buffering=0) as f:  # what does not fit is not kept for the end
	try:
		while True:
			f.write(bytes(1 << 16))
	except OSError:
		pass
save(one, 2, 0, 5)
began = time.monotonic()
code = one.ctl("gpt", "commit", "step=5")
took = time.monotonic() - began
assert code and "No space left" in one.read("gpt", "error") and "node 3" in one.read("gpt", "error"), one.read("gpt", "error")
late("a commit that a node refuses whose disk is full", f"{took:.1f} s", "20 s")
(three.store / "filler").unlink()
save(two, 2, 1, 5)
one.must("gpt", "commit", "step=5")
for n in cluster.nodes:
	n.wait(lambda: protected(n), 60, "all files are on three nodes")
	for rank in range(2):
		check(n, 2, rank, 5)
for n in cluster.nodes:
	n.down()
	clean(n)
