# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: etcd loses its data: it is emptied, or an older copy of it is put back, while nodes are up and while they are not; or keys
are removed by hand.  No node takes anything from it, a mount is refused, no file goes from a store, and with the newest copy all is as it
was.  A job that somebody has removed while a node was away is removed there, too.
"""
import base64
import os
import shutil
import subprocess
import sys
import time

from kept import check, make, save
from nodes import Cluster, inside, run

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=2, ttl_ms=2000, fresh_ms=600)
one, two = cluster.nodes
data = cluster.work / "etcd"


def begin():
	cluster.etcd_up()
	while cluster.post("/v3/kv/range", {"key": "eA=="}) is None:
		time.sleep(0.05)


def etcd(source=None, copy=None):
	"""Stops etcd, keeps a copy of its data, and starts it with others: None, empty ones."""
	cluster.etcd.kill()
	cluster.etcd.wait(60)
	if copy:
		shutil.rmtree(copy, ignore_errors=True)
		shutil.copytree(data, copy)
	shutil.rmtree(data)
	if source:
		shutil.copytree(source, data)
	begin()


def blobs():
	return {n.name: sorted(p.name for p in n.store.glob("blobs/*/*")) for n in cluster.nodes}


def left(*words):
	"""All nodes take no part any more, and say why; nothing has gone from any store."""
	for n in cluster.nodes:
		n.wait(lambda: all(w in n.health() for w in ("is no member", *words)), 30, f"it takes no part: {words}")
	if blobs() != was:
		sys.exit(f"files went from stores: {was} {blobs()}")
	for n in cluster.nodes:
		n.down()


def refused(node, *words):
	options = f"cluster=test,node={node.name},listen={node.address}:7077,etcd={cluster.urls[0]}"
	for _ in range(100):  # etcd may not be there yet
		r = subprocess.run([*inside(node.namespace), binary, "mount", "-f", "-o", options, node.store, node.mount], capture_output=True,
				   text=True, timeout=60)
		if "does not answer" not in r.stdout + r.stderr:
			break
	if r.returncode == 0 or not all(w in r.stdout + r.stderr for w in words):
		sys.exit(f"{node.name}: status {r.returncode}: {r.stdout}{r.stderr}: not {words}")
	print((r.stdout + r.stderr).strip().splitlines()[-1], flush=True)
	if blobs() != was:
		sys.exit(f"files went from stores: {was} {blobs()}")


def right():
	"""Nodes are up, and have all that there was."""
	for n in cluster.nodes:
		n.up()
	for n in cluster.nodes:
		for rank in range(2):
			check(n, 2, rank, 3, f"rank {rank} seed 3\n")
	if blobs() != was:
		sys.exit(f"stores have other files: {was} {blobs()}")


def backup(node):
	file = cluster.work / f"{node.name}.keys"
	file.write_text(run(binary, "cluster", "backup", str(node.store)).stdout)
	return file


def commit(step):
	for rank, node in enumerate((one, two)):  # etcd may have been away for a moment
		node.wait(lambda: save(node, 2, rank, step) is None, 30, "it takes a file")
	one.must("gpt", "commit", f"step={step}")


for n in cluster.nodes:
	n.up()
make(cluster)
one.must("gpt", "config", "replicas=1")
commit(1)
cluster.etcd.kill()
cluster.etcd.wait(60)
shutil.copytree(data, cluster.work / "older")
begin()
for n in cluster.nodes:
	n.wait(lambda: "is a member" in n.health(), 30, "it is a member again")
commit(2)
commit(3)
for n in cluster.nodes:
	n.must("gpt", "wait", "\n")
	n.settled()
was = blobs()

# an older copy, while nodes are up, and when they are mounted
etcd(cluster.work / "older", cluster.work / "newest")
left("etcd at", "revision", "newest copy of its data")
refused(one, "revision", "newest copy of its data")
etcd(cluster.work / "newest")
right()

# nothing at all
etcd(None, cluster.work / "newest")
left("newest copy of its data")
refused(two, "newest copy of its data")
if cluster.values("meta"):
	sys.exit("a mount that was refused has made a cluster")
etcd(cluster.work / "newest")
right()

# an older copy that others have written to since: its revision says nothing
seen = int(cluster.post("/v3/kv/range", {"key": "eA=="})["header"]["revision"])
for n in cluster.nodes:
	n.down()
etcd(cluster.work / "older", cluster.work / "newest")
write = f"""
import json, urllib.request as u
at = 0
while at < {seen} + 100:
	try:
		at = int(json.load(u.urlopen("{cluster.urls[0]}/v3/kv/put", b'{{"key": "eA==", "value": ""}}', 2))["header"]["revision"])
	except OSError:
		pass
