# SPDX-License-Identifier: Apache-2.0
"""What the tests of kept ranks share: a job of one tensor, cut over tp ranks, and what nodes say of it."""
import functools
import json
import random
import struct
import subprocess
import sys

ROWS, COLUMNS = 4096, 256


@functools.lru_cache(8)
def weight(seed):
	return random.Random(seed).randbytes(ROWS * COLUMNS * 4)


def save_tensors(path, tensors):
	"""A safetensors file of F32, by hand: no library is needed.  By name: shape, bytes."""
	header, at, data = {}, 0, b""
	for name, (shape, values) in tensors.items():
		header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(values)]}
		at += len(values)
		data += values
	text = json.dumps(header).encode()
	text += b" " * (-len(text) % 8)
	path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def cut(seed, tp, rank):
	part = ROWS // tp * COLUMNS * 4
	return weight(seed)[rank * part:(rank + 1) * part]


def save(node, tp, rank, seed):
	folder = node.mount / "gpt" / str(rank)
	(folder / "logs").mkdir(parents=True, exist_ok=True)
	save_tensors(folder / "model.safetensors", {"w.weight": ([ROWS // tp, COLUMNS], cut(seed, tp, rank))})
	(folder / "logs/step.txt").write_text(f"rank {rank} seed {seed}\n")


def check(node, tp, rank, seed, log=None):
	folder = node.mount / "gpt" / str(rank)
	if not (folder / "model.safetensors").read_bytes().endswith(cut(seed, tp, rank)):
		sys.exit(f"{node.name} shows other bytes of rank {rank}")
	if log and (folder / "logs/step.txt").read_text() != log:
		sys.exit(f"{node.name} shows another log of rank {rank}")


def home(node, version):
	"""What the node says that it keeps of a version, which is the newest: ranks, bytes."""
	found = []
	def here():
		text = node.read("gpt", "status")
		found[:] = [line.split() for line in text.splitlines() if line.startswith("home: ")]
		return found and f"\nversion: {version}\n" in text
	node.wait(here, 60, f"what it keeps of version {version} is here")
	return int(found[0][1]), int(found[0][3])


def metric(node, name):
	text = (node.mount / ".ctl/metrics").read_text()
	return [float(x.split()[1]) for x in text.splitlines() if x.startswith(f"{name} ")][0]


def pulled(node):
	return metric(node, "scalai_pulled_bytes_total")


def keep(node, version):
	"""Asks for what a node keeps of a version, which is the newest, and waits for it."""
	node.wait(lambda: f"\nversion: {version}\n" in node.read("gpt", "status"), 30, f"version {version} is the newest")
	node.must("gpt", "wait", str(version))


def settled(node, version):
	"""Waits until a version, the newest, is stored as it is shown."""
	def is_so():
		text = node.read("gpt", "status")
		return f"\nversion: {version}\n" in text and "\nstate: materialized\n" in text
	node.wait(is_so, 60, f"version {version} is stored as it is shown")


def protected(node):
	"""Have all nodes what copies they are to have?"""
	lines = node.read("gpt", "status").splitlines()
	words = [line.split()[1:] for line in lines if line.startswith("protected: ")]
	return words and len(words[0]) == 4 and words[0][0] == words[0][2] and not any(x.startswith("lost: ") for x in lines)


def make(cluster, tp=2):
	one = cluster.nodes[0]
	(one.mount / "gpt").mkdir()
	one.must("gpt", "layout", "mesh tp\nplain *.txt\nw.weight tp=0\n*:* copy\n")
	one.must("gpt", "config", "keep=0")
	one.must("gpt", "topology", f"tp={tp}")
	for n in cluster.nodes:
		n.wait(lambda: (n.mount / "gpt").is_dir() and n.read("gpt", "topology") == f"tp={tp}\n", 30, "the topology is there")


def clean(node):
	"""Its store, when it has ended."""
	fsck = subprocess.run([node.cluster.binary, "fsck", node.store], capture_output=True, text=True)
	if fsck.returncode:
		sys.exit(f"{node.name}: fsck: {fsck.stdout}{fsck.stderr}")
