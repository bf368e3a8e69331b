# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: a node's own catalog cannot be written (a full disk, EIO) when etcd has taken a change: what the command says is true.
What all nodes have is done, and `health` says what is not saved here; it is saved when that is possible again, also by the next
daemon, and also what other nodes have changed meanwhile.  What cannot be saved before etcd hears of it is refused, and is not done.
BINARY is the program that stops at steps, and whose catalog fails (tests/support/stop_at_steps.c).
"""
import contextlib
import errno
import os
import sqlite3
import sys
import time

from kept import check, clean, make, save
from nodes import Cluster
from waits import Thread, until

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=2, ttl_ms=2000, fresh_ms=800)
one, two = cluster.nodes
for n in cluster.nodes:
	n.up()
make(cluster)
BEHIND, KINDS = "is not saved here yet", {"": errno.ENOSPC, "EIO": errno.EIO}


class Fails:
	"""The catalog of a node, which fails in one of two ways."""
	def __init__(self, node, how="EIO"):
		self.file, self.how = node.own / "catalog.fails", how

	def __enter__(self):
		self.file.write_text(self.how)

	def __exit__(self, *_):
		self.file.unlink()


def calls(function, *args):
	try:
		function(*args)
	except OSError as e:
		return e.errno
	return 0


def same(what):
	"""Both nodes say the same of the job, and no node says that it is behind."""
	def is_so():
		return all(what(n) for n in cluster.nodes) and not any(BEHIND in n.health() for n in cluster.nodes)
	one.wait(is_so, 30, "both have it")


def setting(line):
	return lambda n: f"\n{line}\n" in "\n" + n.read("gpt", "config")


# settings, by both kinds of failure: done on all nodes, and here later
for how, keep in ("", 7), ("EIO", 8):
	with Fails(one, how):
		if why := one.ctl("gpt", "config", f"keep={keep}"):
			sys.exit(f"a setting that all nodes have was refused: {why}: {one.read('gpt', 'error')}")
		if BEHIND not in one.health() or setting(f"keep={keep}")(one):
			sys.exit(f"the catalog failed, and the setting is there: {one.health()}")
		two.wait(lambda: setting(f"keep={keep}")(two), 30, "the other node has the setting")
	same(setting(f"keep={keep}"))
# what is this machine's alone is refused, and not set; of a line of both, what was not done is said
with Fails(one):
	assert one.ctl("gpt", "config", "buffer_mib=65") == os.strerror(errno.EIO)
	assert one.ctl("gpt", "config", "keep=9 buffer_mib=65") == os.strerror(errno.EIO)
	assert "all nodes have what is the job's of this" in one.read("gpt", "error"), one.read("gpt", "error")
same(setting("keep=9"))
assert not setting("buffer_mib=65")(one)

# what another node has changed meanwhile is followed, too
with Fails(two):
	one.must("gpt", "config", "keep=10")
	os.chmod(one.mount / "gpt", 0o751)
	two.wait(lambda: BEHIND in two.health(), 30, "it says that it cannot follow")
same(lambda n: setting("keep=10")(n) and (n.mount / "gpt").stat().st_mode & 0o777 == 0o751)

# mode and name; the daemon is killed before it can save them
with Fails(one):
	assert calls(os.chmod, one.mount / "gpt", 0o750) == 0
	assert calls(os.rename, one.mount / "gpt", one.mount / "moved") == 0
	assert BEHIND in one.health(), one.health()
	two.wait((two.mount / "moved").is_dir, 30, "it has the new name")
	one.kill()
one.up()
same(lambda n: (n.mount / "moved").is_dir() and not (n.mount / "gpt").exists() and (n.mount / "moved").stat().st_mode & 0o777 == 0o750)
two.must("moved", "config", "keep=4")
os.rename(one.mount / "moved", one.mount / "gpt")
same(lambda n: (n.mount / "gpt").is_dir())

# a job cannot be made: it is nowhere.  Its first layout and topology; its end
with Fails(one):
	assert calls(os.mkdir, one.mount / "new") == errno.EIO
	assert not [line for line in cluster.values("names/") if "/new " in line], cluster.values("names/")
os.mkdir(one.mount / "new")
layout = "mesh tp\nw.weight tp=0\n*:* copy\n"
one.must("new", "layout", layout)
with Fails(one):
	if why := one.ctl("new", "topology", "tp=2"):
		sys.exit(f"a first topology that all nodes have was refused: {why}: {one.read('new', 'error')}")
	two.wait(lambda: two.read("new", "topology") == "tp=2\n", 30, "it has the first topology")
	assert BEHIND in one.health(), one.health()
same(lambda n: n.read("new", "topology") == "tp=2\n")
with Fails(one):
	began = time.monotonic()
	assert calls(os.rmdir, one.mount / "new") == 0
	print(f"figure: a job was removed everywhere but here after {time.monotonic() - began:.1f} s")
	two.wait(lambda: not (two.mount / "new").exists(), 30, "the job is removed")
one.wait(lambda: not (one.mount / "new").exists(), 30, "the job is removed here, too")

# a version that cannot be saved before it is proposed is none
for rank in range(2):
	save(cluster.nodes[rank], 2, rank, 1)
with Fails(one):
	said = one.ctl("gpt", "commit", "step=1")
	if said != os.strerror(errno.EIO):
		sys.exit(f"a commit on a node whose catalog fails: {said}: {one.read('gpt', 'error')}")
	assert not [row for row in cluster.keys("/head")], cluster.keys("/head")
one.must("gpt", "commit", "step=1")

# one that etcd has, and that fails here after that: it is done
for rank in range(2):
	save(cluster.nodes[rank], 2, rank, 2)
step, said = one.own / "cluster.commit", []
step.touch()
commit = Thread(target=lambda: said.append(one.ctl("gpt", "commit", "step=2")), daemon=True)
commit.start()
until("the commit comes to its transaction", step.with_name("cluster.commit.at").exists)
with Fails(one):
	began = time.monotonic()
	step.unlink()
	commit.join(30)
	print(f"figure: a version that is not saved here was made after {time.monotonic() - began:.1f} s")
	if said != [""]:
		sys.exit(f"a commit that all other nodes show: {said}: {one.read('gpt', 'error')}")
	two.wait(lambda: "\nversion: 2\n" in two.read("gpt", "status"), 30, "it shows the version")
	assert "cannot show version 2" in one.health(), one.health()
	try:
		one.tree("gpt/0")
		sys.exit("a version is shown that is not the newest")
	except OSError as e:
		assert e.errno == errno.EHOSTDOWN, e
for n in cluster.nodes:
	n.wait(lambda: "\nversion: 2\n" in n.read("gpt", "status"), 30, "it shows the version")
	for rank in range(2):
		check(n, 2, rank, 2, f"rank {rank} seed 2\n")
def backup_has(node, *keys):
	"""The backup of etcd's keys in a store has all of these."""
	with contextlib.closing(sqlite3.connect(f"file:{node.store}/scalai.db?mode=ro", uri=True)) as db:
		return set(keys) <= {key for key, in db.execute("SELECT key FROM backup_key WHERE part = 0")}


# the backup of etcd's keys is whole; one that a program before left with parts of it is made anew
head = next(key for key in cluster.keys("/head") if key.endswith("/head"))
for n in cluster.nodes:
	n.wait(lambda: backup_has(n, head, "/scalai/test/meta"), 30, "its backup has all keys")
one.down()
with contextlib.closing(sqlite3.connect(one.store / "scalai.db")) as db, db:
	db.execute("DELETE FROM backup_key WHERE key NOT LIKE '%/v/%'")
one.up()
one.wait(lambda: backup_has(one, head, "/scalai/test/meta"), 30, "its backup has all keys again")
assert "the backup of etcd's keys lacked some" in one.said(), one.said()
# and it goes on
two.must("gpt", "topology", "tp=4")
one.must("gpt", "rollback", "2")
for n in cluster.nodes:
	n.wait(lambda: "\nversion: 4\n" in n.read("gpt", "status"), 30, "it shows the version")
	check(n, 2, 1, 2)
	n.down()
	clean(n)
