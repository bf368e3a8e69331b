#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
A mount of the kit (tools/gpu-kit), its files in tmpfs:
    kit_mount.py reshard --scalai PROGRAM --helper PROGRAM [--mib N]
                              a topology by engine=gpu and by engine=host: the same bytes, seconds of each
    kit_mount.py faults --scalai PROGRAM --helper PROGRAM --illegal PROGRAM
                              helpers that are killed, stopped, and fault in a reshard: the mount goes on, the bytes are right
Prints sentences, and last a line of JSON.  Status 77, and a sentence: there is no FUSE, or no room.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from mount import Mount

SKIPPED = 77
PART = 16 << 20
SHM = pathlib.Path("/dev/shm")
TIMES = 6	# the bytes that are in tmpfs at most: the job, what was imported, two topologies, room for two more


def skip(why):
	print(why)
	sys.exit(SKIPPED)


def write_model(path, mib):
	"""A rank's file of Llama-like layers in bfloat16, of random bytes; returns its bytes."""
	hidden = 4096 if mib >= 384 else 256
	layer = {"self_attention.linear_qkv.weight": (2 * hidden, hidden), "self_attention.linear_proj.weight": (hidden, hidden),
		 "mlp.linear_fc1.weight": (6 * hidden, hidden), "mlp.linear_fc2.weight": (hidden, 3 * hidden), "mlp.linear_fc1.layer_norm_weight": (hidden,)}
	header, at = {}, 0
	for i in range(max(1, (mib << 20) // (24 * hidden * hidden))):
		for name, shape in layer.items():
			nr = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
			header[f"decoder.layers.{i}.{name}"] = {"dtype": "BF16", "shape": shape, "data_offsets": (at, at + nr)}
			at += nr
	text = json.dumps(header, separators=(",", ":")).encode()
	text += b" " * (-len(text) % 8)
	part = os.urandom(PART + 13) # so it begins elsewhere in each row
	path.parent.mkdir(parents=True, exist_ok=True)
	with open(path, "wb") as f:
		f.write(len(text).to_bytes(8, "little") + text)
		for done in range(0, at, len(part)):
			f.write(part[:at - done])
	return 8 + len(text) + at


def same(a, b):
	with open(a, "rb") as f, open(b, "rb") as g:
		while True:
			x, y = f.read(PART), g.read(PART)
			if x != y:
				return False
			if not x:
				return True


def put(path, text):
	with open(path, "w") as f:
		f.write(text + "\n")


def lines_of(path):
	return dict(line.split(": ", 1) for line in path.read_text().splitlines() if ": " in line)


def metric(m, name):
	return next((float(line.split()[1]) for line in (m.at / ".ctl/metrics").read_text().splitlines() if line.startswith(name + " ")), 0)


def begin(m, work, mib, jobs):
	"""Imports a model at tp=1 as each of these jobs."""
	nr = write_model(work / "job/0/model.safetensors", mib)
	put(work / "layout", "use megatron-gpt glu=1:1")
	for job in jobs:
		m.run("import", job, work / "job", "--topology", "tp=1", "--layout", work / "layout")
	shutil.rmtree(work / "job")
	return nr


def wait(m, job):
	put(m.at / job / ".ctl/wait", "")


def made(m, job, topology):
	"""Seconds until the topology is there."""
	began = time.monotonic()
	put(m.at / job / ".ctl/topology", topology)
	wait(m, job)
	return time.monotonic() - began


def files(m, folder):
	return sorted(str(p.relative_to(m.at / folder)) for p in (m.at / folder).glob("[0-9]*/*.safetensors"))


def expect_same(m, of, other):
	names = files(m, of)
	if not names or names != files(m, other):
		sys.exit(f"{of} has other files than {other}")
	for name in names:
		if not same(m.at / of / name, m.at / other / name):
			sys.exit(f"{of}/{name} has other bytes than that of {other}")
	return len(names)


def reshard(a, work):
	with Mount(a, work, "gpu_timeout=60") as m:
		nr = begin(m, work, a.mib, ["gpu", "host"])
		result = {"bytes": nr, "topology": "tp=1 to tp=4"}
		for engine in ("host", "gpu"):
			put(m.at / engine / ".ctl/config", f"engine={engine}")
			result[f"{engine}_seconds"] = round(made(m, engine, "tp=4"), 3)
		result["gpu_bytes"] = int(metric(m, "scalai_gpu_bytes_total"))
		result["engine"] = lines_of(m.at / "gpu/.ctl/status")["engine"]
		if not result["engine"].startswith("gpu (") or metric(m, "scalai_gpu_failures_total") or not result["gpu_bytes"]:
			sys.exit(f"the engine is {result['engine']}, and put {result['gpu_bytes']} bytes together")
		print(f"{expect_same(m, 'gpu', 'host')} files are the same; {result['engine']}")
	return result


def signalled(m, job, topology, by):
	"""Makes a topology, and sends the helper a signal meanwhile; whether it was there in time."""
	there = False
	work_on = threading.Thread(target=made, args=(m, job, topology))
	work_on.start()
	while work_on.is_alive() and not there:
		for pid in m.helpers():
			time.sleep(0.02) # in the midst
			there = True
			os.kill(pid, by)
	work_on.join()
	return there and bool(metric(m, "scalai_gpu_failures_total"))


def faults(a, work):
	result = {}
	right = a.helper
	with Mount(a, work, "gpu_timeout=10") as m:
		begin(m, work, a.mib, ["gpt"])
		put(m.at / "gpt/.ctl/config", "engine=gpu")
		made(m, "gpt", "tp=2")
		in_time = 0
		for i, (by, topology) in enumerate([(signal.SIGKILL, "tp=4"), (signal.SIGSTOP, "tp=2"), (signal.SIGKILL, "tp=8")]):
			put(m.at / "gpt/.ctl/config", "engine=gpu") # two that fail in a row would be the last ones
			in_time += signalled(m, "gpt", topology, by)
			result[f"{by.name} {i}"] = expect_same(m, "gpt", f"gpt/.as/{topology}")
		if not in_time:
			sys.exit("no helper was there in time")
		print(f"{int(metric(m, 'scalai_gpu_failures_total'))} calls failed by helpers that were killed or stopped; all files are right")
	a.helper = a.illegal
	try:
		with Mount(a, work, "gpu_timeout=20") as m:
			put(m.at / "gpt/.ctl/config", "engine=gpu")
			made(m, "gpt", "tp=4")
			result["illegal"] = expect_same(m, "gpt", "gpt/.as/tp=4")
			if not metric(m, "scalai_gpu_failures_total"):
				sys.exit("the helper that faults was not asked, or did not fault")
			print(f"a helper that faults: {lines_of(m.at / 'gpt/.ctl/status')['engine']}; the files are right")
	finally:
		a.helper = right
	return result


def main():
	p = argparse.ArgumentParser()
	p.add_argument("what", choices=("reshard", "faults"))
	for option in ("--scalai", "--helper", "--illegal"):
		p.add_argument(option, type=pathlib.Path, required=option != "--illegal")
	p.add_argument("--mib", type=int, default=8192)
	a = p.parse_args()
	if os.geteuid() or not os.access("/dev/fuse", os.W_OK):
		skip("we are not root, or there is no /dev/fuse")
	free = shutil.disk_usage(SHM).free >> 20
	if free < TIMES * 4:
		skip(f"/dev/shm has {free} MiB free, and the smallest mount needs {TIMES * 4}")
	a.mib = min(a.mib, free // TIMES)
	work = pathlib.Path(tempfile.mkdtemp(prefix="scalai-kit.", dir=SHM))
	try:
		print(json.dumps((reshard if a.what == "reshard" else faults)(a, work)))
	finally:
		subprocess.run(["umount", "-l", work / "mnt"], stderr=subprocess.DEVNULL, check=False)
		shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
	main()
