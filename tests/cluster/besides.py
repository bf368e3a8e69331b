# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY [RACES]: two nodes write a topology at the same time; all nodes are killed at once and start again; etcd forgets
changes that a watch has not seen.  What was seen is a history that holds.
"""
import pathlib
import random
import sys

import history
import watchers
from kept import clean
from nodes import Cluster
from waits import Thread
from watchers import DEGREES, Watchers, look

work, binary = pathlib.Path(sys.argv[1]), sys.argv[2]
races = int(sys.argv[3] or 20) if len(sys.argv) > 3 else 20
rng = random.Random(3)
cluster = Cluster(work, binary)
nodes = cluster.nodes
for n in nodes:
	n.up()
watchers.make(cluster)
seen = Watchers(cluster, work / "history", readers=1, writers=0)
number, left = 0, []
counts = {"ok": 0, "failed": 0}


def shown():
	return [look(n.mount)[2] for n in nodes]


def fresh_bytes():
	"""A commit: from then on each degree is another content again."""
	global number, left
	number += 1
	tp = int(shown()[0].split(".")[0]) if number > 1 else 2
	for rank in range(tp):
		seen.save(nodes[rank % 3], tp, rank, number)
	if seen.command(nodes[0], "commit", "commit", f"step={number}", f"{tp}.{number}")[0] != "ok":
		sys.exit(f"commit: {nodes[0].read('gpt', 'error')}")
	left = [d for d in DEGREES if d != tp]
	rng.shuffle(left)


def propose(node, tp):
	counts[seen.command(node, "command", "topology", f"tp={tp} plain=drop", f"{tp}.{number}")[0]] += 1


def all_show(what, why):
	for n in nodes:
		n.wait(lambda: look(n.mount)[2] == what, 30, why)


fresh_bytes()
for _ in range(races):
	if len(left) < 2:
		fresh_bytes()
	both = [Thread(target=propose, args=(n, left.pop())) for n in rng.sample(nodes, 2)]
	for t in both:
		t.start()
	for t in both:
		t.join()
	if len(set(shown())) != 1:
		sys.exit(f"nodes show {shown()} after two have written a topology")
if counts["ok"] < races:
	sys.exit(f"of {races} pairs, each with one that is in time at least, {counts} were taken")

fresh_bytes()
was = shown()[0]
for n in nodes:
	n.daemon.kill()
for n in nodes:
	n.kill()
starts = [Thread(target=n.up) for n in nodes]
for t in starts:
	t.start()
for t in starts:
	t.join()
all_show(was, "what was committed before all were killed is shown")

# what a node has that is cut off is on another one, too
nodes[0].must("gpt", "config", "replicas=2")
nodes[0].must("gpt", "wait", "\n")
nodes[2].cut()
was = f"{left[-2]}.{number}"
propose(nodes[0], left.pop())
propose(nodes[1], left.pop())  # rank 0 may be on the node that is away
revision = cluster.post("/v3/kv/range", {"key": "YQ=="})["header"]["revision"]
if cluster.post("/v3/kv/compaction", {"revision": revision, "physical": True}) is None:
	sys.exit("etcd does not compact")
nodes[2].cut(False)
nodes[2].wait(lambda: "is a member\n" in nodes[2].health(), 30, "it is a member again")
all_show(was, "what etcd's history does not tell any more is shown")
fresh_bytes()

seen.end()
seen.versions(nodes[:1])
broken = history.check([line for f in seen.files() for line in open(f)])
if broken:
	sys.exit("\n".join(broken[:20]))
for n in nodes:
	n.down()
	clean(n)
print(f"{races} times two topologies at once: {counts}; all nodes killed at once; a watch behind what etcd has: the history holds")
