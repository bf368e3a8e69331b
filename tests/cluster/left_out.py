# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: a node with uncommitted files is cut off when it has prepared another one's commit, and before it says so: that is made without it.
When it is back, nothing but a discard is in its way, and that ends: also if more versions have come, and after the node was killed.
BINARY is the program that stops at steps (tests/support/stop_at_steps.c).
"""
import sys

import watchers
from nodes import Cluster
from waits import Thread, until

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=3, ttl_ms=2000, fresh_ms=600)
one, two, three = cluster.nodes
step = three.own / "cluster.prepared"
for n in cluster.nodes:
	n.up()
watchers.make(cluster)


def head(node):
	return next(line.split()[1] for line in node.read("gpt", "status").splitlines() if line.startswith("version: "))


def discards(node):
	"""It ends, and the node has the newest version then."""
	node.wait(lambda: "discard them here" in node.read("gpt", "status"), 30, "it says what is in the way")
	said = []
	discard = Thread(target=lambda: said.append(node.ctl("gpt", "discard", "yes")), daemon=True)
	discard.start()
	try:
		discard.join(20)
	except SystemExit as e:
		sys.exit(f"the discard does not end: {e}\n{node.read('gpt', 'status')}")
	if said[0]:
		sys.exit(f"the discard fails: {said[0]}: {node.read('gpt', 'error')}")
	node.wait(lambda: head(node) == head(one), 30, "it has the newest version")


def commit_without_three(number):
	for rank in range(2):
		watchers.save(one, 2, rank, number)
	(three.mount / "gpt/notes.txt").write_text(f"{number}\n")
	said = []
	step.touch()
	commit = Thread(target=lambda: said.append(one.ctl("gpt", "commit", f"step={number}")), daemon=True)
	commit.start()
	until("it has prepared the commit, and has not said so", step.with_name("cluster.prepared.at").exists)
	three.cut()
	step.unlink()
	step.with_name("cluster.prepared.at").unlink()
	commit.join(30)
	if said[0]:
		sys.exit(f"the commit without it fails: {said[0]}: {one.read('gpt', 'error')}")


commit_without_three(1)
two.must("gpt", "topology", "tp=1")  # a later version comes, too
three.cut(False)
discards(three)
two.must("gpt", "topology", "tp=2")
commit_without_three(2)
three.kill()
three.cut(False)
three.up()
discards(three)
for n in cluster.nodes:
	n.must("gpt", "topology", f"tp={n.number + 1}")  # and it takes commands of the job again
for n in cluster.nodes:
	n.down()
