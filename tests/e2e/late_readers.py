# SPDX-License-Identifier: Apache-2.0
"""
Readers of views whose bytes don't come until a file is gone (LATE_HOLDS of tests/support/kinds/late.c).

    late_readers.py MOUNT GATE apart    others are served meanwhile; kills, signals, errors
    late_readers.py MOUNT GATE races READERS|SECONDSs [DAEMON-KILLED-EVERY-S]    readers come, read, close and are killed at random
    late_readers.py MOUNT GATE end      leaves readers behind that wait for ever, and prints their errno's name when it came

Jobs: `late` is a view, `near` is real files.  `-o hold` where the daemon is to be killed.
"""
import errno, mmap, os, pathlib, random, signal, subprocess, sys, threading, time

from waits import Amount, Thread

mount, gate = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
READERS = 40
children = set()
late = sorted(p for p in (mount / "late").glob("[0-9]*/*.safetensors"))


def hold(why=""):
	new = gate.with_suffix(".new")
	new.write_text(why)
	new.rename(gate)


def let_go():
	gate.unlink()


def until(what, condition, seconds=60):
	end = time.monotonic() + seconds
	while not condition():
		assert time.monotonic() < end, what
		time.sleep(0.01)


def parked(nr):
	def now():
		lines = (mount / ".ctl/metrics").read_text().splitlines()
		return next(int(line.split()[1]) for line in lines if line.startswith("scalai_reads_waiting "))

	try:
		until(f"{nr} reads that wait", lambda: now() >= nr)
	except AssertionError as e:
		raise AssertionError(f"{nr} reads that wait: there are {now()}") from e


def forget(path):
	"""Lets the kernel forget the bytes of a file that it has read already: who has them need not wait."""
	fd = os.open(path, os.O_RDONLY)
	os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
	os.close(fd)


def child(f, *args):
	"""Runs f in a process; its exit status is 0, or an errno."""
	pid = os.fork()
	children.add(pid)
	if pid == 0:
		try:
			f(*args)
		except OSError as e:
			os._exit(e.errno)
		except BaseException as e:
			print("child:", repr(e), file=sys.stderr, flush=True)
			os._exit(255)
		os._exit(0)
	return pid


def ends(pid, status, seconds=60):
	got = []
	until(f"the end of {pid}", lambda: got.extend(x for x in [os.waitpid(pid, os.WNOHANG)] if x[0]) or got, seconds)
	children.discard(pid)
	assert got[0][1] == status, (pid, got[0][1], status)


def reads(path, at, want, fd=None):
	mine = os.open(path, os.O_RDONLY) if fd is None else fd
	got = os.pread(mine, len(want), at)
	assert got == want, (path, at)
	os.close(mine)


def maps(path, at, want):
	with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
		assert m[at:at + len(want)] == want, (path, at)


def part(data, rng, path=None):
	"""Bytes of tensors, so that there is something to wait for; of any file, or of this one."""
	path = path or rng.choice(late)
	at = rng.randrange(8 + int.from_bytes(data[path][:8], "little"), len(data[path]) - 5000)
	return path, at, data[path][at:at + rng.randrange(5000, 200000)]


def near_is_served(a, b):
	"""Files of ranks a and b, which nobody has read yet, and control files, within 30 s."""
	script = f"""
set -e
cd '{mount}'
cat near/{a}/model.safetensors near/{b}/optimizer.safetensors near/0/notes | wc -c
cat .ctl/health near/.ctl/status late/.ctl/status >/dev/null
echo some text > near/0/notes
cat near/0/notes
ls -lR near >/dev/null
timeout 60 sh -c 'echo > near/.ctl/wait'
"""
	subprocess.run(["bash", "-c", script], check=True, timeout=30, stdout=subprocess.DEVNULL)


