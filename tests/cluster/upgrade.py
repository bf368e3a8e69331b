# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: nodes whose programs speak other protocols.  They work together by what all speak; who does not speak it is not
taken; the number is changed when all members speak the new one, and who was away and does not learns it.  BINARY is the
program of tests/support/stop_at_steps.c, which speaks what it is told.
"""
import errno
import os
import sys
import time

from kept import check, clean, make, save
from nodes import Cluster
from late import late

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=4, ttl_ms=2500, fresh_ms=800, protocol=1)
one, two, three, four = cluster.nodes
seed = 0


def commit(by, nodes):
	"""Each of two nodes writes a rank; all show both."""
	global seed
	seed += 1
	for rank in range(2):
		save(by[rank], 2, rank, seed)
	by[0].must("gpt", "commit", f"step={seed}")
	for n in nodes:
		for rank in range(2):
			check(n, 2, rank, seed, f"rank {rank} seed {seed}\n")


def change(node, text):
	"""errno of writing the cluster's control file, 0: it was taken."""
	try:
		with open(node.mount / ".ctl/cluster", "w", buffering=1) as f:
			f.write(text)
	except OSError as e:
		return e.errno
	return 0


def removed():
	return [line for line in cluster.values("all/jobs/") if "/removed " in line]


def cluster_says(node):
	return dict(line.split(": ", 1) for line in (node.mount / ".ctl/cluster").read_text().splitlines())


def refused(node, why):
	"""Its mount ends with a sentence."""
	begins = node.log.stat().st_size if node.log.exists() else 0
	try:
		node.up()
	except SystemExit:
		text = node.log.read_text()[begins:]
		if why not in text:
			sys.exit(f"{node.name} is refused otherwise: {text}")
		return
	sys.exit(f"{node.name} is a member, and was to be refused: {why}")


one.protocols, two.protocols, three.protocols, four.protocols = "1", "1-2", "1-2", "2"
for n in (one, two, three):
	n.up()
make(type("Three", (), {"nodes": [one, two, three]}))
commit([one, two], [one, two, three])
commit([three, one], [one, two, three])

# what a program of before does not know stays in etcd as long as one may be a member: of a job that was removed
(two.mount / "short").mkdir()
os.rmdir(two.mount / "short")
two.wait(lambda: cluster_says(two)["protocol"] == "1" and cluster_says(two)["all_speak"] == "1 to 1", 30, "it knows what all speak")

# who does not speak it is not taken; what a member does not speak is not spoken
refused(four, "cluster 'test' speaks protocol 1, this program 2 to 2: use an older one")
assert change(two, "protocol=2\n") == errno.EBUSY
assert "node 'n1' (number 1) does not speak protocol 2" in two.log.read_text(), two.log.read_text()
for text in ("protocol=", "protocol=0", "protocol=256", "protocol=x", "2", "protocol=1 2"):
	assert change(two, text) == errno.EINVAL, text
assert change(two, "protocol=1") == 0 and cluster_says(three)["protocol"] == "1"

# one is away when it changes: until then nothing is swept
one.cut()
left = []
two.wait(lambda: left.append((removed(), cluster.values("all/ended"))) or change(two, "protocol=2") == 0, 30, "the cluster speaks 2 when the node that does not is no member")
assert len(left[-1][0]) == 1 and not left[-1][1], left[-1]
two.wait(lambda: not removed() and cluster.values("all/ended"), 60, "what is left of the job is swept")
for n in (two, three):
	n.wait(lambda: cluster_says(n)["protocol"] == "2", 30, "it knows the new number")
commit([two, three], [two, three])
four.up()
four.wait(lambda: (four.mount / "gpt").is_dir(), 30, "the job is there")
commit([four, two], [two, three, four])
four.wait(lambda: cluster_says(four)["all_speak"] == "2 to 2", 30, "it knows what all speak")
assert change(four, "protocol=1") == errno.EBUSY

# it is back, and takes no part: nothing old is shown, commands end, it can be unmounted
one.cut(False)
one.wait(lambda: "does not speak the cluster's protocol" in one.health(), 30, "it says why it is no member")
try:
	os.stat(one.mount / "gpt/0/model.safetensors")
	sys.exit("a node that does not speak the cluster's protocol shows a version")
except OSError as e:
	assert e.errno == errno.EHOSTDOWN, e
began = time.monotonic()
assert one.ctl("gpt", "topology", "tp=1") == os.strerror(errno.EHOSTDOWN)
late("a command on a node that is no member", f"{time.monotonic() - began:.1f} s", "3 s")
commit([three, four], [two, three, four])
one.down()
refused(one, "cluster 'test' speaks protocol 2, this program 1 to 1: use a newer one")

# with a newer program it is a node as before
one.protocols = "1-2"
one.up()
commit([one, four], [one, two, three, four])
two.must("gpt", "topology", "tp=4")
check(one, 4, 3, seed)
for n in cluster.nodes:
	n.down()
	clean(n)
