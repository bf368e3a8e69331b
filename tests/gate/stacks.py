# SPDX-License-Identifier: Apache-2.0
"""Where the threads of processes are, and how to end all that a command has started."""
import os
import shutil
import signal
import subprocess
import time


def mark(env, name):
	"""Adds to an environment what all that is started with it has, also when its parent has ended; -> it, for started()."""
	env[name] = f"{os.getpid()}.{time.monotonic_ns()}"
	return f"{name}={env[name]}".encode()


def text_of(pid, name):
	try:
		with open(f"/proc/{pid}/{name}", "rb") as f:
			return f.read().replace(b"\0", b" ").decode(errors="replace").strip()
	except OSError:
		return ""


def stat_of(pid):
	"""(state, parent) of a process, or None if it has ended."""
	words = text_of(pid, "stat").rpartition(")")[2].split()
	return (words[0], int(words[1])) if words else None


def has_mark(pid, mark):
	try:
		with open(f"/proc/{pid}/environ", "rb") as f:
			return mark in f.read().split(b"\0")
	except OSError:
		return False


def started(root, mark):
	"""The processes below root, parents first, and those that have the mark; without those that have ended."""
	below, marked = {}, []
	for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
		stat = stat_of(pid)
		if stat and stat[0] != "Z" and pid != os.getpid():
			below.setdefault(stat[1], []).append(pid)
			marked += [pid] if has_mark(pid, mark) else []
	found = [root]
	for pid in found:
		found += below.get(pid, [])
	return found[1:] + [pid for pid in marked if pid not in found]


def kernel_side(pid):
	"""A line for each thread: its name, its state, what it waits for in the kernel."""
	lines = []
	try:
		tasks = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
	except OSError:
		return []
	for tid in tasks:
		task = f"{pid}/task/{tid}"
		lines.append(f"    thread {tid} ({text_of(task, 'comm')}): {(stat_of(task) or '?')[0]}, in {text_of(task, 'wchan') or '?'}, system call {text_of(task, 'syscall') or '?'}")
		lines += ["        " + line for line in text_of(task, "stack").splitlines()[:6]]
	return lines


def user_side(pid):
	"""The stacks as a debugger sees them, if there is one that may."""
	if not shutil.which("gdb"):
		return ["    no gdb here: only what the kernel knows"]
	try:
		done = subprocess.run(["gdb", "-nx", "-batch", "-p", str(pid), "-iex", "set debuginfod enabled off", "-iex", "set auto-load off", "-ex", "set pagination off",
				       "-ex", "thread apply all backtrace 40"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
				      stderr=subprocess.STDOUT, text=True, errors="replace", timeout=60)
	except subprocess.TimeoutExpired:
		return ["    gdb did not answer within 60 s"]
	lines = done.stdout.splitlines()
	first = next((i for i, line in enumerate(lines) if line.startswith("Thread ")), None)
	return ["    " + line for line in (lines[-3:] if first is None else lines[first:]) if line and not line.startswith("[Inferior")]


def show(pids, out):
	"""Prints the stacks of all threads of these processes."""
	for pid in pids:
		print(f"  process {pid}: {text_of(pid, 'cmdline')[:200]}", *kernel_side(pid), *user_side(pid), sep="\n", file=out, flush=True)


def end(pids, patience):
	"""Ends the processes: asks, waits `patience` seconds, and kills."""
	for how, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 10)):
		for pid in pids:
			try:
				os.kill(pid, how)
			except ProcessLookupError:
				pass
		until = time.monotonic() + seconds
		while time.monotonic() < until and (pids := [p for p in pids if (stat_of(p) or "Z")[0] != "Z"]):
			time.sleep(0.05)
		if not pids:
			return
