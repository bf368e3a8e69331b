# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: rows of padding that a topology does not show are kept, bit for bit, over commits on a node that has not one byte of
them: the files in which they lie are the other node's.
"""
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

from nodes import Cluster

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=2)
one, two = cluster.nodes
NAME, COLUMNS = "embedding.word_embeddings.weight", 4
rng = np.random.default_rng(7)
rows = {1: 384, 2: 512}  # vocab=300, padded to a multiple of 128 a rank
table = rng.standard_normal((rows[2], COLUMNS), dtype=np.float32)


def save(node, tp, step):
    for rank, part in enumerate(np.split(table[:rows[tp]], tp)):
        folder = node.mount / "gpt" / str(rank)
        folder.mkdir(exist_ok=True)
        save_file({NAME: part}, folder / "model.safetensors")
    node.must("gpt", "commit", f"step={step}")


def check(tp, what):
    for node in cluster.nodes:
        found = np.concatenate([load_file(node.mount / f"gpt/{rank}/model.safetensors")[NAME] for rank in range(tp)])
        wrong = [i for i in range(rows[tp]) if found.shape != table[:rows[tp]].shape or (found[i] != table[i]).any()]
        assert not wrong, (node.name, what, found.shape, wrong[:9])


for node in cluster.nodes:
    node.up()
(one.mount / "gpt").mkdir()
one.must("gpt", "layout", "use megatron-gpt vocab=300\n")
one.must("gpt", "topology", "tp=2")
save(one, 2, 1)
check(2, "what was written")
step = 1
for node, other in (two, one), (one, two), (two, one):
    node.must("gpt", "topology", "tp=1")
    table[:rows[1]] = rng.standard_normal((rows[1], COLUMNS), dtype=np.float32)
    step += 1
    save(node, 1, step)
    check(1, f"step {step}")
    other.must("gpt", "topology", "tp=2")
    check(2, f"step {step}, with its padding, as views")
    other.must("gpt", "wait", "\n")
    check(2, f"step {step}, as real files")
    node.must("gpt", "verify", "\n")
