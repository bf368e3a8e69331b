# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY [CELLS [SEED]]: in each cell a change stops at a step, a fault meets one of those that take part, and the change
goes on.  CELLS: how many, chosen at random so that each role, fault and step has its share; 0: all 216; ROLE/FAULT/STEP,...: these.
FABRIC=ucx: over UCX.  BINARY is the program that stops at steps (tests/support/stop_at_steps.c).

Four nodes: n1 commits, n2 holds what n3 pulls, n4 is there; each keeps every fourth rank.  Three etcds vote.  After each
cell: one head on all nodes; bytes of every rank file through every mount as on one machine that got the same commands;
nothing is left that was on its way.  At the end: stores are clean, and what was seen is a history that holds.
"""
import atexit
import hashlib
import os
import pathlib
import random
import subprocess
import sys
import time

import history
import watchers
from kept import clean
from nodes import Cluster
from waits import Thread
from watchers import DEGREES, Watchers, content, look, save

ROLES = ["committer", "holder", "destination", "bystander", "etcd leader", "etcd majority"]
FAULTS = ["kill", "stop", "cut", "deaf"]
STEPS = ["prepare", "prepared", "commit", "hide", "hidden", "pull", "ready", "settle", "delete"]
TTL = 3.0
work, binary = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
which = sys.argv[3] if len(sys.argv) > 3 else "12"
rng = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)


def cells():
	if "/" in which:
		return [tuple(cell.split("/")) for cell in which.split(",")]
	every = [(r, f, s) for r in ROLES for f in FAULTS for s in STEPS]
	rng.shuffle(every)
	if which == "0":
		return every
	chosen = []
	while len(chosen) < int(which):  # who has been had least comes next
		had = lambda cell: [sum(c[i] == cell[i] for c in chosen) for i in range(3)]
		best = min((c for c in every if c not in chosen), key=lambda c: (sum(had(c)), max(had(c))))
		chosen.append(best)
	return chosen


class Reference:
	"""One machine, which is given the commands that were done."""
	def __init__(self, folder):
		folder.mkdir()
		self.mount = folder / "mnt"
		self.mount.mkdir()
		self.daemon = subprocess.Popen([binary, "mount", "-f", folder / "store", self.mount],
					       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
		atexit.register(self.gone)
		end = time.monotonic() + 60
		while not (self.mount / ".ctl/health").exists():
			if time.monotonic() > end:
				sys.exit("the reference does not start")
			time.sleep(0.05)
		(self.mount / "gpt").mkdir()
		self.put("layout", "mesh tp\nw.weight tp=0\n*:* copy\n")
		self.put("topology", "tp=2")

	def put(self, file, text):
		(self.mount / "gpt/.ctl" / file).write_text(text)

	def do(self, kind, tp, number):
		if kind == "commit":
			for rank in range(tp):
				save(self, tp, rank, number)
			self.put("commit", f"step={number}")
		else:
			self.put("topology", f"tp={tp} plain=drop")

	def end(self):
		subprocess.run([binary, "umount", self.mount], check=True)
		self.daemon.wait()

	def gone(self):
		if self.daemon.poll() is None:
			self.daemon.kill()
			self.daemon.wait()
		subprocess.run(["umount", "-l", self.mount], capture_output=True)


def sums(mount):
	"""SHA-256 of each rank's files by path."""
	top, found = mount / "gpt", {}
	for rank in (name for name in os.listdir(top) if name.isdigit()):
		for folder, _, names in os.walk(top / rank):
			for name in names:
				data = pathlib.Path(folder, name).read_bytes()
				found[str(pathlib.Path(folder, name).relative_to(top))] = hashlib.sha256(data).hexdigest()
	return found


cluster = Cluster(work, binary, nodes=4, ttl_ms=int(TTL * 1000), fresh_ms=900, etcds=3)
nodes = cluster.nodes
for n in nodes:
	n.up()
reference = Reference(work / "one")
watchers.make(cluster)
for n in nodes:
	n.must("gpt", "config", "home=" + ",".join(str(r) for r in range(n.number - 1, 10, 4)))
nodes[0].must("gpt", "config", "keep=4")
reference.put("config", "keep=4")
seen = Watchers(cluster, work / "history", readers=1, writers=0)
used = set()		# contents that there were commands for
made = set()		# contents of versions, as far as they were looked at


def text(tp, number):
	return f"{tp}.{number}"


def degrees(who):
	"""By what the last of these shows: its degree and number, and the degrees that this number was not yet shown in."""
	tp, number = (int(x) for x in look(who[-1].mount)[2].split(".")) if used else (2, 0)
	return tp, number, [d for d in DEGREES if text(d, number) not in used]


