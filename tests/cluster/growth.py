# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY [CHANGES]: topologies and commits without a pause, of a job whose ranks have no home by hand and of one with home= and
replicas=2, and jobs that are made and removed all the while: etcd has no more keys and bytes, and the nodes' stores no more rows and files,
after all of them than after the first; and an etcd of 16 MiB, which keeps the last 1,000 of its revisions, has room for them all.
Then what a node that was away makes of jobs that were removed, of which etcd has no keys any more.
"""
import base64
import contextlib
import os
import sqlite3
import sys
import threading
import time

from kept import clean, save_tensors
from nodes import Cluster

work, binary = sys.argv[1:3]
CHANGES = int(sys.argv[3] if len(sys.argv) > 3 else os.environ.get("GROWTH_CHANGES", 100))
FIRST = min(100, CHANGES // 2)
MORE = 1.2
QUOTA = 16 << 20
cluster = Cluster(work, binary, nodes=3, ttl_ms=2000, fresh_ms=800, etcd_options=(
	"--quota-backend-bytes", str(QUOTA), "--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000"))
one, two, three = cluster.nodes
ROWS, COLUMNS = 16, 64


def size():
	"""How many keys etcd has of the cluster, and their bytes, with those of their values."""
	first, last = (base64.b64encode(k).decode() for k in (b"/scalai/test/", b"/scalai/test0"))
	kvs = cluster.post("/v3/kv/range", {"key": first, "range_end": last}).get("kvs", [])
	return len(kvs), sum(len(base64.b64decode(kv.get(k, ""))) for kv in kvs for k in ("key", "value"))


def stored():
	"""How many rows the catalogs of all nodes have, and how many files and folders their stores."""
	rows = files = 0
	for n in cluster.nodes:
		with contextlib.closing(sqlite3.connect(f"file:{n.store}/scalai.db?mode=ro", uri=True, timeout=60)) as db:
			tables = [name for name, in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")]
			rows += sum(db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables)
		files += sum(len(folders) + len(names) for _, folders, names in os.walk(n.store))
	return rows, files


def kinds():
	"""How many keys of each kind there are, by the first part of their names."""
	first, last = (base64.b64encode(k).decode() for k in (b"/scalai/test/", b"/scalai/test0"))
	counts = {}
	for kv in cluster.post("/v3/kv/range", {"key": first, "range_end": last, "keys_only": True}).get("kvs", []):
		words = base64.b64decode(kv["key"]).decode().split("/")[3:]
		kind = words[0] if words[0] != "all" else "/".join(w for w in (words[:2] + words[3:4]))
		counts[kind] = counts.get(kind, 0) + 1
	return counts


def write(node, job, rank, tp, seed):
	folder = node.mount / job / str(rank)
	folder.mkdir(exist_ok=True)
	part = bytes((rank + seed + i) % 251 for i in range(ROWS // tp * COLUMNS * 4))
	save_tensors(folder / "model.safetensors", {"w.weight": ([ROWS // tp, COLUMNS], part)})
	(folder / "notes.txt").write_text(f"{seed}\n" * 20)


def make(node, job, tp=2):
	(node.mount / job).mkdir()
	node.must(job, "layout", "mesh tp\nplain *.txt\nw.weight tp=0\n*:* copy\n")
	node.must(job, "config", "keep=4 remove=yes")
	node.must(job, "topology", f"tp={tp}")


def seen(job):
	for n in cluster.nodes:
		n.wait(lambda: (n.mount / job).is_dir() and n.read(job, "topology") == "tp=2\n", 30, f"it has {job}")


def change(job, i):
	"""A topology, or a commit, of another node each time."""
	node = cluster.nodes[i % 3]
	if i % 2:
		node.must(job, "topology", f"tp={(4, 2)[i // 2 % 2]} plain=drop")
		return
	tp = (2, 4)[(i + 1) // 2 % 2]
	node.wait(lambda: node.read(job, "topology") == f"tp={tp}\n", 30, f"it has the topology tp={tp}")
	for rank in range(tp):
		write(node, job, rank, tp, i)
	node.must(job, "commit", f"step={i}")


def life(i):
	"""A job is made on a node, has two versions, and is removed on another one."""
	node, job = cluster.nodes[i % 3], f"short{i}"
	make(node, job)
	for step in range(2):
		for rank in range(2):
			write(node, job, rank, 2, i + step)
		node.must(job, "commit", f"step={step}")
	other = cluster.nodes[(i + 1) % 3]
	other.wait(lambda: (other.mount / job).is_dir(), 30, f"it has {job}")
	other.wait(lambda: not remove(other, job), 30, f"{job} is removed")


def remove(node, job):
	try:
		os.rmdir(node.mount / job)
		return ""
	except OSError as e:  # another node has not said yet that it shows the newest version
		return str(e)


def forever(what, done, failed):
	try:
		i = 0
		while not done.is_set():
			what(i)
			i += 1
	except BaseException as e:  # pylint: disable=broad-except
		failed.append(e)
		done.set()


for n in cluster.nodes:
	n.up()
for job in "plain", "homes":
	make(one, job)
	seen(job)
for n, home in zip(cluster.nodes, ("0,3", "1", "2")):
	n.must("homes", "config", f"home={home}")
one.must("homes", "config", "replicas=2")
done, failed, lives = threading.Event(), [], []


def all_lives(i):
	life(i)
	lives.append(i)


beside = threading.Thread(target=forever, args=(all_lives, done, failed))
beside.start()
peaks = []
try:
	for at in range(CHANGES):
		for job in "plain", "homes":
			change(job, at)
		if at % 5 == 4:
			peaks.append((at + 1, len(lives), *size(), time.monotonic(), *stored()))
			if at % 50 == 49 or at + 1 == FIRST:
				print(f"figure: {at + 1} changes of each job, {len(lives)} jobs removed: {peaks[-1][2]} keys, {peaks[-1][3]} bytes; {kinds()}; "
				      f"{peaks[-1][5]} rows, {peaks[-1][6]} files", flush=True)
		if failed:
			break
finally:
	done.set()
	beside.join()
if failed:
	raise failed[0]


def most(what, first, last):
	return max(p[what] for p in peaks if first < p[0] <= last)


def pace(first, last):
	"""Changes in a second: what a sweep finds is what was changed since the one before."""
	times = [p[4] for p in peaks if first < p[0] <= last]
	return (len(times) - 1) / (times[-1] - times[0])


faster = max(1, pace(CHANGES - FIRST, CHANGES) / pace(0, FIRST))
for what, name, whose in (2, "keys", "etcd has"), (3, "bytes", "etcd has"), (5, "rows", "catalogs have"), (6, "files", "stores have"):
	early, late = most(what, 0, FIRST), most(what, CHANGES - FIRST, CHANGES)
	print(f"figure: {name}: at most {early} up to change {FIRST}, {late} in the last {FIRST} of {CHANGES}, at {faster:.2f} times the pace", flush=True)
	if late > MORE * early * faster:
		sys.exit(f"{whose} more {name} after {CHANGES} changes, {late}, than after {FIRST}, {early}: {peaks}")


def jobs_in_etcd():
	return {line.split("/")[5] for line in cluster.values("all/jobs/")} | {line.split("/")[4] for line in cluster.values("v/") + cluster.values("copied/")}


def only(names):
	"""etcd has keys of these jobs alone, and of each."""
	ids = {f"{int(line.rsplit(' ', 1)[1]):016x}" for line in cluster.values("names/")}
	return len(ids) == len(names) and jobs_in_etcd() == ids


def fill(node, job, seed):
	for rank in range(2):
		write(node, job, rank, 2, seed)
	node.must(job, "commit", f"step={seed}")


# then nothing is left of the jobs that were removed
one.wait(lambda: only(["plain", "homes"]), 60, "etcd has keys of two jobs")
print(f"figure: {len(lives)} jobs were removed: {cluster.values('all/ended')[0].split(' ', 1)[1].split()} is what is left of them", flush=True)

# a node that is away while jobs are removed, and swept: one of a name that another job has by then, one with uncommitted files
for job in "again", "dirty":
	make(one, job)
	fill(one, job, 1)
	three.wait(lambda: "\nversion: 1\n" in three.read(job, "status"), 30, f"it has {job}")
(three.mount / "dirty/0/notes.txt").write_text("nowhere else\n")
three.down()
for job in "again", "dirty":
	two.wait(lambda: not remove(two, job), 30, f"{job} is removed")
one.wait(lambda: only(["plain", "homes"]), 60, "etcd has keys of two jobs")
make(one, "again")
fill(one, "again", 7)
three.up()
three.wait(lambda: (three.mount / "again/0/notes.txt").read_text().startswith("7\n"), 30, "it has the job of that name")
three.wait(lambda: (three.mount / "dirty.removed-1").is_dir() and not (three.mount / "dirty").exists(), 30, "it keeps what was not committed")
assert (three.mount / "dirty.removed-1/0/notes.txt").read_text() == "nowhere else\n"
assert sorted(os.listdir(two.mount)) == ["again", "homes", "plain"], os.listdir(two.mount)

def knows(change):
	"""Changes the line of the key `bound` that says which jobs a node may have."""
	key, text = cluster.values("bound/3")[0].split(" ", 1)
	lines = [line if not line.startswith("jobs ") else f"jobs {int(line[5:]) + change}" for line in text.splitlines()]
	assert any(line.startswith("jobs ") for line in lines), text
	cluster.put(key, "\n".join(line for line in lines if line != "jobs 0") + "\n")


# a program from before has saved versions of a job, and not noted that: it is, when the node hears of the job
def known():
	lines = cluster.values("bound/3")[0].split(" ", 1)[1].splitlines()
	return next((int(line[5:]) for line in lines if line.startswith("jobs ")), 0)


three.down()
was = known()
knows(-was)
three.up()
three.wait(lambda: known() == was, 30, "it has noted which jobs it has")

# an etcd that says that a job has ended, and does not know that this node had it, has another history: nothing is removed
three.down()
two.wait(lambda: not remove(two, "again"), 30, "it is removed")
one.wait(lambda: only(["plain", "homes"]), 60, "etcd has keys of two jobs")


knows(-1)
three.start()
three.wait(lambda: "etcd has lost its data" in three.health(), 30, "it takes no part")
assert (three.mount / "again").is_dir()
three.down()
knows(1)
three.up()
three.wait(lambda: not (three.mount / "again").exists(), 30, "the job is removed")
for n in cluster.nodes:
	n.down()
	clean(n)
