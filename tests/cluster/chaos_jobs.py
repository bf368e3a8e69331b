# SPDX-License-Identifier: Apache-2.0
"""
What chaos.py does to jobs, and what each version of them may have: who writes ranks and gives commands, who writes notes, who reads.
"""
import errno
import hashlib
import os
import struct
import threading
import time

from kept import save_tensors
from nodes import leftovers, tail

PARTS, PART_ROWS, COLUMNS = 12, 10, 1024
PART = PART_ROWS * COLUMNS * 4
DEGREES = [1, 2, 3, 4, 6, 12]
HANGS = 120
FILE = "model.safetensors"
UNKNOWN = {errno.ENOTCONN, errno.ECONNABORTED, errno.EINTR, errno.ECANCELED}  # ECANCELED: "this mount ends"
AWAY = UNKNOWN | {errno.EHOSTDOWN, errno.EIO, errno.ENOENT, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ENOTDIR}

counts = dict.fromkeys(("changes", "refused", "unknown", "reads", "put back", "mounted twice", "faults", "largest"), 0)
news, busy = [], {}  # what happened, the last of it; what threads wait for: (since, what)
lock, over, ending = threading.RLock(), threading.Event(), threading.Event()
jobs = []


class the:
	"""What is run, and since when."""
	cluster, name, began = None, "", time.monotonic()


def say(text):
	news.append(f"{time.monotonic() - the.began:.2f} {text}")
	with open(the.cluster.work / "chaos.log", "a") as log:
		log.write(news[-1] + "\n")


def end_badly(kind, text):
	"""The first thing that is wrong ends it all: the folder stays as it is then."""
	with lock:
		if ending.is_set():
			time.sleep(600)
		ending.set()
	print(f"{kind.upper()}: {text}\n--- before\n" + "\n".join(news[-60:]), flush=True)
	for n in the.cluster.nodes:
		for path in (".ctl/health", *(f"{j.name}/.ctl/{f}" for j in jobs for f in ("status", "versions", "error"))):
			t = threading.Thread(target=lambda: print(f"--- {n.name} {path}: {peek(n.mount / path)}", flush=True), daemon=True)
			t.start()
			t.join(3)
		print(f"--- {n.name}'s log: {tail(n.log, 2500)}", flush=True)
	print("--- waiting: " + "; ".join(f"{time.monotonic() - since:.1f} s: {what}" for since, what in list(busy.values())))
	if kind == "hung":
		print("\n".join(leftovers.stacks([n.daemon.pid for n in the.cluster.nodes if n.daemon.poll() is None])), flush=True)
	print(result(**{kind: 1}), flush=True)
	the.cluster.end()
	os._exit(1)


def peek(path):
	try:
		return path.read_text()
	except OSError as e:
		return str(e)


def result(wrong=0, lost=0, hung=0):
	return (f"{the.name}: {counts['changes']} changes, {counts['refused']} refused, "
		f"{counts['unknown']} unknown, {counts['reads']} reads, {counts['faults']} faults, {counts['put back']} stores put back, {counts['mounted twice']} twice, "
		f"{wrong} wrong, {lost} lost, {hung} hung, largest daemon {counts['largest'] // 1024} MiB")


def life(node):
	"""Another one after each fault, and after it was no member for a while, whatever that was by."""
	try:
		return node.epoch, [line for line in (node.mount / ".ctl/metrics").read_text().splitlines() if line.startswith("scalai_cluster_fences_total")]
	except OSError:
		return node.epoch, time.monotonic()


class waits_for:
	"""What this thread does may take HANGS seconds at most."""
	def __init__(self, what):
		self.what = what

	def __enter__(self):
		busy[threading.get_ident()] = (time.monotonic(), self.what)

	def __exit__(self, *_):
		del busy[threading.get_ident()]


