#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
The kit for a machine with a GPU, on the stand-in: kit_test.py BUILD [--whole [--root FOLDER]]

It is made of a build and run: what is there passes; a machine without a driver, or without room on its disk, says so
in a sentence; a run that is cut off leaves a file that has all that came before.  None of that depends on how fast the
machine is: a run is cut off when its file says that a part has begun.
--whole: also an old driver, no /dev/fuse, a run that is ended by a signal; all steps in a fresh root, which has the C
library and Python and no network (FOLDER, made before by `mmdebstrap --variant=minbase --include=python3 trixie FOLDER`;
or the system's own folders, read-only); and the same cut off after a share of its time, and in each long part's middle.
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


def begins(p, out, part):
	"""Waits until the file of a run says that this part runs; False: the run is over."""
	until = time.monotonic() + 600
	while p.poll() is None:
		if out.exists() and json.loads(out.read_text())["running"] == part:
			return True
		if time.monotonic() > until:
			p.kill()
			fail(f"after 600 s {part} has not begun")
		time.sleep(0.02)
	return False


def signalled(kit, out, number, only):
	"""(status, result) of a run of these parts that gets a signal when b_helper has begun, which goes on for minutes then."""
	out.unlink(missing_ok=True)
	p = subprocess.Popen([kit / "run", "--stand-in", "--only", only, "--json", out], stdout=subprocess.DEVNULL)
	if not begins(p, out, "b_helper"):
		fail("b_helper is over before it is seen to run")
	p.send_signal(number)
	return p.wait(120), json.loads(out.read_text())


def without_gpu(kit, work, build, misdeed, sentence):
	"""A machine that has no GPU that can be used: each part that needs one says why, in the words of the helper."""
	helper, out = work / misdeed, work / "out.json"
	helper.write_text(f"#!/bin/sh\nexec {build}/tests/fake_helper 0 0 {misdeed} 1\n")
	helper.chmod(0o755)
	run([kit / "run", "--stand-in", "--helper", helper, "--json", out])
	result = json.loads(out.read_text())
	said = whys(result, "bcdef")
	expect(f"{misdeed}: {' '.join(said)}", len(said) == 1 and sentence in next(iter(said)) and not parts(result, "fail"))


def check(kit, work, build):
	out = work / "out.json"
	without_gpu(kit, work, build, "no-driver", "there is no NVIDIA driver")
	status, result = signalled(kit, out, signal.SIGALRM, "b_plans,b_helper,b_models,c_helper")
	expect("the kit runs on the stand-in; cut off it has what came before, and says that the rest was cut off",
	       status == 0 and result["ended"] and parts(result, "pass") == ["a_machine", "a_helper", "b_plans"]
	       and parts(result, "cut off") == ["b_helper", "b_models", "c_helper"])
	ends_with_locks_held(work)
	if os.geteuid():
		print("skipped: no root: a machine without room")
		return
	small = work / "small"
	small.mkdir()
	said = run(hidden(f"mount -t tmpfs -o size=100m none {small}; TMPDIR={small} exec {kit}/run --stand-in"), 1)
	expect("without room: " + said.strip(),
	       "has 100 MiB free, and the kit needs" in said and len(said.splitlines()) == 1)


def check_more(kit, work, build):
	out, plain = work / "out.json", work / "no-device"
	run([kit / "run", "--stand-in", "--only", "b_links,d_memcheck", "--json", out])
	result = json.loads(out.read_text())
	expect("parts run alone", parts(result, "pass") == ["a_machine", "a_helper", "b_links", "d_memcheck"] and result["ended"])
	without_gpu(kit, work, build, "old-driver", "which is too old")
	status, result = signalled(kit, out, signal.SIGTERM, "b_helper")
	expect("ended by a signal it leaves what came before, and what was running", status == 128 + signal.SIGTERM
	       and parts(result, "pass") == ["a_machine", "a_helper"] and result["running"] == "b_helper")
	plain.touch()
	run(hidden(f"[ ! -e /dev/fuse ] || mount --bind {plain} /dev/fuse; "
		   f"exec {kit}/run --stand-in --only f_reshard --json {out}"))
	said = whys(json.loads(out.read_text()), "f")
	expect("without /dev/fuse: " + " ".join(said), said == {"we are not root, or there is no /dev/fuse"})


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


class Root:
	"""The kit in a fresh root."""
	def __init__(self, kit, work, root):
		root, self.name, mounts = fresh(work, root)
		shutil.copytree(kit, root / "gpu-kit", dirs_exist_ok=True)
		self.root, self.out = root, root / "gpu-kit/out.json"
		devices = "".join(f"[ ! -e /dev/{d} ] || {{ touch {root}/dev/{d}; mount --bind /dev/{d} {root}/dev/{d}; }}; "
				  for d in ("null", "zero", "full", "random", "urandom", "fuse"))
		self.inside = (f"{mounts}mount -t proc proc {root}/proc; mount -t tmpfs none {root}/tmp; mount -t tmpfs -o mode=755 none {root}/dev; "
			       f"mkdir {root}/dev/shm; mount -t tmpfs none {root}/dev/shm; {devices}")

	def words(self, options):
		script = (f"{self.inside}exec chroot {self.root} /usr/bin/env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp "
			  f"/usr/bin/python3 /gpu-kit/run --json /gpu-kit/out.json {options}")
		self.out.unlink(missing_ok=True)
		return ["unshare", "-n", "-p", "-f", "--kill-child", *hidden(script)]

	def run(self, options):
		said = run(self.words(options))
		return said, json.loads(self.out.read_text())

	def cut_off(self, options, part, seconds):
		"""The result of a run whose time is over these seconds after a part has begun."""
		p = subprocess.Popen(self.words(f"{options} --only {part}"), stdout=subprocess.DEVNULL)
		if begins(p, self.out, part):
			time.sleep(seconds)
			for kit in pathlib.Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text().split():
				os.kill(int(kit), signal.SIGALRM)
		if p.wait(120):
			fail(f"{part}, cut off after {seconds:.1f} s: status {p.returncode}")
		return json.loads(self.out.read_text())


def whole(kit, work, folder):
	root, options = Root(kit, work, folder), "--stand-in --jobs 1000 --seconds"
	began = time.monotonic()
	said, result = root.run(f"{options} 600")
	print(said, end="")
	took = time.monotonic() - began
	expect(f"whole in a fresh root ({root.name}): {len(parts(result, 'pass'))} parts in {took:.0f} s",
	       result["ended"] and not parts(result, "cut off"))
	order = [f"{e['step']}_{e['part']}" for e in result["steps"]]
	long = {name: e["seconds"] for name, e in zip(order, result["steps"]) if name in parts(result, "pass")
		and e["seconds"] >= 1 and name != "a_machine"}
	# how long a run or a part takes is of another run: it may be over before
	for share in (2, 4, 8):
		_, result = root.run(f"{options} {took / share:.1f}")
		if cut := parts(result, "cut off"):
			break
	expect(f"cut off after {took / share:.0f} s: {len(order) - len(cut)} parts, and no more",
	       cut and cut == order[len(order) - len(cut):] and not parts(result, "fail"))
	for part, seconds in long.items():
		for share in (2, 4, 8):
			result = root.cut_off(f"{options} 600", part, seconds / share)
			if parts(result, "cut off"):
				break
		before = [name for name in ("a_machine", "a_helper") if name != part]
		expect(f"{part} cut off after {seconds / share:.1f} s of {seconds:.1f}",
		       parts(result, "cut off") == [part] and parts(result, "pass") == before and result["ended"])
	_, result = root.run("")
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
		check(work / "kit", work, a.build.resolve())
		if a.whole:
			check_more(work / "kit", work, a.build.resolve())
			whole(work / "kit", work, a.root)
	finally:
		shutil.rmtree(work, ignore_errors=True)
	return 0


if __name__ == "__main__":
	sys.exit(main())
