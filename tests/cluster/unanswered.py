# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: etcd takes connections and does not answer, as its process is stopped.  A mount says so, and what it waits for; SIGTERM ends
it, in the foreground and in the background, and leaves nothing that has the store; when etcd goes on, the node is there again.
"""
import signal
import subprocess
import sys
import time

from nodes import Cluster, inside, run, stop
from late import late

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=1)
one = cluster.nodes[0]
one.up().down()
stop(cluster.etcd.pid)
options = f"cluster=test,node={one.name},listen={one.address}:7077,etcd={cluster.urls[0]}"
for how in (["-f"], []):
	said = cluster.work / f"said{len(how)}"
	began = time.monotonic()
	with open(said, "wb") as log:
		mount = subprocess.Popen([*inside(one.namespace), binary, "mount", *how, "-o", options, one.store, one.mount], stdout=log, stderr=log)
	while f"etcd at {cluster.urls[0]} does not answer: the mount of node 'n1' waits for it" not in said.read_text():
		if mount.poll() is not None or time.monotonic() - began > 20:
			mount.kill()
			sys.exit(f"{how}: after {time.monotonic() - began:.1f} s, with {mount.returncode}: {said.read_text()}")
		time.sleep(0.02)
	late("a mount says that it waits for etcd", f"{time.monotonic() - began:.1f} s", "2 s")
	began = time.monotonic()
	mount.send_signal(signal.SIGTERM)
	try:
		code = mount.wait(20)
	except subprocess.TimeoutExpired:
		mount.kill()
		sys.exit(f"{how}: SIGTERM does not end it: {said.read_text()}")
	late("a mount that waits for etcd ends by SIGTERM", f"{time.monotonic() - began:.1f} s", "2 s")
	if code != 1 or "a signal or umount has ended the mount" not in said.read_text():
		sys.exit(f"{how}: it ended with {code}: {said.read_text()}")
	report = run(binary, "fsck", str(one.store)).stdout  # nobody has the store
	if " 0 problems" not in report:
		sys.exit(report)
cluster.etcd.send_signal(signal.SIGCONT)
one.up().down()