"""
run(*inside(cluster.hub), sys.executable, "-c", write)
for n in cluster.nodes:
	n.start()
left("version 1 of job 'gpt'", "newest copy of its data")
etcd(cluster.work / "newest")
right()

# keys removed by hand
first, last = (base64.b64encode(k).decode() for k in (b"/scalai/test/all/jobs/", b"/scalai/test/all/jobs0"))
saved = [line.partition(" ")[::2] for line in cluster.values("all/jobs/")]
cluster.post("/v3/kv/deleterange", {"key": first, "range_end": last})
left("by hand")
for n in cluster.nodes:
	for key, _ in saved:
		if key.endswith(("/head", "/name")) and base64.b64encode(key.encode()).decode() not in backup(n).read_text():
			sys.exit(f"{n.name}: the backup has followed who removed {key} by hand")
for key, value in saved:
	cluster.put(key, value)
right()

# no copy of etcd's data is left: its keys are made anew from the backups that stores have
def rebuild(files, *words, options=(), cluster_name="test", fails=False):
	r = run(*inside(cluster.hub), binary, "cluster", "rebuild", "-o", f"cluster={cluster_name},etcd={cluster.urls[0]}", *options, *map(str, files),
		check=False)
	if (r.returncode != 0) != fails or not all(w in r.stdout + r.stderr for w in words):
		sys.exit(f"rebuild: status {r.returncode}: {r.stdout}{r.stderr}: not {words}")
	print((r.stdout + r.stderr).strip(), flush=True)


two.down()
for rank in range(2):
	save(one, 2, rank, 4)
one.must("gpt", "commit", "step=4")
one.must("gpt", "versions", "tag 4 best")
one.wait(lambda: "best" in one.read("gpt", "versions"), 30, "it has the tag")
one.settled()
one.down()
was = blobs()
files = [backup(n) for n in cluster.nodes]
etcd(None, cluster.work / "newest")
refused(one, "scalai cluster rebuild")
half = cluster.work / "half.keys"
half.write_text(files[0].read_text()[:-20])
rebuild([half], "ends too early", fails=True)
rebuild(files, "is of the cluster 'test'", cluster_name="other", fails=True)
if any(cluster.values(part) for part in ("meta", "all/", "number", "bound/", "obj/", "v/", "names/")):
	sys.exit("a rebuild that was refused has made keys")
for file in files:  # as programs from before have written them
	lines = file.read_text().splitlines(keepends=True)
	file.write_text("".join(["scalai-backup 1\n", *lines[1:-1], lines[-1].rpartition(" ")[0] + "\n"]))
rebuild(files, "the backup of node 2 was written by an older program", "from the backup of node 1 (era 0", "it is era 1 now", "job 'gpt': version 4, which only 1 of 2 backups had")
rebuild(files, "etcd has cluster 'test'", "--replace", fails=True)
for n in cluster.nodes:
	n.up()
rebuild(files, "is mounted", options=["--replace"], fails=True)
for n in cluster.nodes:
	n.wait(lambda: "\nversion: 4\n" in n.read("gpt", "status"), 30, "it has the newest version")
	for rank in range(2):
		check(n, 2, rank, 4, f"rank {rank} seed 4\n")
	assert "best" in n.read("gpt", "versions"), n.read("gpt", "versions")
commit(5)
for n in cluster.nodes:
	for rank in range(2):
		check(n, 2, rank, 5, f"rank {rank} seed 5\n")
for n in cluster.nodes:
	n.must("gpt", "wait", "\n")
	n.settled()
for n in cluster.nodes:
	n.down()
was = blobs()
files = [backup(n) for n in cluster.nodes]
etcd(cluster.work / "older")
refused(one, "older copy")
rebuild(files, "it is era 2 now", "job 'gpt': version 5\n", options=["--replace"])
for n in cluster.nodes:
	n.up()
for n in cluster.nodes:
	for rank in range(2):
		check(n, 2, rank, 5, f"rank {rank} seed 5\n")
if blobs() != was:
	sys.exit(f"stores have other files: {was} {blobs()}")

# objects removed by hand, while nodes are up: that is no sweep, and the backups keep them
first, last = (base64.b64encode(k).decode() for k in (b"/scalai/test/obj/", b"/scalai/test/obj0"))
objects = [line.partition(" ")[0] for line in cluster.values("obj/")]
cluster.post("/v3/kv/deleterange", {"key": first, "range_end": last})
for n in cluster.nodes:
	n.wait(lambda: f"{len(objects)} keys were removed from etcd, and by no node" in n.log.read_text(), 30, "it says so")
	for rank in range(2):
		check(n, 2, rank, 5, f"rank {rank} seed 5\n")
for n in cluster.nodes:
	n.down()
files = [backup(n) for n in cluster.nodes]
for file in files:
	text = file.read_text()
	if any(base64.b64encode(key.encode()).decode() not in text for key in objects):
		sys.exit(f"{file} lacks objects that were removed by hand")
rebuild(files, "it is era 3 now", options=["--replace"])
for n in cluster.nodes:
	n.up()
commit(6)
for n in cluster.nodes:
	for rank in range(2):
		check(n, 2, rank, 6, f"rank {rank} seed 6\n")

# a job that somebody removes while a node is away
one.must("gpt", "config", "remove=yes")
two.down()
os.rmdir(one.mount / "gpt")
two.up()
two.wait(lambda: not (two.mount / "gpt").exists(), 30, "the job was removed")
for n in cluster.nodes:
	n.wait(lambda: not blobs()[n.name], 30, "its files have gone")
	n.down()

# a rebuild without the store that has the newest version, and others go on: that store is of another history
for n in cluster.nodes:
	n.up()
make(cluster)
commit(1)


def both(node, seed):
	for rank in range(2):
		save(node, 2, rank, seed)
	node.must("gpt", "commit", f"step={seed}")


for n in cluster.nodes:
	n.wait(lambda: "\nversion: 1\n" in n.read("gpt", "status"), 30, "it shows version 1")
two.down()
both(one, 2)
one.down()
etcd(None)
rebuild([backup(two)], "1 backups were given", "job 'gpt': version 1\n")
two.up()
both(two, 3)
two.settled()
was = blobs()
refused(one, "another version 2 of a job", "nothing was changed")
both(two, 4)
two.settled()
two.down()
was = blobs()
files = [backup(n) for n in cluster.nodes]
key = cluster.values("bound/2")[0].partition(" ")[0]
cluster.post("/v3/kv/deleterange", {"key": base64.b64encode(key.encode()).decode()})
refused(two, "has lost the key", "cluster rebuild")
rebuild(files, "of node 2 (era 4", options=["--replace"])
refused(one, "another version 2 of a job")
two.up()
for rank in range(2):
	check(two, 2, rank, 4, f"rank {rank} seed 4\n")
two.down()
rebuild([files[0]], "of node 1 (era 3", options=["--replace"])
one.up()
for rank in range(2):
	check(one, 2, rank, 2, f"rank {rank} seed 2\n")
one.down()
rebuild([backup(n) for n in cluster.nodes], "of node 1 (era 6", "the backup of node 2, of era 5, has version 3", options=["--replace"])
