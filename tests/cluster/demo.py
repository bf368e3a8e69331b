# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: a job on four nodes, told step by step.  Ranks are written where they run, one commit takes them; a topology
that is written on another node gives ranks to all four; a node dies, and the job goes on without it.
"""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from nodes import Cluster

work, binary = sys.argv[1], os.path.abspath(sys.argv[2])
root = pathlib.Path(__file__).resolve().parents[2]
sample = root / "tests/sample/job"
LAYOUT = "use megatron-gpt vocab=300 tied=embedding.word_embeddings.weight"


def step(text):
	print(f"\n== {text}", flush=True)


def timed(node, file, text, job="gpt"):
	began = time.perf_counter()
	node.must(job, file, text)
	print(f"   {node.name}$ echo '{text}' > {job}/.ctl/{file}   ({1000 * (time.perf_counter() - began):.0f} ms)")


def pulled(node):
	found = re.search(r"^scalai_pulled_bytes_total (\d+)", (node.mount / ".ctl/metrics").read_text(), re.M)
	return int(found[1]) if found else 0


def traffic(nodes, before, held):
	"""A bar for each node: what it has pulled of what its ranks hold."""
	for n in nodes:
		bytes_ = pulled(n) - before[n]
		of = max(held.get(n, 0), 1)
		print(f"   {n.name}  {'#' * round(40 * min(bytes_ / of, 1)):40}  {bytes_:>9} bytes pulled, its ranks hold {held.get(n, 0)}")


def digest(path):
	return hashlib.sha256(path.read_bytes()).hexdigest()


def expected(topology):
	"""What one machine makes of the same files: rank -> digest."""
	store, mount = pathlib.Path(work, "alone"), pathlib.Path(work, "alone.mnt")
	mount.mkdir(exist_ok=True)
	with subprocess.Popen([binary, "mount", "-f", store, mount], stderr=subprocess.DEVNULL) as daemon:
		while not (mount / ".ctl").is_dir():
			time.sleep(0.05)
		subprocess.run([binary, "import", "gpt", sample, "--topology", "tp=2 pp=2", "--layout", *LAYOUT.split()[1:],
				"--step", "20"], check=True, env=os.environ | {"SCALAI_MOUNT": str(mount)}, stdout=subprocess.DEVNULL)
		(mount / "gpt/.ctl/topology").write_text(topology + " plain=drop")
		found = {p.parent.name: digest(p) for p in mount.glob("gpt/[0-9]*/model.safetensors")}
		subprocess.run([binary, "umount", mount], check=True)
	shutil.rmtree(store)
	return found


cluster = Cluster(work, binary, nodes=4)
n1, n2, n3, n4 = cluster.nodes
for n in cluster.nodes:
	n.up()
step("four nodes, each with a store of its own, show one namespace")
(n1.mount / "gpt").mkdir()
timed(n1, "layout", LAYOUT)
timed(n1, "topology", "tp=2 pp=2")
n2.wait(lambda: (n2.mount / "gpt").is_dir() and n2.read("gpt", "topology") == "tp=2 pp=2\n", 5, "the topology is there")

step("ranks 0 and 1 save on n1, ranks 2 and 3 on n2; one commit takes all")
for rank in range(4):
	shutil.copytree(sample / str(rank), [n1, n1, n2, n2][rank].mount / "gpt" / str(rank), dirs_exist_ok=True)
timed(n2, "commit", "step=20")

step("a topology is written on n3: eight ranks, two on each node")
want = expected("tp=4 dp=2")
for i, n in enumerate(cluster.nodes):
	n.must("gpt", "config", f"home={2 * i}-{2 * i + 1}")
before = {n: pulled(n) for n in cluster.nodes}
timed(n3, "topology", "tp=4 dp=2 plain=drop")
held = {}
for i, n in enumerate(cluster.nodes):
	for rank in (2 * i, 2 * i + 1):
		path = n.mount / f"gpt/{rank}/model.safetensors"
		if digest(path) != want[str(rank)]:
			sys.exit(f"rank {rank} on {n.name} is not what one machine makes of it")
		held[n] = held.get(n, 0) + path.stat().st_size
print("   each rank has the bytes that one machine makes of the same files")
traffic(cluster.nodes, before, held)

step("each node keeps its own ranks now; n2 is killed")
for n in cluster.nodes:
	n.must("gpt", "wait", "")
n2.kill()
for i, n in enumerate(cluster.nodes):
	for rank in (2 * i, 2 * i + 1):
		if n is not n2 and digest(n.mount / f"gpt/{rank}/model.safetensors") != want[str(rank)]:
			sys.exit(f"rank {rank} on {n.name} cannot be read without n2")
print("   ranks of n1, n3 and n4 are read as before")

step("the other replica of n2's ranks, on n4, saves in its place; the job goes on without n2")
for rank in range(8):
	n = [n1, n4, n3, n4][rank // 2]
	source = n4.mount / f"gpt/{rank if rank > 3 else rank + 4}/model.safetensors"
	if n is n4:
		data = source.read_bytes()
	else:
		data = (n.mount / f"gpt/{rank}/model.safetensors").read_bytes()
	with open(n.mount / f"gpt/{rank}/model.safetensors.new", "wb") as f:
		f.write(data)
	os.rename(n.mount / f"gpt/{rank}/model.safetensors.new", n.mount / f"gpt/{rank}/model.safetensors")
timed(n1, "commit", "step=40")
for n in (n1, n3, n4):
	for rank in range(8):
		if digest(n.mount / f"gpt/{rank}/model.safetensors") != want[str(rank)]:
			sys.exit(f"rank {rank} on {n.name} is another one")
print("   all ranks are read on n1, n3 and n4")
timed(n4, "topology", "tp=2 dp=3 plain=drop")

step("n2 is back, and shows what the others have")
n2.up()
n2.wait(lambda: n2.read("gpt", "topology") == "tp=2 dp=3\n", 10, "it shows the others' topology")
print("   " + n2.read("gpt", "topology").strip())
for n in cluster.nodes:
	n.down()
