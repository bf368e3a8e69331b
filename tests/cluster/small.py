# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: small jobs of many kinds of layouts (tests/prop/small_jobs.py) on two nodes, whose ranks save by turns, and with replicas
of ranks on both: a view reads the nearest replica, and has to have what numpy makes.
"""
import pathlib
import subprocess
import sys

from nodes import Cluster

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=2)
for n in cluster.nodes:
	n.up()
small = pathlib.Path(__file__).resolve().parents[1] / "prop/small_jobs.py"
if subprocess.run([sys.executable, small, *(n.mount for n in cluster.nodes)], check=False).returncode:
	sys.exit("; ".join(n.health() for n in cluster.nodes))
for n in cluster.nodes:
	n.down()
