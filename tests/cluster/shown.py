# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY [CHANGES]: how long a change takes from when all nodes have prepared it until write(2) returns, as all show it
then: with all nodes well, and with one that is stopped when it has prepared.  100 of each, on each node in turn; F is 1 s.
BINARY is the program that stops at steps (tests/support/stop_at_steps.c).
"""
import os
import pathlib
import statistics
import sys
import time

import watchers
from kept import clean
from nodes import Cluster
from late import late
from waits import Thread
from watchers import content, save

work, binary = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
changes = int(sys.argv[3]) if len(sys.argv) > 3 else 100
cluster = Cluster(work, binary, ttl_ms=10000, fresh_ms=1000)
nodes = cluster.nodes
for n in nodes:
	n.up()
watchers.make(cluster)
for rank in range(2):
	save(nodes[0], 2, rank, 1)
nodes[0].must("gpt", "commit", "step=1")
nodes[0].must("gpt", "config", "keep=4")


def shows(node, tp):
	data = (node.mount / "gpt/0/model.safetensors").read_bytes()
	if content(data) != f"{tp}.1":
		sys.exit(f"{node.name} shows {content(data)} after the change to tp={tp}")


def change(node, tp, stopped=None):
	"""Milliseconds from the commit to the return."""
	step = node.own / "cluster.commit"
	at, took = pathlib.Path(f"{step}.at"), []

	def write():
		fd = os.open(node.mount / "gpt/.ctl/topology", os.O_WRONLY)
		os.write(fd, f"tp={tp}".encode())
		took.append(time.monotonic())
		os.close(fd)

	step.touch()
	thread = Thread(target=write)
	thread.start()
	end = time.monotonic() + 60
	while not at.exists():
		if time.monotonic() > end or not thread.is_alive():
			sys.exit(f"{node.name} does not come to the commit: {node.read('gpt', 'error')}")
		time.sleep(0.001)
	if stopped:
		stopped.stop()
		while not all(t.joinpath("stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
			      for t in pathlib.Path(f"/proc/{stopped.daemon.pid}/task").iterdir()):
			time.sleep(0.001)
	at.unlink()
	began = time.monotonic()
	step.unlink()
	thread.join()
	for n in nodes:
		if n != stopped:
			shows(n, tp)
	if stopped:
		stopped.stop(False)
		stopped.wait(lambda: "is a member" in stopped.health(), 30, "it is a member again")
		shows(stopped, tp)
	if not took:
		sys.exit(f"{node.name}: a topology fails: {node.read('gpt', 'error')}")
	return (took[0] - began) * 1000


def said(values):
	ordered = sorted(values)
	return (f"median {statistics.median(ordered):.1f} ms, {ordered[0]:.1f} to {ordered[-1]:.1f}; the longest "
		+ ", ".join(f"{t:.0f}" for t in ordered[-5:]))


well, away = [], []
for i in range(changes):
	well.append(change(nodes[i % 3], 1 + i % 2))
for i in range(changes):
	away.append(change(nodes[i % 3], 1 + i % 2, nodes[(i + 1 + i // 3 % 2) % 3]))
print(f"{changes} topologies, all nodes well, from the last that has prepared to the return: {said(well)}")
print(f"{changes} topologies, one node stopped after it has prepared:                       {said(away)}")
for n in nodes:
	n.down()
	clean(n)
late("a topology, from the last that has prepared to the return, in the median", f"{statistics.median(well):.0f} ms", "50 ms")
late("a topology with a node that is stopped, at most", f"{max(away):.0f} ms", "1100 ms")
