# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: a job that was just made is another node's, too, before its own node has heard of it from etcd: the watch of that one
is cut off, etcd has forgotten what came meanwhile, and it reads all that there is.  Each time the node knows it for its own.
"""
import os
import sys

from between import Relay
from nodes import Cluster

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=2, ttl_ms=5000, fresh_ms=1500)
one, two = cluster.nodes
relay = Relay(cluster)
two.up()
relay.up(one)


def jobs(node):
	return sorted(name for name in os.listdir(node.mount) if name != ".ctl")


def forget():
	"""etcd has no changes any more, only what there is."""
	key = {"key": "AA=="}
	revision = cluster.post("/v3/kv/range", key)["header"]["revision"]
	assert cluster.post("/v3/kv/compaction", {"revision": revision}) is not None


def works(node, job):
	node.must(job, "layout", "mesh tp dp\n*:* copy\n")
	node.must(job, "topology", "tp=1")
	(node.mount / job / "0/notes").write_text(job)
	node.must(job, "commit", "step=1")
	for n in cluster.nodes:
		n.wait(lambda: (n.mount / job / "0/notes").read_text() == job, 30, f"{n.name} has what was committed")


for what in "renamed", "removed", "replaced":
	relay.watched(False)
	(one.mount / what).mkdir()
	two.wait(lambda: what in jobs(two), 30, "the other node has it")
	if what == "removed":  # which waits for all members
		one.stop()
		two.wait(lambda: "away" in (two.mount / ".ctl/nodes").read_text(), 30, "its registration has ended")
		os.rmdir(two.mount / what)
	else:
		os.rename(two.mount / what, two.mount / f"{what}-1")
	if what == "replaced":  # its name is another job's
		(two.mount / what).mkdir()
	forget()
	relay.watched(True)
	one.stop(False)
	one.wait(lambda: jobs(one) == jobs(two), 30, "the node that made it has the jobs of all")
	if what != "removed":
		works(one, f"{what}-1")
	(two.mount / what).mkdir(exist_ok=True)
	one.wait(lambda: jobs(one) == jobs(two), 30, "and another one of that name")
	works(one, what)
	print(what, "passed", flush=True)
assert not [job for job in jobs(one) if ".removed" in job], jobs(one)
for n in cluster.nodes:
	n.down()
	report = os.popen(f"{binary} fsck {n.store} 2>&1").read().strip()
	if " 0 problems" not in report:
		sys.exit(f"{n.name}: {report}\n{n.log.read_text()[-3000:]}")
