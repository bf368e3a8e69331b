# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY SEED COUNT: random sequences of what is done to stores and jobs on three nodes: a store is copied, an older copy is put back, it
is taken away or another node's is put in its place, a daemon is killed; ranks are written, committed, and cut otherwise.  Whatever is
read is what was committed, or an error where a store that had it was put back; a wrong store is refused, and changes nothing.
"""
import errno
import os
import random
import shutil
import subprocess
import sys
import time

from kept import clean, save_tensors
from nodes import STOOD_STILL, Cluster, inside

work, binary, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
STEPS, ROWS, COLUMNS, PARTS = 12, 12, 64, 3
PART = ROWS // PARTS * COLUMNS * 4
rng = random.Random(seed)
cluster = Cluster(work, binary, nodes=3, ttl_ms=2000, fresh_ms=600)
backups, done, log = {}, {}, []


def part(of, k):
	return random.Random(f"{of} {k}").randbytes(PART)


class Job:
	"""What must be read of it: for each version its topology, and for each third of the tensor the number of what was written last, and
	how often a store had been put back by then."""
	def __init__(self, name):
		self.name, self.tp, self.versions, self.pending, self.lossy = name, PARTS, [], {}, 0
		one = cluster.nodes[0]
		(one.mount / name).mkdir()
		one.must(name, "layout", "mesh tp\nw.weight tp=0\n*:* copy\n")
		one.must(name, "config", "keep=0")
		one.must(name, "topology", f"tp={PARTS}")
		for n in cluster.nodes:
			n.wait(lambda: n.read(name, "topology") == f"tp={PARTS}\n", 30, "the topology is there")

	def parts(self, rank, tp):
		return range(rank * PARTS // tp, (rank + 1) * PARTS // tp)

	def write(self, node, rank, of):
		path = node.mount / self.name / str(rank)
		path.mkdir(exist_ok=True)
		data = b"".join(part(of, k) for k in self.parts(rank, self.tp))
		save_tensors(path / "model.safetensors", {"w.weight": ([ROWS // self.tp, COLUMNS], data)})
		for other in [r for r, (n, _) in self.pending.items() if r == rank and n is not node]:
			del self.pending[other]  # both have it: the commit is refused
		self.pending[rank] = (node, of)


def read(job, node, nr):
	"""Version `nr` (0: the newest) by a node: right, or an error that may be."""
	tp, values = job.versions[nr - 1]
	for rank in range(tp):
		if nr == 0 and rank in job.pending and job.pending[rank][0] is node:
			continue  # it has another one
		path = node.mount / job.name / (f".v/{nr}/" if nr else "") / str(rank) / "model.safetensors"
		end = time.monotonic() + 30
		while True:
			try:
				got = path.read_bytes()
				break
			except OSError as e:
				if e.errno == errno.EIO and any(values[k][1] < job.lossy for k in job.parts(rank, tp)):
					got = None
					break
				if time.monotonic() > end or e.errno not in (errno.ENOENT, errno.EHOSTDOWN):
					sys.exit(f"{node.name}: {path}: {e}: {node.read(job.name, 'error')}{node.health()}\n{log}")
				time.sleep(0.02)
		want = b"".join(part(values[k][0], k) for k in job.parts(rank, tp))
		if got is None:
			done["EIO"] = done.get("EIO", 0) + 1
		elif not got.endswith(want):
			is_ = [(of, k) for k in range(PARTS) for of in range(job.of + 1) if part(of, k) in got]
			sys.exit(f"WRONG BYTES: {node.name}: {path} has {is_}, not {[values[k] for k in job.parts(rank, tp)]}: {log}")
		else:
			done["read"] = done.get("read", 0) + 1


def shows_newest(job, node):
	want = f"\nversion: {len(job.versions)}\n" if job.versions else ""
	node.wait(lambda: want in node.read(job.name, "status"), 40, f"it shows version {len(job.versions)} of {job.name}: {log}")


def discard(job, node):
	node.must(job.name, "discard", "yes\n")
	job.pending = {r: (n, of) for r, (n, of) in job.pending.items() if n is not node}


def refused(node, store, *words):
	options = f"cluster=test,node={node.name},listen={node.address}:7077,etcd={cluster.urls[0]}"
	r = subprocess.run([*inside(node.namespace), binary, "mount", "-f", "-o", options, store, node.mount], capture_output=True, text=True, timeout=60)
	if r.returncode == 0 or not any(w in r.stdout + r.stderr for w in words):
		sys.exit(f"{node.name} with {store}: status {r.returncode}: {r.stdout}{r.stderr}: none of {words}: {log}")


def command(job, node, file, text):
	"""What it was refused with, or ''.  Nodes that were just mounted are members for the others a moment later."""
	end = time.monotonic() + 30
	while node.ctl(job.name, file, text):
		said = node.read(job.name, "error")
		if time.monotonic() > end or not ("try again" in said or any(part in said for part in STOOD_STILL)):
			return said or "it says nothing"
		time.sleep(0.1)
	return ""


def commit(job, node):
	if said := command(job, node, "commit", f"step={len(job.versions) + 1} kept=yes"):
		done["refused"] = done.get("refused", 0) + 1
		if not job.pending and "nothing was written" in said:
			return
		if job.lossy and ("lost" in said or "nobody has" in said or "node" in said):
			return
		sys.exit(f"{node.name}: a commit of {job.pending} was refused: {said}: {log}")
	values = list(job.versions[-1][1]) if job.versions else [None] * PARTS
	for rank, (_, of) in job.pending.items():
		for k in job.parts(rank, job.tp):
			values[k] = (of, job.lossy)
	job.versions.append((job.tp, values))
	job.pending = {}


def topology(job, node):
	for n in cluster.nodes:
		discard(job, n)
	tp = 1 if job.tp == PARTS else PARTS
	if said := command(job, node, "topology", f"tp={tp}"):
		if not job.lossy:
			sys.exit(f"{node.name}: topology: {said}: {log}")
		done["refused"] = done.get("refused", 0) + 1
		return
	job.tp = tp
	job.versions.append((tp, list(job.versions[-1][1])))


def step(job):
	what = rng.choice(["write", "write", "write", "commit", "commit", "commit", "topology", "backup", "restore", "restore", "wipe", "swap", "kill"])
	node = rng.choice(cluster.nodes)
	if not job.versions and what == "topology":
		what = "commit"
	if what == "commit" and not job.versions:  # the first version has all ranks
		for rank, n in enumerate(cluster.nodes):
			discard(job, n)
			job.of += 1
			job.write(n, rank, job.of)
	log.append((what, node.name))
	done[what] = done.get(what, 0) + 1
	if what == "write":
		rank = rng.randrange(job.tp)
		if rank in job.pending and job.pending[rank][0] is not node:
			discard(job, job.pending[rank][0])
		job.of += 1
		job.write(node, rank, job.of)
	elif what == "commit":
		commit(job, node)
	elif what == "topology":
		topology(job, node)
	elif what == "kill":
		node.kill()
		node.up()
	elif what == "backup":
		node.down()
		to = cluster.work / f"backup-{node.name}-{rng.randrange(2)}"
		shutil.rmtree(to, ignore_errors=True)
		shutil.copytree(node.store, to, symlinks=True)
		backups.setdefault(node.name, set()).add(to)
		node.up()
	elif what == "restore" and backups.get(node.name):
		node.down()
		shutil.rmtree(node.store)
		shutil.copytree(rng.choice(sorted(backups[node.name])), node.store, symlinks=True)
		job.lossy += 1
		node.up()
		node.wait(lambda: (node.mount / job.name).is_dir(), 30, "it has the job")
		discard(job, node)
	elif what == "wipe":
		node.down()
		empty = cluster.work / "empty"
		shutil.rmtree(empty, ignore_errors=True)
		empty.mkdir()
		refused(node, empty, "another store")
		node.up()
	elif what == "swap":
		other = rng.choice([n for n in cluster.nodes if n is not node])
		node.down()
		other.down()
		refused(node, other.store, "another node's")
		node.up()
		other.up()


for n in cluster.nodes:
	n.up()
for i in range(count):
	log.clear()
	log.append(f"seed {seed}, sequence {i}")
	now = Job(f"job{i}")
	now.of = 0
	for _ in range(STEPS):
		step(now)
		if now.versions:
			reader = rng.choice(cluster.nodes)
			shows_newest(now, reader)
			read(now, reader, 0)
			read(now, reader, rng.randrange(len(now.versions)) + 1)
	for n in cluster.nodes:
		if now.versions:
			shows_newest(now, n)
			read(now, n, 0)
			read(now, n, rng.randrange(len(now.versions)) + 1)
for n in cluster.nodes:
	n.down()
for n in cluster.nodes:
	clean(n)
print(f"{count} sequences of seed {seed}: " + ", ".join(f"{nr} {what}" for what, nr in sorted(done.items())))