def draft(kind, who):
	"""What a command is, whose ranks are saved on these nodes: kind, degree, number."""
	tp, number, left = degrees(who)
	if kind == "topology" and len(left) > 1:
		d = "topology", rng.choice(left), number
	else:
		d = "commit", tp, 1 + max((int(x.split(".")[1]) for x in used), default=0)
		for rank in range(tp):
			seen.save(who[rank % len(who)], tp, rank, d[2])
	used.add(text(*d[1:]))
	return d


def give(node, d):
	kind, tp, number = d
	return seen.command(node, "commit" if kind == "commit" else "command", kind,
			    f"step={number}" if kind == "commit" else f"tp={tp} plain=drop", text(tp, number))


def status(node, key):
	lines = [line for line in node.read("gpt", "status").splitlines() if line.startswith(key + ": ")]
	return lines[0].split(": ", 1)[1] if lines else ""


def until(what, seconds, why):
	end = time.monotonic() + seconds
	while True:
		try:
			if what():
				return
			last = ""
		except OSError as e:
			last = f" ({e})"
		if time.monotonic() > end:
			sys.exit(f"{cell}: not within {seconds} s: {why}{last}\n" + report())
		time.sleep(0.02)


def report():
	told = cluster.keys("/store/") + cluster.values("low/")
	for n in nodes:
		for what in (".ctl/health", "gpt/.ctl/status", "gpt/.ctl/error"):
			try:
				told.append(f"{n.name} {what}: " + (n.mount / what).read_text())
			except OSError as e:
				told.append(f"{n.name} {what}: {e}")
		told.append(n.log.read_text()[-1500:])
	return "\n".join(told)


def discard(who):
	for n in who:
		n.ctl("gpt", "discard", "yes")


def settle_down():
	"""All nodes have one head, and what they keep is its storage."""
	until(lambda: all("is a member\n" in n.health() for n in nodes), 30, "all are members")
	def one_head():
		discard(nodes)  # who was away with files that were not committed shows nothing before
		return len({status(n, "version") for n in nodes}) == 1 and len({look(n.mount)[2] for n in nodes}) == 1

	until(one_head, 30, "all show one head")


def check(d, result):
	"""The change was done, or not: all nodes say the same, and the same as the write(2)."""
	is_there = text(d[1], d[2]) in made
	if result == "ok" and not is_there:
		sys.exit(f"{cell}: {d} succeeded, and is no version: {sorted(made)}\n{report()}")
	if result == "failed" and is_there:
		sys.exit(f"{cell}: {d} failed, and is a version\n{report()}")
	return is_there


def note_versions():
	"""Lines for the history, of those that are still there."""
	for n in nodes:
		top = n.mount / "gpt/.v"
		for nr in os.listdir(top):
			try:
				what = content((top / nr / "0/model.safetensors").read_bytes())
			except FileNotFoundError:  # dropped meanwhile
				continue
			made.add(what)
			seen.log.add("version", n.name, nr, what)


def told(mount, path):
	try:
		data = (mount / "gpt" / path).read_bytes()
	except OSError as e:
		return str(e)
	return f"{len(data)} bytes of {content(data)}, {data[:100]}"


def compare():
	want = sums(reference.mount)
	for n in nodes:
		got = sums(n.mount)
		for path in sorted(set(want) | set(got)):
			if want.get(path) != got.get(path):
				sys.exit(f"{cell}: {n.name} has other bytes of {path} than one machine: "
					 f"{told(n.mount, path)}, {told(reference.mount, path)}\n{report()}")


def nothing_left():
	until(lambda: not cluster.keys("/proposal"), 20, "no proposal is left")
	until(lambda: all(status(n, "state") == "materialized" for n in nodes), 40, "what is kept is the storage")
	until(lambda: not any(waiting(n) for n in nodes), 20, "no read waits")


def waiting(node):
	for line in (node.mount / ".ctl/metrics").read_text().splitlines():
		if line.startswith("scalai_reads_waiting "):
			return int(line.split()[1])
	return 0


def victims(role):
	if role in ROLES[:4]:
		return [nodes[ROLES.index(role)]]
	leader = []
	until(lambda: leader.append(cluster.leader()) or leader[-1], 20, "etcd has a leader")
	others = [e for e in cluster.etcds if e is not leader[-1]]
	return [leader[-1]] + (others[:1] if role == "etcd majority" else [])


def hurt(who, fault):
	for v in who:
		{"kill": v.kill, "stop": v.stop, "cut": v.cut, "deaf": v.deaf}[fault]()


