#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Loads of `.gpu` over a mount, on a GPU, into PyTorch:
    mounted.py check --scalai PROGRAM --helper PROGRAM     each way to open a file, its bytes, what is given back, what a dead helper leaves
    mounted.py bench --scalai PROGRAM --helper PROGRAM [--mib N] [--json FILE]
                                                           beside safetensors.torch.load_file() and fastsafetensors
Status 77: there is no PyTorch with CUDA, no FUSE, or we are not root.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from mount import Mount

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "examples"))
SKIPPED = 77
TIMES, COLD_TIMES = 5, 3


def skip(why):
	print(why)
	sys.exit(SKIPPED)


try:
	import torch
	from safetensors.torch import load_file, save_file
	from load_into_gpu import load, opened, tensors
except (ImportError, OSError) as e:
	skip(f"{e}: PyTorch and safetensors are needed")


def said(f):
	f.seek(0)
	return json.load(f)


# --- check ---

def same(path, of):
	"""The file of .gpu has the bytes of the other one, and its tensors."""
	expected = torch.frombuffer(bytearray(of.read_bytes()), dtype=torch.uint8)
	with opened(path) as file:
		if not torch.equal(file.cpu(), expected):
			sys.exit(f"{path} has other bytes than {of}")
	plain, loaded = load_file(of), load(path)
	if plain.keys() != loaded.keys() or not all(torch.equal(plain[n], loaded[n].cpu()) for n in plain):
		sys.exit(f"{path} has other tensors than {of}")


def as_another_user(path, of):
	"""CUDA lets a process of another user open what root's helper has."""
	def run(code, *words):
		return subprocess.run([sys.executable, "-c", code, *words], user=12345, group=12345, extra_groups=[], stdout=subprocess.PIPE,
				      stderr=subprocess.STDOUT, text=True, cwd="/", env={**os.environ, "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"})

	code = f"import sys; sys.path.insert(0, {str(ROOT / 'tests/gpu')!r}); import mounted, pathlib"
	try:
		alone = run(code)
	except OSError as e:
		print(f"skipped: another user: {e}")
		return
	if alone.returncode:
		print(f"skipped: another user: {(alone.stdout.strip().splitlines() or ['?'])[-1]}")
		return
	done = run(code + "; mounted.same(*map(pathlib.Path, sys.argv[1:]))", path, of)
	if done.returncode:
		sys.exit(f"another user: {done.stdout.strip()}")
	print("another user opens the handle, and finds the bytes")


def check(a, work):
	with Mount(a, work, "gpu_memory=1G,gpu_timeout=20") as m:
		m.run("import", "gpt", ROOT / "tests/sample/job", "--topology", "tp=2 pp=2", "--layout", "megatron-gpt", "vocab=300",
		      "tied=embedding.word_embeddings.weight", "--step", "20")
		gpt = m.at / "gpt"
		files = [(gpt / f".gpu/{r}/{f}.safetensors", gpt / f"{r}/{f}.safetensors") for r in range(4) for f in ("model", "optimizer")]
		for pair in files:
			same(*pair)
		same(gpt / ".v/1/.gpu/1/model.safetensors", gpt / "1/model.safetensors")
		for t in ("tp=4,pp=1", "tp=1,pp=2", "tp=2,dp=2"):
			for r in range(2):
				same(gpt / f".as/{t}/.gpu/{r}/model.safetensors", gpt / f".as/{t}/{r}/model.safetensors")
		print(f"{len(files) + 7} files have their bytes")
		for _ in range(200): # of 64 buffers
			with opened(files[0][0]):
				pass
		with open(files[0][0]) as one, open(files[0][0]) as two:
			if said(one)["handle"] == said(two)["handle"]:
				sys.exit("two opens have one buffer")
		as_another_user(*files[0])
		with open(files[0][0]) as f:
			for pid in m.helpers():
				os.kill(pid, signal.SIGKILL)
			time.sleep(0.5)
			try:
				os.pread(f.fileno(), 100, 0)
				sys.exit("a file that a dead helper had is read")
			except OSError as e:
				print(f"a file that a dead helper had: {e.strerror}")
		same(*files[1])
	return 0


# --- bench ---

