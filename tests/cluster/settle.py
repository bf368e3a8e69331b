# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: what nodes keep of a topology becomes its storage when all ranks are kept; a node is killed before that, and
another time after it, before it knows; rollbacks, and topologies over what was stored anew.
"""
import sys

from kept import check, clean, home, keep, make, pulled, save, settled
from nodes import Cluster

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary)
one, two, three = cluster.nodes
for n in cluster.nodes:
	n.up()


def check_all(tp, seed, nodes=cluster.nodes):
	for n in nodes:
		for rank in range(tp):
			check(n, tp, rank, seed)


def homes(*ranks):
	for n, r in zip(cluster.nodes, ranks):
		n.must("gpt", "config", f"home={r}")


make(cluster)
save(one, 2, 0, 1)
save(two, 2, 1, 1)
two.must("gpt", "commit", "step=1")
homes("0", "1", "2-3")
three.must("gpt", "topology", "tp=4 plain=drop")
for n in cluster.nodes:
	settled(n, 2)
check_all(4, 1)

# not all ranks are kept: the storage stays; then they are
homes("0-1", "2-3", "none")
one.must("gpt", "topology", "tp=8 plain=drop")
for n in cluster.nodes:
	home(n, 3)
check_all(8, 1)
assert "\nstate: view\n" in two.read("gpt", "status")

# a node is killed when it is ready, and before the last one is: it has its files when it is back, and they become the storage
three.must("gpt", "config", "materialize=lazy home=4-7")
for n in (one, two):
	n.wait(lambda: "materialize=lazy\n" in n.read("gpt", "config"), 30, "it is lazy")
two.must("gpt", "topology", "tp=4 plain=drop")
two.must("gpt", "topology", "tp=8 plain=drop")
keep(one, 5)
keep(two, 5)
one.kill()
one.up()
keep(one, 5)
home(one, 5)
assert pulled(one) == 0, f"what it had kept was pulled again: {pulled(one)}"
assert "\nstate: view\n" in one.read("gpt", "status")
keep(three, 5)
for n in cluster.nodes:
	settled(n, 5)
check_all(8, 1)

# its storage is elsewhere than it was: of a topology that two nodes keep, the third has nothing
two.kill()
for rank in (0, 1):
	check(one, 8, rank, 1)
for rank in (4, 5, 6, 7):
	check(three, 8, rank, 1)
two.up()

# a node is stopped when it is ready, and dies when the others have stored what it keeps, before it knows
homes("0-1", "2", "3")
two.must("gpt", "topology", "tp=4 plain=drop")
keep(one, 6)
keep(two, 6)
one.stop()
keep(three, 6)
settled(three, 6)
one.kill()
for rank in range(4):
	save(two, 4, rank, 2)
two.must("gpt", "commit", "step=2")  # it waits until the registration has ended
one.up()
check_all(4, 2)
three.must("gpt", "rollback", "6")
check_all(4, 1)

# back to a version that is stored as it is shown, and a commit over one that is
one.must("gpt", "rollback", "1")
for n in cluster.nodes:
	settled(n, 9)
check_all(2, 1)
save(two, 2, 0, 3)
save(three, 2, 1, 3)
one.must("gpt", "commit", "step=3")
for n in cluster.nodes:
	settled(n, 10)
check_all(2, 3)
# commits over a storage that is still to be made, of which the new version has all, or some, of its tensors
one.must("gpt", "topology", "tp=4 plain=drop")
(two.mount / "gpt/2/notes.txt").write_text("no tensor\n")
two.must("gpt", "commit", "step=4")
for n in cluster.nodes:
	keep(n, 12)
for n in cluster.nodes:
	settled(n, 12)
check_all(4, 3)
one.must("gpt", "config", "home=0")
two.must("gpt", "config", "home=1")
three.must("gpt", "config", "home=none")
one.must("gpt", "topology", "tp=2 plain=drop")
save(three, 2, 1, 4)
three.must("gpt", "commit", "step=5 kept=yes")
for n in cluster.nodes:
	keep(n, 14)
for n in cluster.nodes:
	settled(n, 14)
	check(n, 2, 0, 3)
	check(n, 2, 1, 4)
# what nodes have said of older versions is gone; a list that was late is there until the next commit
for part, oldest in (("ready/", 14), ("kept/", 13)):
	said = [line.split()[0] for line in cluster.values(part)]
	assert all(int(key.split("/")[5]) >= oldest for key in said), f"etcd still has {said}"
for n in cluster.nodes:
	n.down()
	clean(n)
