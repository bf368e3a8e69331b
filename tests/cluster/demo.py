# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: a job on four nodes, told step by step.  Ranks are written where they run, one commit takes them; a topology that is written
on another node gives ranks to all four, who train; a node dies with its disk, and the job goes on on what replicas have; a new node takes
its place, and training goes on bit for bit as on one machine that has lost nothing.
"""
import array
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


def plan(node, topology):
	"""What the job's `plan` says of a topology."""
	fd = os.open(node.mount / "gpt/.ctl/plan", os.O_RDWR)
	try:
		os.write(fd, topology.encode())
		return dict(line.split(": ", 1) for line in os.read(fd, 1 << 16).decode().splitlines() if ": " in line)
	finally:
		os.close(fd)


def traffic(nodes, before, held):
	"""A bar for each node: what it has pulled of what its ranks hold, which is the most that it needs."""
	for n in nodes:
		bytes_ = pulled(n) - before[n]
		of = max(held.get(n, 0), 1)
		print(f"   {n.name}  {'#' * round(40 * min(bytes_ / of, 1)):40}  {bytes_:>9} bytes pulled, its ranks hold {held.get(n, 0)}")


def digest(path):
	return hashlib.sha256(path.read_bytes()).hexdigest()


def train(folder, seed):
	"""What a step of training stands for here: each value of a rank is another one, whichever rank has it."""
	data = (folder / "model.safetensors").read_bytes()
	begin = 8 + int.from_bytes(data[:8], "little")
	values = array.array("f", data[begin:])
	values = array.array("f", (0.9 * v + 0.001 * seed for v in values))
	(folder / "model.safetensors.new").write_bytes(data[:begin] + values.tobytes())
	(folder / "model.safetensors.new").rename(folder / "model.safetensors")


class Alone:
	"""One machine, which gets the same files and the same commands, and loses nothing."""
	def __init__(self):
		self.store, self.mount = pathlib.Path(work, "alone"), pathlib.Path(work, "alone.mnt")
		self.mount.mkdir()
		self.daemon = subprocess.Popen([binary, "mount", "-f", self.store, self.mount], stderr=subprocess.DEVNULL)
		while not (self.mount / ".ctl").is_dir():
			time.sleep(0.05)
		subprocess.run([binary, "import", "gpt", sample, "--topology", "tp=2 pp=2", "--layout", *LAYOUT.split()[1:], "--step", "20"],
			       check=True, env=os.environ | {"SCALAI_MOUNT": str(self.mount)}, stdout=subprocess.DEVNULL)

	def ctl(self, name, text):
		(self.mount / "gpt/.ctl" / name).write_text(text)

	def digests(self):
		"""(rank, file) -> digest"""
		return {(int(p.parent.name), p.name): digest(p) for p in self.mount.glob("gpt/[0-9]*/*.safetensors")}

	def train(self, ranks, seed):
		for rank in range(ranks):
			train(self.mount / f"gpt/{rank}", seed)
		self.ctl("commit", f"step={seed}")

	def end(self):
		subprocess.run([binary, "umount", self.mount], check=True)
		if self.daemon.wait(60):
			sys.exit("the machine that is alone has not ended well")


def same(nodes, ranks_of, want):
	"""Each of these ranks, read on these nodes, is what one machine has; -> node -> bytes of its ranks."""
	held = {}
	for n in nodes:
		for rank in ranks_of(n):
			for path in (n.mount / f"gpt/{rank}").glob("*.safetensors"):
				try:
					if digest(path) != want[rank, path.name]:
						sys.exit(f"rank {rank} on {n.name} has not the {path.name} that one machine has")
				except OSError as e:
					sys.exit(f"rank {rank} on {n.name}: {e}: {n.read('gpt', 'error')}{n.read('gpt', 'status')}")
				held[n] = held.get(n, 0) + path.stat().st_size
	return held


