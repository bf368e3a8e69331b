# SPDX-License-Identifier: Apache-2.0
"""A mount for scripts that need a GPU."""
import os
import pathlib
import subprocess
import sys
import time


class Mount:
	def __init__(self, a, work, options):
		self.at, self.scalai = work / "mnt", a.scalai
		self.at.mkdir(exist_ok=True)
		self.log = open(work / "log", "w+")
		self.daemon = subprocess.Popen([a.scalai, "mount", "-f", "-o", f"gpu={a.helper},{options}", work / "store", self.at],
					       stdout=self.log, stderr=self.log)
		until = time.monotonic() + 30
		while not (self.at / ".ctl/health").exists():
			if self.daemon.poll() is not None or time.monotonic() > until:
				sys.exit(f"no mount: {(work / 'log').read_text()}")
			time.sleep(0.05)

	def run(self, *words):
		env = {**os.environ, "SCALAI_MOUNT": str(self.at)}
		subprocess.run([self.scalai, *map(str, words)], env=env, check=True, stdout=subprocess.DEVNULL)

	def helpers(self):
		"""The daemon's children: it starts nothing else."""
		found = []
		for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
			try:
				parent = stat.read_text().rpartition(")")[2].split()[1]
			except OSError:
				continue # it has ended
			if int(parent) == self.daemon.pid:
				found.append(int(stat.parent.name))
		return found

	def __enter__(self):
		return self

	def __exit__(self, kind, *unused):
		try:
			self.run("umount", self.at)
		finally:
			if self.daemon.poll() is None and kind:
				self.daemon.terminate()
			status = self.daemon.wait(60)
		if status:
			sys.exit(f"the daemon's status: {status}")