def part(of, k, job, node):
	return struct.pack("<IIII", of, k, job, node) * (PART // 16)


def decode(data, job):
	"""Degree and what each part has, as (number of the write, part); a sentence if it is nothing that was ever written."""
	values = data[8 + struct.unpack("<Q", data[:8])[0]:] if len(data) > 8 else b""
	if not values or len(values) % PART:
		return f"{len(data)} bytes"
	found = []
	for at in range(0, len(values), PART):
		of, k, j, node = struct.unpack("<IIII", values[at:at + 16])
		if values[at:at + PART] != part(of, k, j, node) or j != job or not found and k % (len(values) // PART) or found and k != found[-1][1] + 1:
			return f"part {at // PART} begins with write {of}, part {k}, job {j}, node {node}, and is {hashlib.sha256(values[at:at + PART]).hexdigest()[:12]}"
		found.append((of, k))
	return PARTS * PART // len(values), found


class Cell:
	"""What a part of a version has: one of these numbers of writes.  Versions that must have the same share it."""
	def __init__(self, possible, age):
		self.possible, self.age = set(possible), age


class Version:
	def __init__(self, tp, cells):
		self.tp, self.cells, self.seen = tp, cells, False

	def fits(self, tp, found):
		return self.tp == tp and all(of in self.cells[k].possible for of, k in found)

	def narrow(self, found):
		for of, k in found:
			self.cells[k].possible &= {of}


class Job:
	def __init__(self, number):
		self.number, self.name = number, f"job{number}"
		self.tp, self.versions, self.head, self.maybe, self.floor, self.step, self.of = PARTS // 3, {}, 0, None, 0, 0, 0
		self.pending = {n.name: {} for n in the.cluster.nodes}  # node: rank: {(tp, number)}, which it may show
		self.musts, self.full = {}, True  # rank: [(node, its epoch, number)] that the next commit has to take; all ranks are to be saved
		self.notes, self.quiet, self.discards = {}, False, dict.fromkeys(self.pending, 0)
		one = the.cluster.nodes[0]
		(one.mount / self.name).mkdir()
		one.must(self.name, "layout", "mesh tp\nw.weight tp=0\n*:* copy\n")
		one.must(self.name, "config", "keep=4")
		one.must(self.name, "topology", f"tp={self.tp}")
		for n in the.cluster.nodes:
			n.wait(lambda: n.read(self.name, "topology") == f"tp={self.tp}\n", 30, "the topology is there")
		names = [line.split() for line in the.cluster.values("all/jobs/") if "/name " in line]
		self.id = next(words[0].split("/")[-2] for words in names if any(w.strip('"') == self.name for w in words[1:]))

	def path(self, node, rank, version=None):
		return node.mount / self.name / (f".v/{version}" if version else "") / str(rank) / FILE

	# --- what is read ---

	def may_be(self):
		"""Versions by number, with what a command on its way may have made."""
		return {**self.versions, **({self.head + 1: self.maybe} if self.maybe else {})}

	def shown(self, node, rank):
		return set(self.pending[node.name].get(rank, ()))

	def look(self, node, rank, version=None):
		"""Reads, and judges it; the error, if it can't be read."""
		with lock:
			floor, shown = self.floor, self.shown(node, rank)
		with waits_for(f"a read of {self.path(node, rank, version)}"):
			try:
				data = self.path(node, rank, version).read_bytes()
			except OSError as e:
				if e.errno not in AWAY:
					end_badly("wrong", f"{node.name}: {self.path(node, rank, version)}: {e}")
				return e
		is_ = decode(data, self.number)
		with lock:
			counts["reads"] += 1
			if isinstance(is_, str):
				end_badly("wrong", f"{self.path(node, rank, version)} was never written: {is_}")
			if is_[1][0][1] != rank * (PARTS // is_[0]):
				end_badly("wrong", f"{self.path(node, rank, version)} is another rank's: {is_}")
			all_ = self.may_be()
			fit = [nr for nr, v in all_.items() if v.fits(*is_) and (nr == version if version else nr >= floor)]
			mine = not version and any(is_[0] == tp and all(of == o for o, _ in is_[1]) for tp, of in shown | self.shown(node, rank))
			if not fit and not mine:
				older = [nr for nr, v in all_.items() if v.fits(*is_)]
				end_badly("wrong", f"{self.path(node, rank, version)} has {is_}: of versions {older}; seen by then was {floor}, the head is "
					  f"{self.head}{' or one more' if self.maybe else ''}; its cells: "
					  f"{[c.possible for c in all_[version or self.head].cells] if (version or self.head) in all_ else None}")
			if fit and not mine:
				self.floor = max(self.floor, min(fit) if not version else 0)
				if len(fit) == 1:
					all_[fit[0]].narrow(is_[1])
					all_[fit[0]].seen = True
		return None

	def look_at_topology(self, node):
		with lock:
			floor = self.floor
		with waits_for(f"a read of {self.name}'s topology on {node.name}"):
			try:
				text = node.read(self.name, "topology")
			except OSError:
				return
		with lock:
			if floor and text not in {f"tp={v.tp}\n" for nr, v in self.may_be().items() if nr >= floor}:
				end_badly("wrong", f"{node.name}: topology of {self.name} is {text!r}, version {floor} was seen before")

	# --- what is done ---

	def write(self, node, rank):
		with lock:
			self.of += 1
			of, tp, epoch = self.of, self.tp, life(node)
			self.pending[node.name].setdefault(rank, set()).add((tp, of))
		n = PARTS // tp
		folder = node.mount / self.name / str(rank)
		data = b"".join(part(of, k, self.number, node.number) for k in range(rank * n, rank * n + n))
		with waits_for(f"a write of {folder}"):
			try:
				if not folder.is_dir():
					folder.mkdir(exist_ok=True)
				save_tensors(folder / "new", {"w.weight": ([PART_ROWS * n, COLUMNS], data)})
				(folder / "new").rename(folder / FILE)
			except OSError as e:
				if e.errno not in AWAY:
					end_badly("wrong", f"{node.name}: {folder}: {e}")
				return
		with lock:
			# the same node's later write is in place of it
			musts = [m for m in self.musts.get(rank, []) if m[0] is not node]
			self.musts[rank] = musts + [(node, epoch, of)]

	def command(self, node, file, text):
		"""'ok', or why it failed: what is 'unknown' may have happened."""
		with waits_for(f"'{text}' > {self.name}/.ctl/{file} on {node.name}"):
			began_here = time.monotonic()
			try:
				fd = os.open(node.mount / self.name / ".ctl" / file, os.O_WRONLY)
			except OSError as e:
				return os.strerror(e.errno)
			try:
				os.write(fd, text.encode())
				said = "ok"
			except OSError as e:
				said = "unknown" if e.errno in UNKNOWN | {errno.ESTALE} else os.strerror(e.errno)
			try:
				os.close(fd)
			except OSError:  # its daemon is gone
				pass
		why = peek(node.mount / self.name / ".ctl/error").strip()[:240] if said not in ("ok", "unknown") else ""
		say(f"{node.name} {self.name}: '{text.strip()}' > {file}: {said} in {time.monotonic() - began_here:.2f} s {why}")
		return f"{said}: {why}" if why else said

	def etcd_head(self):
		"""The newest version that etcd has, when no command is on its way any more."""
		with waits_for(f"etcd's head of {self.name}, without a proposal"):
			while True:
				try:
					rows = the.cluster.values(f"all/jobs/{self.id}/")
				except (AttributeError, TypeError):
					rows = None
				if rows and not any(f"/{self.id}/proposal " in row for row in rows):
					head = [row for row in rows if f"/{self.id}/head " in row]
					words = head[0].split() if head else []
					return int(words[words.index("nr") + 1]) if head else 0
				time.sleep(0.2)

	def change(self, node, file, text, version, musts=()):
		"""A command that may make this version, and no other one is on its way for this job."""
		with lock:
			self.maybe = version
		said = self.command(node, file, text)
		if said != "ok" and (said == "unknown" or version.seen or self.rng.random() < 0.3):
			head = self.etcd_head()
			if head not in (self.head, self.head + 1) or (said != "unknown" and head != self.head):
				end_badly("wrong", f"'{text}' > {file} on {node.name} ({said}): etcd has version {head} of {self.name}, after {self.head}")
			if said == "unknown":
				counts["unknown"] += 1
				said = "ok" if head > self.head else "it did not happen"
				musts = ()
		with lock:
			self.maybe = None
			if said != "ok":
				counts["refused"] += 1
				if version.seen:
					end_badly("wrong", f"'{text}' > {file} on {node.name} failed ({said}), and was seen")
				return said
			counts["changes"] += 1
			self.head += 1
			self.floor, self.versions[self.head], self.tp = self.head, version, version.tp
			self.must(version, musts, f"version {self.head} of {self.name}")
		return said

	def must(self, version, musts, name):
		n, was = PARTS // version.tp, {}
		for rank, node, epoch, of in musts:
			if life(node) != epoch:
				continue
			if was.setdefault(rank, of) != of:
				end_badly("wrong", f"{name}: rank {rank} was written on two nodes, as {was[rank]} and {of}, and the commit was taken")
			for k in range(rank * n, rank * n + n):
				version.cells[k].possible &= {of}
				if not version.cells[k].possible:
					end_badly("wrong", f"{name}: it was seen without write {of} of rank {rank} on {node.name}, which was committed")

	def commit(self, node):
		for rank in range(self.tp):
			if self.full or self.rng.random() < 0.6:
				self.write(self.rng.choice(the.cluster.nodes), rank)
		n = PARTS // self.tp
		with lock:
			before = self.versions[self.head].cells if self.head else None
			musts = [(rank, *m) for rank, ms in self.musts.items() for m in ms if m[0].well]
			notes = [(x, self.notes[x.name]) for x in the.cluster.nodes if x.name in self.notes and self.notes[x.name][2] == self.discards[x.name] and x.well]
			cells = []
			for k in range(PARTS):
				ofs = {of for ranks in self.pending.values() for tp, of in ranks.get(k // n, ()) if tp == self.tp}
				same = before and not ofs  # nobody has another one: it is what it was
				cells.append(before[k] if same else Cell(ofs | (before[k].possible if before else set()), puts()))
			self.step += 1
			version = Version(self.tp, cells)
		said = self.change(node, "commit", f"step={self.step} kept=yes", version, musts)
		if said != "ok":
			self.full = True
			if self.rng.random() < 0.7:
				self.discard_all()
			return said
		for rank in range(self.tp):
			if self.look(node, rank, self.head):
				break
		else:  # what it has is known: no node shows that as its own any more
			self.full = False
			with lock:
				taken = {of for c in version.cells for of in c.possible}
				for ranks in self.pending.values():
					for rank in ranks:
						ranks[rank] -= {(tp, of) for tp, of in ranks[rank] if of in taken}
		self.musts.clear()
		for x, (number, epoch, _) in notes:
			try:
				is_ = int((node.mount / self.name / f".v/{self.head}/notes/{x.name}").read_text())
			except FileNotFoundError as e:
				is_ = 0 if node.well and (node.mount / self.name / f".v/{self.head}").is_dir() else None
			except (OSError, ValueError):
				continue
			if is_ is not None and is_ < number and epoch == life(x):
				end_badly("wrong", f"version {self.head} of {self.name} has note {is_} of {x.name}, where {number} was written before")
		return said

	def topology(self, node, tp):
		return self.change(node, "topology", f"tp={tp} plain=drop", Version(tp, self.versions[self.head].cells))

	def discard(self, node):
		with lock:
			was = {rank: set(s) for rank, s in self.pending[node.name].items()}
			self.discards[node.name] += 1
			for rank in self.musts:
				self.musts[rank] = [m for m in self.musts[rank] if m[0] is not node]
		said = self.command(node, "discard", "yes\n")
		with lock:
			self.discards[node.name] += 1
			if said == "ok":
				for rank, s in was.items():
					self.pending[node.name][rank] -= s
		return said

	def discard_all(self):
		self.quiet = True
		for n in the.cluster.nodes:
			if n.well or self.rng.random() < 0.2:
				self.discard(n)

	def turn(self):
		node = self.rng.choice(the.cluster.nodes)
		what = self.rng.choices(["commit", "topology", "rollback", "discard", "tag", "keep"], [10, 10, 2, 2, 1, 1])[0]
		if what == "commit" or not self.head or self.full and self.rng.random() < 0.7:
			self.quiet = self.rng.random() < 0.2
			return self.commit(node)
		if what == "discard":
			return self.discard(node)
		if what == "tag":
			return self.command(node, "versions", f"tag {self.head} t{self.head}") if self.rng.random() < 0.5 else None
		if what == "keep":
			return self.command(node, "config", f"keep={self.rng.choice([2, 3, 4, 6])}")
		if self.rng.random() < 0.9:
			self.discard_all()
		if what == "topology":
			said = self.topology(node, self.rng.choice([d for d in DEGREES if d != self.tp]))
		else:
			nr = self.rng.choice(list(self.versions)[-6:])
			said = self.change(node, "rollback", str(nr), Version(self.versions[nr].tp, self.versions[nr].cells))
		self.full = self.full or said != "ok" and "Input/output" in said
		if said == "ok":
			self.musts.clear()

	def runs(self):
		while not over.is_set():
			self.turn()
			time.sleep(self.rng.random() * 0.3)


def puts():
	return counts["put back"]


def reader(node, rng):
	while not over.is_set():
		job = rng.choice(jobs)
		if rng.random() < 0.1:
			job.look_at_topology(node)
		else:
			version = rng.choice(list(job.versions)[-6:]) if job.versions and rng.random() < 0.25 else None
			tp = job.versions[version].tp if version else job.tp
			job.look(node, rng.randrange(tp), version)
		time.sleep(rng.random() * 0.06)


def noter(node, rng):
	"""Counts in a file of each job that no other node writes."""
	number = 0
	while not over.is_set():
		job = rng.choice(jobs)
		if not job.quiet:
			number += 1
			with lock:
				now = life(node), job.discards[node.name]
			try:
				with waits_for(f"a note on {node.name}"):
					folder = node.mount / job.name / "notes"
					if not folder.is_dir():
						folder.mkdir(exist_ok=True)
					(folder / node.name).write_text(f"{number}")
				with lock:
					job.notes[node.name] = (number, *now)
			except OSError as e:
				if e.errno not in AWAY | {errno.EEXIST}:
					end_badly("wrong", f"{node.name}: a note: {e}")
		time.sleep(rng.random() * 0.8)