def train_on(homes, seed):
	"""Each node trains and saves its ranks; one commit takes all."""
	for n, ranks in homes.items():
		for rank in ranks:
			train(n.mount / f"gpt/{rank}", seed)
	alone.train(sum(map(len, homes.values())), seed)
	timed(list(homes)[0], "commit", f"step={seed}")
	same(homes, lambda n: range(sum(map(len, homes.values()))), alone.digests())
	print("   each rank, on each node, is what one machine has")


cluster = Cluster(work, binary, nodes=5)
n1, n2, n3, n4, n5 = cluster.nodes
first = n1, n2, n3, n4
for n in first:
	n.up()
alone = Alone()
step("four nodes, each with a store of its own, show one namespace")
(n1.mount / "gpt").mkdir()
timed(n1, "layout", LAYOUT)
timed(n1, "topology", "tp=2 pp=2")
n2.wait(lambda: n2.read("gpt", "topology") == "tp=2 pp=2\n", 30, "the topology is there")

step("ranks 0 and 1 save on n1, ranks 2 and 3 on n2; one commit takes all")
for rank in range(4):
	shutil.copytree(sample / str(rank), [n1, n1, n2, n2][rank].mount / "gpt" / str(rank), dirs_exist_ok=True)
timed(n2, "commit", "step=20")

step("a topology is written on n3: eight ranks, two on each node")
alone.ctl("topology", "tp=4 dp=2 plain=drop")
for i, n in enumerate(first):
	n.must("gpt", "config", f"home={2 * i}-{2 * i + 1}")
before = {n: pulled(n) for n in first}
print(f"   of {plan(n3, 'tp=4 dp=2')['bytes_needed']} bytes at least {plan(n3, 'tp=4 dp=2')['lower_bound']} go to another rank")
timed(n3, "topology", "tp=4 dp=2 plain=drop")
homes = {n: (2 * i, 2 * i + 1) for i, n in enumerate(first)}
held = same(first, lambda n: homes[n], alone.digests())
print("   each rank has the bytes that one machine makes of the same files")
traffic(first, before, held)

for n in first:
	n.wait(lambda: "\nstate: materialized\n" in n.read("gpt", "status"), 60, "what nodes keep is the version")
print("   each node keeps its ranks now")

step("they train, and each node saves its ranks")
train_on(homes, 40)
for n in first:
	n.must("gpt", "wait", "")

step("n2 is killed, and its disk is lost; no copies were asked for, but data-parallel replicas have its ranks")
n2.kill()
shutil.rmtree(n2.store)
left = n1, n3, n4
for n in left:
	n.wait(lambda: re.search(r"\bn2\b.*\baway\b", (n.mount / ".ctl/nodes").read_text()), 60, "n2 is away")
same(left, lambda n: range(8), alone.digests())
print("   all eight ranks are read on n1, n3 and n4")

step("a new node, n5, takes the place of n2, which is given up")
n5.up()
n5.wait(lambda: (n5.mount / "gpt").is_dir() and n5.read("gpt", "topology").startswith("tp=4 dp=2"), 30, "it has the job")
subprocess.run([binary, "drain", "-m", n1.mount, "n2"], check=True)
print("   n1$ scalai drain n2")
before[n5] = pulled(n5)
n5.must("gpt", "config", "home=2-3")
n5.must("gpt", "wait", "")
homes = {n1: (0, 1), n5: (2, 3), n3: (4, 5), n4: (6, 7)}
held = same([n5], lambda n: homes[n], alone.digests())
traffic([n5], before, held)
if re.search("^lost:", n1.read("gpt", "status"), re.M):
	sys.exit("a file is said to be lost: " + n1.read("gpt", "status"))

step("training goes on, bit for bit as on one machine that has lost nothing")
train_on(homes, 60)
alone.ctl("topology", "tp=2 dp=3 plain=drop")
timed(n5, "topology", "tp=2 dp=3 plain=drop")
now = n1, n3, n4, n5
for n in now:
	n.wait(lambda: n.read("gpt", "topology").startswith("tp=2 dp=3"), 30, "the topology is there")
same(now, lambda n: range(6), alone.digests())
print("   six ranks, on each node, are what one machine has")
alone.end()
for n in now:
	n.down()
