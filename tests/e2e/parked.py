# SPDX-License-Identifier: Apache-2.0
"""
A commit of one job is held at a step, and many processes change that job: parked.py MOUNT STEPS COMMAND...

    make                    jobs `held` and `other`
    hold STEP SECONDS       64 processes wait for it; other jobs are served; those that are killed end; the others succeed
    dies STEP               the process that commits is killed while the commit is held: it ends, and the commit goes on
    ends STEP PID           SIGTERM to the daemon: all that wait end, while the commit is held
    race ROUNDS             commits one after the other, and processes that change the tree, some of which are killed

STEPS is the folder of tests/support/stop_at_steps.c.  In the gate a hang is what fails; latencies are reported (late.py).
"""
import errno
import os
import pathlib
import random
import signal
import sys
import time

from late import late
from waits import Thread, Waiting, until

mount, steps = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
held, other = mount / "held", mount / "other"
waiting = Waiting(mount)
PROCESSES = int(os.environ.get("HELD_PROCESSES", "64"))
KILLED = PROCESSES // 4
HANG = 60


def ctl(job, name, text):
	with open(job / ".ctl" / name, "w", encoding="ascii") as f:
		f.write(text)


def make():
	for job in (held, other):
		job.mkdir()
		ctl(job, "layout", "use replicated\n")
		ctl(job, "topology", "dp=1\n")
		(job / "0/first").write_text("1")
	for i in range(PROCESSES):  # a folder each: the kernel locks the folder of a name that comes or goes
		(held / f"0/d{i}").mkdir()
		for name in ("a", "b", "c"):
			(held / f"0/d{i}/{name}").write_text(name)
	for job in (held, other):
		ctl(job, "commit", "step=1")
	ctl(held, "versions", "tag 1 first")


# --- what the processes do, in a folder of their own, and what is there afterwards ---

def create(d):
	(d / "new").write_text("new")


def rename(d):
	(d / "a").rename(d / "renamed")


def write(d):
	with open(d / "b", "r+") as f:
		f.write("other")


def chmod(d):
	(d / "c").chmod(0o600)


def xattr(d):
	os.setxattr(d / "c", "user.x", b"1")


def truncate(d):
	os.truncate(d / "c", 0)


def folder(d):
	(d / "folder").mkdir()


def link(d):
	os.link(d / "a", d / "same")


def unlink(d):
	(d / "b").unlink()


def config(d):
	ctl(held, "config", "keep=7")


def layout(d):
	ctl(held, "layout", "# a comment\nuse replicated\n")


WORK = {
	create: lambda d: (d / "new").exists() and (d / "new").read_text() == "new",
	rename: lambda d: (d / "renamed").exists() and not (d / "a").exists(),
	write: lambda d: (d / "b").read_text() == "other",
	chmod: lambda d: (d / "c").stat().st_mode & 0o777 == 0o600,
	xattr: lambda d: "user.x" in os.listxattr(d / "c"),
	truncate: lambda d: (d / "c").stat().st_size == 0,
	folder: lambda d: (d / "folder").is_dir(),
	link: lambda d: (d / "same").exists(),
	unlink: lambda d: not (d / "b").exists(),
}
COMMANDS = (config, layout)


class Child:
	"""A process that does one thing."""
	def __init__(self, work, d):
		self.work, self.d, self.status = work, d, None
		self.pid = os.fork()
		if self.pid:
			return
		code = 0
		try:
			signal.signal(signal.SIGUSR1, lambda *_: None)
			work(d)
		except OSError as e:
			code = e.errno
		except BaseException:
			code = 255
		finally:
			os._exit(code)

	def ended(self):
		if self.status is None and os.waitpid(self.pid, os.WNOHANG)[0]:
			self.status = True
		return self.status is not None

	def wait(self):
		"""How it ended: an errno, or - a signal."""
		def over():
			pid, status = os.waitpid(self.pid, os.WNOHANG)
			if pid:
				self.status = os.waitstatus_to_exitcode(status)
			return pid
		until(f"the end of {self.work.__name__} ({self.pid})", over, HANG)
		return self.status


