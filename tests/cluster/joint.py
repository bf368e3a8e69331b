# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY HELPER: nodes put the files of a topology together by their GPUs (the stand-in's), which exchange bytes by NCCL
(the stand-in's, over sockets between the nodes' namespaces).  Nothing is pulled then; a node that does not take part, or whose
helper dies or is told another plan, makes the others pull, and files are right all the same.
"""
import json
import os
import pathlib
import signal
import struct
import sys

link = next((name for name in sorted(os.listdir("/sys/class/net")) if name != "lo"), "eth")  # as nodes.py names it
helper = pathlib.Path(sys.argv[3]).resolve()
work, binary = pathlib.Path(sys.argv[1]), sys.argv[2]
script = work / "helper"
os.environ["MOUNT_OPTIONS"] = f"gpu={script},gpu_devices=0:1,gpu_timeout=20,gpu_net={link},gpu_memory=256M,gpu_pinned=256M"
from kept import metric, pulled, save_tensors  # noqa: E402: nodes reads that
from nodes import Cluster  # noqa: E402

ROWS, COLUMNS = 4096, 256  # of F32: 4 MiB


def tell(args):
	"""What the helpers of all nodes do that start from now on; by itself, each is told another seed."""
	script.write_text(f"#!/bin/sh\nASAN_OPTIONS=detect_leaks=0 exec {helper} {args}\n")
	script.chmod(0o755)


def kill_helper(node):
	"""The one that a node has from the pass before."""
	found = 0
	for task in pathlib.Path(f"/proc/{node.daemon.pid}/task").iterdir():
		for child in (task / "children").read_text().split():
			os.kill(int(child), signal.SIGKILL)
			found += 1
	assert found, f"{node.name} has no helper"


def load(path):
	file = path.read_bytes()
	n = struct.unpack("<Q", file[:8])[0]
	header = json.loads(file[8:8 + n])
	return {k: file[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in header.items() if k != "__metadata__"}


def expect(node, tp, ranks, what, dp):
	for r in ranks:
		rank = r // dp  # the first axis is the inner one
		got = load(node.mount / f"gpt/{r}/model.safetensors")
		rows, columns = ROWS // tp, COLUMNS // tp
		w = data[rank * rows * COLUMNS * 4:(rank + 1) * rows * COLUMNS * 4]
		v = b"".join(data[(i * COLUMNS + rank * columns) * 4:(i * COLUMNS + (rank + 1) * columns) * 4] for i in range(ROWS))
		if got != {"w.weight": w, "v.weight": v, "norm": norm}:
			raise SystemExit(f"{node.name}: {what}: rank {rank} has other bytes")


def materialize(how):
	one.must("gpt", "config", f"materialize={how}")
	for n in cluster.nodes:
		n.wait(lambda: f"materialize={how}\n" in n.read("gpt", "config"), 30, f"it knows of {how}")


def change(topology, tp, home, what, by_gpu, dp=1):
	"""A topology, whose ranks have their homes on these nodes; returns what each node has pulled for it."""
	materialize("never")  # a node that is told its home would pull these ranks of the version before
	for n in cluster.nodes:
		n.must("gpt", "config", f"home={home[n.number - 1]}")
	passes = [metric(n, "scalai_joint_passes_total") for n in cluster.nodes]
	before = [pulled(n) for n in cluster.nodes]
	one.must("gpt", "topology", topology)
	for n in cluster.nodes:
		n.wait(lambda: n.read("gpt", "topology") == one.read("gpt", "topology"), 30, "the topology is there")
	materialize("eager")
	for n in cluster.nodes:
		n.must("gpt", "wait", "\n")
	made = [metric(n, "scalai_joint_passes_total") - was for n, was in zip(cluster.nodes, passes)]
	here = [pulled(n) - was for n, was in zip(cluster.nodes, before)]
	if made != [by_gpu] * len(made):
		logs = "\n".join(n.log.read_text()[-1200:] for n in cluster.nodes)
		raise SystemExit(f"{what}: passes of nodes {made}, {by_gpu} wanted\n{logs}")
	for n in cluster.nodes:
		expect(n, tp, range(dp * tp), what, dp)
	return here


tell("1 1")
data = os.urandom(ROWS * COLUMNS * 4)
norm = os.urandom(COLUMNS * 4)
cluster = Cluster(work, binary, nodes=3)
one, two, three = cluster.nodes
for n in cluster.nodes:
	n.up()
(one.mount / "gpt").mkdir()
one.must("gpt", "layout", "mesh dp tp\nw.weight tp=0\nv.weight tp=1\nnorm copy\n*:* copy\n")
one.must("gpt", "topology", "dp=1 tp=2")
two.wait(lambda: (two.mount / "gpt").exists() and two.read("gpt", "topology") == one.read("gpt", "topology"), 30, "the job is there")
three.wait(lambda: (three.mount / "gpt").exists(), 30, "the job is there")
for n in cluster.nodes:
	n.must("gpt", "config", "engine=gpu")
for rank, n in enumerate((one, two)):
	(n.mount / f"gpt/{rank}").mkdir(exist_ok=True)
	save_tensors(n.mount / f"gpt/{rank}/model.safetensors",
	     {"norm": ([COLUMNS], norm), "w.weight": ([ROWS // 2, COLUMNS], data[rank * len(data) // 2:(rank + 1) * len(data) // 2]),
	      "v.weight": ([ROWS, COLUMNS // 2], b"".join(data[(r * COLUMNS + rank * COLUMNS // 2) * 4:(r * COLUMNS + (rank + 1) * COLUMNS // 2) * 4]
							   for r in range(ROWS)))})
one.must("gpt", "commit", "step=1")
for n in cluster.nodes:
	n.wait(lambda: "\nversion: 1\n" in n.read("gpt", "status"), 30, "the version is there")

# all exchange bytes by NCCL: what crosses the network otherwise is headers
first = change("dp=1 tp=4", 4, ("0", "1-2", "3"), "all take part", 1)
assert max(first) < 400 << 10, f"bytes were pulled: {first}"
again = change("dp=1 tp=1", 1, ("none", "none", "0"), "back, from what was made", 1)
assert max(again) < 400 << 10, f"bytes were pulled: {again}"
versions = {v.split("/")[5] for v in cluster.values("nccl/")}
assert len(versions) == 1, f"of versions before nothing is left: {versions}"

# one without a net, and then one whose helper is killed at a message: the others pull
two.down()
options = os.environ["MOUNT_OPTIONS"]
os.environ["MOUNT_OPTIONS"] = options.replace(f",gpu_net={link}", "")
two.up()
change("dp=1 tp=8", 8, ("0-2,7", "none", "3-6"), "one takes no part", 0)
assert "nodes exchange nothing by NCCL: a member has not come" in one.log.read_text()
two.down()
os.environ["MOUNT_OPTIONS"] = options
two.up()
tell("1 1 kill 6")  # of those that start from now on
kill_helper(three)
change("dp=1 tp=16", 16, ("0-8", "9", "10-15"), "a helper is gone, another one dies", 0)
tell("1 1")
change("dp=1 tp=32", 32, ("0-12", "13-28", "27-31"), "and after that", 1)
change("dp=2 tp=2", 2, ("0,3", "1", "2"), "replicas", 1, 2)
for n in cluster.nodes:
	n.down()
print(f"3 nodes of 2 GPUs each, {2 * len(data)} bytes: a node pulls {max(first + again)} at most, headers")