def apart():
	rng = random.Random(1)
	data = {p: p.read_bytes() for p in late}
	for how in (reads, maps):
		hold()
		readers = [child(how, *part(data, rng)) for _ in range(READERS)]
		parked(READERS if how == reads else 14)
		near_is_served(*((0, 2) if how == reads else (1, 3)))
		for pid in readers[:8]: # killed ones end at once
			os.kill(pid, signal.SIGKILL)
		if how == reads:
			for pid in readers[:8]:
				ends(pid, signal.SIGKILL)
		let_go()
		for pid in readers[8:]:
			ends(pid, 0)
		if how == maps:
			for pid in readers[:8]:
				ends(pid, signal.SIGKILL)
	# a signal that does not kill does not end a read, and a kill after it does
	paths = rng.sample(late, 12)  # two that map one file may wait for one read: which of them comes first decides
	for path in paths:
		forget(path)
	hold()
	came = os.pipe()

	def interrupted(path, at, want, use):
		signal.signal(signal.SIGUSR1, lambda *_: os.write(came[1], b"x"))
		signal.signal(signal.SIGUSR2, lambda *_: None)
		use(path, at, want)

	signalled = [child(interrupted, *part(data, rng, path), reads if i < 6 else maps) for i, path in enumerate(paths)]
	parked(12)
	for _ in range(3):
		for pid in signalled:
			os.kill(pid, signal.SIGUSR1)
			os.kill(pid, signal.SIGUSR2)
		time.sleep(0.3)
	for pid in signalled:
		assert os.waitpid(pid, os.WNOHANG) == (0, 0), "a signal has ended a read"
	os.kill(signalled[0], signal.SIGKILL)
	ends(signalled[0], signal.SIGKILL)
	let_go()
	for pid in signalled[1:]:
		ends(pid, 0)
	# why bytes don't come is told to all who wait, and to `error`; then they may come
	hold("node 3 is silent")
	readers = [child(reads, *part(data, rng)) for _ in range(READERS)]
	parked(READERS)
	let_go()
	for pid in readers:
		ends(pid, errno.EIO << 8)
	said = (mount / "late/.ctl/error").read_text()
	assert "node 3 is silent" in said, said
	for pid in [child(reads, *part(data, rng)) for _ in range(READERS)]:
		ends(pid, 0)


def races(much, every):
	rng = random.Random(2)
	data = {p: p.read_bytes() for p in late}
	amount, ended = Amount(much), time.monotonic()
	over, nr = threading.Event(), [0]

	def gatekeeper():
		dice = random.Random(3)
		while not over.is_set():
			hold()
			time.sleep(dice.random() * 0.03)
			let_go()
			time.sleep(dice.random() * 0.03)

	def daemons():
		return [int(x) for x in subprocess.run(["pgrep", "-f", f"mount -f .*{mount}$"], capture_output=True).stdout.split()]

	def killer():
		holder = min(daemons())
		while not over.wait(every):
			os.statvfs(mount)	# each daemon serves before it is killed; 20_early_deaths has those that don't
			for pid in daemons():
				if pid != holder and f"{holder}" == open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1]:
					os.kill(pid, signal.SIGKILL)

	helpers = [Thread(target=f, daemon=True) for f in [gatekeeper] + [killer] * (every > 0)]
	for t in helpers:
		t.start()
	alive = {}
	while amount.more(nr[0]) or alive:
		if amount.more(nr[0]) and len(alive) < READERS:
			use = rng.choice((reads, reads, maps))
			alive[child(lambda: [use(*part(data, random.Random(nr[0] * 9 + i))) for i in range(8)])] = False
			nr[0] += 1
		if alive and rng.randrange(6) == 0:
			pid = rng.choice(list(alive))
			os.kill(pid, signal.SIGKILL)
			alive[pid] = True
		for pid in list(alive):
			got, status = os.waitpid(pid, os.WNOHANG)
			if got:
				children.discard(pid)
				assert status == 0 or alive[pid] and status == signal.SIGKILL, (pid, status)
				del alive[pid]
				ended = time.monotonic()
		time.sleep(0.001)
		assert time.monotonic() < ended + 100, alive
	over.set()
	for t in helpers:
		t.join()
	print(nr[0], "readers")


def left_behind():
	data = {p: p.read_bytes() for p in late}
	hold()
	rng = random.Random(4)
	readers = [child(reads, *part(data, rng)) for _ in range(READERS)]
	parked(READERS)
	print("parked", flush=True)
	for pid in readers:
		ends(pid, errno.ECONNABORTED << 8)
	print("answered", flush=True)


try:
	if sys.argv[3] == "apart":
		apart()
	elif sys.argv[3] == "races":
		races(sys.argv[4], float(sys.argv[5]) if len(sys.argv) > 5 else 0)
	else:
		left_behind()
except BaseException:
	for pid in children: # what has ended is not ours any more
		os.kill(pid, signal.SIGKILL)
	raise
