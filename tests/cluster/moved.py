# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: what each of four nodes pulls when ranks are cut anew (tensor, data and pipeline parallel; 8 to 16 to 8 ranks), and
when they go to other nodes: the chunks of 64 KiB that have what it needs and has not, to the byte, beside the lower bound
that `plan` gives.
"""
import itertools
import json
import struct
import sys

from kept import clean, keep, metric, pulled, settled
from nodes import Cluster

LAYERS, ROWS, COLUMNS = 8, 64, 65536  # 4 MiB a layer
CHUNK = 65536
work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=4)
nodes = cluster.nodes


def rows(layer, seed):
	return bytes((layer * 37 + seed * 11 + r) % 251 for r in range(ROWS))


def tensors(tp, pp, rank, seed):
	"""Of a rank of a mesh tp dp pp with dp=1: its layers' rows, by name."""
	t, p = rank % tp, rank // tp
	for local in range(LAYERS // pp):
		part = rows(p * (LAYERS // pp) + local, seed)[t * (ROWS // tp):(t + 1) * (ROWS // tp)]
		yield f"layers.{local}.w", b"".join(bytes([b]) * COLUMNS for b in part)


def save(node, tp, pp, rank, seed):
	header, at, all_of = {}, 0, []
	for name, data in tensors(tp, pp, rank, seed):
		header[name] = {"dtype": "U8", "shape": [len(data) // COLUMNS, COLUMNS], "data_offsets": [at, at + len(data)]}
		at += len(data)
		all_of.append(data)
	text = json.dumps(header).encode()
	text += b" " * (-len(text) % 8)
	folder = node.mount / "gpt" / str(rank)
	folder.mkdir(parents=True, exist_ok=True)
	(folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(all_of))


def plan(node, topology):
	"""Bytes that each node needs and has not, by number from 0."""
	with open(node.mount / "gpt/.ctl/plan", "r+b", buffering=0) as f:
		f.write(topology.encode())
		text = f.read(1 << 20).decode()
	facts = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
	assert facts["bytes_moved"] == facts["lower_bound"], text
	to = [0] * len(nodes)
	for line in text.split("from_node\tto_node\tbytes\n")[1].splitlines():
		_, n, nr = map(int, line.split())
		to[n] += nr
	assert sum(to) == int(facts["lower_bound"])
	return to


class Cut:
	"""Ranks of a mesh tp dp pp, four on each node; `size` of each rank's file."""

	def __init__(self, topology):
		d = dict(word.split("=") for word in topology.split())
		self.tp, self.dp, self.pp = (int(d.get(axis, 1)) for axis in ("tp", "dp", "pp"))
		self.ranks = range(self.tp * self.dp * self.pp)
		self.rows, self.layers = ROWS // self.tp, LAYERS // self.pp
		self.size = {}

	def at(self, rank):
		return rank % self.tp, rank // self.tp % self.dp, rank // self.tp // self.dp

	def rank(self, t, d, p):
		return t + self.tp * (d + self.dp * p)

	def see(self, node):
		self.size = {r: (node.mount / f"gpt/{r}/model.safetensors").stat().st_size for r in self.ranks}

	def needs(self, node):
		"""Rows of layers of the node's ranks."""
		return {(p * self.layers + layer, t * self.rows + row) for r in self.ranks if r // 4 == node for t, _, p in (self.at(r),)
			for layer, row in itertools.product(range(self.layers), range(self.rows))}

	def chunks(self, node, needed):
		"""Bytes of the chunks of files of other nodes that have what is needed and is in no file of the node."""
		found = set()
		for layer, row in needed:
			t, p = row // self.rows, layer // self.layers
			holders = [self.rank(t, d, p) for d in range(self.dp)]
			if any(r // 4 == node for r in holders):
				continue
			r = holders[0]
			data = self.layers * self.rows * COLUMNS
			at = self.size[r] - data + ((layer % self.layers) * self.rows + row % self.rows) * COLUMNS
			found |= {(r, 0)}  # its header
			found |= {(r, c) for c in range(at // CHUNK, (at + COLUMNS - 1) // CHUNK + 1)}
		return sum(min(CHUNK, self.size[r] - c * CHUNK) for r, c in found)

	def replicas(self, node):
		"""Bytes of files that the node has made, and of which the storage has those of a lower node."""
		first = {self.rank(t, 0, p) for r in self.ranks if r // 4 == node for t, _, p in (self.at(r),)}
		return sum(self.size[r] for r in first if r // 4 != node)


def change(node, was, topology):
	now, bound, before = Cut(topology), plan(one, topology), [pulled(n) for n in nodes]
	global version
	node.must("gpt", "topology", topology)
	version += 1
	for n in nodes:
		settled(n, version)
		keep(n, version)
	now.see(one)
	moved = [pulled(n) - b for n, b in zip(nodes, before)]
	again = [now.replicas(i) for i in range(4)]
	least = [was.chunks(i, now.needs(i)) for i in range(4)]
	print(f"figure: {topology}: bound {bound}, in chunks {least}, replicas {again} not pulled again, pulled {moved}")
	for i in range(4):
		assert bound[i] <= least[i] <= bound[i] * 1.1, i
		if version > 2:  # the commit has read headers
			assert moved[i] == least[i], i
	return now


for n in nodes:
	n.up()
one = nodes[0]
(one.mount / "gpt").mkdir()
one.must("gpt", "layout", "mesh tp dp pp\nlayers.{L}.w tp=0\n*:* copy\n")
one.must("gpt", "config", "ranks_per_node=4")
one.must("gpt", "topology", "tp=4 pp=2")
for i, n in enumerate(nodes):
	n.wait(lambda: (n.mount / "gpt").is_dir() and "pp=2" in n.read("gpt", "topology"), 30, "the topology is there")
	n.must("gpt", "config", f"home={4 * i}-{4 * i + 3}")
for rank in range(8):
	save(nodes[rank // 4], 4, 2, rank, 1)
one.must("gpt", "commit", "step=1")
version = 1
for n in nodes:
	settled(n, 1)
cut = Cut("tp=4 pp=2")
cut.see(one)
for i, topology in enumerate(("tp=8", "tp=2 pp=4", "tp=4 pp=2", "tp=8 pp=2", "tp=4 pp=2", "tp=4 dp=2", "tp=8 dp=2", "tp=4 dp=2 pp=2", "tp=8")):
	cut = change(nodes[i % 4], cut, topology)

# its ranks go to other nodes
before = [pulled(n) for n in nodes]
for i, n in enumerate(nodes):
	n.must("gpt", "config", ["home=none", "home=none", "home=0-3", "home=4-7"][i])
for n in nodes:
	keep(n, version)
moved = [pulled(n) - b for n, b in zip(nodes, before)]
print(f"figure: to other nodes: pulled {moved}")
assert moved == [0, 0, sum(cut.size[r] for r in range(4)), sum(cut.size[r] for r in range(4, 8))]
for rank in range(8):
	want = list(tensors(8, 1, rank, 1))
	data = b"".join(text for _, text in want)
	assert (nodes[2 + rank // 4].mount / f"gpt/{rank}/model.safetensors").read_bytes().endswith(data), rank
assert [pulled(n) - b for n, b in zip(nodes, before)] == moved
got, given = sum(pulled(n) for n in nodes), sum(metric(n, "scalai_served_bytes_total") for n in nodes)
assert got <= given <= got + 65536, (got, given)  # what is uncommitted, for commits
for n in nodes:
	assert metric(n, "scalai_pulls_failed_total") == 0 == metric(n, "scalai_lost_files")
	assert metric(n, "scalai_copies_here_bytes") == metric(n, "scalai_copies_bytes")
for n in nodes:
	n.down()
	clean(n)
