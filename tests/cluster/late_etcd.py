# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: an etcd that answers so late that a node is a member and none in turn, for ever: its log says so a few times, and not
each second, nor does it say again what it said of a version.
"""
import sys
import time

from between import Relay
from kept import make, metric, save
from nodes import Cluster

work, binary = sys.argv[1:3]
FENCES, LINES = 20, 9  # reshard/cluster/node/node.c: eight a minute, and one that says why no more are
cluster = Cluster(work, binary, nodes=1, ttl_ms=10000, fresh_ms=1000)
one = cluster.nodes[0]
relay = Relay(cluster)
relay.up(one)
make(cluster)
for rank in range(2):
	save(one, 2, rank, 1)
one.must("gpt", "commit", "step=1")
one.must("gpt", "wait", "1")
before = one.log.stat().st_size
relay.slow(True)
began, was = time.monotonic(), metric(one, "scalai_cluster_fences_total")
one.wait(lambda: metric(one, "scalai_cluster_fences_total") >= was + FENCES, 180, "it was a member, and none, in turn")
said = one.log.read_bytes()[before:].decode()
lines = [line for line in said.splitlines() if "a member" in line or "no member" in line]
assert "etcd answers late" in said, said
minutes = 2 + (time.monotonic() - began) // 60
assert len(lines) <= LINES * minutes, said
assert not [line for line in said.splitlines() if "materialized" in line], said
relay.slow(False)
one.wait(lambda: "is a member\n" in one.health() + "\n", 30, "it is a member")
one.down()
