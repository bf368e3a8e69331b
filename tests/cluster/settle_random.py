# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY [SEED [TURNS]]: topologies, commits, rollbacks, other homes, and nodes that are killed meanwhile: each node
shows the bytes of the version that counts, whatever it is stored in, and no store lacks anything at the end.
"""
import os
import random
import sys
import time

from kept import check, clean, make, save
from nodes import Cluster
from waits import Thread

work, binary = sys.argv[1:3]
seed = int(sys.argv[3]) if len(sys.argv) > 3 else 5
turns = int(sys.argv[4]) if len(sys.argv) > 4 else 25
rng = random.Random(seed)
cluster = Cluster(work, binary)
nodes = cluster.nodes
counts = dict.fromkeys(("topologies", "commits", "rollbacks", "kills", "refused", "settled", "ranks compared"), 0)
for n in nodes:
	n.up()
make(cluster)
save(nodes[0], 2, 0, 1)
save(nodes[1], 2, 1, 1)
nodes[1].must("gpt", "commit", "step=1")
shown = {1: (2, 1)}		# version: tp, seed
newest = 1


def status(node):
	text = node.read("gpt", "status")
	return int(text.split("\nversion: ")[1].split("\n")[0]), "\nstate: materialized\n" in text


def spread():
	"""Homes of all ranks of a topology, or not of all."""
	split = sorted(rng.choices(range(9), k=2))
	for n, (a, b) in zip(nodes, ((0, split[0]), (split[0], split[1]), (split[1], 8 if rng.random() < 0.8 else split[1]))):
		n.must("gpt", "config", f"home={a}-{b - 1}" if b > a else "home=none")


def compare(when):
	tp, its = shown[newest]
	for n in nodes:
		try:
			n.wait(lambda: status(n)[0] == newest, 30, f"{when}: it has version {newest}")
		except SystemExit as e:
			sys.exit("\n".join([str(e)] + [m.name + m.health() + m.read("gpt", "status") for m in nodes]))
		for rank in range(tp):
			check(n, tp, rank, its)
			counts["ranks compared"] += 1


def do(what, node):
	"""Returns what the next version shows, and a command."""
	tp, its = shown[newest]
	if what == "topologies":
		tp = rng.choice([x for x in (1, 2, 4, 8) if x != tp])
		return (tp, its), ("topology", f"tp={tp} plain=drop")
	if what == "rollbacks":
		to = rng.choice(list(shown))
		return shown[to], ("rollback", str(to))
	for rank in range(tp):
		writers.append(rng.choice(nodes))
		save(writers[-1], tp, rank, newest + 100)
	return (tp, newest + 100), ("commit", f"step={newest + 1}")


for turn in range(turns):
	if rng.random() < 0.4:
		spread()
	print(turn, end=" ", flush=True)
	what, node = rng.choice(["topologies", "topologies", "topologies", "commits", "rollbacks"]), rng.choice(nodes)
	writers = []
	then, command = do(what, node)
	# without a node that has written ranks a commit would be another one
	victim = rng.choice(nodes) if rng.random() < 0.35 else None
	victim = None if victim in writers else victim
	killer = None
	if victim:
		def kill(delay=rng.random() * 0.5):
			time.sleep(delay)
			victim.kill()
		killer = Thread(target=kill)
		killer.start()
		counts["kills"] += 1
	try:
		why = node.ctl("gpt", *command)
	except OSError as e:
		why = str(e)
	if killer:
		killer.join()
		victim.up()
	for n in nodes:
		if why and what == "commits" and n.ctl("gpt", "discard", "yes"):
			n.wait(lambda: not n.ctl("gpt", "discard", "yes"), 30, "discard")
	if not why and not victim:
		newest += 1
		shown[newest] = then
	else: # a version or none
		time.sleep(0.2)
		for n in nodes:
			n.wait(lambda: n.health() and os.path.exists(n.mount / "gpt/0"), 30, "the job is shown")
		last = max(status(n)[0] for n in nodes)
		if last > newest:
			newest += 1
			shown[newest] = then
		else:
			counts["refused"] += 1
	counts[what] += 1
	compare(f"turn {turn}: {what}, {command}")
	if rng.random() < 0.3:
		time.sleep(1)
	counts["settled"] += all(status(n)[1] for n in nodes)
for n in nodes:
	n.down()
for n in nodes:
	clean(n)
print(", ".join(f"{v} {k}" for k, v in counts.items()))
