#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
All that a GPU teaches, on a machine that has one and nothing else: gpu-kit/run [--seconds 420] [--json FILE] [--stand-in] [--only STEPS]

Steps a to f, in the order in which a machine that nobody has tried is to be trusted; tools/gpu-kit has put it where it is.  Each part
of a step says ok, FAILED, skipped or cut off, with a sentence, and is an entry of FILE, which is written anew, whole, when a part begins
and ends.  After --seconds, or SIGALRM, nothing runs any more.  Status 1: a part failed.  Without a GPU it says why, and succeeds.
    --stand-in    the same on the stand-in for CUDA, where times say nothing
    --only c,f    these steps alone, beside a; or parts of them: b_plans
    --helper P    another helper
"""
import argparse
import concurrent.futures
import ctypes
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import stat
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
KIT, TESTS, GPU = HERE, HERE / "tests", HERE / "tests/gpu"	# where the kit has been unpacked
SKIPPED = 77
JOBS, OF_PIPELINE = 5000, 1000
ROOM = 512 << 20	# for the kit, unpacked, and for files of tests


class Skip(Exception):
	"""A part that cannot be done here: why."""


class Failed(Exception):
	pass


class CutOff(Exception):
	"""The time of all is over."""


class Run:
	def __init__(self, a, end, folder):
		self.a, self.end, self.folder, self.packages = a, end, folder, folder / "packages"
		self.running, self.lock = set(), threading.Lock()
		self.no_gpu = None	# why
		self.why_over = f"the {a.seconds:.0f} s of this run are over"
		self.result = {"kit": json.loads((HERE / "kit.json").read_text()), "stand_in": a.stand_in, "seconds": a.seconds, "when": now(),
			       "machine": {}, "running": None, "steps": [], "ended": False}

	def left(self):
		return self.end - time.monotonic()

	def write(self):
		if not self.a.json:
			return
		new = self.a.json.with_name(self.a.json.name + ".new")
		with open(new, "w") as f:
			json.dump(self.result, f, indent=1)
			f.write("\n")
			f.flush()
			os.fsync(f.fileno())
		new.replace(self.a.json)

	# --- programs ---

	def program(self, name):
		"""That of the kit, or the one of the stand-in that is in its place."""
		stand_ins = {"plans": "fake_plans", "links": "fake_links", "speed": "fake_speed", "test_prop_rounds-gpu": "test_prop_rounds-pipeline"}
		path = TESTS / (stand_ins.get(name, name) if self.a.stand_in else name)
		if not path.exists():
			raise Skip(f"the kit has no {path.name}: it was made where that was not built")
		return path

	def run(self, words, most, **env):
		"""(status, lines); what takes longer than `most` fails, and what goes on when the time of all is over is cut off."""
		limit = min(most, self.left())
		if limit <= 0:
			raise CutOff
		with tempfile.TemporaryFile("w+") as out:
			p = subprocess.Popen([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **env},
					     start_new_session=True, preexec_fn=dies_with_us)
			with self.lock:
				self.running.add(p)
			if self.left() <= 0: # over() may have come before
				kill_group(p)
			try:
				status = p.wait(limit)
			except subprocess.TimeoutExpired:
				status = None
			end_group(p)
			with self.lock:
				self.running.discard(p)
			out.seek(0)
			lines = out.read().strip().splitlines()
		if status in (None, -signal.SIGKILL) and self.left() <= 0:
			raise CutOff
		return (124, lines + [f"it did not end in {most:.0f} s"]) if status is None else (status, lines)

	def passes(self, words, most, **env):
		"""The lines of a program that has passed."""
		status, lines = self.run(words, most, **env)
		if status == SKIPPED or any("# SKIP" in line for line in lines[:1]):
			raise Skip((lines or ["?"])[-1].partition("# SKIP ")[2] or lines[-1])
		if status:
			raise Failed(f"{pathlib.Path(words[0]).name}: status {status}: " + " | ".join(lines[-6:]))
		return lines

	def helped(self):
		return {"SCALAI_TEST_HELPER": str(self.a.helper)}

	# --- a ---

	def a_machine(self):
		"""libc, room, cores, FUSE, the driver"""
		m = self.result["machine"]
		m.update(kernel=platform.release(), cores=os.cpu_count(), python=platform.python_version(), libc=os.confstr("CS_GNU_LIBC_VERSION"),
			 driver=first_line("/proc/driver/nvidia/version"), fuse=is_device("/dev/fuse"), root=os.geteuid() == 0,
			 memory=memory(), temporary_free=shutil.disk_usage(tempfile.gettempdir()).free, shm_free=free("/dev/shm"))
		smi = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/local/nvidia/bin:/usr/bin")
		if smi and not self.a.stand_in:
			m["nvidia_smi"] = self.run([smi], 30)[1][:20]
		needs, has = self.result["kit"]["libc"], m["libc"].split()[-1]
		if version(has) < version(needs):
			self.no_gpu = f"the kit needs glibc {needs}, and this machine has {has}: make it on an older system"
			raise Failed(self.no_gpu)
		return f"kernel {m['kernel']}, {m['cores']} cores, {m['memory'] >> 30} GiB, {m['libc']}, driver: {m['driver'] or 'none'}, /dev/fuse: {'yes' if m['fuse'] else 'no'}"

	def a_helper(self):
		"""the helper starts, pins, takes the PTX"""
		try:
			status, lines = self.run([self.program("ask_helper"), self.a.helper], 120)
			if status:
				self.no_gpu = (lines or [f"status {status}"])[-1]
		except Skip as e:
			self.no_gpu = str(e)
		if self.no_gpu:
			raise (Skip if status == SKIPPED else Failed)(self.no_gpu)
		device, ms, pinned = lines[-3:]
		self.result["machine"]["device"] = device
		return f"{device}: ready after {ms} ms, {pinned} bytes pinned", {"ready_ms": int(ms), "pinned_bytes": int(pinned)}

	# --- b ---

	def b_plans(self):
		"""the kernel on 300 random plans and 300 random gathers, as loops of the host copy them"""
		return last(self.passes([self.program("plans")], 90, ROUNDS="300"), "plans"), {"plans": 300, "gathers": 300}

	def jobs(self, program, share, wanted, a_run, **env):
		"""As many of the wanted jobs as a share of the time allows, some runs of them side by side."""
		until = time.monotonic() + share * self.a.seconds
		done, seeds = 0, iter(range(1, wanted // a_run + 1))

		def some():
			nonlocal done
			while time.monotonic() < until:
				with self.lock:
					seed = next(seeds, None)
				if seed is None:
					return
				lines = self.passes([program], 240, ROUNDS=str(a_run), SEED=str(seed), **env)
				if not any("jobs" in line for line in lines):
					raise Failed(f"seed {seed}: {' | '.join(lines[-3:])}")
				with self.lock:
					done += a_run

		with concurrent.futures.ThreadPoolExecutor(max(1, min(8, os.cpu_count() // 2))) as pool:
			for f in [pool.submit(some) for _ in range(pool._max_workers)]:
				f.result()
		return f"{done} of {wanted} random jobs, as many as fit the time, have the bytes of the host engine", {"jobs": done}

	def b_pipeline(self):
		"""rounds of random jobs through the pipeline"""
		wanted = min(OF_PIPELINE, self.a.jobs)
		return self.jobs(self.program("test_prop_rounds-gpu"), 0.12, wanted, min(200, wanted))

	def b_links(self):
		"""shared memory is pinned, copied in, inside and out"""
		self.passes([self.program("links"), "copies", "1" if self.a.stand_in else "64"], 60)
		return "what came back is what was copied in", {}

	def b_helper(self):
		"""files of random jobs through the helper"""
		# a helper has the same options for 40 jobs: fewer jobs of a seed than 1,000 may miss a kind of them
		return self.jobs(self.program("test_prop_rounds-helper"), 0.25, self.a.jobs, min(1000, self.a.jobs), **self.helped())

	def b_models(self):
		"""reshards of random models, and each kind of file, through the helper"""
		for name in ("test_prop_files-gpu", "test_reshard_engine-gpu"):
			self.passes([self.program(name)], 120, EVERY="3", **self.helped())
		return "all are right", {}

	def b_nccl(self):
		"""a communicator of one GPU sends to itself"""
		return last(self.passes([self.program("links"), "exchange", "1"], 60), ""), {}

	# --- c ---

	def illegal(self):
		return self.a.helper if self.a.stand_in else self.program("scalai-gpu-illegal")

	def c_helper(self):
		"""the helper is killed 32 times and stopped 3 times while the device works, and faults: the host's bytes are right"""
		lines = self.passes([self.program("test_gpu_killed")], 200, SCALAI_TEST_ILLEGAL=str(self.illegal()), **self.helped())
		return "; ".join(line[2:] for line in lines if line.startswith("# ")), {}

	def c_mount(self):
		"""the same over a mount: the daemon goes on"""
		illegal = self.illegal()
		with tempfile.TemporaryDirectory(dir=self.folder) as folder:
			if self.a.stand_in:
				illegal = pathlib.Path(folder, "helper")
				illegal.write_text(f"#!/bin/sh\nexec {self.a.helper} 0 0 run 4\n")
				illegal.chmod(0o755)
			lines = self.passes([sys.executable, GPU / "kit_mount.py", "faults", *self.of_mount(), "--illegal", illegal,
					     "--mib", "4" if self.a.stand_in else "1024"], 120)
		return "; ".join(lines[:-1]), json.loads(lines[-1])

	# --- d ---

	def sanitized(self, tool):
		if self.a.stand_in:
			self.passes([self.program("test_prop_rounds-gpu")], 120, ROUNDS="20", SEED="77")
			return "20 jobs: the stand-in names what nothing orders and nobody has written, and named none", {}
		places = ":".join(["/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", *map(str, pathlib.Path("/opt/nvidia").glob("*/*"))])
		found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=places)
		if not found:
			raise Skip("there is no compute-sanitizer")
		lines = self.passes([found, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9", self.program("test_prop_rounds-gpu")], 120, ROUNDS="20")
		if not any("ERROR SUMMARY: 0 errors" in line for line in lines):
			raise Failed(f"it does not say that there are 0 errors: {' | '.join(lines[-3:])}")
		return "20 jobs, 0 errors", {}

	def d_memcheck(self):
		"""memcheck"""
		return self.sanitized("memcheck")

	def d_initcheck(self):
		"""initcheck"""
		return self.sanitized("initcheck")

	# --- e ---

	def e_copies(self):
		"""kernel, cudaMemcpy2DAsync() and PyTorch beside copies inside of the GPU; the pipeline beside its links"""
		with tempfile.TemporaryDirectory(dir=self.folder) as folder:
			raw = pathlib.Path(folder, "bench.json")
			lines = self.passes([sys.executable, GPU / "bench.py", "--build", KIT, "--helper", self.a.helper, "--json", raw,
					     *(["--stand-in"] if self.a.stand_in else [])], 180)
			found = json.loads(raw.read_text())
		if self.a.stand_in:
			return f"{len(found['kernel'])} copies were made, and no time is told of the stand-in", {}
		gbs = {name: rate(sample) for name, sample in {**found["kernel"], **found["links"], "pipeline": found["pipeline"]}.items()}
		inside = gbs.pop("cudaMemcpyAsync inside")
		slowest = min(gbs["in"], gbs["out"])
		return " | ".join(lines[-2:]), {"raw": found, "gbs": gbs, "ceiling_inside_read_and_written_gbs": 2 * inside, "of_inside": {
			name: g / inside for name, g in gbs.items() if name not in found["links"] and name != "pipeline"},
			"ceiling_in_gbs": gbs["in"], "ceiling_out_gbs": gbs["out"], "pipeline_of_slowest_link": gbs["pipeline"] / slowest, "said": lines}

	# --- f ---

	def of_mount(self):
		if not self.result["machine"].get("fuse") or not self.result["machine"].get("root"):
			raise Skip("we are not root, or there is no /dev/fuse")
		return ["--scalai", KIT / "fs/scalai", "--helper", self.a.helper]

	def f_reshard(self):
		"""a reshard in tmpfs by engine=gpu and by engine=host"""
		lines = self.passes([sys.executable, GPU / "kit_mount.py", "reshard", *self.of_mount(), "--mib", "4" if self.a.stand_in else str(self.a.mib)], 120)
		found = json.loads(lines[-1])
		return " ".join(lines[:-1]), {k: v for k, v in found.items() if not (self.a.stand_in and "seconds" in k)}

	def f_pytorch(self):
		""".gpu into PyTorch: right bytes, other users, dead helpers"""
		if self.a.stand_in:
			raise Skip("PyTorch does not know the stand-in")
		self.of_mount()
		return " ".join(self.passes([sys.executable, GPU / "mounted.py", "check", *self.of_mount()], 120, **self.wheels())), {}

	def f_loaders(self):
		"""loaders of a view and of a plain file of the same bytes, into the GPU"""
		left = max(10, int(min(200, self.left() - 20)))
		device = ["--device", "cpu", "--mib", "8"] if self.a.stand_in else ["--mib", str(self.a.mib // 2)]
		lines = self.passes([sys.executable, GPU / "kit_loaders.py", "all", *self.of_mount(), "--seconds", left, *device], left + 60, **self.wheels())
		if self.a.stand_in:
			return f"{', '.join(json.loads(lines[-1]))}: here without a GPU, so no time is told", {}
		return "; ".join(lines[:-1]), json.loads(lines[-1])

	def wheels(self):
		"""An environment in which Python finds the kit's packages, before it has looked for others."""
		to = self.packages
		if not to.exists():
			for wheel in sorted((KIT / "wheels").glob("*.whl")):
				with zipfile.ZipFile(wheel) as z:
					for member in z.namelist():
						m = re.fullmatch(r"[^/]+\.data/(?:pure|plat)lib/(.+)", member)
						place = to / (m[1] if m else member)
						if not member.endswith("/"):
							place.parent.mkdir(parents=True, exist_ok=True)
							place.write_bytes(z.read(member))
		return {"PYTHONPATH": ":".join([str(to), *filter(None, [os.environ.get("PYTHONPATH")])]), "PYTHONDONTWRITEBYTECODE": "1"}

	# --- all ---

	def part(self, name, what):
		entry = {"step": name[0], "part": name[2:], "what": what.__doc__, "status": None, "why": "", "seconds": 0, "figures": {}}
		began = time.monotonic()
		self.result["running"] = name
		self.write()
		try:
			if self.left() <= 0:
				raise CutOff
			if self.no_gpu and name[0] != "a":
				raise Skip(self.no_gpu)
			said = what()
			entry["status"] = "pass"
			entry["why"], entry["figures"] = said if isinstance(said, tuple) else (said, {})
		except Skip as e:
			entry.update(status="skipped", why=str(e))
		except CutOff:
			entry.update(status="cut off", why=self.why_over)
		except (Failed, OSError, ValueError, KeyError, IndexError) as e:
			entry.update(status="fail", why=str(e) if isinstance(e, Failed) else f"{type(e).__name__}: {e}")
		entry["seconds"] = round(time.monotonic() - began, 1)
		self.result["steps"].append(entry)
		self.result["running"] = None
		self.write()
		word = {"pass": "ok     ", "fail": "FAILED ", "skipped": "skipped", "cut off": "cut off"}[entry["status"]]
		print(f"{word} {name[0]}: {entry['what']} ({entry['seconds']:.1f} s): {entry['why']}", flush=True)

	def all(self):
		for name in [n for n in vars(Run) if re.match(r"[a-f]_", n)]:
			if name.startswith(tuple(self.a.only.split(",")) + ("a",)): # what there is decides about the rest
				self.part(name, getattr(self, name))
		self.result["ended"] = True
		self.write()
		counts = {s: sum(e["status"] == s for e in self.result["steps"]) for s in ("pass", "fail", "skipped", "cut off")}
		print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skipped']} skipped, {counts['cut off']} cut off: {self.a.seconds - self.left():.0f} s")
		return 1 if counts["fail"] else 0

	def over(self, *_):
		"""The time of all is over now: what runs is cut off, and what is left, too."""
		self.end, self.why_over = time.monotonic(), "SIGALRM ended the time of this run"
		for p in list(self.running):
			kill_group(p)

	def stop(self, number, _):
		"""
		Ends what runs, and this; what came before is in the file.  A signal may come while a lock is held, and also where no `with` gives it
		back yet, for which a thread then waits, and we for the thread: nothing is raised here, and no lock is asked for.
		"""
		for p in list(self.running):
			kill_group(p)
			try:
				os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)
			except ChildProcessError:
				pass
		shutil.rmtree(self.folder, ignore_errors=True)
		os._exit(128 + number)


def now():
	return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def dies_with_us():
	ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def kill_group(p):
	"""The process, and what it has started."""
	try:
		os.killpg(p.pid, signal.SIGKILL)
	except ProcessLookupError:
		pass


def end_group(p):
	kill_group(p)
	p.wait()


def first_line(path):
	try:
		return pathlib.Path(path).read_text().splitlines()[0]
	except (OSError, IndexError):
		return None


def is_device(path):
	try:
		return stat.S_ISCHR(os.stat(path).st_mode) and os.access(path, os.W_OK)
	except OSError:
		return False


def memory():
	m = re.search(r"MemTotal: +(\d+)", pathlib.Path("/proc/meminfo").read_text())
	return int(m[1]) << 10


def free(folder):
	try:
		return shutil.disk_usage(folder).free
	except OSError:
		return 0


def version(text):
	return tuple(map(int, text.split(".")[:2]))


def last(lines, word):
	"""The last line of what a program says that has this word."""
	return next((line.lstrip("# ") for line in reversed(lines) if word in line and line.strip()), "")


def rate(sample):
	return sample[0] / statistics.median(sample[1])


def unpack(folder):
	global KIT, TESTS, GPU
	with tarfile.open(HERE / "kit.tar.gz") as tar:
		tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None) # it is ours; older Pythons have none
		tar.extractall(folder)
	KIT, TESTS, GPU = folder, folder / "tests", folder / "tests/gpu"


def main():
	p = argparse.ArgumentParser(usage="gpu-kit/run [--seconds 420] [--json FILE] [--stand-in] [--only STEPS] [--helper PROGRAM] [--jobs N] [--mib N]")
	p.add_argument("--seconds", type=float, default=420)
	p.add_argument("--json", type=pathlib.Path)
	p.add_argument("--stand-in", action="store_true")
	p.add_argument("--only", default=",".join("abcdef"))
	p.add_argument("--helper", type=pathlib.Path)
	p.add_argument("--jobs", type=int, default=JOBS)
	p.add_argument("--mib", type=int, default=8192, help="of the reshard; loaders have half of it")
	a = p.parse_args()
	end = time.monotonic() + a.seconds
	there = shutil.disk_usage(tempfile.gettempdir()).free
	if there < ROOM:
		print(f"FAILED  {tempfile.gettempdir()} has {there >> 20} MiB free, and the kit needs {ROOM >> 20}: set TMPDIR to a folder that has")
		return 1
	with tempfile.TemporaryDirectory(prefix="scalai-kit.") as folder:
		pathlib.Path(folder).chmod(0o755) # for another user, too
		run = Run(a, end, pathlib.Path(folder))
		for number in (signal.SIGTERM, signal.SIGINT):
			signal.signal(number, run.stop)
		signal.signal(signal.SIGALRM, run.over)
		unpack(pathlib.Path(folder))
		a.helper = (a.helper or (TESTS / "fake_helper" if a.stand_in else KIT / "fs/scalai-gpu")).absolute()
		return run.all()


if __name__ == "__main__":
	sys.exit(main())
