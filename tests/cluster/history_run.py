# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY [NODES [CHANGES [SEED]]]: topologies and commits on each node in turn, under three who write and three who read
on each; what they saw is a history that holds (history.py).
"""
import errno
import pathlib
import random
import sys
import time

import history
import watchers
from kept import clean
from nodes import Cluster
from watchers import DEGREES, Watchers, look

work, binary = pathlib.Path(sys.argv[1]), sys.argv[2]
nr_nodes, changes, seed = (int(x) for x in (sys.argv[3:6] + ["3", "24", "1"][len(sys.argv) - 3:]))
rng = random.Random(seed)
cluster = Cluster(work, binary, nodes=nr_nodes)
nodes = cluster.nodes
for n in nodes:
	n.up()
watchers.make(cluster)
seen = Watchers(cluster, work / "history")
counts = dict.fromkeys(("commits", "topologies", "refused"), 0)
number, tp, left = 0, 2, []


def commit(node):
	"""All ranks are saved, each on some node, and committed on this one; again with other bytes if that is refused."""
	global number, left
	for _ in range(20):
		number += 1
		for rank in range(tp):
			seen.save(rng.choice(nodes), tp, rank, number)
		result, why = seen.command(node, "commit", "commit", f"step={number}", f"{tp}.{number}")
		if result == "ok":
			counts["commits"] += 1
			left = [d for d in DEGREES if d != tp]
			rng.shuffle(left)
			return
		counts["refused"] += 1
		if why not in (errno.EBUSY, errno.EAGAIN):
			sys.exit(f"a commit fails: {why}: {node.read('gpt', 'error')}")
		for n in nodes: # what one saved of this attempt another would save in the next
			n.must("gpt", "discard", "yes") if why == errno.EAGAIN else None
		time.sleep(0.1)
	sys.exit(f"no commit is taken: {node.read('gpt', 'error')}")


def topology(node):
	global tp
	to = left.pop()
	result, why = seen.command(node, "command", "topology", f"tp={to} plain=drop", f"{to}.{number}")
	if result == "ok":
		tp = to
		counts["topologies"] += 1
	elif why == errno.EBUSY:
		counts["refused"] += 1
	else:
		sys.exit(f"a topology fails: {why}: {node.read('gpt', 'error')}")


seen.hush()
commit(nodes[0])
turn = 0
while counts["commits"] + counts["topologies"] < changes:
	seen.go_on()
	time.sleep(0.1 + rng.random() * 0.2)
	topology(nodes[turn % nr_nodes])  # what is written is in its way
	seen.hush()
	commit(nodes[turn % nr_nodes])
	for _ in range(rng.randrange(2, 7)):
		turn += 1
		topology(nodes[turn % nr_nodes])
commit(nodes[0])
seen.end()
for n in nodes:
	if look(n.mount)[2] != f"{tp}.{number}":
		sys.exit(f"{n.name} shows {look(n.mount)[2]} at the end, not {tp}.{number}")
seen.versions(nodes)
lines = [line for f in seen.files() for line in open(f)]
broken = history.check(lines)
if broken:
	sys.exit("\n".join(broken[:20]))
for n in nodes:
	n.down()
	clean(n)
kinds = [line.split("\t")[0] for line in lines]
print(", ".join(f"{v} {k}" for k, v in counts.items()), f"on {nr_nodes} nodes;",
      ", ".join(f"{kinds.count(k)} {k}s" for k in ("open", "write", "read")), "seen: the history holds")
