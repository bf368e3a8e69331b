# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: nodes in two domains, replicas=2: each file's bytes are in both, so all nodes of one may be lost; a node moves to
the other one, and so they are again.
"""
import shutil
import sys
import time

from kept import check, clean, make, protected, save
from nodes import Cluster
from late import late

RANKS = 8
work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=5, ttl_ms=2500, fresh_ms=800)
*nodes, five = cluster.nodes
one, two, three, four = nodes


def commit(by, seed):
	for rank in range(RANKS):
		save(by[rank % len(by)], RANKS, rank, seed)
	by[0].must("gpt", "commit", f"step={seed}")


def states(node):
	"""Of those that are not away."""
	lines = (line.split(maxsplit=3) for line in (node.mount / ".ctl/nodes").read_text().splitlines())
	return {line[1]: line[3] for line in lines if not line[3].startswith("away")}


def lose(gone, left, seed):
	"""All nodes of a domain are lost at once, and no byte."""
	for n in gone:
		n.kill()
		shutil.rmtree(n.store)
	names = {n.name for n in left}
	for n in left:
		for rank in range(RANKS):
			check(n, RANKS, rank, seed, f"rank {rank} seed {seed}\n")
		n.wait(lambda: set(states(n)) == names, 30, f"only {names} are left: {states(n)}")
		n.wait(lambda: protected(n), 40, "it is protected as far as nodes are left")


one.domain = two.domain = "left"
three.domain = four.domain = "right"
for n in nodes:
	n.up()
assert all(n.was_member for n in nodes), "a node is mounted before it is a member"
four.wait(lambda: states(four).get("n1") == "member, domain=left", 30, "it knows the first node's domain")
make(type("Four", (), {"nodes": nodes}), RANKS)
one.must("gpt", "config", "replicas=2 keep=2")
commit([one, two], 1)
commit([one, two], 2)
for n in nodes:
	n.wait(lambda: protected(n), 40, "all files are in both domains")

# one moves from the right to the left: what only it had on the right goes to the other one there
three.down()
began = time.monotonic()
commit([one, two], 2)  # who is unmounted is not waited for: a registration lasts 2.5 s
took = time.monotonic() - began
late("a commit after a node was unmounted", f"{took:.2f} s", "1.2 s")
assert "\n3 n3 - away" in (one.mount / ".ctl/nodes").read_text(), (one.mount / ".ctl/nodes").read_text()
three.domain = "left"
three.up()
four.wait(lambda: states(four)["n3"] == "member, domain=left", 30, f"it has moved: {states(four)}")
for n in nodes:
	n.wait(lambda: protected(n), 40, "all files are in both domains again")
lose([one, two, three], [four], 2)

# a node of no domain is one of its own
five.up()
five.wait(lambda: (five.mount / "gpt").is_dir() and protected(five), 40, "it has copies")
lose([four], [five], 2)
five.down()
clean(five)
