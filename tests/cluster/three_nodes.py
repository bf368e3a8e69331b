# SPDX-License-Identifier: Apache-2.0
"""WORK BINARY: three nodes show one namespace; each commits, writes topologies, is killed, is cut off."""
import errno
import json
import os
import random
import sys
import time

from kept import metric, save_tensors
from nodes import Cluster

work, binary = sys.argv[1:3]
rng = random.Random(7)
counts = {"trees compared": 0, "topologies": 0, "commits": 0}


def whole(seed):
	r = random.Random(seed)
	return {"w.weight": ([16, 12], r.randbytes(16 * 12 * 4)), "n.weight": ([12], r.randbytes(12 * 4))}


def write_ranks(node, job, tp, seed):
	tensors = whole(seed)
	for rank in range(tp):
		folder = node.mount / job / str(rank)
		(folder / "logs").mkdir(parents=True, exist_ok=True)
		rows = 16 // tp
		cut = tensors["w.weight"][1][rank * rows * 48:(rank + 1) * rows * 48]
		save_tensors(folder / "model.safetensors", {"w.weight": ([rows, 12], cut), "n.weight": tensors["n.weight"]})
		(folder / "logs/step.txt").write_text(f"rank {rank} seed {seed}\n")
		if not (folder / "latest").is_symlink():
			os.symlink("logs/step.txt", folder / "latest")
	(node.mount / job / "job.json").write_text(json.dumps({"seed": seed}))
	(node.mount / job / "job.json").chmod(0o640)


def all_equal(cluster, job, but=()):
	trees = [n.tree(job) for n in cluster.nodes if n not in but]
	for n, tree in zip([n for n in cluster.nodes if n not in but], trees):
		for path in sorted(set(tree) | set(trees[0])):
			if tree.get(path) != trees[0].get(path):
				sys.exit(f"{n.name} shows {job}/{path} as {tree.get(path)}, another node as {trees[0].get(path)}")
	counts["trees compared"] += len(trees)
	return trees[0]


def ranks(node, job):
	return sorted(name for name in os.listdir(node.mount / job) if name.isdigit())


def topology(node, job, text, but=()):
	node.must(job, "topology", text + " plain=drop")
	counts["topologies"] += 1
	for n in node.cluster.nodes:  # who looks now sees it: nothing is waited for
		if n in but:
			continue
		if n.read(job, "topology") != text + "\n" or not ranks(n, job):
			sys.exit(f"{n.name} has topology {n.read(job, 'topology')!r}, ranks {ranks(n, job)}, after '{text}' was written")


def first_ranks():
	"""The folders of ranks before the first version: all nodes show them, and an empty one is nothing that its node wrote."""
	assert ranks(three, "gpt") == ["0", "1"], ranks(three, "gpt")  # where the topology was written: at once
	for n in cluster.nodes:
		n.wait(lambda: ranks(n, "gpt") == ["0", "1"], 30, "the folders of ranks are there")
		try:
			sys.exit(f"{n.name}: made {os.mkdir(n.mount / 'gpt/1')}")
		except FileExistsError:
			pass
	tensors = whole(0)
	save_tensors(two.mount / "gpt/0/model.safetensors", {"w.weight": ([8, 12], tensors["w.weight"][1][:384]), "n.weight": tensors["n.weight"]})
	assert one.ctl("gpt", "commit", "step=1")
	assert "rank 1 must write 'model.safetensors', of which nobody has ever written this part" in one.read("gpt", "error"), one.read("gpt", "error")
	one.must("gpt", "topology", "tp=1")  # rank 1 is empty everywhere, and rank 0 of tp=1 has other parts
	for n in cluster.nodes:
		n.wait(lambda: ranks(n, "gpt") == ["0"], 30, "the folder is gone")
	two.must("gpt", "topology", "tp=4")
	(two.mount / "gpt/3/notes").write_text("of rank 3")
	one.wait(lambda: len(ranks(one, "gpt")) == 4, 30, "four folders")
	one.must("gpt", "topology", "tp=2")
	two.wait(lambda: ranks(two, "gpt") == ["0", "1", "3"], 30, "what has a file stays, on the node that has it")
	three.wait(lambda: ranks(three, "gpt") == ["0", "1"], 30, "on others it is gone")
	assert one.ctl("gpt", "commit", "step=1") and "(rank 3: 'notes')" in one.read("gpt", "error"), one.read("gpt", "error")
	two.must("gpt", "discard", "now")
	assert ranks(two, "gpt") == ["0", "1"] and not os.listdir(two.mount / "gpt/0"), ranks(two, "gpt")


cluster = Cluster(work, binary)
one, two, three = cluster.nodes
for n in cluster.nodes:
	n.up()

# made on one, laid out on another, presented on the third
(one.mount / "gpt").mkdir()
two.wait(lambda: (two.mount / "gpt").is_dir(), 30, "the job is there")
one.must("gpt", "config", "keep=0")
two.must("gpt", "layout", "mesh tp dp\nw.weight tp=0\n*:* copy\n")
three.wait(lambda: "w.weight" in three.read("gpt", "layout"), 30, "the layout is there")
three.must("gpt", "topology", "tp=2")
one.wait(lambda: one.read("gpt", "topology") == "tp=2\n", 30, "the topology is there")
first_ranks()

write_ranks(one, "gpt", 2, seed=1)
one.must("gpt", "commit", "step=10")
counts["commits"] += 1
first = all_equal(cluster, "gpt")
assert first["0/model.safetensors"][4] > 0 and "1/logs/step.txt" in first and "0/latest" in first, first

