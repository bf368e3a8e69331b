# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY [MIB]: how long things take in a cluster of three nodes on this machine, each in a network namespace, beside
what the network does without us.  Figures are of one run on one machine: ratios count.
"""
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import time

from nodes import NET, Cluster, inside

work, binary = sys.argv[1:3]
mib = int(sys.argv[3]) if len(sys.argv) > 3 else 512
ROUNDS = 5
rng = random.Random(3)

RAW = """
import os, socket, sys, time
port = int(sys.argv[3])
if sys.argv[1] == "serve":  # sends what is asked for from a file in memory
	fd = os.open(sys.argv[4], os.O_RDONLY)
	s = socket.create_server(("0.0.0.0", port))
	while True:
		c, _ = s.accept()
		c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
		while True:
			ask = c.recv(16, socket.MSG_WAITALL)
			if len(ask) < 16:
				break
			at, n = int.from_bytes(ask[:8], "little"), int.from_bytes(ask[8:], "little")
			while n:
				part = os.pread(fd, min(n, 1 << 20), at)
				c.sendall(part)
				at, n = at + len(part), n - len(part)
else:
	c = socket.create_connection((sys.argv[2], port))
	c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
	buf = memoryview(bytearray(1 << 20))
	def pull(at, n):
		c.sendall(at.to_bytes(8, "little") + n.to_bytes(8, "little"))
		while n:
			n -= c.recv_into(buf, min(n, 1 << 20))
	total = int(sys.argv[4])
	begin = time.perf_counter()
	pull(0, total)
	print(time.perf_counter() - begin)
	for _ in range(300):
		at = int.from_bytes(os.urandom(4), "little") * 65536 % (total - 65536)
		begin = time.perf_counter()
		pull(at, 65536)
		print(time.perf_counter() - begin)
