#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Loaders, unchanged, of a view and of a plain file of the same bytes, both in tmpfs, into the GPU:
    kit_loaders.py all --scalai PROGRAM --helper PROGRAM [--mib N] [--seconds N] [--device cpu]
    kit_loaders.py one NAME FILE DEVICE      one of them, in a process of its own
A line for each, then one of JSON: GB/s, the ratio of view to plain, and of eight processes that read.  Both files give the same sum.
Status 77, and a sentence: there is no FUSE, no room, no PyTorch.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "examples"))
from kit_mount import SHM, SKIPPED, begin, put, skip
from mount import Mount

TIMES, READERS, LONGEST = 4, 8, 60


# --- one loader ---

def by_safetensors(path, device):
	from safetensors.torch import load_file
	return load_file(path, device=device)


def by_torch(path, device):
	import torch
	return {name: t.to(device) for name, t in torch.load(path, mmap=True, weights_only=True).items()}


def by_fastsafetensors(path, device):
	os.environ.setdefault("FASTSAFETENSORS_ODIRECT", "0") # both are in memory
	from fastsafetensors import SafeTensorsFileLoader
	loader = SafeTensorsFileLoader(None, device, nogds=True)
	loader.add_filenames({0: [path]})
	files = loader.copy_files_to_device()
	try:
		return {name: files.get_tensor(name).clone() for name in files.key_to_rank_lidx}
	finally:
		files.close()
		loader.close()


def by_runai(path, device):
	from runai_model_streamer import SafetensorsStreamer
	with SafetensorsStreamer() as streamer:
		streamer.stream_file(path, device=device)
		return {name: t.to(device) for name, t in streamer.get_tensors()}


def by_instanttensor(path, device):
	from instanttensor import safe_open
	with safe_open(path, framework="pt", device=0 if device == "cuda" else device) as f:
		return dict(f.tensors())


def by_scalai(path, device):
	if device != "cuda":
		raise RuntimeError("it loads into a GPU alone")
	from load_into_gpu import load
	return load(path)


LOADERS = {"safetensors": by_safetensors, "torch.load(mmap=True)": by_torch, "fastsafetensors": by_fastsafetensors,
	   "Run:ai streamer": by_runai, "InstantTensor": by_instanttensor, ".gpu of Scalai": by_scalai}


def sum_of(state):
	import torch
	total = 0
	for i, name in enumerate(sorted(state)):
		total += (i + 1) * int(state[name].contiguous().view(torch.uint8).sum(dtype=torch.int64))
	return total


def one(name, path, device):
	import torch
	rest = torch.cuda.synchronize if device == "cuda" else lambda: None
	seconds = []
	torch.zeros(1, device=device)
	for _ in range(TIMES): # the first one is not counted
		rest()
		began = time.monotonic()
		state = LOADERS[name](path, device)
		rest()
		seconds.append(time.monotonic() - began)
		total, nr = sum_of(state), sum(t.nbytes for t in state.values())
		del state
	print(json.dumps({"seconds": seconds[1:], "bytes": nr, "sum": total}))


# --- all of them ---

def measured(name, path, device, until):
	"""What one() says, or why it said nothing."""
	left = min(LONGEST, until - time.monotonic())
	if left < 5:
		return "no time is left"
	try:
		done = subprocess.run([sys.executable, __file__, "one", name, path, device], capture_output=True, text=True, timeout=left)
	except subprocess.TimeoutExpired:
		return f"it did not end in {left:.0f} s"
	if done.returncode:
		return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:200]
	return json.loads(done.stdout.splitlines()[-1])


def rate(said):
	return said["bytes"] / statistics.median(said["seconds"]) / 1e9


def readers(path):
	"""GB/s of READERS processes that read all of it, a MiB at a time."""
	code = "import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); b = [bytearray(1 << 20)]\nsys.stdin.read()\nwhile os.readv(fd, b): pass"
	all_of_them = [subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE) for _ in range(READERS)]
	time.sleep(1) # until all of them wait
	began = time.monotonic()
	for r in all_of_them:
		r.stdin.close()
	if any([r.wait() for r in all_of_them]):
		return None
	return READERS * os.path.getsize(path) / (time.monotonic() - began) / 1e9


def compared(a, m, work, until):
	"""name -> figures, or why there are none."""
	result = {}
	plain = work / "plain"
	for view in ("gpt/.as/tp=2/1/model.safetensors", "gpt/.pt/tp=2/1/model.pt"):
		shutil.copyfile(m.at / view, plain)
		for name in LOADERS:
			if (name == "torch.load(mmap=True)") != view.endswith(".pt"):
				continue
			of_gpu = name == ".gpu of Scalai"
			plainly = None if of_gpu else measured(name, plain, a.device, until)
			if isinstance(plainly, str):
				result[name] = plainly
				continue
			viewed = measured(name, m.at / ("gpt/.as/tp=2/.gpu/1/model.safetensors" if of_gpu else view), a.device, until)
			if isinstance(viewed, str):
				result[name] = f"of the view: {viewed}"
				continue
			if plainly and plainly["sum"] != viewed["sum"]:
				sys.exit(f"{name}: a view gives other tensors than a plain file of the same bytes")
			result[name] = {"view": viewed, "plain": plainly, "view_gbs": rate(viewed), "plain_gbs": plainly and rate(plainly),
					"ratio": plainly and rate(viewed) / rate(plainly)}
		if view.endswith("safetensors") and time.monotonic() < until:
			of_view, of_plain = readers(m.at / view), readers(plain)
			result[f"{READERS} readers"] = {"view_gbs": of_view, "plain_gbs": of_plain, "ratio": of_view and of_plain and of_view / of_plain}
	return result


def every(a, work):
	until = time.monotonic() + a.seconds
	try:
		import torch
	except (ImportError, OSError) as e:
		skip(f"there is no PyTorch: {e}")
	if a.device == "cuda" and not torch.cuda.is_available():
		skip("PyTorch finds no GPU")
	with Mount(a, work, "gpu_memory=16G") as m:
		begin(m, work, a.mib, ["gpt"])
		put(m.at / "gpt/.ctl/config", "materialize=lazy")
		result = compared(a, m, work, until)
	for name, got in result.items():
		if isinstance(got, str):
			print(f"{name}: skipped: {got}")
		else:
			print(f"{name}: " + ", ".join(f"{k.removesuffix('_gbs')} {v:.2f}" for k, v in got.items() if isinstance(v, float)))
	return result


def main():
	p = argparse.ArgumentParser()
	p.add_argument("--scalai", type=pathlib.Path, required=True)
	p.add_argument("--helper", type=pathlib.Path, required=True)
	p.add_argument("--mib", type=int, default=4096)
	p.add_argument("--seconds", type=int, default=200)
	p.add_argument("--device", default="cuda")
	a = p.parse_args(sys.argv[2:])
	if os.geteuid() or not os.access("/dev/fuse", os.W_OK):
		skip("we are not root, or there is no /dev/fuse")
	free = shutil.disk_usage(SHM).free >> 20
	if free < 16:
		skip(f"/dev/shm has {free} MiB free, and the smallest job needs 16")
	a.mib = min(a.mib, free // 4)
	work = pathlib.Path(tempfile.mkdtemp(prefix="scalai-kit.", dir=SHM))
	try:
		print(json.dumps(every(a, work)))
	finally:
		subprocess.run(["umount", "-l", work / "mnt"], stderr=subprocess.DEVNULL, check=False)
		shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
	if sys.argv[1:2] == ["one"]:
		one(*sys.argv[2:])
	elif sys.argv[1:2] == ["all"]:
		main()
	else:
		sys.exit(__doc__)
