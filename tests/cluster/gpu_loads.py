# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY HELPER: a node loads into the memory of its GPU (the stand-in's) files of ranks whose bytes are on another node:
of the version, of another topology; its neighbour is stopped in the midst of a load, and goes on.
"""
import json
import os
import pathlib
import subprocess
import sys

os.environ["MOUNT_OPTIONS"] = f"gpu={pathlib.Path(sys.argv[3]).resolve()},gpu_timeout=20"
from kept import pulled, save_tensors  # noqa: E402: nodes reads that
from nodes import Cluster  # noqa: E402
from waits import Thread, parked  # noqa: E402

ROWS, COLUMNS = 2048, 512  # of F32: 4 MiB, of which ranks have pieces that are read through descriptors
work, binary = sys.argv[1:3]
tool = pathlib.Path(__file__).resolve().parents[1] / "e2e/gpu_bytes.py"


def loads(node, path, of, other):
	"""The GPU of a node has the bytes that another node reads."""
	expected = work_dir / "expected"
	expected.write_bytes((other.mount / "gpt" / of).read_bytes())
	done = subprocess.run([sys.executable, tool, node.mount / "gpt" / path, expected], capture_output=True, text=True)
	if done.returncode:
		sys.exit(f"{node.name}: {path}: {done.stderr[-1500:]}\n{node.read('gpt', 'error')}\n{node.log.read_text()[-1500:]}")


work_dir = pathlib.Path(work)
cluster = Cluster(work, binary, nodes=2)
one, two = cluster.nodes
for n in cluster.nodes:
	n.up()
(one.mount / "gpt").mkdir()
one.must("gpt", "config", "materialize=never")
one.must("gpt", "layout", "mesh tp\nw.weight tp=0\n*:* copy\n")
one.must("gpt", "topology", "tp=2")
data = os.urandom(ROWS * COLUMNS * 4)
for rank in range(2):
	(one.mount / f"gpt/{rank}").mkdir(exist_ok=True)
	save_tensors(one.mount / f"gpt/{rank}/model.safetensors",
		     {"w.weight": ([ROWS // 2, COLUMNS], data[rank * len(data) // 2:(rank + 1) * len(data) // 2])})
one.must("gpt", "commit", "step=1")
two.wait(lambda: "\nversion: 1\n" in two.read("gpt", "status"), 30, "the version is there")

before = pulled(two)
for rank in range(2):
	loads(two, f".gpu/{rank}/model.safetensors", f"{rank}/model.safetensors", one)
for t, rank in (("tp=1", 0), ("tp=4", 3), ("tp=1", 0)):
	loads(two, f".as/{t}/.gpu/{rank}/model.safetensors", f".as/{t}/{rank}/model.safetensors", one)
loads(two, ".v/1/.gpu/1/model.safetensors", "1/model.safetensors", one)
here = pulled(two) - before
assert here > 0, "no byte came from the other node"

# who has the bytes is stopped while they are asked for: the load waits, reads of what is here do not, and it ends right
one.must("gpt", "topology", "tp=4")
data = os.urandom(ROWS * COLUMNS * 4)  # of which the other node has nothing yet
for rank in range(4):
	save_tensors(one.mount / f"gpt/{rank}/model.safetensors",
		     {"w.weight": ([ROWS // 4, COLUMNS], data[rank * len(data) // 4:(rank + 1) * len(data) // 4])})
one.must("gpt", "commit", "step=2")
expected = (one.mount / "gpt/2/model.safetensors").read_bytes()
two.wait(lambda: "\nversion: 3\n" in two.read("gpt", "status"), 30, "the version is there")
result = []


def load():
	with open(two.mount / "gpt/.gpu/2/model.safetensors") as f:
		result.append(json.load(f))


one.stop()
thread = Thread(target=load)
thread.start()
parked(thread.native_id)
one.stop(False)
thread.join(60)
assert result and result[0]["bytes"] == len(expected), (result, two.read("gpt", "error"))
loads(two, ".gpu/2/model.safetensors", "2/model.safetensors", one)
for n in cluster.nodes:
	n.down()
print(f"{here} bytes came from the node that has them, for 6 loads of 2 files of {len(data) // 2} bytes and what follows from them")
