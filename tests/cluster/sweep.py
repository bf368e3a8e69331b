# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: what dropped versions have put into etcd goes, and nothing else does: a node that comes then has all versions
and bytes.  What a node that is away may have to know stays until it is back.
"""
import os
import random
import sys

from kept import check, clean, make, metric, save
from nodes import Cluster

try:
	import torch
except ImportError:
	torch = None
	print("SKIPPED in part: no torch: payloads of .pt files are not made", flush=True)

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=4, ttl_ms=2000, fresh_ms=800)
one, two, three, four = cluster.nodes
members = [one, two, three]
KEEP = 2
CHAIN = 18  # trees that the newest version may be made of, and some


def state(seed):
	"""What is no tensor is an object of its own: another one for each seed."""
	return {"model": {"b": torch.arange(16.0) + seed}, "step": seed, "random": list(random.Random(seed).randbytes(2000))}


def write(nodes, seed, payload):
	for rank in range(2):
		node = nodes[rank % len(nodes)]
		save(node, 2, rank, seed)
		if torch:
			torch.save(state(payload), node.mount / f"gpt/{rank}/state.pt")


def commit(nodes, by, seed, payload=None):
	write(nodes, seed, seed if payload is None else payload)
	by.must("gpt", "commit", f"step={seed}")


def right(node, seed, payload=None):
	for rank in range(2):
		check(node, 2, rank, seed, f"rank {rank} seed {seed}\n")
		if torch:
			got = torch.load(node.mount / f"gpt/{rank}/state.pt")
			want = state(seed if payload is None else payload)
			assert torch.equal(got.pop("model")["b"], want.pop("model")["b"]) and got == want, f"{node.name}: state.pt of {seed}"


def keys(prefix):
	return [line.split(" ", 1)[0] for line in cluster.values(prefix)]


def records():
	return sorted(int(k.rsplit("/", 1)[1]) for k in keys("v/"))


def objects():
	return len(keys("obj/"))


def swept(nodes, versions):
	"""Waits until etcd has records of just these versions."""
	try:
		nodes[0].wait(lambda: records() == versions, 90, f"etcd has records of {versions}")
	except SystemExit as e:
		sys.exit(f"{e}: {records()}")


for n in members:
	n.up()
make(type("Three", (), {"nodes": members}))
one.must("gpt", "config", f"keep={KEEP} replicas=2")
for seed in range(1, 5):
	commit([one, two], members[seed % 3], seed)
swept(members, [3, 4])
few = objects()
for seed in range(5, 17):
	commit([one, two], members[seed % 3], seed)
swept(members, [15, 16])
one.wait(lambda: objects() <= few + CHAIN, 60, f"etcd, which had {few} objects after 4 versions, has a few more after 16, of which {KEEP} are kept")

# topologies: what versions were stored in goes, too
for n, home in zip(members, ("0,3", "1", "2")):
	n.must("gpt", "config", f"home={home}")
for tp in (4, 2, 4, 2):
	one.must("gpt", "topology", f"tp={tp} plain=drop")
	for n in members:
		n.wait(lambda: "\nstate: materialized\n" in n.read("gpt", "status"), 30, "it is stored as it is shown")
swept(members, [19, 20])
one.wait(lambda: objects() <= few + CHAIN, 60, f"storages that versions had are gone: {objects()} objects, {few} at first")

# the same payload as a version had that is gone: it is there again
commit([one, two], three, 21, payload=3)
commit([one, two], two, 22)
swept(members, [21, 22])
commit([one, two], one, 23, payload=3)
right(three, 23, 3)

# who comes now has all that there is
four.up()
four.wait(lambda: sorted(os.listdir(four.mount / "gpt/.v"), key=int) == ["22", "23"], 30, "it has all versions")
right(four, 23, 3)
assert (four.mount / "gpt/.v/22/0/model.safetensors").read_bytes().endswith((one.mount / "gpt/.v/22/0/model.safetensors").read_bytes())
one.must("gpt", "rollback", "22")
four.wait(lambda: "\nversion: 24\n" in four.read("gpt", "status"), 30, "it shows the newest version")
right(four, 22)

# a node is killed as its files are committed, and away until that version is dropped: its record stays
swept(members, [23, 24])
commit([one, two], three, 25)
two.kill()
for seed in range(26, 30):
	commit([one], three, seed)
swept([one], [23, 25, 28, 29])  # it may have been away since then
was = metric(one, "scalai_swept_objects_total")
two.up()
two.wait(lambda: "\nstep: 29\n" in two.read("gpt", "status"), 30, "it shows the newest version")
swept(members, [28, 29])
assert was > 0
one.wait(lambda: metric(one, "scalai_swept_objects_total") > was, 30, "it has removed objects, and no other node")
for n in cluster.nodes:
	right(n, 29)
for n in cluster.nodes:
	n.down()
	clean(n)
