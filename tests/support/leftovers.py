# SPDX-License-Identifier: Apache-2.0
"""
What a test leaves on the machine: processes, mounts, network namespaces and loop devices, found by its work folder; and where
the threads of a process are.

A process belongs to the test whose folder is in its environment, WORK=FOLDER: children inherit that, whatever session or
process group they move to.  A network namespace belongs to it if its name has the folder's own part: sc123-Ab3xYz-n1 is of
/tmp/scalai-e2e.Ab3xYz (namespace_part).

    leftovers.py stacks PID...      prints the stacks of all threads
"""
import collections
import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

MNT_DETACH = 2
libc = ctypes.CDLL(None, use_errno=True)


def read(path, size=1 << 20):
	"""Bytes of a file of /proc, or none: the process may have ended."""
	try:
		with open(path, "rb") as f:
			return f.read(size)
	except OSError:
		return b""


def stat_of(pid):
	"""(state, parent, session) of a process, or None."""
	text = read(f"/proc/{pid}/stat").decode(errors="replace")
	if ")" not in text:
		return None
	words = text.rsplit(")", 1)[1].split()
	return words[0], int(words[1]), int(words[3])


def processes(work, session=None):
	"""Those of the test in this folder that still run, this one not among them."""
	want = f"WORK={work}".encode()
	found = []
	for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
		stat = stat_of(pid)
		if pid == os.getpid() or stat is None or stat[0] in "ZX":
			continue
		words = read(f"/proc/{pid}/environ").split(b"\0")
		if any(w == want or w.startswith(want + b"/") for w in words) or (session and stat[2] == session):
			found.append(pid)
	return found


def command(pid):
	words = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="backslashreplace")
	return " ".join(words.split())[:300] or f"[{pid}]"


def mounts(table="/proc/self/mounts"):
	"""(mount point, type) of all, oldest first."""
	out = []
	for line in read(table).split(b"\n"):
		words = line.split(b" ")
		if len(words) > 2:
			path = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), words[1])
			out.append((os.fsdecode(path), words[2].decode()))
	return out


def mounts_below(folder):
	return [path for path, _ in mounts() if path == str(folder) or path.startswith(f"{folder}/")]


def unmount(path):
	"""Takes a mount away at once, whoever uses it; nothing of it is asked."""
	if libc.umount2(os.fsencode(path), MNT_DETACH) != 0 and os.geteuid() != 0 and shutil.which("fusermount3"):
		subprocess.run(["fusermount3", "-uz", path], capture_output=True, timeout=30)


def namespace_part(work):
	"""What the names of this test's network namespaces have in them."""
	return os.path.basename(str(work)).rsplit(".", 1)[-1]


def namespaces(work):
	try:
		return sorted(name for name in os.listdir("/run/netns") if f"-{namespace_part(work)}-" in name)
	except OSError:
		return []


def loops_below(folder):
	"""Loop devices that have a file below the folder."""
	found = []
	for at in sorted(pathlib.Path("/sys/block").glob("loop*/loop/backing_file")):
		if os.fsdecode(read(at)).startswith(f"{folder}/"):
			found.append(f"/dev/{at.parts[3]}")
	return found


def left(work, session=None, patience=0.0):
	"""Sentences that tell what there is of a test.  Processes that are ending get some time for it, and disks that are written back
	after their mount was taken away: the kernel lets go of their loop devices by itself."""
	end = time.monotonic() + patience
	while (processes(work, session) or (loops_below(work) and not mounts_below(work))) and time.monotonic() < end:
		time.sleep(0.05)
	return ([f"process {pid}: {command(pid)}" for pid in processes(work, session)]
		+ [f"mount {path}" for path in mounts_below(work)]
		+ [f"network namespace {name}" for name in namespaces(work)]
		+ [f"loop device {device}" for device in loops_below(work)])


def send(pids, number):
	for pid in pids:
		try:
			os.kill(pid, number)
		except OSError:
			pass


def end_processes(work, session, patience):
	"""SIGTERM, some time for what programs do at their end, and SIGKILL until none is left.  Says which one does not go."""
	send(processes(work, session), signal.SIGTERM)
	end = time.monotonic() + patience
	while processes(work, session) and time.monotonic() < end:
		time.sleep(0.05)
	end = time.monotonic() + 20
	while processes(work, session) and time.monotonic() < end:
		send(processes(work, session), signal.SIGKILL)
		for path in mounts_below(work):  # a process that waits for a mount goes when nobody serves that any more
			unmount(path)
		time.sleep(0.05)
	return [f"process {pid} does not end: {command(pid)}" for pid in processes(work, session)]


