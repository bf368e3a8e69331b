# SPDX-License-Identifier: Apache-2.0
"""
Who writes and reads on the nodes of a cluster, and a job in which each version can be told by one file's content: rows of
rank 0 (the topology), and the number that all of its values are (the commit).  What they see are lines of history.py.
"""
import errno
import functools
import multiprocessing
import os
import pathlib
import struct
import json
import time

ROWS = 2520
DEGREES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
AWAY = {errno.ENOTCONN, errno.ECONNABORTED, errno.EHOSTDOWN, errno.EIO, errno.ENOENT, errno.EINTR, errno.EAGAIN, errno.EBUSY,
	errno.ESTALE}
clock = time.monotonic_ns


@functools.lru_cache(64)
def shard(tp, number):
	rows = ROWS // tp
	header = json.dumps({"w.weight": {"dtype": "F32", "shape": [rows], "data_offsets": [0, rows * 4]}}).encode()
	header += b" " * (-len(header) % 8)
	return struct.pack("<Q", len(header)) + header + struct.pack("<I", number) * rows


def content(data):
	"""Of the bytes of a rank's file: degree and number."""
	values = data[8 + struct.unpack("<Q", data[:8])[0]:]
	whole = len(values) >= 4 and values == values[:4] * (len(values) // 4)
	return f"{ROWS * 4 / len(values):g}.{struct.unpack('<I', values[:4])[0]}" if whole else "mixed"


def make(cluster, job="gpt"):
	one = cluster.nodes[0]
	(one.mount / job).mkdir()
	one.must(job, "config", "keep=0")
	one.must(job, "layout", "mesh tp\nw.weight tp=0\n*:* copy\n")
	one.must(job, "topology", "tp=2")
	for n in cluster.nodes:
		n.wait(lambda: (n.mount / job).is_dir() and n.read(job, "topology") == "tp=2\n", 30, "the topology is there")


def save(node, tp, rank, number, job="gpt"):
	folder = node.mount / job / str(rank)
	folder.mkdir(exist_ok=True)
	(folder / "new").write_bytes(shard(tp, number))
	(folder / "new").rename(folder / "model.safetensors")


class Log:
	"""Lines of one process, in a file of its own."""
	def __init__(self, path):
		self.file = open(path, "a", buffering=1)

	def add(self, *fields):
		self.file.write("\t".join(map(str, fields)) + "\n")


def look(mount, job="gpt"):
	"""Opens rank 0's file by plain path: begin, end, content."""
	begin = clock()
	fd = os.open(f"{mount}/{job}/0/model.safetensors", os.O_RDONLY)
	end = clock()
	try:
		data = b""
		while piece := os.pread(fd, 1 << 20, len(data)):
			data += piece
		return begin, end, content(data)
	finally:
		os.close(fd)


def reader(node, mount, path, stop):
	log = Log(path)
	while not stop.is_set():
		try:
			log.add("open", node, *look(mount))
		except OSError as e:
			if e.errno not in AWAY:
				raise
		time.sleep(0.005)


def number_in(path):
	try:
		with open(path) as f:
			return int(f.read() or 0)
	except FileNotFoundError:
		return 0


def writer(node, mount, path, stop, quiet, idle, name):
	"""Counts in a file of the job, which no other node writes; in between it reads it."""
	log, number = Log(path), 0
	file = f"{mount}/gpt/notes/{name}"
	while not stop.is_set():
		if quiet.is_set():
			idle.set()
			time.sleep(0.005)
			continue
		idle.clear()
		number += 1
		try:
			os.makedirs(f"{mount}/gpt/notes", exist_ok=True)
			begin = clock()
			fd = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
			try:
				os.pwrite(fd, b"%08d\n" % number, 0)
			finally:
				os.close(fd)
			log.add("write", node, begin, clock(), name, number)
			begin = clock()
			found = number_in(file)
			log.add("read", node, begin, clock(), name, found)
		except OSError as e:
			if e.errno not in AWAY:
				raise
		time.sleep(0.02)


class Watchers:
	def __init__(self, cluster, folder, readers=3, writers=3):
		self.folder = pathlib.Path(folder)
		self.folder.mkdir()
		self.stop, self.quiet = multiprocessing.Event(), multiprocessing.Event()
		self.idle, self.all, self.notes = [], [], []
		self.log = Log(self.folder / "commands")
		for n in cluster.nodes:
			for k in range(readers):
				self.begin(reader, n.name, n.mount, self.folder / f"{n.name}.reads{k}", self.stop)
			for k in range(writers):
				self.idle.append(multiprocessing.Event())
				self.notes.append(f"{n.name}.{k}")
				self.begin(writer, n.name, n.mount, self.folder / f"{n.name}.writes{k}", self.stop, self.quiet,
					   self.idle[-1], self.notes[-1])

	def begin(self, what, *args):
		self.all.append(multiprocessing.Process(target=what, args=args, daemon=True))
		self.all[-1].start()

	def hush(self):
		"""Returns when nobody writes any more."""
		self.quiet.set()
		for event in self.idle:
			if not event.wait(60):
				raise SystemExit("a writer does not come to an end")

	def go_on(self):
		self.quiet.clear()

	def end(self):
		self.stop.set()
		for p in self.all:
			p.join(60)
			if p.exitcode != 0:  # None: it has not
				raise SystemExit(f"who looks has ended with {p.exitcode}")

	def save(self, node, tp, rank, number):
		if rank == 0:
			self.log.add("save", node.name, clock(), clock(), f"{tp}.{number}")
		save(node, tp, rank, number)

	def command(self, node, kind, file, text, what):
		"""Writes a command, which is to make this content; ok, failed or unknown.  Returns the errno, too."""
		begin, result, why = clock(), "ok", 0
		try:
			fd = os.open(node.mount / "gpt/.ctl" / file, os.O_WRONLY)
			try:
				os.write(fd, text.encode())
			finally:
				os.close(fd)
		except OSError as e:
			why = e.errno
			result = "unknown" if why in (errno.ENOTCONN, errno.ECONNABORTED, errno.EINTR) else "failed"
		self.log.add(kind, node.name, begin, clock(), what, result)
		return result, why

	def versions(self, nodes):
		"""What they have at the end."""
		for n in nodes:
			top = n.mount / "gpt/.v"
			rows = n.read("gpt", "versions").splitlines()[1:]
			for nr in sorted(int(row.split("\t")[0].strip("* ")) for row in rows):
				self.log.add("version", n.name, nr, content((top / str(nr) / "0/model.safetensors").read_bytes()))
				for name in self.notes:
					self.log.add("kept", n.name, nr, name, number_in(top / str(nr) / "notes" / name))

	def files(self):
		return sorted(self.folder.iterdir())
