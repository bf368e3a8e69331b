#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
What is tested without a GPU, on one: on_gpu.py [--build BUILD-ASAN] [--helper PROGRAM] [--jobs N] [--json FILE] [--stand-in]

A line for each step, and all of them in FILE, with device, driver and commit.  Without a GPU it says why, as `status` of
a job would, and succeeds.  --stand-in: PROGRAM is on the stand-in for CUDA, which shows that this script works.
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# CUDA maps where the address sanitizer wants nothing, and keeps what it has
BESIDE_CUDA = "protect_shadow_gap=0:detect_leaks=0"


def run(words, seconds, **env):
	"""(status, the last lines)"""
	try:
		done = subprocess.run([str(w) for w in words], env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
				      text=True, timeout=seconds)
		return done.returncode, done.stdout.strip().splitlines()[-5:]
	except subprocess.TimeoutExpired:
		return 124, [f"it did not end in {seconds} s"]


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


def steps(a, tests):
	"""(name, words, seconds, environment) of what is run."""
	helped = {"SCALAI_TEST_HELPER": str(a.helper)}
	yield "files of random jobs through the helper, as the host writes them", [tests / "test_prop_rounds-helper"], 3600, {"ROUNDS": str(a.jobs), **helped}
	devices = gpus()
	if devices > 1 and not a.stand_in: # prop/rounds-helper has them there
		yield f"the same on up to {devices} GPUs, by NCCL", [tests / "test_prop_rounds-helper"], 3600, \
			{"ROUNDS": str(a.jobs), "SCALAI_TEST_DEVICES": str(devices), **helped}
	yield "each kind of file, stopped passes, windows of any size", [tests / "test_reshard_engine-gpu"], 600, helped
	if a.stand_in:
		return
	yield "reshards of random models", [tests / "test_prop_files-gpu"], 1200, helped
	rounds = tests / "test_prop_rounds-gpu"
	yield "rounds of random jobs through the pipeline", [rounds], 3600, {"ROUNDS": str(a.jobs), "ASAN_OPTIONS": BESIDE_CUDA}
	yield "a mount with engine=gpu", [ROOT / "tests/e2e/run", "engine_gpu"], 900, {"GPU_HELPER": str(a.helper)}
	sanitizer = shutil.which("compute-sanitizer")
	for tool in ("memcheck", "initcheck") if sanitizer else ():
		yield f"the same under {tool}", [sanitizer, "--tool", tool, "--error-exitcode", "9", rounds], 3600, {"ROUNDS": "20", "ASAN_OPTIONS": BESIDE_CUDA}


def main():
	p = argparse.ArgumentParser()
	p.add_argument("--build", type=pathlib.Path, default=ROOT / "build-asan")
	p.add_argument("--helper", type=pathlib.Path, default=ROOT / "build/fs/scalai-gpu")
	p.add_argument("--jobs", type=int, default=5000)
	p.add_argument("--json", type=pathlib.Path)
	p.add_argument("--stand-in", action="store_true")
	a = p.parse_args()
	tests = a.build / "tests"
	a.helper = a.helper.resolve()
	if not (tests / "ask_helper").exists() or not a.helper.exists():
		print(f"SKIPPED: GPU tests: there is no {a.helper if (tests / 'ask_helper').exists() else tests / 'ask_helper'}: run tools/setup --gpu")
		return 0
	status, said = run([tests / "ask_helper", a.helper], 120)
	if status == 77:
		print(f"SKIPPED: GPU tests: {said[-1]}")
		return 0
	if status:
		print(f"FAILED  the helper starts: {' '.join(said)}")
		return 1
	device, ready_ms, pinned = said
	print(f"ok      {device}: ready after {ready_ms} ms, {pinned} bytes pinned", flush=True)
	result = {"device": device, "driver": driver(), "stand_in": a.stand_in, "when": datetime.datetime.now(datetime.timezone.utc).isoformat(),
		  "commit": run(["git", "-C", ROOT, "rev-parse", "HEAD"], 10)[1][-1:], "ready_ms": int(ready_ms), "pinned_bytes": int(pinned), "steps": []}
	for name, words, seconds, env in steps(a, tests):
		began = time.monotonic()
		status, said = run(words, seconds, **env)
		took = time.monotonic() - began
		result["steps"].append({"step": name, "status": status, "seconds": round(took, 1), "said": said})
		print(f"{'FAILED' if status else 'ok    '}  {name} ({took:.0f} s)", *([] if status == 0 else said), sep="\n    " if status else " ", flush=True)
	if a.json:
		a.json.write_text(json.dumps(result, indent=1) + "\n")
	return 1 if any(s["status"] for s in result["steps"]) else 0


sys.exit(main())
