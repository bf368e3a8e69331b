#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
How fast a GPU is: bench.py [--build BUILD-ASAN] [--helper PROGRAM] [--json FILE] [--mib N] [--stand-in]

The kernel beside cudaMemcpyAsync() inside of the GPU and cudaMemcpy2DAsync(), pinned copies each way and both ways at once, the pipeline
beside the slower one of them.  Medians of 20, of the pipeline 5, of one run; FILE has the raw values, device, driver and commit.  Every byte is compared once.
Without a GPU it says why and succeeds.  --stand-in: shows that this script works; nothing is timed, and no figure is printed.
"""
import argparse
import json
import pathlib
import re
import statistics
import sys

from on_gpu import BESIDE_CUDA, ROOT, SKIPPED, about, python, run, start

LINE = re.compile(r"(.+): (\d+) in ((?:\d+ )+)ns")
# name -> what it is to reach, of cudaMemcpyAsync() inside of the GPU
TARGETS = {16: None, 64: 0.6, 256: 0.9, 1024: 0.9, 4096: 0.9, 65536: 0.9}


def measure(words, seconds, env):
	"""name -> (bytes, [ns])"""
	status, said = run(words, seconds, lines=None, **env)
	if status:
		sys.exit(f"FAILED  {' '.join(map(str, words))}: status {status}: " + "\n".join(said[-10:]))
	found = {}
	for line in said:
		m = LINE.fullmatch(line)
		if not m:
			sys.exit(f"FAILED  {words[0]} says: {line}")
		found[m[1]] = int(m[2]), [int(ns) for ns in m[3].split()]
	return found


def by_torch(mib):
	"""As measure(), of PyTorch, which may be missing, or too old for the GPU, or say more; that is told, and ends nothing."""
	status, said = run([python(), ROOT / "tests/gpu/torch_copies.py", mib], 300, lines=None)
	if status:
		print(f"PyTorch's copies: {'skipped' if status == SKIPPED else 'FAILED'}: {(said or ['?'])[-1]}")
	return {m[1]: (int(m[2]), [int(ns) for ns in m[3].split()]) for m in map(LINE.fullmatch, said) if m} if not status else {}


def rate(sample):
	return sample[0] / statistics.median(sample[1])


def target_of(name):
	if "boxes of" in name:
		return 0.5
	rows = re.match(r"(?:un)?pack, rows of (\d+) B", name)
	return TARGETS[int(rows[1])] if rows else None


def main():
	p = argparse.ArgumentParser()
	p.add_argument("--build", type=pathlib.Path, default=ROOT / "build-asan")
	p.add_argument("--helper", type=pathlib.Path, default=ROOT / "build/fs/scalai-gpu")
	p.add_argument("--json", type=pathlib.Path)
	p.add_argument("--mib", type=int, default=256)
	p.add_argument("--stand-in", action="store_true")
	a = p.parse_args()
	tests = a.build / "tests"
	status, said = start(tests, a.helper.resolve())
	if status == SKIPPED:
		print(f"SKIPPED: GPU bench: {said[-1]}")
		return 0
	if status:
		print(f"FAILED  start: the helper starts: {' '.join(said)}")
		return 1
	mib = 1 if a.stand_in else a.mib
	env = {} if a.stand_in else {"ASAN_OPTIONS": BESIDE_CUDA}
	of = "fake_" if a.stand_in else ""
	kernel = measure([tests / f"{of}speed", "kernel", mib], 1200, env)
	links = measure([tests / f"{of}links", "copies", mib], 600, env)
	pipeline = measure([tests / f"{of}speed", "pipeline", 8 * mib], 1200, env)["pipeline"]
	if not a.stand_in:
		kernel.update(by_torch(mib))
	result = {**about(said[0], a.stand_in), "mib": mib, "kernel": kernel, "links": links, "pipeline": pipeline}
	if a.json:
		a.json.write_text(json.dumps(result, indent=1) + "\n")
	if a.stand_in:
		if len(kernel) != 18 or set(links) != {"in", "inside", "out", "both"}:
			sys.exit(f"FAILED  what is measured: {list(kernel)} {list(links)}")
		print(f"ok      {len(kernel)} copies by the kernel and beside it, {len(links)} links, the pipeline: on the stand-in, so there are no figures")
		return 0
	print(f"{result['device']}, driver: {result['driver']}, commit {result['commit']}, {mib} MiB, medians of 20")
	inside = rate(kernel["cudaMemcpyAsync inside"])
	print(f"cudaMemcpyAsync() inside of the GPU: {inside:.1f} GB/s")
	for name, sample in kernel.items():
		target = target_of(name)
		judged = "" if target is None else f"   wanted {target}: {'yes' if rate(sample) >= target * inside else 'NO'}"
		if name != "cudaMemcpyAsync inside":
			print(f"{name:60} {rate(sample) / inside:6.2f} of it{judged}")
	slower, both = min(rate(links["in"]), rate(links["out"])), rate(links["both"])
	print(f"pinned copies: in {rate(links['in']):.1f} GB/s, out {rate(links['out']):.1f} GB/s, both at once {both:.1f} GB/s each")
	print(f"the pipeline: {rate(pipeline) / slower:.2f} of the slower one   wanted 0.85: {'yes' if rate(pipeline) >= 0.85 * slower else 'NO'};"
	      f" {rate(pipeline) / both:.2f} of both at once")
	return 0


if __name__ == "__main__":
	sys.exit(main())
