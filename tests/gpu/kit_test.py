#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
The kit for a machine with a GPU, on the stand-in: kit_test.py BUILD [--whole [--root FOLDER]]

It is made of a build and run: what is there passes; a machine without a driver, with one that is too old, without /dev/fuse, without
room on its disk says so in a sentence; a run that is cut off, or killed, leaves a file that has all that came before.
--whole: all its steps in a fresh root, which has the C library and Python and no network (FOLDER, made before by
`mmdebstrap --variant=minbase --include=python3 trixie FOLDER`; or the system's own folders, read-only), and cut off after some seconds.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import kit as kit_program  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def fail(why):
	sys.exit(f"FAILED  {why}")


def run(words, status=0):
	done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
	if done.returncode != status:
		fail(f"{' '.join(map(str, words))}: status {done.returncode}: {done.stdout[-3000:]}")
	return done.stdout


def parts(result, status):
	return [f"{e['step']}_{e['part']}" for e in result["steps"] if e["status"] == status]


def expect(what, so):
	if not so:
		fail(what)
	print(f"ok      {what}", flush=True)


def whys(result, step):
	return {e["why"] for e in result["steps"] if e["step"] in step}


def hidden(script):
	"""A command in a mount namespace of its own."""
	return ["unshare", "-m", "sh", "-c", f"set -e; mount --make-rprivate /; {script}"]


def check(kit, work, build):
	out = work / "out.json"
	run([kit / "run", "--stand-in", "--only", "b_plans,d_memcheck", "--json", out])
	result = json.loads(out.read_text())
	expect("the kit runs on the stand-in", parts(result, "pass") == ["a_machine", "a_helper", "b_plans", "d_memcheck"] and result["ended"])
	# machines that have no GPU that can be used: each part that needs one says why, in the words of the helper
	for misdeed, sentence in (("no-driver", "there is no NVIDIA driver"), ("old-driver", "which is too old")):
		helper = work / misdeed
		helper.write_text(f"#!/bin/sh\nexec {build}/tests/fake_helper 0 0 {misdeed} 1\n")
		helper.chmod(0o755)
		run([kit / "run", "--stand-in", "--helper", helper, "--json", out])
		result = json.loads(out.read_text())
		said = whys(result, "bcdef")
		expect(f"{misdeed}: {' '.join(said)}", len(said) == 1 and sentence in next(iter(said)) and not parts(result, "fail"))
	# cut off
	run([kit / "run", "--stand-in", "--only", "b_helper,b_models,c_helper", "--seconds", "4", "--jobs", "1000", "--json", out])
	result = json.loads(out.read_text())
	expect("after 4 s it has what came before, and says that the rest was cut off",
	       parts(result, "pass") == ["a_machine", "a_helper"] and parts(result, "cut off") == ["b_helper", "b_models", "c_helper"])
	ends_with_locks_held(work)
	# killed
	out.unlink()
	p = subprocess.Popen([kit / "run", "--stand-in", "--only", "b_helper", "--json", out], stdout=subprocess.DEVNULL)
	until = time.monotonic() + 60
	while time.monotonic() < until and not (out.exists() and json.loads(out.read_text())["running"] == "b_helper"):
		time.sleep(0.02)
	p.send_signal(signal.SIGTERM)
	status = p.wait(60)
	result = json.loads(out.read_text())
	expect("ended by a signal it leaves what came before, and what was running",
	       status == 128 + signal.SIGTERM and parts(result, "pass") == ["a_machine", "a_helper"] and result["running"] == "b_helper")
	if os.geteuid():
		print("skipped: no root: a machine without /dev/fuse, and one without room")
		return
	plain = work / "no-device"
	plain.touch()
	run(hidden(f"[ ! -e /dev/fuse ] || mount --bind {plain} /dev/fuse; exec {kit}/run --stand-in --only f_reshard --json {out}"))
	expect("without /dev/fuse: " + " ".join(whys(json.loads(out.read_text()), "f")), whys(json.loads(out.read_text()), "f") == {"we are not root, or there is no /dev/fuse"})
	said = run(hidden(f"mkdir {work}/small; mount -t tmpfs -o size=100m none {work}/small; TMPDIR={work}/small exec {kit}/run --stand-in"), 1)
	expect("without room: " + said.strip(), "has 100 MiB free, and the kit needs" in said and len(said.splitlines()) == 1)


def ends_with_locks_held(work):
	"""The signal comes while waits for a program and for a thread have their locks, which nobody gives back any more."""
	folder = work / "held"
	folder.mkdir()
	ended, open_while_it_runs = os.pipe()
	pid = os.fork()
	if not pid:
		try:
			signal.alarm(30) # without the mend it hangs
			run_ = object.__new__(kit_program.Run)
			run_.folder = folder
			asleep = [subprocess.Popen(["sleep", "600"], pass_fds=[open_while_it_runs], start_new_session=True,
						   preexec_fn=kit_program.dies_with_us) for _ in range(2)]
			run_.running = set(asleep)
			signal.signal(signal.SIGTERM, run_.stop)
			with concurrent.futures.ThreadPoolExecutor(1) as pool:
				waits = pool.submit(asleep[0].wait)
				waits._condition.acquire()
				asleep[1]._waitpid_lock.acquire()
				os.kill(os.getpid(), signal.SIGTERM)
				waits.result()
		finally:
			os._exit(1)
	os.close(open_while_it_runs)
	_, status = os.waitpid(pid, 0)
	nobody, _, _ = select.select([ended], [], [], 20)
	expect("a signal that comes while locks are held ends the kit, what it runs, and its folder",
	       os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM and nobody and not os.read(ended, 1) and not folder.exists())
	os.close(ended)


# --- a fresh root ---

def fresh(work, root):
	"""(folder that has the C library and Python, its name, what is mounted there)"""
	if root:
		name = next(line for line in (root / "etc/os-release").read_text().splitlines() if line.startswith("PRETTY_NAME="))
		return root, name.partition("=")[2].strip('"'), ""
	root = work / "root"
	folders = [f for f in ("usr", "bin", "sbin", "lib", "lib64", "etc") if os.path.exists(f"/{f}")]
	for f in [*folders, "proc", "dev", "tmp", "sys"]:
		(root / f).mkdir(parents=True, exist_ok=True)
	return root, "this system, read-only", "".join(f"mount --bind -o ro /{f} {root}/{f}; " for f in folders)


def whole(kit, work, root, seconds):
	root, name, mounts = fresh(work, root)
	shutil.copytree(kit, root / "gpu-kit", dirs_exist_ok=True)
	devices = "".join(f"[ ! -e /dev/{d} ] || {{ touch {root}/dev/{d}; mount --bind /dev/{d} {root}/dev/{d}; }}; "
			  for d in ("null", "zero", "full", "random", "urandom", "fuse"))
	inside = (f"{mounts}mount -t proc proc {root}/proc; mount -t tmpfs none {root}/tmp; mount -t tmpfs -o mode=755 none {root}/dev; "
		  f"mkdir {root}/dev/shm; mount -t tmpfs none {root}/dev/shm; {devices}")

	def in_root(words, status=0):
		script = f"{inside}exec chroot {root} /usr/bin/env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp /usr/bin/python3 /gpu-kit/run --json /gpu-kit/out.json {words}"
		said = run(["unshare", "-n", "-p", "-f", *hidden(script)], status)
		return said, json.loads((root / "gpu-kit/out.json").read_text())

	began = time.monotonic()
	said, result = in_root("--stand-in --jobs 1000 --seconds 600")
	print(said, end="")
	expect(f"whole in a fresh root ({name}): {len(parts(result, 'pass'))} parts in {time.monotonic() - began:.0f} s", result["ended"] and not parts(result, "cut off"))
	order = [f"{e['step']}_{e['part']}" for e in result["steps"]]
	for s in seconds:
		_, result = in_root(f"--stand-in --jobs 1000 --seconds {s}")
		cut = parts(result, "cut off")
		expect(f"cut off after {s} s: {len(order) - len(cut)} parts, and no more", cut == order[len(order) - len(cut):] and not parts(result, "fail") and cut)
	_, result = in_root("")
	expect("without --stand-in: " + " ".join(whys(result, "b")), not parts(result, "fail") and len(whys(result, "bcdef")) == 1)


def main():
	p = argparse.ArgumentParser()
	p.add_argument("build", type=pathlib.Path)
	p.add_argument("--whole", action="store_true")
	p.add_argument("--root", type=lambda path: pathlib.Path(path).resolve())
	a = p.parse_args()
	work = pathlib.Path(tempfile.mkdtemp(prefix="scalai-kit-test."))
	try:
		print(run([ROOT / "tools/gpu-kit", "--build", a.build, "--to", work / "kit", "--no-wheels", "--partly"]), end="")
		if a.whole:
			whole(work / "kit", work, a.root, (5, 20, 40, 70))
		else:
			check(work / "kit", work, a.build.resolve())
	finally:
		shutil.rmtree(work, ignore_errors=True)
	return 0


if __name__ == "__main__":
	sys.exit(main())
