# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: a store belongs to its node's number, for ever.  Under a node's name an empty store, another node's and another
cluster's are refused, and a copy while its node is mounted; nothing has changed then.  An older copy that is put back gives no number
again: what it lacks is read from copies, or an error, and never other bytes.
"""
import os
import shutil
import subprocess
import sys

from kept import check, make, save
from nodes import Cluster, inside, run

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=3, ttl_ms=2000, fresh_ms=600)
one, two, three = cluster.nodes


def refused(store, name, *words, by=three):
	"""A mount under this name, with this store, ends with a sentence that has these words."""
	mount = cluster.work / "refused"
	mount.mkdir(exist_ok=True)
	options = f"cluster=test,node={name},listen={by.address}:7078," + ",".join(f"etcd={url}" for url in cluster.urls)
	try:
		r = subprocess.run([*inside(by.namespace), binary, "mount", "-f", "-o", options, store, mount], capture_output=True, text=True, timeout=15)
		said = r.stdout + r.stderr
	except subprocess.TimeoutExpired:
		run("umount", "-l", str(mount), check=False)
		sys.exit(f"it was not refused: {name} with {store}")
	if r.returncode == 0 or not all(w in said for w in words):
		sys.exit(f"{name} with {store}: status {r.returncode}: {said}: not {words}")
	print(said.strip().splitlines()[-1], flush=True)


for n in (one, two):
	n.up()
make(type("Two", (), {"nodes": [one, two]}))
one.must("gpt", "config", "replicas=1")
for rank in range(2):
	save((one, two)[rank], 2, rank, 1)
one.must("gpt", "commit", "step=1")

# a copy of a store whose node is mounted, from another machine
two.down()
shutil.copytree(two.store, cluster.work / "older", symlinks=True)
two.up()
refused(cluster.work / "older", "n2", "is mounted", two.address)

# and one that was mounted while its node stood still: who is registered goes on, and the other one says why it does not
two.stop()
one.wait(lambda: not any(line.split()[0].endswith("/2") for line in cluster.values("nodes/")), 30, "its registration ends")
(cluster.work / "second").mkdir()
options = f"cluster=test,node=n2,listen={three.address}:7077," + ",".join(f"etcd={url}" for url in cluster.urls)
second = subprocess.Popen([*inside(three.namespace), binary, "mount", "-f", "-o", options, cluster.work / "older", cluster.work / "second"])
try:
	one.wait(lambda: "is a member\n" in (cluster.work / "second/.ctl/health").read_text(), 30, "the copy is a member")
	two.stop(False)
	two.wait(lambda: "another daemon is registered as this node" in two.health(), 30, "the other one says why it is none")
	assert "another daemon is registered as this node" in two.log.read_text()
finally:
	second.kill()
	second.wait()
	run("umount", "-l", str(cluster.work / "second"))
two.down()

# other stores under its name; and nothing of it is in etcd then
def keys():
	return {line.split(" ", 1)[0]: line for part in ("all/", "bound/", "number", "meta") for line in cluster.values(part)}


one.down()
was = keys()
(cluster.work / "empty").mkdir()
refused(cluster.work / "empty", "n2", "another store", ".ctl/drain")
refused(one.store, "n2", "another node's")
refused(two.store, "n9", "another node's")
meta = next(line.partition(" ")[2] for line in cluster.values("meta"))
cluster.put("/scalai/test/meta", f"id {os.urandom(16).hex()}\n" + meta.split("\n", 1)[1])
refused(two.store, "n2", "another cluster", "nothing was changed")
cluster.put("/scalai/test/meta", meta)
if keys() != was:
	sys.exit(f"a mount that was refused has changed etcd: {set(was.items()) ^ set(keys().items())}")
for n in (one, two):
	n.up()
for n in (one, two):
	for rank in range(2):
		check(n, 2, rank, 1, f"rank {rank} seed 1\n")