def heal(who, fault):
	for v in who:
		if fault == "kill":
			v.up()
		else:
			{"stop": v.stop, "cut": v.cut, "deaf": v.deaf}[fault](False)


def arm(step, who):
	for n in who:
		(n.own / f"cluster.{step}").touch()


def release(step, begun=False):
	for n in nodes:
		(n.own / f"cluster.{step}").unlink(missing_ok=True)
		if not begun:
			(n.own / f"cluster.{step}.at").unlink(missing_ok=True)


def at(step):
	return any((n.own / f"cluster.{step}.at").exists() for n in nodes)


def meet(role, fault, step):
	"""Returns seconds: until the command had ended, until another node's was taken, until all were well again."""
	who = victims(role)
	if step in ("settle", "delete"):
		armed = nodes
	elif step in ("pull", "ready"):
		armed = [nodes[2]]
	else:
		armed = [who[0] if who[0] in nodes and step != "commit" else nodes[0]]
	kind = "topology" if step in ("pull", "ready", "settle") else rng.choice(["topology", "commit"])
	if kind == "topology" and len(degrees(nodes)[2]) < 2:
		change("commit")
	# who goes before it has prepared takes what it has written along, and others commit without that
	early = step in ("prepare", "prepared") and who[0] in nodes[1:]
	d = draft(kind, [n for n in nodes if n not in who] if early else nodes)
	arm(step, armed)
	result, ended = [], []

	def run():
		result.append(give(nodes[0], d))
		ended.append(time.monotonic())

	command = Thread(target=run)
	command.start()
	until(lambda: at(step) or (result and result[0][0] != "ok"), 30, f"the change comes to '{step}'")
	if result and result[0][0] != "ok":
		sys.exit(f"{cell}: {d} fails before the fault: {result}\n{report()}")
	began = time.monotonic()
	hurt(who, fault)
	time.sleep(0.05)
	release(step)
	# a daemon is back at once, or when its registration has ended
	delay = rng.choice([0.3, TTL + 1]) if fault == "kill" else TTL + 1
	healed = []
	def mend():
		time.sleep(delay)
		heal(who, fault)
		healed.append(time.monotonic())
	mender = Thread(target=mend)
	mender.start()
	try:
		command.join(90)
	except SystemExit as e:
		sys.exit(f"{cell}: {d}: the command: {e}\n{report()}")
	well = [n for n in nodes if n not in who]
	went_on = after(well, lambda: [n for n in who if healed and n in nodes])
	mender.join()
	settle_down()
	back = time.monotonic() - healed[0]
	note_versions()
	if check(d, result[0][0]):
		reference.do(*d)
	for e, r in went_on[1]:
		if check(e, r):
			reference.do(*e)
	settle_down()
	compare()
	nothing_left()
	return ended[0] - began, went_on[0] - began, back


def after(well, back):
	"""Another change, by who is well: when it was taken, and all attempts.  Who is back, and was in time for that, has
	uncommitted files, which keep the others from it."""
	attempts, end = [], time.monotonic() + 60
	while time.monotonic() < end:
		discard(well + back())
		try:
			d = draft("topology", well)
		except OSError:  # nobody knows the newest version yet
			time.sleep(0.05)
			continue
		result, _ = give(well[-1], d)
		attempts.append((d, result))
		if result == "ok":
			return time.monotonic(), attempts
		time.sleep(0.05)
	sys.exit(f"{cell}: nobody takes another change within 60 s\n{report()}")


def change(kind):
	d = draft(kind, nodes)
	if give(nodes[0], d)[0] != "ok":
		sys.exit(f"{cell}: {d} fails\n{report()}")
	reference.do(*d)
	note_versions()


times = {}
cell = "the first versions"
for kind in ["commit"] + 5 * ["topology"]:  # so that each new one drops another
	change(kind)
for cell in cells():
	if rng.random() < 0.3:
		change("commit")
	took = meet(*cell)
	times.setdefault((cell[0], cell[1]), []).append(took)
	print(f"{'/'.join(cell)}: " + ", ".join(f"{t:.1f}" for t in took), flush=True)
cell = "the end"
seen.end()
for n in nodes:
	n.down()
	clean(n)
reference.end()
broken = history.check([line for f in seen.files() for line in open(f)])
if broken:
	sys.exit("\n".join(broken[:20]))
for (role, fault), rows in sorted(times.items()):
	print(f"figure: {role}, {fault}: command ended, others went on, all well after it was mended: "
	      + ", ".join(f"{max(r[i] for r in rows):.1f}" for i in range(3)) + f" s at most, of {len(rows)}")
print(f"{sum(map(len, times.values()))} cells: the history holds")
