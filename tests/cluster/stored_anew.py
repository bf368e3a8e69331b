# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: what nodes keep of a version becomes its storage at the moment in which another version is committed over it.  The
commit is made of the new storage, and nobody is told to try again.  BINARY is the program that stops at steps
(tests/support/stop_at_steps.c).
"""
import sys

from between import Relay
from kept import check, clean, make, metric, save
from nodes import Cluster
from waits import Thread, until

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=2, ttl_ms=10000)
one, two = cluster.nodes
relay = Relay(cluster)
one.up()
relay.up(two)


def storage(version):
	return [line for line in cluster.values("all/jobs/") if f"/store/{version} " in line]


def stops(step, node):
	at = node.own / f"cluster.{step}"
	at.touch()
	return at


make(cluster)
one.must("gpt", "config", "home=0-1")
two.must("gpt", "config", "home=2-3")
for rank in range(2):
	save(one, 2, rank, 1)
one.must("gpt", "commit", "step=1")

ready, commits = stops("ready", one), stops("commit", two)
one.must("gpt", "topology", "tp=4 plain=drop")
until("a node has what it keeps", ready.with_name("cluster.ready.at").exists)
for rank in range(2):  # ranks 2 and 3 stay as the version below has them
	save(one, 4, rank, 2)

said, was = [], storage(2)
command = Thread(target=lambda: said.append(two.ctl("gpt", "commit", "step=2 kept=yes")), daemon=True)
command.start()
until("the commit comes to its transaction", commits.with_name("cluster.commit.at").exists)
relay.watched(False)  # its transaction leaves before it knows
ready.unlink()
until("version 2 is stored anew", lambda: storage(2) != was)
commits.unlink()
asked = metric(two, "scalai_etcd_requests_total")
two.wait(lambda: metric(two, "scalai_etcd_requests_total") > asked + 4, 30, "etcd has answered, and has refused its transaction")
relay.watched(True)
command.join(60)
if said[0]:
	sys.exit(f"the commit failed ({said[0]}): {two.read('gpt', 'error')}")
for n in cluster.nodes:
	n.wait(lambda: "\nversion: 3\n" in n.read("gpt", "status"), 30, "it shows the commit")
	for rank in range(4):
		check(n, 4, rank, 2 if rank < 2 else 1)
for n in cluster.nodes:
	n.down()
	clean(n)
