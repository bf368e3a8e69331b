# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: a node hears nothing more at the moment in which it commits, and another node's version comes after its own before
it hears again.  Its command ends then, and says that it was done.  BINARY is the program that stops at steps
(tests/support/stop_at_steps.c).
"""
import sys
import time

import watchers
from nodes import Cluster
from waits import Thread, until

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=3, ttl_ms=5000, fresh_ms=1200)
one, two, three = cluster.nodes
step = three.own / "cluster.commit"
for n in cluster.nodes:
	n.up()
watchers.make(cluster)


def head(node):
	return next(line.split()[1] for line in node.read("gpt", "status").splitlines() if line.startswith("version: "))


def heads():
	return [line for line in cluster.values("all/jobs/") if "/head " in line]


for rank in range(2):
	watchers.save(two, 2, rank, 1)
two.must("gpt", "commit", "step=1")
three.wait(lambda: head(three) == "1", 30, "it has version 1")

said, was = [], heads()
command = Thread(target=lambda: said.append(three.ctl("gpt", "topology", "tp=3")), daemon=True)
step.touch()
command.start()
until("the command comes to its transaction", step.with_name("cluster.commit.at").exists)
three.slow()
step.unlink()
until("etcd has the version", lambda: heads() != was)
three.deaf()
two.wait(lambda: head(two) == "2", 30, "others have the version")
two.must("gpt", "topology", "tp=5")
three.deaf(False)
began = time.monotonic()
try:
	command.join(30)
except SystemExit as e:
	sys.exit(f"the command does not end: {e}\n{three.health()}")
if said[0]:
	sys.exit(f"the command failed ({said[0]}), and its version is there: {three.read('gpt', 'error')}")
print(f"figure: the command ended {time.monotonic() - began:.1f} s after its node heard again")
three.wait(lambda: head(three) == "3", 30, "it has the later version")
three.must("gpt", "topology", "tp=4")  # and takes commands of the job again
for n in cluster.nodes:
	n.wait(lambda: head(n) == "4", 30, "all have what it did then")
for n in cluster.nodes:
	n.down()