def made(folder, mib):
	"""Makes a rank's file of Llama-like layers of 384 MiB each; -> its path."""
	hidden, state = 4096, {}
	shapes = {"self_attention.linear_qkv.weight": (2 * hidden, hidden), "self_attention.linear_proj.weight": (hidden, hidden),
		  "mlp.linear_fc1.weight": (6 * hidden, hidden), "mlp.linear_fc2.weight": (hidden, 3 * hidden),
		  "mlp.linear_fc1.layer_norm_weight": (hidden,)}
	for layer in range(max(1, mib // 384)):
		for name, shape in shapes.items():
			state[f"decoder.layers.{layer}.{name}"] = torch.randn(shape, dtype=torch.bfloat16, device="cuda").cpu()
	(folder / "0").mkdir(parents=True)
	save_file(state, folder / "0/model.safetensors")
	return folder / "0/model.safetensors"


def by_fastsafetensors(path, cold):
	"""Without GPUDirect Storage, which file systems of the kernel alone have.  By itself it reads past the page cache."""
	os.environ["FASTSAFETENSORS_ODIRECT"] = "1" if cold else "0"
	from fastsafetensors import SafeTensorsFileLoader
	loader = SafeTensorsFileLoader(None, "cuda:0", nogds=True, disable_cache=cold)
	loader.add_filenames({0: [str(path)]})
	files = loader.copy_files_to_device()
	try:
		return {name: files.get_tensor(name).clone() for name in files.key_to_rank_lidx}
	finally:
		files.close()
		loader.close()


def in_place(path):
	with opened(path) as file:
		return sum(t.numel() for t in tensors(file).values())


# name -> how a file is loaded, which one of a job, whether that is one of a mount
CASES = {".gpu, copied out": (lambda path, cold: load(path), ".gpu/0", True),
	 ".gpu, in place": (lambda path, cold: in_place(path), ".gpu/0", True),
	 "load_file of a file": (lambda path, cold: load_file(path, device="cuda"), None, False),
	 "load_file of the mount": (lambda path, cold: load_file(path, device="cuda"), "0", True),
	 "fastsafetensors of a file": (by_fastsafetensors, None, False),
	 "fastsafetensors of the mount": (by_fastsafetensors, "0", True),
	 ".gpu of another topology, in place": (lambda path, cold: in_place(path), ".as/tp=2/.gpu/1", True),
	 "load_file of another topology": (lambda path, cold: load_file(path, device="cuda"), ".as/tp=2/1", True)}


def timed(how, path, cold):
	torch.cuda.synchronize()
	began = time.monotonic()
	state = how(path, cold)
	torch.cuda.synchronize()
	took = time.monotonic() - began
	del state
	return took


def drop_caches():
	os.sync()
	pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def place(m, plain, folder, job="job"):
	return m.at / job / folder / "model.safetensors" if folder else plain


def cold_time(a, work, plain, how, folder):
	"""By a daemon that has not read the file, and a helper that runs."""
	with Mount(a, work, "gpu_memory=16G") as m:
		in_place(place(m, plain, ".gpu/0", "small"))
		drop_caches()
		return timed(how, place(m, plain, folder), True)


def cached_times(a, work, plain):
	with Mount(a, work, "gpu_memory=16G") as m:
		for name, (how, folder, _) in CASES.items():
			yield name, [timed(how, place(m, plain, folder), False) for _ in range(TIMES + 1)][1:]


def cold_times(a, work, plain):
	for name, (how, folder, of_mount) in CASES.items():
		times = []
		for _ in range(COLD_TIMES):
			if of_mount:
				times.append(cold_time(a, work, plain, how, folder))
			else:
				drop_caches()
				times.append(timed(how, plain, True))
		yield name, times


def bench(a, work):
	plain, small, result = made(work / "plain", a.mib), made(work / "small", 1), {}
	with Mount(a, work, "gpu_memory=16G") as m:
		(work / "layout").write_text("use megatron-gpt glu=1:1\n")
		for job in ("plain", "small"):
			m.run("import", "job" if job == "plain" else job, work / job, "--topology", "tp=1", "--layout", work / "layout")
		bytes_of = {False: plain.stat().st_size, True: place(m, plain, ".as/tp=2/1").stat().st_size}
	small.unlink()
	if not importlib.util.find_spec("fastsafetensors"):
		print("skipped: fastsafetensors: there is no such package of Python")
		for name in [name for name in CASES if name.startswith("fastsafetensors")]:
			del CASES[name]
	for kind, times in (("cached", cached_times), ("cold", cold_times)):
		for name, seconds in times(a, work, plain):
			nr = bytes_of["topology" in name]
			result[f"{name}, {kind}"] = {"bytes": nr, "seconds": seconds}
			print(f"{name + ', ' + kind:44} {nr / statistics.median(seconds) / 1e9:7.2f} GB/s", flush=True)
			if a.json:
				a.json.write_text(json.dumps(result, indent=1) + "\n")
	return 0


def main():
	p = argparse.ArgumentParser()
	p.add_argument("what", choices=("check", "bench"))
	p.add_argument("--scalai", type=pathlib.Path, required=True)
	p.add_argument("--helper", type=pathlib.Path, required=True)
	p.add_argument("--mib", type=int, default=2048)
	p.add_argument("--json", type=pathlib.Path)
	p.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/var/tmp"))
	a = p.parse_args()
	if not torch.cuda.is_available():
		skip("PyTorch finds no GPU")
	if os.geteuid() or not os.access("/dev/fuse", os.W_OK):
		skip("we are not root, or /dev/fuse can't be opened")
	a.scalai, a.helper = a.scalai.resolve(), a.helper.resolve()
	work = pathlib.Path(tempfile.mkdtemp(prefix="scalai-gpu.", dir=a.folder))
	work.chmod(0o755)
	try:
		return check(a, work) if a.what == "check" else bench(a, work)
	finally:
		subprocess.run(["umount", "-l", work / "mnt"], stderr=subprocess.DEVNULL, check=False)
		shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
	sys.exit(main())
