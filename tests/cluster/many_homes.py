# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: what ranks wrote on three nodes is one commit, made on any of them; or it is refused, and stays where it is.
Beside the nodes a plain folder gets the same requests: after a commit each node shows what is there.
"""
import json
import os
import pathlib
import random
import shutil
import stat
import struct
import sys
import time

from nodes import Cluster

work, binary = sys.argv[1:3]
seed = int(sys.argv[3]) if len(sys.argv) > 3 else 11
rng = random.Random(seed)
counts = {"commits": 0, "commits refused": 0, "trees compared": 0, "requests": 0}


def shard(path, rank, value):
	header = json.dumps({"w.weight": {"dtype": "F32", "shape": [4, 12], "data_offsets": [0, 192]},
			     "n.weight": {"dtype": "F32", "shape": [12], "data_offsets": [192, 240]}}).encode()
	header += b" " * (-len(header) % 8)
	data = random.Random(value * 100 + rank).randbytes(192) + random.Random(value).randbytes(48)
	path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def look(top, but=()):
	found = {}
	for folder, folders, files in os.walk(top):
		for name in folders + files:
			path = pathlib.Path(folder, name)
			st = path.lstat()
			what = [stat.S_IFMT(st.st_mode), st.st_mode & 0o7777 if not path.is_symlink() else 0]
			if stat.S_ISREG(st.st_mode):
				what += [path.read_bytes(), st.st_nlink]
			elif stat.S_ISLNK(st.st_mode):
				what += [os.readlink(path)]
			else:
				what += [st.st_nlink]
			found[str(path.relative_to(top))] = tuple(what)
	return {k: v for k, v in found.items() if k.split("/")[0] not in but}


def show(value):
	return [x[:40] if isinstance(x, bytes) else x for x in value] if value else None


def compare(node, reference, when):
	is_, must = look(node.mount / "gpt", (".ctl",)), look(reference)
	for path in sorted(set(is_) | set(must)):
		if is_.get(path) != must.get(path):
			sys.exit(f"{when}: {node.name} has {path} as {show(is_.get(path))}, it should be {show(must.get(path))}")
	counts["trees compared"] += 1


def compare_all(reference, when):
	for n in cluster.nodes:
		compare(n, reference, when)


def commit(node, reference, text=""):
	node.must("gpt", "commit", text or "step=1")
	counts["commits"] += 1
	compare_all(reference, f"after a commit on {node.name}")


def both(node, reference, do):
	"""Does a request on a node's mount and on the plain folder."""
	do(node.mount / "gpt")
	do(reference)
	counts["requests"] += 1


def plain(node, to):
	shutil.rmtree(to)
	to.mkdir()
	if os.system(f"tar -C {node.mount}/gpt --exclude ./.ctl -cf - . | tar -C {to} -xpf -"):
		sys.exit("tar fails")


cluster = Cluster(work, binary)
one, two, three = cluster.nodes
for n in cluster.nodes:
	n.up()
reference = pathlib.Path(work, "reference")
reference.mkdir()
os.umask(0o022)

(one.mount / "gpt").mkdir()
one.must("gpt", "layout", "mesh tp dp\nplain *.txt\nw.weight tp=0\n*:* copy\n")
one.must("gpt", "topology", "tp=3")
for n in (two, three):
	n.wait(lambda: n.read("gpt", "topology") == "tp=3\n", 30, "the topology is there")

# each rank is written on its own node; a folder of the job, and one of each rank, on several
for rank, n in enumerate(cluster.nodes):
	def write(top):
		(top / str(rank)).mkdir(exist_ok=True)
		shard(top / str(rank) / "model.safetensors", rank, 1)
		(top / str(rank) / "logs").mkdir()
		(top / str(rank) / "logs/step.txt").write_text(f"rank {rank}\n")
		os.symlink("logs/step.txt", top / str(rank) / "latest")
		(top / "notes").mkdir(exist_ok=True)
		(top / "notes/deep").mkdir(exist_ok=True)
		(top / f"notes/deep/{rank}.txt").write_text(f"of {rank}\n" * 1000)
		os.link(top / f"notes/deep/{rank}.txt", top / f"notes/again-{rank}.txt")
	both(n, reference, write)
commit(two, reference)
for n in cluster.nodes:
	assert n.read("gpt", "topology") == "tp=3\n"
three.must("gpt", "topology", "tp=1 plain=drop")
whole = (one.mount / "gpt/0/model.safetensors").read_bytes()
for rank in range(3):
	assert random.Random(100 + rank).randbytes(192) in whole, "a rank's part is not in the whole"
one.must("gpt", "topology", "tp=3")
compare_all(reference, "after tp=1 and tp=3")

