# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: an older copy of a node's store, made while it was not mounted, is put back under its name.  No file's number is given twice:
what the copy lacks is read from copies on other nodes, or is an error, on all nodes, and never the bytes of something else; what is
uncommitted in the copy is nobody's, also over a version that has died since; and the node goes on.
"""
import errno
import os
import shutil
import sqlite3
import subprocess
import sys

from kept import check, clean, cut, make, protected, save
from nodes import Cluster

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=2, ttl_ms=2000, fresh_ms=600)
one, two = cluster.nodes
older = cluster.work / "older"


def again(node, store=None):
	"""Nothing that it has read before is in its memory; it may have another store."""
	node.down()
	if store:
		shutil.rmtree(node.store)
		shutil.copytree(store, node.store, symlinks=True)
	node.up()


def backup(node):
	node.down()
	shutil.rmtree(older, ignore_errors=True)
	shutil.copytree(node.store, older, symlinks=True)
	node.up()


def reads(node, rank, seed, version=None):
	"""The file has these bytes; seed None: it cannot be read, for what it had is lost."""
	path = node.mount / "gpt" / (f".v/{version}/" if version else "") / str(rank) / "model.safetensors"
	node.wait(lambda: path.parent.is_dir(), 20, f"it has {path.parent}")
	try:
		got = path.read_bytes()
	except OSError as e:
		if seed is None and e.errno == errno.EIO:
			return
		sys.exit(f"{node.name}: {path}: {e}: {node.read('gpt', 'error')}{node.health()}")
	if seed is None or not got.endswith(cut(seed, 2, rank)):
		sys.exit(f"{node.name}: {path} has {[s for s in range(1, 12) if got.endswith(cut(s, 2, rank))] or 'unknown'} where {seed} was committed")


def commit(step, *ranks):
	"""Ranks: which, seed."""
	for rank, seed in ranks:
		save((one, two)[rank], 2, rank, seed)
	one.must("gpt", "commit", f"step={step}")
	for n in cluster.nodes:
		n.wait(lambda: f"\nversion: {step}\n" in n.read("gpt", "status"), 20, f"it shows version {step}")


for n in cluster.nodes:
	n.up()
make(cluster)
one.must("gpt", "config", "replicas=1")
commit(1, (0, 1), (1, 1))

# one whose file of that number has another size is of another history: it gives no byte of it
backup(two)
two.down()
db = sqlite3.connect(two.store / "scalai.db")
with db:
	number = db.execute("SELECT max(id) FROM blob WHERE bytes > 1 << 20 AND id NOT IN (SELECT blob FROM away)").fetchone()[0]
	db.execute("UPDATE blob SET bytes = bytes + 4096 WHERE id = ?", (number,))
db.close()
path = next(two.store.glob(f"blobs/*/{number}"))
path.write_bytes(bytes(4096) + path.read_bytes())
two.up()
again(one)
reads(one, 1, None)
assert "it has another size there" in one.read("gpt", "error"), one.read("gpt", "error")
again(two, older)
reads(one, 1, 1)

# clean: what it wrote since is lost, and the next file that it writes has another number
backup(two)
commit(2, (0, 2), (1, 2))
again(two, older)
two.wait(lambda: "\nversion: 2\n" in two.read("gpt", "status"), 20, "it shows version 2, in spite of what it lacks")
commit(3, (0, 3), (1, 3))
again(one)
for n in cluster.nodes:
	reads(n, 0, 2, 2)
	reads(n, 1, None, 2)
	reads(n, 1, 1, 1)
	reads(n, 1, 3)

# with a file that is uncommitted in the copy, and was committed later with other bytes, as many
save(two, 2, 1, 4)
backup(two)
save(two, 2, 1, 5)
commit(4, (0, 4))
again(two, older)
again(one)
one.wait(lambda: "\nversion: 4\n" in one.read("gpt", "status"), 20, "it shows version 4")
reads(one, 1, None)
two.must("gpt", "discard", "yes\n")
two.wait(lambda: "\nversion: 4\n" in two.read("gpt", "status"), 20, "it shows version 4")
for n in cluster.nodes:
	reads(n, 0, 4)
	reads(n, 1, None)

# what others have copies of is there
one.must("gpt", "config", "replicas=2 keep=1")
commit(5, (0, 5), (1, 5))
one.wait(lambda: protected(one), 30, "all is on both nodes")
backup(two)
commit(6, (0, 6), (1, 6))
one.wait(lambda: protected(one), 30, "all is on both nodes")
again(two, older)
two.wait(lambda: "\nversion: 6\n" in two.read("gpt", "status"), 20, "it shows version 6")
for n in cluster.nodes:
	for rank in range(2):
		reads(n, rank, 6)
commit(7, (0, 7), (1, 7))
again(one)
for n in cluster.nodes:
	for rank in range(2):
		reads(n, rank, 7)

# with a file that is uncommitted over a version that has died meanwhile: that is all this node has of the job
save(two, 2, 1, 8)
backup(two)
commit(8, (0, 8), (1, 8))
commit(9, (0, 9), (1, 9))
one.wait(lambda: protected(one), 30, "all is on both nodes")
again(two, older)
(one.mount / "later").mkdir()
two.wait(lambda: (two.mount / "later").is_dir(), 30, "it has done what came before: it knows what has died")
again(two)


def fsck(store):
	return subprocess.run([binary, "fsck", store], capture_output=True, text=True)


def takes_head(store, *rows):
	"""As a program before did: no daemon started there any more."""
	db = sqlite3.connect(store / "scalai.db")
	with db:
		head = db.execute("SELECT head FROM job WHERE name = 'gpt'").fetchone()
		for row in rows:
			db.execute(row, head)
	db.close()


# nor is it lost where a program before took that version's view; without the version's row the store is refused, in a sentence
view = "UPDATE version SET job = -abs(job), tag = NULL WHERE id = ?", "DELETE FROM view WHERE version = ?"
two.down()
broken = cluster.work / "broken"
shutil.copytree(two.store, broken, symlinks=True)
takes_head(broken, *view, "DELETE FROM version_set WHERE version = ?", "DELETE FROM version WHERE id = ?")
said = fsck(broken)
assert said.returncode and "no row of its newest version" in said.stderr and "empty store" in said.stderr, said
takes_head(two.store, *view)
two.up()
assert "had no view" in two.said(), two.said()
two.down()
takes_head(two.store, *view)
said = fsck(two.store)
assert not said.returncode and "\nclean\t" in said.stdout, said
two.up()
two.must("gpt", "discard", "yes\n")
two.wait(lambda: "\nversion: 9\n" in two.read("gpt", "status"), 20, "it shows version 9")
for n in cluster.nodes:
	for rank in range(2):
		reads(n, rank, 9)
two.wait(lambda: sorted(os.listdir(two.mount / "gpt/.v")) == ["9"], 30, "what has died is not shown any more")

# files that are older than the catalog: what is missing is read from the other node, at once, and is there again
commit(10, (0, 10), (1, 10))
one.wait(lambda: protected(one), 30, "all is on both nodes")
for n in cluster.nodes:
	n.settled()
two.wait(lambda: len(list(two.store.glob("blobs/*/*"))) == 4, 60, "what has died is gone")
two.down()
files = list(two.store.glob("blobs/*/*"))
for path in files:
	path.unlink()
two.up()
for rank in range(2):
	check(two, 2, rank, 10, f"rank {rank} seed 10\n")
two.wait(lambda: any(path.exists() for path in files) and two.health().startswith("ok"), 30, "its files are mended")
for n in cluster.nodes:
	n.down()
	clean(n)
