# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: each node makes the files of the ranks that it keeps its own, and reads them when all others are away: after
a topology, after a commit of another node, and after a restart.
"""
import json
import os
import random
import struct
import sys
import time

from nodes import Cluster

work, binary = sys.argv[1:3]
ROWS, COLUMNS = 4096, 256
MiB = 1 << 20


def weight(seed):
	return random.Random(seed).randbytes(ROWS * COLUMNS * 4)


def cut(seed, tp, rank):
	part = ROWS // tp * COLUMNS * 4
	return weight(seed)[rank * part:(rank + 1) * part]


def save(node, tp, rank, seed):
	data = cut(seed, tp, rank)
	header = json.dumps({"w.weight": {"dtype": "F32", "shape": [ROWS // tp, COLUMNS], "data_offsets": [0, len(data)]}})
	header = header.encode() + b" " * (-len(header) % 8)
	folder = node.mount / "gpt" / str(rank)
	(folder / "logs").mkdir(parents=True, exist_ok=True)
	(folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
	(folder / "logs/step.txt").write_text(f"rank {rank} seed {seed}\n")


def check(node, tp, rank, seed, log=None):
	folder = node.mount / "gpt" / str(rank)
	if not (folder / "model.safetensors").read_bytes().endswith(cut(seed, tp, rank)):
		sys.exit(f"{node.name} shows other bytes of rank {rank}")
	if log and (folder / "logs/step.txt").read_text() != log:
		sys.exit(f"{node.name} shows another log of rank {rank}")


def home(node, version):
	"""What the node says that it keeps of a version, which is the newest: ranks, bytes."""
	found = []
	def here():
		text = node.read("gpt", "status")
		found[:] = [line.split() for line in text.splitlines() if line.startswith("home: ")]
		return found and f"\nversion: {version}\n" in text
	node.wait(here, 60, f"what it keeps of version {version} is here")
	return int(found[0][1]), int(found[0][3])


def pulled(node):
	text = (node.mount / ".ctl/metrics").read_text()
	return int(float([x for x in text.splitlines() if x.startswith("scalai_pulled_bytes_total")][0].split()[-1]))


cluster = Cluster(work, binary)
one, two, three = cluster.nodes
for n in cluster.nodes:
	n.up()
(one.mount / "gpt").mkdir()
one.must("gpt", "layout", "mesh tp\nplain *.txt\nw.weight tp=0\n*:* copy\n")
one.must("gpt", "topology", "tp=2")
for n in (two, three):
	n.wait(lambda: n.read("gpt", "topology") == "tp=2\n", 30, "the topology is there")
save(one, 2, 0, 1)
save(two, 2, 1, 1)
two.must("gpt", "commit", "step=1")
print("after the commit:", {n.name: home(n, 1) for n in cluster.nodes})
assert home(one, 1)[0] == 1 and home(two, 1)[0] == 1 and home(three, 1)[0] == 0

# a topology: nodes one and two keep the ranks that they wrote, the third those that it is told to
assert three.ctl("gpt", "config", "home=3-2") and three.ctl("gpt", "config", "home=1,") and three.ctl("gpt", "config", "home=x")
three.must("gpt", "config", "home=2-3")
home(three, 1)
before = pulled(three)
three.must("gpt", "topology", "tp=4 plain=drop")
assert home(three, 2)[0] == 2 and home(one, 2)[0] == 1 and home(two, 2)[0] == 1
part = ROWS // 4 * COLUMNS * 4
moved = pulled(three) - before
print(f"figure: node 3 keeps 2 ranks of {part} bytes and has pulled {moved} bytes of the two")
assert moved <= 2 * part + 2 * 65536, moved
for rank in (2, 3):
	check(three, 4, rank, 1)
assert pulled(three) == before + moved, "a rank that is kept was pulled again"

# the others are away; and the daemon is another
one.kill()
two.kill()
for again in (False, True):
	if again:
		three.kill()
		three.up()
		assert home(three, 2)[0] == 2
	for rank in (2, 3):
		check(three, 4, rank, 1)
try:
	check(three, 4, 0, 1)
	sys.exit("rank 0 was read, whose bytes are away")
except OSError as e:
	print(f"a rank that is not kept here: {os.strerror(e.errno)}")
assert pulled(three) == 0, pulled(three)
for n in (one, two):
	n.up()

# a commit of another node: what the third keeps of it is copied
for rank in range(4):
	save(one, 4, rank, 2)
one.must("gpt", "commit", "step=2")
assert home(three, 3)[0] == 2 and home(one, 3)[0] == 4 and home(two, 3)[0] == 0
one.kill()
for again in (False, True):
	if again:
		three.kill()
		three.up()
		home(three, 3)
	for rank in (2, 3):
		check(three, 4, rank, 2, f"rank {rank} seed 2\n")
one.up()

# what is kept no more goes, and back to what is stored needs no copies of it
three.must("gpt", "config", "home=none")
assert home(three, 3)[0] == 0
one.must("gpt", "topology", "tp=2 plain=drop")
assert home(one, 4)[0] == 2
for n in cluster.nodes:
	for rank in range(2):
		check(n, 2, rank, 2)
for n in cluster.nodes:
	n.down()
	fsck = os.popen(f"{binary} fsck {n.store} 2>&1 | tail -1").read().strip()
	assert fsck.startswith("clean"), os.popen(f"{binary} fsck {n.store} 2>&1").read()