class Commit:
	"""A commit that stops at a step."""
	def __init__(self, step):
		self.step, self.at = steps / step, steps / f"{step}.at"
		self.at.unlink(missing_ok=True)
		(steps / f"{step}.first").touch()
		self.step.touch()
		(held / "0/changed").write_text(str(time.time()))
		self.thread = Thread(target=ctl, args=(held, "commit", "step=2"), daemon=True)
		self.thread.start()
		until(f"the commit stops at {step}", self.at.exists, HANG)

	def let_go(self):
		self.step.unlink()

	def end(self):
		self.let_go()
		self.thread.join(HANG)


def fail(text):
	sys.exit(f"FAIL: {text}")


def measure(seconds):
	"""Uses the other job, in a process of its own: a hang ends that."""
	child = os.fork()
	if not child:
		try:
			times, commits, end, i = [], [], time.monotonic() + seconds, 0
			while time.monotonic() < end or len(commits) < 5:
				for what in (lambda: os.listdir(mount), lambda: os.listdir(other / "0"), lambda: (other / "0/first").read_bytes(),
						lambda: (other / f"0/w{i % 50}").write_text(str(i)), lambda: (mount / "held/0/first").read_bytes()):
					began = time.monotonic()
					what()
					times.append(time.monotonic() - began)
				i += 1
				if i % 5 == 0:
					began = time.monotonic()
					ctl(other, "commit", f"step={i}")
					commits.append(time.monotonic() - began)
			for what, found in (("ls, read, write beside a commit that is held", times), ("commits beside it", commits)):
				print(f"figure: {what}: {len(found)}, slowest {max(found) * 1e3:.1f} ms", flush=True)
				late(f"{what}, p99", f"{sorted(found)[int(len(found) * 0.99)] * 1e3:.1f} ms", "20 ms")
			os._exit(0)
		except SystemExit as e:
			os._exit(e.code if isinstance(e.code, int) else 1)
		except BaseException as e:
			print(f"the other job: {e}", flush=True)
			os._exit(1)
	pid, status, end = 0, 0, time.monotonic() + seconds + HANG
	while not pid:
		pid, status = os.waitpid(child, os.WNOHANG)
		if not pid and time.monotonic() > end:
			os.kill(child, signal.SIGKILL)
			fail("other jobs wait for the commit")
		time.sleep(0.01)
	if status:
		sys.exit(os.waitstatus_to_exitcode(status))


def start(nr, begun):
	kinds = list(WORK)
	children = [Child(kinds[i % len(kinds)], held / f"0/d{i}") for i in range(nr)]
	if begun:  # before that, commands wait for its quiet, and the tree is open
		children += [Child(work, held) for work in COMMANDS]
	return children


def hold(step, seconds):
	ctl(held, "discard", "\n")  # what was on its way when the mount ended may be there
	ctl(held, "rollback", "first")  # the commit that was held at its quiet has taken what was done meanwhile
	commit = Commit(step)
	nr = PROCESSES + len(COMMANDS) if step != "commit.quiet" else 0
	children = start(PROCESSES, True)
	if nr:
		until(lambda: f"{nr} requests wait: {waiting()}", lambda: waiting() > nr, HANG)
	measure(seconds)
	ended = [c.work.__name__ for c in children if nr and c.ended()]
	if ended:
		fail(f"{step}: not parked: {ended}")
	killed = random.sample(children[:PROCESSES], KILLED) if nr else []
	for c in children:
		if nr and c not in killed:
			os.kill(c.pid, signal.SIGUSR1)  # which they handle
	for c in killed + children[-1:] if nr else []:
		os.kill(c.pid, signal.SIGKILL)
		if c.wait() != -signal.SIGKILL:
			fail(f"{step}: a process that was killed ended with {c.status}")
	if nr and not commit.thread.is_alive():
		fail(f"{step}: the commit has ended")
	commit.end()
	for c in children:
		if c in killed or (nr and c is children[-1]):
			if c in killed and c.work not in (write, truncate) and WORK[c.work](c.d):
				fail(f"{step}: {c.work.__name__} was killed, and is done")
			continue
		if c.wait() != 0:
			fail(f"{step}: {c.work.__name__} of {c.d}: {os.strerror(c.status)}")
		if c.work in WORK and not WORK[c.work](c.d):
			fail(f"{step}: {c.work.__name__} of {c.d} is not there")
	ctl(held, "discard", "\n")


