#!/usr/bin/env python3
"""
WORK BINARY [UNMOUNTS]: a node that takes requests and never answers (it is stopped, and stays a member) does not keep
another one from ending: not while its worker, a commit or reads wait for bytes of the silent one, nor while lookups
wait for etcd (E1 of reshard/cluster/node/member.h).  Then UNMOUNTS (5) of a node at random moments, while it pulls from one
that answers.
"""
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time

from nodes import Cluster, inside, run

work, binary = sys.argv[1:3]
unmounts = int(sys.argv[3]) if len(sys.argv) > 3 else 5
SECONDS = float(os.environ.get("ENDS_SECONDS", 4))  # a pull gives up by itself after 5 s: it is not that which ends
BYTES = 1 << 20
FILES = 24
SHARDS = 300
cluster = Cluster(work, binary, nodes=2, ttl_ms=60000)
one, two = cluster.nodes


def pulled(node):
	text = (node.mount / ".ctl/metrics").read_text()
	return int(float([x for x in text.splitlines() if x.startswith("scalai_pulled_bytes_total")][0].split()[-1]))


def listen_queue(node):
	"""Bytes that others have sent to a node's daemon, and that it has not read."""
	table = run(*inside(node.namespace), "cat", "/proc/net/tcp").stdout.splitlines()[1:]
	rows = [line.split() for line in table]
	return sum(int(row[4].split(":")[1], 16) for row in rows if row[1].endswith(f":{7077:04X}") and row[3] == "01")


def write(node, seed, ranks=(1,)):
	"""Plain files of ranks, which only this node has."""
	rng = random.Random(seed)
	for rank in ranks:
		folder = node.mount / "gpt" / str(rank)
		folder.mkdir(exist_ok=True)
		for i in range(FILES):
			(folder / f"{i}.txt").write_bytes(rng.randbytes(BYTES))


def silence(on=True):
	two.stop(on)


def ends(how, what, readers=()):
	"""Ends node one by `umount -l` or SIGTERM, and says how long that took."""
	began = time.monotonic()
	if how == "umount":
		run("umount", "-l", str(one.mount))
	one.daemon.send_signal(signal.SIGTERM)
	for r in readers:
		r.wait(30)
	try:
		code = one.daemon.wait(30)
	except subprocess.TimeoutExpired:
		sys.exit(f"{what}: the daemon has not ended within 30 s of {how}")
	took = time.monotonic() - began
	run("umount", "-l", str(one.mount), check=False)
	if code or took > SECONDS:
		sys.exit(f"{what}: ended by {how} with {code} after {took:.2f} s, {SECONDS} are allowed\n{one.log.read_text()[-2000:]}")
	return took


for n in cluster.nodes:
	n.up()
(one.mount / "gpt").mkdir()
one.must("gpt", "layout", "mesh tp\nplain *.txt\n*:* copy\n")
one.must("gpt", "config", "home=none")
one.must("gpt", "topology", "tp=2")
two.wait(lambda: two.read("gpt", "topology") == "tp=2\n", 30, "the topology is there")
figures = []

# reads of what is on the other node alone are parked
write(two, 1)
two.must("gpt", "commit", "step=1")
for how in ("umount", "sigterm"):
	files = [one.mount / f"gpt/1/{i}.txt" for i in range(FILES)]
	one.wait(lambda: all(f.exists() for f in files), 10, "the version is shown")
	silence()
	readers = [subprocess.Popen(["cat", f], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for f in files]
	one.wait(lambda: listen_queue(two) > 0, 10, "a pull is on its way")
	figures.append(("reads", how, ends(how, "reads", readers)))
	silence(False)
	one.up()

# the worker is told to keep the files of a rank, whose other node is silent
for how in ("umount", "sigterm"):
	silence()
	one.must("gpt", "config", "home=1")
	one.wait(lambda: listen_queue(two) > 0, 20, "the worker pulls")
	figures.append(("worker", how, ends(how, "worker")))
	silence(False)
	one.up()
	one.must("gpt", "config", "home=none")

# a commit of node one reads headers of files that the other one has
def shards(seed):
	data = random.Random(seed).randbytes(64)
	header = json.dumps({"w.weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}).encode()
	header += b" " * (-len(header) % 8)
	for i in range(SHARDS):
		(two.mount / f"gpt/1/{i}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)


for seed, how in enumerate(("umount", "sigterm")):
	for attempt in range(5):
		shards(10 * seed + attempt)
		before = pulled(one)
		commit = subprocess.Popen(["sh", "-c", f"echo step={10 + seed} > {one.mount}/gpt/.ctl/commit"],
					  stderr=subprocess.DEVNULL)
		while pulled(one) == before and commit.poll() is None:
			pass
		silence()
		one.wait(lambda: listen_queue(two) > 0 or commit.poll() is not None, 20, "the commit pulls")
		if commit.poll() is None:
			break
		silence(False)
	else:
		sys.exit("no commit was met while it read headers: are SHARDS too few?")
	figures.append(("commit", how, ends(how, "commit", [commit])))
	silence(False)
	one.up()

# FUSE's own workers wait for etcd: which version is the newest?
def requests(node):
	device = os.minor(os.stat(node.mount).st_dev)
	return int(pathlib.Path(f"/sys/fs/fuse/connections/{device}/waiting").read_text())


for how in ("umount", "sigterm"):
	idle, lookers = requests(one), []
	one.cut()
	def waits():
		lookers.append(subprocess.Popen(["stat", one.mount / f"gpt/1/none{len(lookers)}"], stdout=subprocess.DEVNULL,
						stderr=subprocess.DEVNULL))
		time.sleep(0.1)
		return requests(one) > idle
	one.wait(waits, 30, "a lookup waits")
	figures.append(("lookups", how, ends(how, "lookups", lookers)))
	one.cut(False)
	one.up()

rng = random.Random(7)
for i in range(unmounts):
	readers = [subprocess.Popen(["cat", *(str(one.mount / f"gpt/1/{i}.txt") for i in range(FILES))],
				    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
	time.sleep(rng.uniform(0, 0.2))
	figures.append(("random", "umount", ends(rng.choice(("umount", "sigterm")), "a random moment", readers)))
	one.up()
for what in ("reads", "worker", "commit", "lookups", "random"):
	took = [f[2] for f in figures if f[0] == what]
	if took:
		print(f"figure: {what}: {len(took)} ends, the slowest {max(took):.2f} s")
for n in cluster.nodes:
	n.down()