# committed files: written anew, removed, moved, linked, other attributes, each on another node; then a commit on the third
both(one, reference, lambda top: shard(top / "0/model.safetensors", 0, 2))
both(two, reference, lambda top: shard(top / "1/model.safetensors", 1, 2))
both(three, reference, lambda top: shard(top / "2/model.safetensors", 2, 2))
both(one, reference, lambda top: (top / "0/logs/step.txt").write_text("another\n"))
both(two, reference, lambda top: os.rename(top / "1/logs", top / "1/old"))
both(three, reference, lambda top: os.unlink(top / "notes/again-0.txt"))
both(three, reference, lambda top: os.unlink(top / "2/latest"))
both(two, reference, lambda top: (top / "notes/deep/1.txt").chmod(0o600))
both(one, reference, lambda top: os.link(top / "notes/deep/2.txt", top / "notes/third"))
commit(three, reference, "step=2")

# a committed file of another node is appended to, and copied up whole; a config.json of another node is read
def append(top):
	with open(top / "notes/deep/0.txt", "a") as f:
		f.write("and more\n")
both(three, reference, append)
both(one, reference, lambda top: (top / "0/config.json").write_text('{"model_type": "llama", "hidden_size": 8}'))
commit(two, reference, "step=2")

# what two nodes did to one name is refused, naming both, and stays
both(one, reference, lambda top: (top / "notes/same.txt").write_text("one\n"))
(two.mount / "gpt/notes/same.txt").write_text("two\n")
why = three.ctl("gpt", "commit", "step=3")
said = three.read("gpt", "error")
assert why == "Device or resource busy" and "notes/same.txt" in said and "node 1" in said and "node 2" in said, (why, said)
counts["commits refused"] += 1
assert (one.mount / "gpt/notes/same.txt").read_text() == "one\n" and (two.mount / "gpt/notes/same.txt").read_text() == "two\n"
(two.mount / "gpt/notes/same.txt").unlink()
commit(three, reference, "step=3")

# a file that one node writes and another removes with its folder is named
(one.mount / "gpt/0/logs/step.txt").write_text("one\n")
shutil.rmtree(two.mount / "gpt/0/logs")
why, said = three.ctl("gpt", "commit", "step=3"), three.read("gpt", "error")
assert why == "Device or resource busy" and "rank 0: 'logs" in said and "node 1" in said and "node 2" in said, (why, said)
counts["commits refused"] += 1
for n in (one, two):
	n.must("gpt", "discard", "yes")
compare_all(reference, "after both were discarded")

# a file that was read by the commit which was refused is written in place, and committed with its new bytes
both(one, reference, lambda top: shard(top / "0/model.safetensors", 0, 4))
both(two, reference, lambda top: shard(top / "1/model.safetensors", 1, 4))
both(three, reference, lambda top: shard(top / "2/model.safetensors", 2, 4))
(three.mount / "gpt/2/zz.safetensors").write_bytes(b"none of this kind")
assert one.ctl("gpt", "commit", "step=4") and "'zz.safetensors'" in one.read("gpt", "error"), one.read("gpt", "error")
counts["commits refused"] += 1
(three.mount / "gpt/2/zz.safetensors").unlink()
def overwrite(top):
	with open(top / "1/model.safetensors", "r+b") as f:
		f.seek(-240, os.SEEK_END)
		f.write(random.Random(99).randbytes(192))
both(two, reference, overwrite)
commit(one, reference, "step=4")

# a file that is open for writing on another node
with open(two.mount / "gpt/1/model.safetensors", "r+b"):
	assert one.ctl("gpt", "commit", "step=5") and "node 2" in one.read("gpt", "error"), one.read("gpt", "error")
	counts["commits refused"] += 1
one.ctl("gpt", "commit", "step=5")
compare_all(reference, "after a file was opened only")


# torch.distributed.checkpoint saves into one folder of the job, from a process on each node
try:
	import torch.distributed.checkpoint
except ImportError as why:
	print(f"skipped: a checkpoint of torch.distributed: {why}")
else:
	program = pathlib.Path(__file__).with_name("dcp_save.py")
	def python(*words):
		words = [sys.executable, str(program), *map(str, words)]
		if os.spawnv(os.P_WAIT, sys.executable, words):
			sys.exit(f"{' '.join(words)} fails")
	python(*(n.mount / "gpt/ckpt" for n in cluster.nodes))
	three.must("gpt", "commit", "step=6")
	counts["commits"] += 1
	for n in cluster.nodes:
		python("load", n.mount / "gpt/ckpt")
		python("load", n.mount / "gpt/.dcp/tp=2/ckpt")
		parts = [(x.mount / "gpt/.as/tp=2/1/ckpt.safetensors").read_bytes() for x in (one, n)]
		assert len(parts[0]) > 24 * 8 * 4 and parts[0] == parts[1]
	one.must("gpt", "topology", "tp=1 plain=drop")
	one.must("gpt", "topology", "tp=3")
	plain(one, reference)