def dies(step):
	ctl(held, "discard", "\n")
	before, at = (held / ".ctl/versions").read_text().count("\n"), steps / f"{step}.at"
	at.unlink(missing_ok=True)
	(steps / f"{step}.first").touch()
	(steps / step).touch()
	(held / "0/changed").write_text(str(time.time()))
	child = Child(lambda d: ctl(d, "commit", "step=3"), held)
	until(f"the commit stops at {step}", at.exists, HANG)
	os.kill(child.pid, signal.SIGUSR1)  # which it handles
	reader = Child(lambda d: (d / "0/first").read_bytes(), held)
	if reader.wait() != 0 or child.ended():
		fail(f"{step}: who commits has ended by a signal that it handles")
	os.kill(child.pid, signal.SIGKILL)
	if child.wait() != -signal.SIGKILL:
		fail(f"{step}: who commits was killed, and ended with {child.status}")
	if not at.exists() or (held / ".ctl/versions").read_text().count("\n") != before:
		fail(f"{step}: the commit has ended before")
	(steps / step).unlink()
	until("the version of the commit", lambda: "\nstep: 3\n" in (held / ".ctl/status").read_text())


def ends(step, pid):
	commit = Commit(step)
	children = start(32, True)
	until(lambda: f"requests wait: {waiting()}", lambda: waiting() > len(children), HANG)
	os.kill(pid, signal.SIGTERM)
	# ECANCELED: the kernel's answer to a request that it hands to a thread of a ring which has just ended
	for c in children:
		if c.wait() not in (errno.ECONNABORTED, errno.ENOTCONN, errno.EINTR, errno.ECANCELED):
			fail(f"{c.work.__name__} at the end of the mount: {os.strerror(c.status)}")
	commit.let_go()


def race(rounds):
	rng = random.Random(os.environ.get("SEED", "1"))

	def turn(d):
		for i in range(rounds * 4):
			name = f"{os.getpid()}.{i}"  # what a killed one leaves is in nobody's way
			(d / name).mkdir()
			(d / name).chmod(0o700 + i % 8)
			(d / name).rename(d / f"{name}.moved")
			(d / f"{name}.moved").rmdir()

	children = [Child(turn, held / f"0/d{i}") for i in range(12)]
	killed = rng.sample(children, 4)
	for i in range(rounds):
		(held / "0/changed").write_text(str(i))
		ctl(held, "commit", f"step={i + 10}")
		if i % (rounds // 4) == 1 and killed:
			os.kill(killed.pop().pid, signal.SIGKILL)
	for c in children:
		if c.wait() not in (0, -signal.SIGKILL):
			fail(f"race: {os.strerror(c.status)}")
	until(lambda: f"nothing waits: {waiting()}", lambda: not waiting(), HANG)


command, words = sys.argv[3], sys.argv[4:]
try:
	if command == "make":
		make()
	elif command == "hold":
		hold(words[0], float(words[1]))
	elif command == "dies":
		dies(words[0])
	elif command == "ends":
		ends(words[0], int(words[1]))
	else:
		race(int(words[0]))
finally:  # a commit that is held goes on
	for step in steps.iterdir():
		if step.suffix not in (".at", ".first"):
			step.unlink(missing_ok=True)