def end(work, session=None, patience=10.0):
	"""Ends all that a test has left.  Sentences that say what stays in spite of it: its folder can't be removed then."""
	stays = end_processes(work, session, patience)
	for path in reversed(mounts_below(work)):
		unmount(path)
	for name in namespaces(work):
		subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=60)
	for device in loops_below(work):
		subprocess.run(["losetup", "-d", device], capture_output=True, timeout=60)
	stop = time.monotonic() + 5
	while loops_below(work) and time.monotonic() < stop:  # a mount that was taken away is written back first
		time.sleep(0.05)
	return (stays + [f"mount {path} stays" for path in mounts_below(work)]
		+ [f"network namespace {name} stays" for name in namespaces(work)]
		+ [f"loop device {device} stays" for device in loops_below(work)])


# --- stacks ---

# Of these the kernel's side is told, and no more: interpreters, and what only waits for others.
PLAIN = re.compile(r"(bash|dash|sh|sleep|timeout|cat|tail|flock|nsenter|unshare|ip|tc|gdb|etcd|python[0-9.]*|\(.*\))$")
GDB = ["gdb", "-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off", "-ex", "set pagination off",
       "-ex", "set print frame-arguments scalars", "-ex", "thread apply all bt 24"]


def program(pid):
	try:
		return os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)"))
	except OSError:
		return "(kernel)"


def debugger(pid):
	"""All stacks, from a debugger if there is one: threads that are at the same place are told once."""
	if shutil.which("gdb"):
		words, first = [*GDB, "-p", str(pid)], r"^Thread \d+ .*?LWP (\d+)\)(?: \"(.*)\")?.*$"
	elif shutil.which("eu-stack"):
		words, first = ["eu-stack", "-p", str(pid)], r"^TID (\d+)()?:$"
	else:
		return None
	try:
		r = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=90)
	except (OSError, subprocess.TimeoutExpired) as e:
		return [f"    {words[0]}: {e}"[:300]]
	stacks, frames = collections.OrderedDict(), []
	for line in r.stdout.decode(errors="replace").splitlines():
		begin = re.match(first, line)
		if begin:
			frames = []
			stacks[f"{begin[1]} {begin[2] or ''}".strip()] = frames
		elif re.match(r"#\d+ ", line):
			frames.append(line)
	same = collections.OrderedDict()
	for thread, frames in stacks.items():
		key = tuple(re.sub(r"0x[0-9a-f]+|\(.*?\)", "", f) for f in frames)
		same.setdefault(key, []).append((thread, frames))
	out = []
	for threads in same.values():
		out.append("    thread" + ("s" if len(threads) > 1 else "") + " " + ", ".join(t for t, _ in threads))
		out += [f"      {f[:200]}" for f in threads[0][1]]
	return out or [f"    {words[0]} says: {line[:200]}" for line in r.stderr.decode(errors="replace").splitlines()[-4:]]


def kernel_side(pid):
	"""Where the kernel has each thread: what is to be had without a debugger."""
	out = []
	try:
		tasks = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
	except OSError:
		tasks = []
	for task in tasks:
		at = f"/proc/{pid}/task/{task}"
		text = {name: read(f"{at}/{name}").decode(errors="replace").strip() for name in ("comm", "wchan", "syscall", "stack")}
		state = (stat_of(f"{pid}/task/{task}") or "?")[0]
		out.append(f"    {task} {text['comm']} ({state}): {text['wchan']}: {text['syscall'][:120]}")
		out += [f"      {line}" for line in text["stack"].splitlines()[:4]]
	return out


def python_side(pids):
	"""Programs that can print their own stacks (faulthandler, by SIGUSR2: tests/cluster/nodes.py) do, where their errors go."""
	asked = [pid for pid in pids if program(pid).startswith("python") and catches(pid, signal.SIGUSR2)]
	send(asked, signal.SIGUSR2)
	if asked:
		time.sleep(0.5)


def catches(pid, number):
	mask = re.search(rb"^SigCgt:\s*([0-9a-f]+)$", read(f"/proc/{pid}/status"), re.M)
	return bool(mask and int(mask[1], 16) >> (number - 1) & 1)


def stacks(pids, most=24):
	"""Lines that show what these processes are doing, their threads one by one.  Nothing is ended by it."""
	out = []
	python_side(pids)
	for pid in pids:
		state = stat_of(pid)
		if state is None:
			continue
		out.append(f"process {pid} of {state[1]} ({state[0]}): {command(pid)}")
		frames = None
		if not PLAIN.match(program(pid)) and most > 0:
			most -= 1
			frames = debugger(pid)
		if frames is None:
			out += kernel_side(pid)
		else:
			out += frames
			if not any(f.startswith("      #") for f in frames):
				out += kernel_side(pid)
	for at in sorted(pathlib.Path("/sys/fs/fuse/connections").glob("*/waiting")):
		out.append(f"{at}: {read(at).decode(errors='replace').strip()}")
	return out


if __name__ == "__main__":
	if sys.argv[1:2] != ["stacks"] or not all(word.isdigit() for word in sys.argv[2:]):
		sys.exit("usage: leftovers.py stacks PID...")
	print("\n".join(stacks([int(word) for word in sys.argv[2:]])))
