# SPDX-License-Identifier: Apache-2.0
"""Between nodes of a cluster and their etcd, in the namespace of the hub: tests/cluster/relay.py."""
import atexit
import pathlib
import subprocess
import sys

from nodes import NET, inside
from waits import until


class Relay:
	def __init__(self, cluster):
		self.cluster, self.folder, here = cluster, cluster.work / "relay", f"{NET}.254:2400"
		self.url = f"http://{here}"
		self.folder.mkdir()
		program = pathlib.Path(__file__).with_name("relay.py")
		process = subprocess.Popen([*inside(cluster.hub), sys.executable, program, here, f"{NET}.254:2379", self.folder])
		atexit.register(process.kill)
		until("the relay listens", (self.folder / "listens").exists)

	def up(self, node):
		"""Mounts a node that has etcd by the relay alone."""
		urls, self.cluster.urls = self.cluster.urls, [self.url]
		node.up()
		self.cluster.urls = urls

	def watched(self, on):
		"""Lets watches through, or closes them and lets none through."""
		if on:
			(self.folder / "watches").unlink()
			return
		(self.folder / "watches.closed").unlink(missing_ok=True)
		(self.folder / "watches").touch()
		until("the watch is closed", (self.folder / "watches.closed").exists, 90)

	def slow(self, on):
		"""Hands all on late, or at once."""
		(self.folder / "slow").touch() if on else (self.folder / "slow").unlink()

	def lose(self, how, keys, count=1):
		"""Of the next transactions that change such keys, the answer, or the request: relay.py says how."""
		for name in ("lost", "held"):
			(self.folder / name).unlink(missing_ok=True)
		(self.folder / "lose.new").write_text(f"{how} {count} {keys}\n")
		(self.folder / "lose.new").rename(self.folder / "lose")

	def lost(self):
		"""What was lost; no more is."""
		(self.folder / "lose").unlink(missing_ok=True)
		return (self.folder / "lost").read_text().splitlines() if (self.folder / "lost").exists() else []

	def let_go(self):
		"""Etcd hears of what was held, and has done or refused it."""
		(self.folder / "held").unlink()
		until("etcd has heard of it", lambda: any(line.startswith("late:") for line in (self.folder / "lost").read_text().splitlines()))
