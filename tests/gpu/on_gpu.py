#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
What is tested without a GPU, on one: on_gpu.py [--build BUILD-ASAN] [--helper PROGRAM] [--scalai PROGRAM] [--jobs N] [--at-once N]
[--json FILE] [--stand-in]

A line for each step, in the order in which a GPU that nobody has tried is to be trusted, and all of them in FILE, with device,
driver, NCCL and commit; FILE is written after each step.  Without a GPU it says why, as `status` of a job would, and succeeds.
--stand-in: PROGRAM is on the stand-in for CUDA, and so are other programs, which shows that this script works; half of it
with EVERY=N in the environment, as in the gate, where each is a test of its own, too.
"""
import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# CUDA maps where the address sanitizer wants nothing, and keeps what it has; compute-sanitizer is loaded before it
BESIDE_CUDA = "protect_shadow_gap=0:detect_leaks=0:verify_asan_link_order=0"
SKIPPED = 77


def run(words, seconds, lines=10, **env):
	"""(status, the last lines; None: all of them)"""
	try:
		done = subprocess.run([str(w) for w in words], env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
				      text=True, timeout=seconds)
		return done.returncode, done.stdout.strip().splitlines()[-lines if lines else None:]
	except subprocess.TimeoutExpired:
		return 124, [f"it did not end in {seconds} s"]


def python():
	"""That has PyTorch, if any has: the one that tools/python makes."""
	venv = ROOT / ".deps/venv/bin/python"
	return venv if venv.exists() else sys.executable


def driver():
	try:
		return pathlib.Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
	except OSError:
		return None


def gpus():
	"""How many there are, for a test that takes up to 4."""
	try:
		return min(4, len(os.listdir("/proc/driver/nvidia/gpus")))
	except OSError:
		return 0


def start(tests, helper):
	"""(status, lines): 0: device, milliseconds until the helper was ready, bytes that it pinned; SKIPPED: why there is no GPU."""
	for needed in (tests / "ask_helper", helper):
		if not needed.exists():
			return SKIPPED, [f"there is no {needed}: run tools/setup --gpu"]
	return run([tests / "ask_helper", helper], 120)


def about(device, stand_in):
	"""What a result is of."""
	status, commit = run(["git", "-C", ROOT, "rev-parse", "HEAD"], 10) if shutil.which("git") else (1, [])
	return {"device": device, "driver": driver(), "nccl": None, "stand_in": stand_in, "when": datetime.datetime.now(datetime.timezone.utc).isoformat(),
		"commit": commit[-1] if status == 0 else None}


def sanitizer():
	found = shutil.which("compute-sanitizer") or next(map(str, ROOT.glob(".deps/cuda/**/compute-sanitizer")), None)
	return [found] if found else [sys.executable, "-c", f"print('there is no compute-sanitizer'); raise SystemExit({SKIPPED})"]


def parts(jobs):
	"""(seed, how many) of each thousand, which may run side by side."""
	return [(1 + i, min(1000, jobs - 1000 * i)) for i in range((jobs + 999) // 1000)]


def steps(a, tests):
	"""(name, words, seconds, environment) of what is run, in order."""
	share = 2 if a.stand_in and int(os.environ.get("EVERY") or 1) > 1 else 1
	beside = {"ASAN_OPTIONS": BESIDE_CUDA} if not a.stand_in else {}
	helped = {"SCALAI_TEST_HELPER": str(a.helper)}
	links = tests / ("fake_links" if a.stand_in else "links")
	rounds = tests / ("test_prop_rounds-pipeline" if a.stand_in else "test_prop_rounds-gpu")
	through = tests / "test_prop_rounds-helper"
	devices = 2 if a.stand_in else gpus()
	yield f"kernel: {300 // share} random plans, as loops copy them", [tests / ("fake_plans" if a.stand_in else "plans")], 300, \
		{"ROUNDS": str(300 // share), **beside}
	yield "kernel: rounds of random jobs, as the host writes them", [rounds], 1200, {"ROUNDS": str(100 // share) if a.stand_in else "1000", **beside}
	for tool in ("memcheck", "initcheck") if not a.stand_in else ():
		words = sanitizer()
		yield f"kernel: the same under {tool}", words + ["--tool", tool, "--error-exitcode", "9", rounds] * (len(words) == 1), 1200, {"ROUNDS": "20", **beside}
	yield "memory: shared memory is pinned, copied in, inside and out", [links, "copies", "1" if a.stand_in else "256"], 300, beside
	for seed, jobs in parts(a.jobs // share):
		yield f"engine: files of {jobs} random jobs through the helper, seed {seed}", [through], 3600, {"ROUNDS": str(jobs), "SEED": str(seed), **helped}
	if not a.stand_in:
		for seed, jobs in parts(a.jobs):
			yield f"engine: rounds of {jobs} random jobs through the pipeline, seed {seed}", [rounds], 3600, \
				{"ROUNDS": str(jobs), "SEED": str(seed), **beside}
		yield "engine: reshards of random models", [tests / "test_prop_files-gpu"], 1200, helped
	yield "engine: each kind of file, stopped passes, windows of any size", [tests / "test_reshard_engine-gpu"], 600, helped
	yield "NCCL: a communicator of one sends to itself", [links, "exchange", "1"], 300, beside
	if devices > 1:
		yield f"NCCL: {devices} GPUs send to all", [links, "exchange", str(devices)], 300, beside
	if devices > 1 and not a.stand_in: # prop/rounds-helper has them there
		yield f"NCCL: files of random jobs on up to {devices} GPUs", [through], 3600, \
			{"ROUNDS": str(a.jobs), "SCALAI_TEST_DEVICES": str(devices), **helped}
	yield "helper: it is killed while it starts, killed and stopped in the midst of calls, and faults", [tests / "test_gpu_killed"], 1200, \
		{**helped, "SCALAI_TEST_ILLEGAL": str(a.helper if a.stand_in else tests / "scalai-gpu-illegal")} # the stand-in is told to
	if not a.stand_in:
		yield "mount: engine=gpu", [ROOT / "tests/e2e/run", "engine_gpu"], 900, {"GPU_HELPER": str(a.helper)}
		yield "mount: .gpu into PyTorch", [python(), ROOT / "tests/gpu/mounted.py", "check", "--scalai", a.scalai, "--helper", a.helper], 600, {}


def done(step):
	"""A step, and what came of it."""
	name, words, seconds, env = step
	began = time.monotonic()
	status, lines = run(words, seconds, **env)
	return {"step": name, "status": status, "seconds": round(time.monotonic() - began, 1), "said": lines}


def main():
	p = argparse.ArgumentParser()
	p.add_argument("--build", type=pathlib.Path, default=ROOT / "build-asan")
	p.add_argument("--helper", type=pathlib.Path, default=ROOT / "build/fs/scalai-gpu")
	p.add_argument("--scalai", type=pathlib.Path, default=ROOT / "build/fs/scalai")
	p.add_argument("--jobs", type=int, default=5000)
	p.add_argument("--at-once", type=int, default=1, help="steps that run side by side; they are told in their order")
	p.add_argument("--json", type=pathlib.Path)
	p.add_argument("--stand-in", action="store_true")
	a = p.parse_args()
	tests = a.build / "tests"
	a.helper = a.helper.resolve()
	status, said = start(tests, a.helper)
	if status == SKIPPED:
		print(f"SKIPPED: GPU tests: {said[-1]}")
		return 0
	if status:
		print(f"FAILED  start: the helper starts: {' '.join(said)}")
		return 1
	device, ready_ms, pinned = said
	print(f"ok      start: {device}: ready after {ready_ms} ms, {pinned} bytes pinned", flush=True)
	result = {**about(device, a.stand_in), "ready_ms": int(ready_ms), "pinned_bytes": int(pinned), "steps": []}
	with concurrent.futures.ThreadPoolExecutor(a.at_once) as several:
		for step in several.map(done, steps(a, tests)):
			name, status = step["step"], step["status"]
			result["steps"].append(step)
			if status == 0 and name.startswith("NCCL: a communicator") and step["said"][-1].startswith("NCCL "):
				result["nccl"] = step["said"][-1].split(":")[0]
			word = {0: "ok     ", SKIPPED: "skipped"}.get(status, "FAILED ")
			print(f"{word} {name} ({step['seconds']:.0f} s)", *([] if status == 0 else step["said"]),
			      sep="\n    " if status else " ", flush=True)
			if a.json:
				a.json.write_text(json.dumps(result, indent=1) + "\n")
	return 1 if any(s["status"] not in (0, SKIPPED) for s in result["steps"]) else 0


if __name__ == "__main__":
	sys.exit(main())
