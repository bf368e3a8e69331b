# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: keep= drops versions on all nodes; their files stay as long as a node has one of them open, and go then, also on
a node that was away, and after one was open while its version got another storage; a tagged version stays.
"""
import os
import sys

from kept import check, clean, cut, make, save
from nodes import Cluster

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary)
one, two, three = cluster.nodes
for n in cluster.nodes:
	n.up()


def commit(seed):
	save(one, 2, 0, seed)
	save(two, 2, 1, seed)
	two.must("gpt", "commit", f"step={seed}")


def bytes_of(node):
	return sum(os.stat(os.path.join(folder, f)).st_size for folder, _, files in os.walk(node.store / "blobs") for f in files)


def shows(node, versions):
	node.wait(lambda: sorted(os.listdir(node.mount / "gpt/.v"), key=int) == versions, 30, f"it shows versions {versions}")


make(cluster)
one.must("gpt", "config", "keep=2")
for n in (two, three):
	n.wait(lambda: "keep=2\n" in n.read("gpt", "config"), 30, "keep=2")
commit(1)
version = bytes_of(one)
with open(three.mount / "gpt/0/model.safetensors", "rb") as old:
	assert old.read(100)
	for seed in range(2, 6):
		commit(seed)
	for n in cluster.nodes:
		shows(n, ["4", "5"])
	for _ in range(3):  # marks are put each second
		commit_bytes = bytes_of(one)
		assert commit_bytes >= 5 * version - 100000, "files went that an open file of another node reads"
		check(three, 2, 1, 5)
	old.seek(0)
	assert old.read().endswith(cut(1, 2, 0)), "an open file of a dropped version has other bytes"
for n in (one, two):
	n.wait(lambda: bytes_of(n) < 3 * version, 40, "what was dropped is gone from its store")

three.must("gpt", "versions", "tag 4 good")
two.kill()
for rank in range(2):
	save(one, 2, rank, 6)
one.must("gpt", "commit", "step=6")
for rank in range(2):
	save(one, 2, rank, 7)
one.must("gpt", "commit", "step=7")
two.up()
for n in cluster.nodes:
	shows(n, ["4", "6", "7"])  # it takes what it has missed
	for rank in range(2):
		check(n, 2, rank, 7)
two.wait(lambda: bytes_of(two) < 2.5 * version, 40, "what was dropped while it was away is gone from its store")
data = (three.mount / "gpt/.v/4/1/model.safetensors").read_bytes()
assert data.endswith(cut(4, 2, 1))

# each topology is stored anew, over files of a version before it that is shown still
for n, home in zip(cluster.nodes, ("0,3,6", "1,4,7", "2,5")):
	n.must("gpt", "config", f"home={home}")
for tp in (4, 8, 2, 4, 8, 2, 4):
	one.must("gpt", "topology", f"tp={tp} plain=drop")
	for n in cluster.nodes:
		n.wait(lambda: "\nstate: materialized\n" in n.read("gpt", "status"), 30, "it is stored as it is shown")
		assert os.listdir(n.mount / "gpt/.v")
for n in cluster.nodes:
	n.wait(lambda: bytes_of(n) < 4.5 * version, 30, "what topologies have left behind is gone from its store")

# a file that was opened before its version got the storage that it has now, and is closed after that
one.must("gpt", "config", "materialize=lazy")
for n in cluster.nodes:
	n.wait(lambda: "materialize=lazy\n" in n.read("gpt", "config"), 30, "materialize=lazy")
one.must("gpt", "topology", "tp=8 plain=drop")
with open(three.mount / "gpt/0/model.safetensors", "rb") as before:
	assert before.read(100)
	one.must("gpt", "config", "materialize=eager")
	for n in cluster.nodes:
		n.wait(lambda: "\nstate: materialized\n" in n.read("gpt", "status"), 30, "it is stored as it is shown")
for tp in (2, 4, 8):
	one.must("gpt", "topology", f"tp={tp} plain=drop")
	for n in cluster.nodes:
		n.wait(lambda: "\nstate: materialized\n" in n.read("gpt", "status"), 30, "it is stored as it is shown")
for n in cluster.nodes:
	n.wait(lambda: bytes_of(n) < 4.5 * version, 30, "what a file was opened in, and is closed, is gone from its store")

# a node is killed as soon as its files are committed, maybe before it knows, and away until that version is dropped: newer ones have them still
one.must("gpt", "topology", "tp=2 plain=drop")
(one.mount / "gpt/0/once").write_text("written once\n" * 1000)
(one.mount / "gpt/shared").write_text("by one node\n" * 100000)
save(one, 2, 0, 20)
save(two, 2, 1, 20)
two.must("gpt", "commit", "step=20")
one.kill()
for i in range(21, 26):
	(two.mount / "gpt/1/each").write_text(f"{i}\n")
	for rank in range(2 if i > 22 else 0):
		save(two, 2, rank, i)
	two.must("gpt", "commit", f"step={i}")
one.up()
one.wait(lambda: "\nstep: 25\n" in one.read("gpt", "status"), 30, "it shows the newest version")
for n in (two, three):
	n.down()  # their landings go
	n.up()
for n in cluster.nodes:
	assert (n.mount / "gpt/0/once").read_text() == "written once\n" * 1000, n.name
	assert (n.mount / "gpt/shared").read_text() == "by one node\n" * 100000, n.name
	for rank in range(2):
		check(n, 2, rank, 25)
for n in cluster.nodes:
	n.down()
	clean(n)
