# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: replicas=2: each file's bytes are on two nodes; a node's disk is lost, and no byte; what it had is on two nodes
again; one more is lost; a node is emptied, and then lost.  replicas=1: what only one node has is lost with it, which is
said, and is there again with the node.
"""
import json
import os
import shutil
import sqlite3
import sys
import time

from kept import check, clean, cut, make, save
from nodes import Cluster, run

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=4, ttl_ms=2500, fresh_ms=800)
one, two, three, four = cluster.nodes
version, began = 0, time.monotonic()


def commit(tp, by, seed, nodes):
	"""One rank on each node; or topologies of as many."""
	global version
	for rank in range(tp):
		save(nodes[rank % len(nodes)], tp, rank, seed)
	by.must("gpt", "commit", f"step={seed}")
	version += 1


def note(what):
	print(f"{time.monotonic() - began:.1f} s: {what}", flush=True)


def bytes_of(node):
	return sum(os.stat(os.path.join(folder, f)).st_size for folder, _, files in os.walk(node.store / "blobs") for f in files)


def says(node, what):
	return [line.partition(": ")[2] for line in node.read("gpt", "status").splitlines() if line.startswith(what + ": ")]


def safe(node, seconds=40):
	"""Waits until all that is to be copied is."""
	def is_so():
		said = says(node, "protected")
		words = said[0].split() if said else []
		return len(words) == 4 and words[0] == words[2] and not says(node, "lost")
	node.wait(is_so, seconds, f"all files are on two nodes: {says(node, 'protected')} {says(node, 'lost')}")
	node.must("gpt", "wait", "\n")


def all_bytes(nodes, tp, seed):
	for n in nodes:
		for rank in range(tp):
			check(n, tp, rank, seed, f"rank {rank} seed {seed}\n")


def nodes_table(node):
	"""Of those that are not away."""
	lines = (line.split(maxsplit=3) for line in (node.mount / ".ctl/nodes").read_text().splitlines())
	return {line[1]: line[3] for line in lines if not line[3].startswith("away")}


def drain(node, text):
	with open(node.mount / ".ctl/drain", "w") as f:
		f.write(text)


given = os.environ.get("MOUNT_OPTIONS")
os.environ["MOUNT_OPTIONS"] = ",".join([given] * bool(given) + ["scrub=2s,scrub_mib_s=0"])
for n in (one, two, three):
	n.up()
os.environ["MOUNT_OPTIONS"] = given or ""
make(type("Three", (), {"nodes": [one, two, three]}))
one.must("gpt", "config", "replicas=2 keep=3")
commit(2, one, 1, [one, two])
size = len(cut(1, 2, 0)) * 2
safe(three)
total = sum(bytes_of(n) for n in (one, two, three))
if not 2 * size <= total < 2.2 * size:
	sys.exit(f"the stores have {total} bytes, twice {size} were to be there")

# bytes that change on a node's disk, its own or a copy's, are mended from what another node has
def is_hashed(store):
	db = sqlite3.connect(f"file:{store}/scalai.db?mode=ro", uri=True)
	return not db.execute("SELECT 1 FROM blob WHERE hash IS NULL AND NOT EXISTS (SELECT 1 FROM away WHERE blob = id AND NOT here)").fetchone()


for n in (one, two, three):
	n.wait(lambda: is_hashed(n.store), 30, "all is hashed")
	blobs = [p for p in n.store.glob("blobs/*/*") if p.stat().st_size > 1 << 20]
	if len(blobs) == 2:  # it has all, and looks at it once
		n.wait(lambda: says(n, "copies") == ["equal"], 30, f"all is verified: {says(n, 'copies')}")
	before = [p.read_bytes() for p in blobs]
	for p in blobs:
		with open(p, "r+b") as f:
			f.seek(p.stat().st_size // 2)
			f.write(b"other bytes")
		os.utime(p, (1, 1))
	n.wait(lambda: n.log.read_text().count("another node's copy") == len(blobs), 30, "all are mended")
	assert [p.read_bytes() for p in blobs] == before, "they are mended, and have other bytes than before"
	n.wait(lambda: n.health().startswith("ok"), 30, "its health is ok")
	n.must("gpt", "verify", "\n")
	all_bytes([n], 2, 1)
note("what changed on a disk was mended")

# whoever has been told that a commit is done finds it on each node, in control files, too; and waits for that one
for seed in range(2, 8):
	by, others = [one, two, three][seed % 3], [n for n in (one, two, three) if n is not [one, two, three][seed % 3]]
	commit(2, by, seed, [one, two])
	for n in others:
		assert f"\nversion: {version}\n" in n.read("gpt", "status"), f"{n.name} after {by.name}'s commit: {n.read('gpt', 'status')}"
		assert n.read("gpt", "versions").splitlines()[-1].startswith(f"{version}*"), n.read("gpt", "versions")
		assert (n.mount / f"gpt/.v/{version}/0/model.safetensors").exists(), f"{n.name}: .v/{version}"
one.must("gpt", "config", "replicas=3 keep=1")
commit(2, one, 1, [one, two])
for n in (two, three, one):
	n.must("gpt", "wait", "\n")
safe(three)
if not 3 * size <= sum(bytes_of(n) for n in (one, two, three)):
	sys.exit("with replicas=3 `wait` ended before three nodes had all files")
one.must("gpt", "config", "replicas=2 keep=3")
commit(2, one, 1, [one, two])

def not_up(node, why):
	"""It is not mounted, and its store goes."""
	try:
		node.up()
	except SystemExit as e:
		assert why in str(e), e
	else:
		sys.exit(f"it is mounted, not refused: {why}")
	run("umount", "-l", str(node.mount), check=False)
	shutil.rmtree(node.store, ignore_errors=True)
	node.store.mkdir()


# a node that cannot listen takes no number: another store may have its name
if four.fabric != "ucx":
	four.address, was = "192.0.2.9", four.address
	not_up(four, "cannot listen at 192.0.2.9:7077, which is to be an address of this machine")
	four.address = was
	assert f" {four.name} " not in (one.mount / ".ctl/nodes").read_text(), "a node that could not listen has a number"
# a node's name is of its store: with another one it is no node
four.name, was = "n2", four.name
not_up(four, "under a name that no node had")
four.name = was
safe(three)

# a disk is lost: others have what it had, at once, and again twice after a while
two.kill()
shutil.rmtree(two.store)
all_bytes([one, three], 2, 1)
for n in (one, three):
	n.wait(lambda: "back soon" in says(n, "protected")[0], 30, "it knows that a node is gone")
safe(one)
safe(three)
if one.ctl("gpt", "topology", "tp=4"):
	sys.exit(f"no topology over a node that is lost: {one.read('gpt', 'error')}")
version += 1
for rank in range(4):
	check(three, 4, rank, 1)

note("a node's disk was lost")

# one more
three.kill()
shutil.rmtree(three.store)
one.wait(lambda: nodes_table(one) == {"n1": "member"}, 30, f"one node is left: {nodes_table(one)}")
for rank in range(4):
	check(one, 4, rank, 1)
one.must("gpt", "topology", "tp=2")
version += 1
all_bytes([one], 2, 1)

note("another one, too")

# a node comes, and has copies; the first one is emptied, and lost
four.up()
four.wait(lambda: (four.mount / "gpt").is_dir(), 30, "the job is there")
commit(2, four, 2, [one, four])
safe(four)
run(binary, "drain", "-m", str(four.mount), "n1")
four.wait(lambda: nodes_table(four)["n1"] == "member, empty", 40, "the first node is empty")
rows = json.loads(run(binary, "nodes", "--json", "-m", str(four.mount)).stdout)
assert {r["name"]: r["state"] for r in rows if r["state"] != "away"} == nodes_table(four), rows
about = json.loads(run(binary, "cluster", "show", "--json", "-m", str(four.mount)).stdout)
lines = dict(line.split(": ", 1) for line in (four.mount / ".ctl/cluster").read_text().splitlines())
assert {r["what"]: str(r["value"]) for r in about} == lines and "protocol" in lines, (about, lines)
no_node, last = (run(binary, "drain", "-m", str(four.mount), name, check=False) for name in ("n9", four.name))
assert no_node.returncode == 1 and "the cluster has no node of this name" in no_node.stderr, no_node
assert last.returncode == 1 and "no node would be left that keeps copies" in last.stderr, last
assert nodes_table(four) == {"n1": "member, empty", "n4": "member"}, nodes_table(four)
one.kill()
shutil.rmtree(one.store)
all_bytes([four], 2, 2)
try:
	drain(four, "n9")
	sys.exit("a node that there is not is emptied")
except OSError:
	pass

note("a node was emptied, and lost")

# replicas=1: what is lost is said, and comes again; without it the job goes on when it is saved anew, or removed
five = cluster.nodes[0]
five.name, five.store = "n5", cluster.work / "store5"
five.up()
five.must("gpt", "config", "replicas=1")
(five.mount / "gpt/0/only.txt").write_text("hello\n")
commit(2, four, 3, [five, four])
safe(four)
five.kill()
four.wait(lambda: says(four, "lost"), 60, "what only the other one has is lost")
try:
	(four.mount / "gpt/0/model.safetensors").read_bytes()
	sys.exit("bytes that no node has were read")
except OSError as e:
	if e.errno != 5:
		sys.exit(f"bytes that no node has: {e}")
if four.ctl("gpt", "wait", "\n") != os.strerror(5):
	sys.exit("scalai wait ends well, and files are lost")
if four.ctl("gpt", "topology", "tp=4") != os.strerror(5):
	sys.exit("a topology of what is lost is made")
assert "or save these files anew, or remove them, and commit" in four.read("gpt", "error"), four.read("gpt", "error")
assert " (such as rank 0 '" in says(four, "lost")[0], says(four, "lost")
commit(2, four, 4, [four])
four.wait(lambda: any("(such as rank 0 'only.txt')" in line for line in says(four, "lost")), 30, f"the tensors were saved anew: {says(four, 'lost')}")
(four.mount / "gpt/0/only.txt").unlink()
four.must("gpt", "commit", "step=5")
four.wait(lambda: any(", 0 of them of the newest version, " in line for line in says(four, "lost")), 30, f"nothing newest is lost: {says(four, 'lost')}")
four.must("gpt", "topology", "tp=4")
four.must("gpt", "topology", "tp=2")
version += 3
five.up()
safe(four)
all_bytes([four, five], 2, 4)
for n in (four, five):
	n.down()
	clean(n)
