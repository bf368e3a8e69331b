# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: etcd is out of space.  Commands are refused at once, in a sentence that has the way out, and change nothing; what
there is can be read; `health` says why.  When it has room again commands are done, without a mount anew.  Then it runs out of
space when a commit was proposed: that one is refused, too, and nothing of it stays in the way of anybody.
"""
import base64
import errno
import os
import sys
import time

from kept import check, clean, make, save
from nodes import Cluster
from waits import Thread, until

work, binary = sys.argv[1:3]
QUOTA = 3 << 20
cluster = Cluster(work, binary, nodes=2, ttl_ms=5000)
one, two = cluster.nodes
for n in cluster.nodes:
	n.up()
make(cluster)


def encode(text):
	return base64.b64encode(text.encode()).decode()


def fill():
	"""Until etcd takes nothing more."""
	for _ in range(1000):
		if cluster.post("/v3/kv/put", {"key": encode("/other"), "value": encode(os.urandom(100000).hex())}) is None:
			break
	alarms = cluster.post("/v3/maintenance/alarm", {"action": "GET"}).get("alarms", [])
	assert [a for a in alarms if a["alarm"] == "NOSPACE"], alarms


def make_room():
	"""The way out that the sentence has."""
	revision = cluster.post("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
	assert cluster.post("/v3/kv/compaction", {"revision": revision, "physical": True}) is not None
	assert cluster.post("/v3/maintenance/defragment", {}) is not None
	for a in cluster.post("/v3/maintenance/alarm", {"action": "GET"}).get("alarms", []):
		assert cluster.post("/v3/maintenance/alarm", dict(a, action="DEACTIVATE")) is not None


def refused(node, job, file, text):
	began = time.monotonic()
	why = node.ctl(job, file, text)
	said = node.read(job, "error")
	if why != os.strerror(errno.ENOSPC) or "etcd is out of space" not in said or "alarm disarm" not in said:
		sys.exit(f"{node.name}: '{text}' > {file}: {why}: {said}")
	print(f"figure: '{text}' > {file} was refused after {time.monotonic() - began:.2f} s")


def all_show(version, seed):
	for n in cluster.nodes:
		n.wait(lambda: f"\nversion: {version}\n" in n.read("gpt", "status"), 30, f"it shows version {version}")
		for rank in range(2):
			check(n, 2, rank, seed)


def write(seed):
	save(one, 2, 0, seed)
	save(two, 2, 1, seed)


write(1)
one.must("gpt", "commit", "step=1")
cluster.etcd.kill()
cluster.etcd.wait(60)
as_it_was = cluster.run_etcd
cluster.run_etcd = lambda *words: as_it_was(*words, "--quota-backend-bytes", str(QUOTA))
cluster.etcd_up()
for n in cluster.nodes:
	n.wait(lambda: "is a member\n" in n.health() and cluster.post("/v3/maintenance/status", {}), 60, "it is a member")

fill()
refused(two, "gpt", "topology", "tp=4")
all_show(1, 1)
write(2)
refused(one, "gpt", "commit", "step=2")
try:
	sys.exit(f"a job was made: {os.mkdir(one.mount / 'other')}")
except OSError as e:
	assert e.errno == errno.ENOSPC, e
one.wait(lambda: "etcd is out of space" in one.health(), 30, "health says so")
make_room()
one.must("gpt", "commit", "step=2")
assert "out of space" not in one.health(), one.health()
all_show(2, 2)

# it runs out of space after the proposal
write(3)
stop, said = one.own / "cluster.commit", []
stop.touch()
command = Thread(target=lambda: said.append(one.ctl("gpt", "commit", "step=3")), daemon=True)
command.start()
until("the commit comes to its transaction", stop.with_name("cluster.commit.at").exists)
fill()
stop.unlink()
command.join(60)
assert said[0] == os.strerror(errno.ENOSPC) and "etcd is out of space" in one.read("gpt", "error"), (said, one.read("gpt", "error"))
assert not cluster.keys("/proposal"), cluster.keys("/proposal")
(two.mount / "gpt/1/more").write_text("nobody waits at a gate\n")
make_room()
two.must("gpt", "commit", "step=3")
all_show(3, 3)
assert (one.mount / "gpt/1/more").read_text() == "nobody waits at a gate\n"
for n in cluster.nodes:
	n.down()
	clean(n)
