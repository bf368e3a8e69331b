# SPDX-License-Identifier: Apache-2.0
"""
Waits of Python cases, as lib.sh has them for shells: each ends at once when it is true, and fails after two minutes or more, which is
against a hang.  Cases have E2E in their environment: sys.path.append(os.environ["E2E"]).
"""
import ctypes
import mmap
import os
import pathlib
import re
import signal
import tempfile
import threading
import time

class Thread(threading.Thread):
	"""One whose end somebody hears: join() raises what its function has raised, SystemExit too, and if it has not ended."""
	error = None

	def run(self):
		try:
			super().run()
		except BaseException as e:  # for who joins
			self.error = e

	def join(self, timeout=None):
		super().join(timeout)
		if self.is_alive():
			raise SystemExit(f"{self.name} has not ended within {timeout} s")
		if self.error:
			raise self.error


class Amount:
	"""How much is done: "300" rounds, which are the same on each machine, or "60s".  Children that are forked know when it is over."""
	def __init__(self, text):
		self.seconds, self.rounds = (float(text[:-1]), 0) if text.endswith("s") else (0, int(text))
		self.over, self.parent, self.began = mmap.mmap(-1, 1), os.getpid(), time.monotonic()

	def more(self, done):
		"""For who counts."""
		if done >= self.rounds if self.rounds else time.monotonic() > self.began + self.seconds:
			self.over[0] = 1
		return not self.over[0]

	def goes_on(self):
		"""For the others."""
		return not self.over[0] and (os.getpid() == self.parent or os.getppid() == self.parent)


def stop(pid):
	"""Stops a child of this process, and returns when each of its threads has stopped: until then, one may still answer."""
	os.kill(pid, signal.SIGSTOP)
	os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


OWED = ("scalai_background_busy", "scalai_hashes_owed", "scalai_records_owed", "scalai_trees_owed")


def until(what, condition, seconds=120, every=0.01):
	"""What the condition returns when it is true."""
	end = time.monotonic() + seconds
	while not (found := condition()):
		if time.monotonic() > end:
			raise SystemExit(f"not within {seconds} s: {what() if callable(what) else what}")
		time.sleep(every)
	return found


def owed(mount):
	"""What the daemon's background has still to do, by the names of its metrics; empty: nothing."""
	text = (pathlib.Path(mount) / ".ctl/metrics").read_text(encoding="ascii")
	found = dict(re.findall(r"^(\w+) (\d+)$", text, re.M))
	return {name: int(found[name]) for name in OWED if int(found[name])}


def settled(mount, seconds=120):
	"""Waits until the daemon owes nothing of what was asked before: files are hashed, their records and those of trees are written."""
	until(lambda: f"the daemon of {mount} owes nothing: {owed(mount)}", lambda: not owed(mount), seconds)


def _at(task):
	"""The system call that a thread of ours, or a process, is in; None if it does not wait there for a daemon of FUSE."""
	try:
		where = [pathlib.Path(f"/proc/{task}/{name}").read_text(encoding="ascii") for name in ("wchan", "stack")]
		return pathlib.Path(f"/proc/{task}/syscall").read_text(encoding="ascii") if re.search("fuse|request_wait", "".join(where)) else None
	except OSError:
		return None


def parked(task, what="it waits for an answer of the daemon", done=lambda: False):
	"""Waits until a process, or a thread (its native_id), waits for an answer of the daemon to one and the same request, or is done."""
	def now():
		first = _at(task)
		if first:
			time.sleep(0.1)
		return first and first == _at(task)

	until(f"{what} ({task})", lambda: now() or done())


class Waiting:
	"""How many requests of a mount its daemon has not answered: read from a mount of fusectl of our own, which nobody else sees."""
	def __init__(self, mount):
		number = os.minor(os.stat(mount).st_dev)
		libc = ctypes.CDLL(None, use_errno=True)
		at = tempfile.mkdtemp(prefix="scalai-fusectl.")
		if libc.mount(b"none", at.encode(), b"fusectl", 0, None):
			os.rmdir(at)
			raise OSError(ctypes.get_errno(), "cannot mount fusectl: run as root")
		self.fd = os.open(at, os.O_RDONLY)
		libc.umount2(at.encode(), 2)  # MNT_DETACH: the descriptor keeps it
		os.rmdir(at)
		self.name = f"{number}/waiting"

	def __call__(self):
		fd = os.open(self.name, os.O_RDONLY, dir_fd=self.fd)
		try:
			return int(os.read(fd, 20))
		finally:
			os.close(fd)