# random requests, on names of which some are other nodes', too
names = ["a", "b", "d", "d/x", "d/y", "e", "e/x", "f", "f/x"]


def request(top, what, a, b, value):
	a, b = top / "notes" / a, top / "notes" / b
	try:
		if what == "write":
			a.write_text(value)
		elif what == "mkdir":
			a.mkdir()
		elif what == "unlink":
			a.unlink()
		elif what == "rmdir":
			a.rmdir()
		elif what == "rename":
			os.rename(a, b)
		elif what == "link":
			os.link(a, b)
		elif what == "symlink":
			os.symlink(value, a)
		elif what == "chmod":
			if not a.is_symlink():
				a.chmod(0o700 if a.is_dir() else 0o640)
	except OSError:
		pass


refused = 0
for turn in range(int(sys.argv[4]) if len(sys.argv) > 4 else 12):
	dirty = rng.sample(cluster.nodes, rng.choice([1, 2, 2, 3]))
	for n in dirty:
		for _ in range(rng.randrange(1, 5)):
			args = (rng.choice(["write", "write", "mkdir", "mkdir", "unlink", "rmdir", "rename", "link", "symlink", "chmod"]),
				rng.choice(names), rng.choice(names), f"{turn} {rng.random()}\n")
			request(n.mount / "gpt", *args)
			counts["requests"] += 1
	(rng.choice(dirty).mount / "gpt/notes/turn.txt").write_text(f"{turn}\n")
	n = rng.choice(cluster.nodes)
	before = [look(x.mount / "gpt", (".ctl",)) for x in cluster.nodes]
	why = n.ctl("gpt", "commit", f"step={10 + turn}")
	if why:
		refused += 1
		assert "node" in n.read("gpt", "error"), n.read("gpt", "error")
		for x, was in zip(cluster.nodes, before):
			if look(x.mount / "gpt", (".ctl",)) != was:
				sys.exit(f"a commit that was refused has changed {x.name}: {n.read('gpt', 'error')}")
		for x in dirty:
			x.must("gpt", "discard", "yes")
		continue
	counts["commits"] += 1
	trees = [look(x.mount / "gpt", (".ctl",)) for x in cluster.nodes]
	for x, tree in zip(cluster.nodes, trees):
		for path in sorted(set(tree) | set(trees[0])):
			if tree.get(path) != trees[0].get(path):
				sys.exit(f"turn {turn}: {x.name} has {path} as {show(tree.get(path))}, n1 as {show(trees[0].get(path))}")
	# what a node changed is as it has it, what nobody changed is as it was
	for x, was in zip(cluster.nodes, before):
		counts["trees compared"] += 1
		if x in dirty and len(dirty) == 1 and trees[0] != was:
			sys.exit(f"turn {turn}: a commit shows something else than {x.name}, which alone has written")
counts["commits refused"] += refused

# any node is killed while one commits: all of it is a version, or nothing, and nothing that was written is lost
plain(one, reference)
for turn in range(int(sys.argv[5]) if len(sys.argv) > 5 else 4):
	value = 1000 + turn
	for rank, n in enumerate(cluster.nodes):
		both(n, reference, lambda top: shard(top / str(rank) / "model.safetensors", rank, value))
		both(n, reference, lambda top: (top / f"notes/killed-{turn}-{rank}.txt").write_text(f"{turn}\n"))
	committer, victim = rng.choice(cluster.nodes), rng.choice(cluster.nodes)
	pid = os.fork()
	if pid == 0:
		committer.ctl("gpt", "commit", f"step={value}")
		os._exit(0)
	time.sleep(rng.random() * 0.08)
	victim.kill()
	if victim is not committer and rng.random() < 0.5:
		time.sleep(rng.random() * 6)  # its registration may end
	victim.up()
	os.waitpid(pid, 0)
	counts["nodes killed"] = counts.get("nodes killed", 0) + 1
	end = time.monotonic() + 30
	while True:  # a version has it all by now, or this commit makes one
		why = one.ctl("gpt", "commit", f"step={value}")
		said = one.read("gpt", "error") if why else ""
		if not why or "nothing was written" in said:
			break
		if "is no member of the cluster" in said or "come or gone" in said:
			counts["commits refused"] += 1
		if time.monotonic() > end:
			sys.exit(f"turn {turn}, {victim.name} killed, {committer.name} commits: {why}: {said}")
		time.sleep(0.2)
	compare_all(reference, f"turn {turn}, {victim.name} killed while {committer.name} commits")

for n in cluster.nodes:
	n.down()
	print(n.name, os.popen(f"{binary} fsck {n.store} 2>&1 | tail -1").read().strip())
print(", ".join(f"{v} {k}" for k, v in counts.items()))
