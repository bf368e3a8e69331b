# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: what goes over the network can be read there without TLS, and not with it; who has no certificate of the cluster's CA
gets nothing of nodes and etcd, and is told so; certificates are replaced while nodes run.
"""
import os
import pathlib
import socket
import subprocess
import sys
import time

from kept import check, make, save
from nodes import CERTIFICATES, Cluster, inside, run
from late import late

work, binary = pathlib.Path(sys.argv[1]), sys.argv[2]
SPOKEN = b"what a rank has written and nobody else may read " * 40


class Ear:
	"""All packets of the hub's interfaces, the bridge's ports."""
	def __init__(self, cluster):
		code = ("import signal,socket,sys;s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW,socket.htons(3))\n"
			"s.setsockopt(socket.SOL_SOCKET,33,1<<28);s.settimeout(0.1);out=open(sys.argv[1],'wb');ends=[]\n"
			"signal.signal(signal.SIGTERM,lambda *_:ends.append(1));print('listens',flush=True)\n"
			"while True:\n"
			" if ends: s.setblocking(False)\n"
			" try: out.write(s.recv(1<<17))\n"
			" except OSError:\n"
			"  if ends: break\n"
			"out.close()")
		self.file = cluster.work / "heard"
		self.listener = subprocess.Popen([*inside(cluster.hub), sys.executable, "-c", code, self.file], stdout=subprocess.PIPE)
		assert self.listener.stdout.readline() == b"listens\n"

	def end(self):
		"""What was heard until now: all that the socket has."""
		self.listener.terminate()
		self.listener.wait()
		return self.file.read_bytes()


def between(tls):
	folder = work / ("tls" if tls else "plain")
	folder.mkdir()
	cluster = Cluster(folder, binary, nodes=2, tls=tls)
	ear = Ear(cluster)
	one, two = (n.up() for n in cluster.nodes)
	make(cluster)
	for rank in range(2):
		save(one, 2, rank, 1)
	(one.mount / "gpt/0/notes").write_bytes(SPOKEN)
	one.must("gpt", "commit", "step=1")
	two.wait(lambda: (two.mount / "gpt/0/notes").exists(), 30, "it shows the version")
	assert (two.mount / "gpt/0/notes").read_bytes() == SPOKEN
	for rank in range(2):
		check(two, 2, rank, 1)
	heard = ear.end()
	assert len(heard) > 1 << 20, f"the bridge was not heard: {len(heard)} bytes"
	return cluster, SPOKEN[:49] in heard, b"w.weight" in heard


cluster, words, names = between(False)
assert words and names, "the ear hears nothing: this test can't fail"
for n in cluster.nodes:
	n.down()
cluster.end()
cluster, words, names = between(True)
assert not words, "what a rank wrote could be read on the network"
assert not names, "names of tensors could be read on the network"
one, two = cluster.nodes

# a node whose certificate is of another CA: etcd refuses it
stranger = work / "stranger"
run(CERTIFICATES, stranger, "2", "n2")
two.down()
right, two.certificates = two.certificates, stranger / "n2"
try:
	two.up()
except SystemExit as e:
	assert "etcd does not answer" in str(e) and "certificate" in str(e).lower(), e
else:
	raise SystemExit("a node without a certificate of etcd's CA is a member")
# and one that etcd knows, and nodes do not
(stranger / "n2/cert.pem").rename(stranger / "n2/nodes.pem")
run("umount", "-l", str(two.mount), check=False)
two.certificates = right
options = os.environ.get("MOUNT_OPTIONS")
os.environ["MOUNT_OPTIONS"] = f"no_read_ahead,tls={stranger / 'good'}"
run(CERTIFICATES, stranger, "2", "good")
save(one, 2, 0, 2)
save(one, 2, 1, 2)
one.must("gpt", "commit", "step=2")
two.up()
two.wait(lambda: "\nversion: 2\n" in two.read("gpt", "status"), 30, "version 2, which etcd has told it")
try:
	(two.mount / "gpt/0/model.safetensors").read_bytes()
except OSError as e:
	why = two.read("gpt", "error")
	assert "certificate" in why or "tls=" in why, why
else:
	raise SystemExit("a node whose certificate nobody has signed gets bytes")
# it is a member, and no command waits for it longer than for two registrations (4 s each): they name it, and change nothing
for writer, text, other in ((one, "tp=1", "node 2 ('n2'"), (one, "commit", "node 2 ('n2'"), (two, "tp=1", "node 1 ('n1'")):
	if text == "commit":
		save(one, 2, 0, 3)
	began = time.monotonic()
	assert writer.ctl("gpt", "commit", "step=3") if text == "commit" else writer.ctl("gpt", "topology", text), f"{text} was done"
	took, why = time.monotonic() - began, writer.read("gpt", "error")
	assert other in why and "was not reached" in why and ("certificate" in why or "tls" in why), why
	late(f"{text}, refused as a node is not reached", f"{took:.1f} s", "25 s")
	assert "\nversion: 2\n" in writer.read("gpt", "status"), writer.read("gpt", "status")
assert "cannot be reached" in one.log.read_text(), one.log.read_text()
two.down()
os.environ.pop("MOUNT_OPTIONS")
if options:
	os.environ["MOUNT_OPTIONS"] = options
two.up()
for rank in range(2):
	check(two, 2, rank, 2)

# certificates of nodes are replaced while they run: new connections are made by the new ones
run(CERTIFICATES, cluster.work / "certificates", "2", "n1", "n2")
two.kill()
two.up()
save(one, 2, 0, 3)
save(one, 2, 1, 3)
one.must("gpt", "commit", "step=3")
two.wait(lambda: "\nversion: 3\n" in two.read("gpt", "status"), 30, "version 3")
for rank in range(2):
	check(two, 2, rank, 3)
for n in cluster.nodes:
	n.down()
print("TLS: nothing can be read on the network, strangers get nothing")