# a topology is written on each node in turn
for i in range(12):
	topology(cluster.nodes[i % 3], "gpt", ["tp=4", "tp=1", "tp=2", "tp=4 dp=2", "tp=8", "tp=2 dp=2"][i % 6])
	all_equal(cluster, "gpt")

# every other node's commits, too; what is uncommitted anywhere keeps the others from moving the head
topology(two, "gpt", "tp=4")
write_ranks(two, "gpt", 4, seed=2)
why = one.ctl("gpt", "topology", "tp=2 plain=drop")
assert why and "node 2" in one.read("gpt", "error") and "written" in one.read("gpt", "error"), one.read("gpt", "error")
two.must("gpt", "commit", "step=20")
counts["commits"] += 1
second = all_equal(cluster, "gpt")
assert second["0/model.safetensors"] != first["0/model.safetensors"]
topology(three, "gpt", "tp=2")
all_equal(cluster, "gpt")
one.must("gpt", "rollback", "1")
third = all_equal(cluster, "gpt")
assert third["0/model.safetensors"][3:6] == first["0/model.safetensors"][3:6], (third, first)

# what they count
for n, made in ((one, 6), (two, 6), (three, 5)):
	assert metric(n, "scalai_cluster_committed_total") == made <= metric(n, "scalai_cluster_prepared_total"), n.name
	assert 1e-4 * made < metric(n, "scalai_cluster_commit_seconds_total") < 10
	assert 0 < metric(n, "scalai_cluster_prepare_seconds_total") < 10
	assert 1e-4 < metric(n, "scalai_etcd_seconds_total") / metric(n, "scalai_etcd_requests_total") < 1

# a node dies: the others go on without it, and it shows the newest version when it is back
three.kill()
began = time.monotonic()
topology(one, "gpt", "tp=4", but=(three,))
print(f"a member has died: the next topology took {time.monotonic() - began:.1f} s, a registration lasts 4 s")
all_equal(cluster, "gpt", but=(three,))
one.wait(lambda: metric(one, "scalai_cluster_members") == 2, 30, "it counts the members that are left")
three.up()
all_equal(cluster, "gpt")
one.wait(lambda: metric(one, "scalai_cluster_members") == 3, 30, "it counts the members")
topology(three, "gpt", "tp=1")
all_equal(cluster, "gpt")

# a node that is cut off shows nothing old by plain path, and comes back by itself
two.cut()
topology(one, "gpt", "tp=2", but=(two,))
moved = time.monotonic()
try:
	old = (two.mount / "gpt/0/model.safetensors").stat().st_size
	new = (one.mount / "gpt/0/model.safetensors").stat().st_size
	assert old == new, "the node that is cut off shows what is not the newest version"
except OSError as e:
	print(f"a node that is cut off says {os.strerror(e.errno)}")
	began = time.monotonic()
	for name in ("0", "1", "0/model.safetensors", "2"):
		try:
			os.stat(two.mount / "gpt" / name)
		except OSError as e:
			pass
	assert time.monotonic() - began < 10, "each lookup waits for what one has waited for in vain"  # that would be 5 s for each
def refuses_old(node, job):
	"""Its control files do not pass off as the newest version what others have changed."""
	for file in ("topology", "versions"):
		try:
			sys.exit(f"{node.name}, which others went on without, has the {file} of an older version: {node.read(job, file)}")
		except OSError as e:
			assert e.errno == errno.EHOSTDOWN, e
	assert "\ncurrent: no: " in node.read(job, "status"), node.read(job, "status")


refuses_old(two, "gpt")
two.wait(lambda: metric(two, "scalai_cluster_member") == 0 and metric(two, "scalai_etcd_unknown_total") > 0, 30, "its metrics say that it is cut off")
two.cut(False)
two.wait(lambda: "is a member\n" in two.health() + "\n", 30, "it is a member again")
two.wait(lambda: metric(two, "scalai_cluster_member") == 1, 30, "its metric says that it is a member")
assert metric(two, "scalai_cluster_fences_total") >= 1  # more where the machine stood still for longer than a registration
assert metric(two, "scalai_cluster_waits_total") > 0
all_equal(cluster, "gpt")
topology(two, "gpt", "tp=4")
all_equal(cluster, "gpt")
assert "current:" not in two.read("gpt", "status"), two.read("gpt", "status")

# one that is back with uncommitted files, over a version that is not the newest, says so until they are discarded
(three.mount / "gpt/0/notes.txt").write_text("mine\n")
three.kill()
topology(one, "gpt", "tp=2", but=(three,))
three.up()
three.wait(lambda: "discard them here" in three.read("gpt", "status"), 30, "it says what is in the way")
refuses_old(three, "gpt")
three.must("gpt", "discard", "yes")
three.wait(lambda: three.read("gpt", "topology") == "tp=2\n", 30, "it has the newest version")
topology(three, "gpt", "tp=4")
all_equal(cluster, "gpt")

# the one who commits is killed at any moment: a version or none, and all agree
for i in range(8):
	seed = 100 + i
	write_ranks(one, "gpt", 4, seed)
	pid = os.fork()
	if pid == 0:
		one.ctl("gpt", "commit", f"step={100 + i}")
		os._exit(0)
	time.sleep(rng.random() * 0.06)
	one.kill()
	os.waitpid(pid, 0)
	one.up()
	if one.ctl("gpt", "discard", "yes"):
		sys.exit(f"discard: {one.read('gpt', 'error')}")
	all_equal(cluster, "gpt")

for n in cluster.nodes:
	n.down()
	print(n.name, os.popen(f"{binary} fsck {n.store} 2>&1 | tail -1").read().strip())
print(", ".join(f"{v} {k}" for k, v in counts.items()))