"""


def save(path, megabytes, seed):
	header = json.dumps({"w.weight": {"dtype": "U8", "shape": [megabytes, 1 << 20],
					  "data_offsets": [0, megabytes << 20]}}).encode()
	header += b" " * (-(len(header) + 8) % 4096)
	r = random.Random(seed)
	with open(path, "wb") as f:
		f.write(struct.pack("<Q", len(header)) + header)
		for _ in range(megabytes):
			f.write(r.randbytes(1 << 20))


def read_all(path):
	buf = bytearray(1 << 20)
	fd = os.open(path, os.O_RDONLY)
	begin = time.perf_counter()
	total = 0
	while (n := os.readv(fd, [buf])) > 0:
		total += n
	took = time.perf_counter() - begin
	os.close(fd)
	return total / took / 1e6


def read_random(path, times):
	fd = os.open(path, os.O_RDONLY)
	size, took = os.fstat(fd).st_size, []
	for _ in range(times):
		at = rng.randrange(size // 65536) * 65536
		begin = time.perf_counter()
		os.pread(fd, 4096, at)
		took.append(time.perf_counter() - begin)
	os.close(fd)
	return statistics.median(took) * 1e6


def raw(one, two, path, port):
	server = subprocess.Popen([*inside(one.namespace), sys.executable, "-c", RAW, "serve", "-", str(port), str(path)])
	time.sleep(0.3)
	out = subprocess.run([*inside(two.namespace), sys.executable, "-c", RAW, "ask", one.address, str(port),
			      str(os.path.getsize(path))], check=True, capture_output=True, text=True).stdout.split()
	server.kill()
	server.wait()
	return os.path.getsize(path) / float(out[0]) / 1e6, statistics.median(map(float, out[1:])) * 1e6


def copy_and_flush(path, to):
	"""What writing so many bytes takes here, without the network."""
	begin = time.perf_counter()
	subprocess.run(["cp", "--reflink=never", "--sparse=never", path, to], check=True)
	fd = os.open(to, os.O_RDONLY)
	os.fsync(fd)
	os.close(fd)
	took = time.perf_counter() - begin
	os.unlink(to)
	return mib * 1.048576 / took


def anon(node):
	for line in pathlib.Path(f"/proc/{node.daemon.pid}/status").read_text().splitlines():
		if line.startswith("RssAnon"):
			return int(line.split()[1]) / 1024
	return 0


def spread(values):
	return f"{statistics.median(values):8.1f}  ({min(values):.1f} to {max(values):.1f})"


cluster = Cluster(work, binary)
one, two, three = cluster.nodes
for n in cluster.nodes:
	n.up()
(one.mount / "gpt").mkdir()
one.must("gpt", "layout", "mesh tp dp\nw.weight tp=0\n*:* copy\n")
one.must("gpt", "topology", "tp=1")
two.wait(lambda: two.read("gpt", "topology") == "tp=1\n", 30, "the topology is there")

cold, again, local, plain, random_cold, random_raw = [], [], [], [], [], []
for i in range(ROUNDS):
	save(one.mount / "gpt/0/model.safetensors", mib, i)
	one.must("gpt", "commit", f"step={i}")
	blob = max(one.store.glob("blobs/*/*"), key=lambda p: p.stat().st_mtime_ns)
	path = "gpt/0/model.safetensors"
	random_cold.append(read_random(three.mount / path, 300))
	mbs, us = raw(one, two, blob, 9000 + i)
	plain.append(mbs)
	random_raw.append(us)
	cold.append(read_all(two.mount / path))
	again.append(read_all(two.mount / path))
	one.must("gpt", "topology", "tp=2")  # a view again: no passthrough
	one.must("gpt", "topology", "tp=1")
	local.append(read_all(one.mount / path))
# node 2 keeps the rank's file, too: from the commit's return until its bytes are in its store, flushed
one.must("gpt", "config", "replicas=1 keep=0")  # nor is anything removed meanwhile
two.must("gpt", "config", "home=0")
kept, kept_raw, copied = [], [], []
for i in range(ROUNDS):
	save(one.mount / "gpt/0/model.safetensors", mib, ROUNDS + i)
	one.must("gpt", "commit", f"step={ROUNDS + i}")
	begin = time.perf_counter()
	two.must("gpt", "wait", "\n")
	kept.append(mib * 1.048576 / (time.perf_counter() - begin))
	assert "home: 1 ranks" in two.read("gpt", "status"), two.read("gpt", "status")
	blob = max(one.store.glob("blobs/*/*"), key=lambda p: p.stat().st_mtime_ns)
	kept_raw.append(raw(one, two, blob, 9100 + i)[0])
	copied.append(copy_and_flush(blob, two.store / "copy"))
two.must("gpt", "config", "home=none")
print(f"{mib} MiB, one file, {ROUNDS} rounds, medians (lowest to highest)")
print(f"MB/s  over TCP, without us               {spread(plain)}")
print(f"MB/s  a file of another node, cold       {spread(cold)}   {statistics.median(cold) / statistics.median(plain):.2f} of it")
print(f"MB/s  again                              {spread(again)}")
print(f"MB/s  the same on the node that wrote it {spread(local)}")
print(f"us    64 KiB asked over TCP, without us  {spread(random_raw)}")
print(f"us    4 KiB of a file of another node    {spread(random_cold)}   {statistics.median(random_cold) / statistics.median(random_raw):.1f} times it")
bound = min(statistics.median(kept_raw), statistics.median(copied))
print(f"MB/s  a node keeps another node's commit {spread(kept)}   {statistics.median(kept) / bound:.2f} of the lower of the next two")
print(f"MB/s    over TCP, without us             {spread(kept_raw)}")
print(f"MB/s    cp and flush on the node         {spread(copied)}")
print("MiB   anonymous memory of the daemons    " + ", ".join(f"{anon(n):.0f}" for n in cluster.nodes))


def change(node, text):
	begin = time.perf_counter()
	node.must("gpt", "topology", text)
	return (time.perf_counter() - begin) * 1000


took = [change(cluster.nodes[i % 3], ["tp=2", "tp=1"][i % 2]) for i in range(60)]
print(f"ms    a topology, all nodes well         {spread(took)}")
stopped = []
for i in range(5):
	three.stop()
	stopped.append(change([one, two][i % 2], ["tp=2", "tp=1"][i % 2]))
	three.stop(False)
	three.wait(lambda: "is a member\n" in three.health() + "\n", 30, "it is a member again")
print(f"ms    a topology, one node stopped       {spread(stopped)}   (a registration lasts 4,000)")


def mount_over(fabric):
	for n in cluster.nodes:
		if n.daemon.poll() is None:
			n.down()
		n.fabric = fabric
	for n in cluster.nodes:
		n.up()


# cold reads over TCP and over UCX in turn, where there is UCX
one.must("gpt", "topology", "tp=1")
over, beside, number = {"tcp": [], "ucx": []}, {"tcp": [], "ucx": []}, 1000
for i in range(ROUNDS):
	for fabric in over:
		number += 1
		try:
			mount_over(fabric)
		except SystemExit as e:
			print(f"      a file of another node over UCX    {str(e).strip().splitlines()[-1]}")
			sys.exit()
		save(one.mount / "gpt/0/model.safetensors", mib, number)
		one.must("gpt", "commit", f"step={number}")
		blob = max(one.store.glob("blobs/*/*"), key=lambda p: p.stat().st_mtime_ns)
		beside[fabric].append(raw(one, two, blob, 8000 + number)[0])
		over[fabric].append(read_all(two.mount / "gpt/0/model.safetensors"))
for fabric, found in over.items():
	part = statistics.median(found) / statistics.median(beside[fabric])
	print(f"MB/s  the same cold read, fabric={fabric}     {spread(found)}   {part:.2f} of TCP without us, both kinds in turn")
for n in cluster.nodes:
	n.down()
