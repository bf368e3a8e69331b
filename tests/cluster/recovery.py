# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY [NODES [LOST,...]]: nodes with their disks are lost, and no copies were asked for (replicas=1): all state comes from what
data-parallel replicas have, and training goes on with fewer ranks.  What had no replica is said to be lost, and by name.

Ranks are tp=4 dp=NODES, four on each node, so each node has one of the NODES replicas of all weights, but two tensors: each rank's own,
cut by tp and dp, are in a file of their own (as a ZeRO optimizer's), and no other rank has them.
"""
import errno
import os
import random
import shutil
import sys
import time

from kept import clean, metric, save_tensors
from nodes import Cluster

TP = 4
work, binary = sys.argv[1:3]
NODES = int(sys.argv[3]) if len(sys.argv) > 3 else 4
LOST = [int(word) for word in (sys.argv[4] if len(sys.argv) > 4 else "1,2,3").split(",")]
ROWS, COLUMNS = 48 * TP, 512
# a registration is as long as so many daemons on two cores want
cluster = Cluster(work, binary, nodes=NODES, ttl_ms=2500 if NODES < 8 else 6000, fresh_ms=800 if NODES < 8 else 2000)
rng = random.Random(5)
WEIGHTS = rng.randbytes(ROWS * COLUMNS * 4)
OWN = [rng.randbytes(4096) for _ in range(TP * NODES)]
began = time.monotonic()


def note(what):
	print(f"figure: {time.monotonic() - began:.1f} s: {what}", flush=True)


def part(tp, t):
	size = len(WEIGHTS) // tp
	return WEIGHTS[t * size:(t + 1) * size]


def save(node, job, rank, own):
	folder = node.mount / job / str(rank)
	folder.mkdir(exist_ok=True)
	save_tensors(folder / "model.safetensors", {"w.weight": ([ROWS // TP, COLUMNS], part(TP, rank % TP))})
	if own:
		save_tensors(folder / "optim.safetensors", {"m.state": ([1024], OWN[rank])})


def says(node, job, what):
	return [line.partition(": ")[2] for line in node.read(job, "status").splitlines() if line.startswith(what + ": ")]


def read(node, job, rank, file="model.safetensors"):
	"""The values of a rank's file."""
	try:
		data = (node.mount / job / str(rank) / file).read_bytes()
	except OSError as e:
		raise OSError(e.errno, f"{node.name}, rank {rank} of {job}: {node.read(job, 'error').strip()}") from None
	return data[8 + int.from_bytes(data[:8], "little"):]


def weights(nodes, job, tp, ranks):
	for n in nodes:
		for rank in range(ranks):
			if read(n, job, rank) != part(tp, rank % tp):
				sys.exit(f"{n.name} shows other bytes of rank {rank} of {job}")


def lose(gone, left):
	for n in gone:
		n.kill()
	for n in gone:
		shutil.rmtree(n.store)
	for n in left:
		n.wait(lambda: metric(n, "scalai_cluster_members") == len(left), 60, f"{len(gone)} nodes are gone")


def make(job, own):
	one = cluster.nodes[0]
	(one.mount / job).mkdir()
	one.must(job, "layout", "mesh tp dp\nw.weight tp=0\nm.state tp=0 dp=0\n")
	one.must(job, "config", "replicas=1")
	one.must(job, "topology", f"tp={TP} dp={NODES}")
	for i, n in enumerate(cluster.nodes):
		n.wait(lambda: (n.mount / job).is_dir() and n.read(job, "topology") == f"tp={TP} dp={NODES}\n", 60, "the topology is there")
		for rank in range(TP * i, TP * (i + 1)):
			save(n, job, rank, own)
	one.must(job, "commit", "step=1")


for n in cluster.nodes:
	n.start()
for n in cluster.nodes:
	n.wait(lambda: "is a member" in n.health(), 60, "it is a member")
make("gpt", False)
make("zero", True)
for job in "gpt", "zero":
	cluster.nodes[-1].must(job, "wait", "\n")
note(f"{NODES} nodes of {TP} ranks each, committed")

left, topology = list(cluster.nodes), NODES
for lost in LOST:
	gone = [n for n in left if n is not cluster.nodes[-1]][:lost - (NODES - len(left))]
	left = [n for n in left if n not in gone]
	lose(gone, left)
	first = time.monotonic()
	if says(left[0], "gpt", "lost"):
		sys.exit(f"replicas have all, and it is said: {says(left[0], 'gpt', 'lost')}")
	weights(left[-1:], "gpt", TP, TP * topology)
	read_s = time.monotonic() - first
	# training goes on with as many ranks as nodes are left
	topology = len(left)
	first = time.monotonic()
	left[0].must("gpt", "topology", f"tp={TP} dp={topology}")
	weights(left, "gpt", TP, TP * topology)
	all_s = time.monotonic() - first
	left[-1].must("gpt", "wait", "\n")
	note(f"{lost} of {NODES} nodes lost: all weights from replicas, read on one node in {read_s:.2f} s; "
	     f"tp={TP} dp={topology} read on all in {all_s:.2f} s, and stored so within {time.monotonic() - first:.1f} s")

# what nobody else had is lost, by name; what replicas have is there
one = left[0]
for n in left:
	n.wait(lambda: says(n, "zero", "lost"), 60, "what had no replica is lost")
print("figure:", says(one, "zero", "lost"), flush=True)
weights(left[-1:], "zero", TP, TP * NODES)
kept = {rank for rank in range(TP * NODES) if cluster.nodes[rank // TP] in left}
for rank in range(TP * NODES):
	try:
		data = read(one, "zero", rank, "optim.safetensors")
	except OSError as e:
		if e.errno != errno.EIO or rank in kept:
			sys.exit(f"rank {rank}: {e}: {one.read('zero', 'error')}")
		if f"node {rank // TP + 1}" not in one.read("zero", "error"):
			sys.exit(f"rank {rank} is lost, and the error does not name its node: {one.read('zero', 'error')}")
		continue
	if rank not in kept or data != OWN[rank]:
		sys.exit(f"rank {rank}: bytes that no node has were read, or wrong ones")
assert one.ctl("zero", "topology", f"tp={TP} dp={len(left)}") == os.strerror(errno.EIO), one.read("zero", "error")
assert one.ctl("zero", "wait", "\n") == os.strerror(errno.EIO), one.read("zero", "error")
for n in left:
	n.down()
	clean(n)
