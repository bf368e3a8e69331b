# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: each node makes the files of the ranks that it keeps its own, and reads them when all others are away: after
a topology, after a commit of another node, and after a restart.
"""
import os
import sys

from kept import COLUMNS, ROWS, check, clean, home, make, pulled, save
from nodes import Cluster

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary)
one, two, three = cluster.nodes
for n in cluster.nodes:
	n.up()
make(cluster)
save(one, 2, 0, 1)
save(two, 2, 1, 1)
two.must("gpt", "commit", "step=1")
print("after the commit:", {n.name: home(n, 1) for n in cluster.nodes})
assert home(one, 1)[0] == 1 and home(two, 1)[0] == 1 and home(three, 1)[0] == 0

# a topology: nodes one and two keep the ranks that they wrote, the third those that it is told to
assert three.ctl("gpt", "config", "home=3-2") and three.ctl("gpt", "config", "home=1,") and three.ctl("gpt", "config", "home=x")
three.must("gpt", "config", "home=2-3")
home(three, 1)
before = pulled(three)
three.must("gpt", "topology", "tp=4 plain=drop")
assert home(three, 2)[0] == 2 and home(one, 2)[0] == 1 and home(two, 2)[0] == 1
part = ROWS // 4 * COLUMNS * 4
moved = pulled(three) - before
print(f"figure: node 3 keeps 2 ranks of {part} bytes and has pulled {moved} bytes of the two")
assert moved <= 2 * part + 2 * 65536, moved
for rank in (2, 3):
	check(three, 4, rank, 1)
assert pulled(three) == before + moved, "a rank that is kept was pulled again"

# the others are away; and the daemon is another
one.kill()
two.kill()
for again in (False, True):
	if again:
		three.kill()
		three.up()
		assert home(three, 2)[0] == 2
	for rank in (2, 3):
		check(three, 4, rank, 1)
try:
	check(three, 4, 0, 1)
	sys.exit("rank 0 was read, whose bytes are away")
except OSError as e:
	print(f"a rank that is not kept here: {os.strerror(e.errno)}")
assert pulled(three) == 0, pulled(three)
for n in (one, two):
	n.up()

# a commit of another node: what the third keeps of it is copied
for rank in range(4):
	save(one, 4, rank, 2)
one.must("gpt", "commit", "step=2")
assert home(three, 3)[0] == 2 and home(one, 3)[0] == 4 and home(two, 3)[0] == 0
one.kill()
for again in (False, True):
	if again:
		three.kill()
		three.up()
		home(three, 3)
	for rank in (2, 3):
		check(three, 4, rank, 2, f"rank {rank} seed 2\n")
one.up()

# what is kept no more goes, and back to what is stored needs no copies of it
three.must("gpt", "config", "home=none")
assert home(three, 3)[0] == 0
one.must("gpt", "topology", "tp=2 plain=drop")
assert home(one, 4)[0] == 2

# how much of it there is to fetch, while the node that has it does not answer
one.stop()
three.must("gpt", "config", "home=0-1")
told = {}
while not told.get("bytes_total"):
	told = dict(line.split(": ", 1) for line in three.read("gpt", "status").splitlines() if ": " in line)
print("while it waits:", {key: told.get(key) for key in ("progress", "bytes_done", "bytes_total")})
assert told["progress"] == "materializing version 4" and int(told["bytes_total"]) == ROWS * COLUMNS * 4, told
assert int(told["bytes_done"]) < int(told["bytes_total"])
one.stop(False)
three.wait(lambda: home(three, 4)[0] == 2, 60, "its ranks are here")
for n in cluster.nodes:
	for rank in range(2):
		check(n, 2, rank, 2)
for n in cluster.nodes:
	n.down()
	clean(n)
