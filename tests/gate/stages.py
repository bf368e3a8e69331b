# SPDX-License-Identifier: Apache-2.0
"""
The stages of tools/test: what each runs, beside what, and for how long at most.  The gate has fixed seeds and counts, so that it tests the
same on each machine; --long has the full sizes, in stages of at most 90 minutes.  A stage of --long that is not written here but needed
is a line of LONG.  docs/testing.md has the table of what is short in the gate.
"""
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build-asan"
CASES = sorted(p.name for p in (ROOT / "tests/e2e/cases").iterdir())
CORES = os.cpu_count() or 2
MINUTE = 60
SEED = os.environ.get("SEED", "1")
BEHIND_FACTOR = 5	# of limits of tests that have what others leave of the processors
GATE_EVERY = 27	# of calls that fail, one in so many: tests/support/every.h

# why meson's tests were skipped, where they do not say it themselves
WHY_SKIPPED = {
	"member/etcd": "there is no package etcd-server",
	"member/nodes": "there is no package etcd-server",
	"reshard/net-ucx": "there are no packages libucx-dev and libucx0",
	"reshard/net_ends-ucx": "there are no packages libucx-dev and libucx0",
}


@dataclasses.dataclass
class Step:
	kind: str			# tests: of meson; cases: of e2e/run; program: its exit status
	words: list
	env: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Stage:
	name: str
	about: str
	steps: list
	limit: float = 30 * MINUTE	# of each step; what takes longer hangs
	cannot: object = lambda: None	# why it can't run on this machine
	behind: bool = False		# it only computes, and has what stages beside it leave of the processors


def tests(every, *which, factor=1, at_once=CORES + 1, env=None, behind=3):
	"""Tests of meson: suites, or by name.  What a hung one prints is limit.py's; meson's own limit is so many times as long."""
	suites = [w for name in which if name.startswith("suite:") for w in ("--suite", name[6:])]
	names = [name for name in which if not name.startswith("suite:")]
	words = ["meson", "test", "-C", BUILD, "--no-rebuild", "--num-processes", str(at_once), "--timeout-multiplier", str(behind * factor),
		 "--wrapper", str(ROOT / "tests/gate/limit.py"), *suites, *names]
	fixed = {"EVERY": str(every), "LIMIT_FACTOR": str(factor), "MALLOC_PERTURB_": "85"}	# meson would draw the last
	return Step("tests", words, {**fixed, **(env or {})})


def cases(names, env=None):
	return Step("cases", ["tests/e2e/run", f"^({'|'.join(names)})$"], env or {})


# --- crashes and hostile input ---

KILLED = {"ASAN_OPTIONS": "quarantine_size_mb=1:detect_leaks=0"}	# these processes are killed: nothing is freed
FUZZED = {"ASAN_OPTIONS": "allocator_may_return_null=1"}


def kills(every, seed):
	return Step("program", [BUILD / "tests/crash", "--every", str(every), "--seed", str(seed)], KILLED)


def power(*words):
	return Step("program", ["python3", "tests/fault/power.py", "build-asan/tests/crash", "build-asan/tests/recorder", *map(str, words)], KILLED)


def no_power():
	if os.geteuid() == 0 and os.access("/dev/fuse", os.W_OK) and subprocess.run(["losetup", "--find"], capture_output=True).returncode == 0:
		return None
	return "no loop devices or no /dev/fuse: run as root, where the kernel has both"


# --- end to end ---

def no_mounts():
	if not os.access("/dev/fuse", os.W_OK):
		return "all that mounts: /dev/fuse can't be opened: run as root, where the kernel has FUSE"
	return None if os.geteuid() == 0 else "all that mounts: only root mounts as these cases do: run tools/test as root"


def no_roots():
	"""For roots that mmdebstrap makes, from the mirror that apt has."""
	if no_mounts() or shutil.which("mmdebstrap"):
		return no_mounts()
	return "fresh roots of Debian: there is no mmdebstrap: apt-get install mmdebstrap"


CLUSTER = re.compile(r"8[78]_|9")	# cases of several daemons: they wait for leases, and come last
RACES = ["30_races"]	# its readers have what nobody else wants of a processor: with something beside them they get nothing
LONG = re.compile(r"^# long: ", re.M)	# a mark of tests/e2e/run


def chosen(pattern, clusters):
	"""The gate's cases, or those that a pattern names."""
	return [c for c in CASES if re.search(pattern, c) and bool(CLUSTER.match(c)) == clusters
		and (pattern or not LONG.search((ROOT / "tests/e2e/cases" / c).read_text()))]


# --- the gate ---

def gate_rows(quick, pattern):
	"""Rows of lanes of stages: rows one after another, the lanes of one side by side.  What is beside scripts is behind them."""
	env = {"SCALAI_TEST_NO_TORCH": "1"} if quick else {}
	env = {**env, "AGAIN_SECONDS": "4", "AGAIN_KILLS": "12", **{k: v for k, v in os.environ.items() if k in SIZES}}
	later = RACES if not quick and not pattern else []
	e2e = [Stage(name, about, [cases([c for c in chosen(pattern, clusters) if c not in later], env)], 60 * MINUTE, no_mounts)
	       for name, about, clusters in (("e2e", "scripts over real mounts", False), ("cluster", "scripts over several daemons", True))
	       if chosen(pattern, clusters)]
	runner = Stage("runner", "the runner of cases sees what goes wrong", [Step("program", ["tests/e2e/selftest/run"])], 20 * MINUTE, no_mounts)
	about = "unit tests (address and undefined-behaviour sanitizers)"
	if pattern:
		names = unit_names(lambda n: re.search(pattern, n), lints=True)
		return ([[[Stage("unit", about, [tests(GATE_EVERY, *names)])]]] if names else []) + [[[s]] for s in e2e]
	suites = ["suite:unit", "suite:lint", *(["suite:behind"] if quick else [])]
	unit = Stage("unit", about, [tests(GATE_EVERY, *suites, at_once=CORES + 2)])	# busy for half of their time
	nodes = Stage("nodes", "unit tests over an etcd", [tests(GATE_EVERY, "suite:cluster", at_once=2)])
	# their limits are against a hang, also where others have all processors
	properties = Stage("properties", "property and fault tests", [tests(GATE_EVERY, "suite:behind", factor=BEHIND_FACTOR, at_once=CORES)], behind=True)
	crashes = [
		Stage("kills", "the daemon is killed at points where its files change", [kills(96, SEED)], behind=True),
		Stage("fuzz", "hostile input for every parser", [Step("program", [BUILD / "tests/fuzz", "--shares", "25", "--seed", SEED], FUZZED)],
		      behind=True),
	]
	cuts = [
		Stage("power", "the power is cut", [power("--seed", SEED, "--control", "--points", 20, "commit", "topology", "data"),
						    power("--seed", SEED, "--points", 10)], cannot=no_power, behind=True),
	]
	if quick:
		return [[[unit]], [[e2e[0], nodes, e2e[1]]]]
	races = Stage("races", "writers and readers that race, with nothing beside them", [cases(RACES, env)], 60 * MINUTE, no_mounts)
	return [[[unit]], [[runner, e2e[0], nodes, e2e[1]], [properties], crashes, cuts], [[races]]]


# --- the long suite ---

# full sizes of e2e cases, read by the scripts
SIZES = {
	"STRESS_SECONDS": "1800", "RACES_HOURS": "1", "CLUSTER_LONG": "1", "GROWTH_CHANGES": "2000", "GPU_IDLE": "1", "HOLDER_ROUNDS": "100", "TREE_OPERATIONS": "1000000", "NAMES": "all",
	"BESIDE_SECONDS": "60", "AGAIN_SECONDS": "240", "AGAIN_KILLS": "800", "LINKS_SECONDS": "600", "FOLDER_NAMES": "12000", "LATE_READERS": "1200", "COORDINATES_STEPS": "400",
	"HOSTILE_FILES": "40000", "HOSTILE_FOLDERS": "3000", "UNMOUNTS": "200", "SEQUENCES": "200", "HELD_SECONDS": "60", "ENDS_SECONDS": "2", "EXAMPLE_KILLS": "60",
	"VENV_PIP": "1", "KEPT_ROUNDS": "60", "WRONG": "200", "HONEST": "2000",
}
# bounds on time hold on a machine that does nothing else (tests/e2e/late.py): the gate only reports them
QUIET = {"BOUNDS": "assert"}
# cases that are long there, each a stage of its own
ALONE = {"races": ["30_races"], "tree": ["47_tree"], "stress": ["16_stress"], "stress-rings": ["23_stress"], "cluster-faults": ["99_faults"],
	 "cluster-history": ["98_history"], "beside": ["49_beside_readers", "51_again", "63_mixed_links"], "hostile": ["77_hostile"], "names": ["50_names"],
	 "coordinates": ["48_coordinates"], "signals": ["28_signals"], "sequences": ["90_sequences"]}
FUZZ_SECONDS = 240	# 68 minutes for the 17 parsers of tests/fuzz/fuzz.h: a night of a stage is a night with new seeds


def fresh_seed():
	return os.environ.get("SEED") or str(int.from_bytes(os.urandom(4), "little"))


def unit_names(wanted, lints=False):
	"""Names of meson's tests of the suites unit and cluster; lints: of all."""
	done = subprocess.run(["meson", "introspect", "--tests", str(BUILD)], capture_output=True, text=True)
	if done.returncode:
		return ["(meson-introspect-failed)"]	# no name at all would be all tests
	return [t["name"] for t in json.loads(done.stdout) if (lints or not any(s.endswith(":lint") for s in t["suite"])) and wanted(t["name"])]


IN_A_FOLDER = "work=$(mktemp -d /tmp/scalai-long.XXXXXX) && trap 'rm -rf \"$work\"' EXIT; export ASAN_OPTIONS=detect_leaks=0 PYTHONDONTWRITEBYTECODE=1; "
RULES = IN_A_FOLDER + '.deps/venv/bin/python tests/cluster/rules.py "$work" build-asan/tests/scalai-rules'

CHAOS = ((1, 3, 1), (2, 5, 1), (3, 3, 3), (4, 5, 3), (5, 3, 1))	# seed, nodes, servers of etcd


def chaos(seed, nodes, etcds):
	"""By the release build: it is the daemons that are to be busy.  What has gone wrong keeps its folder."""
	return Step("program", ["bash", "-c", 'work=$(mktemp -d /tmp/scalai-chaos.XXXXXX); export PYTHONDONTWRITEBYTECODE=1; '
		f'.deps/venv/bin/python tests/cluster/chaos.py "$work" build/fs/scalai {seed} 1200 {nodes} {etcds} || {{ echo "BAD: see $work"; exit 1; }}; rm -rf "$work"'])


def histories(seed):
	"""Ten times what the unit tests make, and eight turns of a real cluster, with a seed that is printed."""
	real = ('for k in 0 1 2 3 4 5 6 7; do mkdir "$work/$k" && .deps/venv/bin/python tests/cluster/settle_random.py "$work/$k" '
		f'build-asan/fs/scalai $(({seed} + k)) || {{ echo "BAD: seed $(({seed} + k))"; exit 1; }}; done')
	return [Step("program", ["bash", "-c", f"echo seed {seed}; exec build-asan/tests/test_prop_cluster 3000 {seed}"]),
		Step("program", ["bash", "-c", f"{IN_A_FOLDER} echo seed {seed}; {real}"])]


def tsan_steps():
	"""Threads.  meson sets the build up once; a race ends the daemon with status 66."""
	scalai = ROOT / "build-tsan/fs/scalai"
	setup = ('[ -f build-tsan/build.ninja ] || meson setup build-tsan -Dfuse_prefix="$PWD/.deps/fuse" -Db_sanitize=thread -Db_lundef=false; '
		 "ninja -C build-tsan fs/scalai")
	env = {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66", "STRESS_SECONDS": "300", "SCALAI": str(scalai), "SCALAI_FAST": str(scalai)}
	return [Step("program", ["bash", "-c", setup]), cases([c for c in CASES if re.match(r"(01|02|05|06|08|10|16|18|20|21)", c)], env)]


def long_rows():
	"""One after another, each of at most 90 minutes."""
	long_env = {**SIZES, "CASE_SECONDS": "5100", **QUIET}
	long_env.update({k: v for k, v in os.environ.items() if k in SIZES})

	def stage(name, about, *steps, cannot=None):
		mounts = any(step.kind == "cases" for step in steps)
		return Stage(name, about, list(steps), 90 * MINUTE, cannot or (no_mounts if mounts else lambda: None))

	slow = re.compile(r"fault/|prop/rounds|member/")
	found = [
		stage("units", "all unit and property tests, at full size", tests(1, *unit_names(lambda n: not slow.match(n)), factor=10, at_once=2)),
		stage("units-faults", "every failing call of every command", tests(1, *unit_names(lambda n: n.startswith("fault/")), factor=10, at_once=2)),
		stage("units-rounds", "5,000 random jobs through each kind of rounds", tests(1, *unit_names(lambda n: n.startswith("prop/rounds")), factor=10, at_once=2)),
		stage("nodes", "unit tests over an etcd, with their bounds on time", tests(1, "suite:cluster", factor=10, at_once=1, env=QUIET)),
		stage("planted", "mistakes planted in rounds, tables, kernel and pipeline", Step("program", ["tests/gpu/planted.py", "build-asan"])),
		stage("gpu-kit", "the kit for a machine with a GPU, whole on the stand-in, and cut off; mistakes that it must see",
		      Step("program", ["bash", "-c", "tools/gpu-kit --no-wheels && tests/gpu/kit_test.py build-kit --whole"]),
		      Step("program", ["tests/gpu/planted.py", "build-asan", "of a shifted load", "fake_plans"], {"ROUNDS": "300"}),
		      Step("program", ["tests/gpu/planted.py", "build-asan", "wait for its input", "test_prop_rounds-pipeline"], {"ROUNDS": "100"}), cannot=no_mounts),
		stage("mistakes", "mistakes planted in product, tests and runner: the gate names each", Step("program", ["tests/gate/mistakes.py"]), cannot=no_mounts),
	]
	found += [stage(f"kills-{seed}", f"the daemon is killed at each point, seed {seed}", kills(1, seed)) for seed in (1, 2, 3)]
	found += [stage(f"power-{seed}-{fs}", f"13,000 power cuts on {fs}, seed {seed}", power("--seed", seed, "--fs", fs, "--points", 560), cannot=no_power)
		  for seed, fs in ((1, "ext4"), (2, "ext4"), (2, "xfs"))]
	found += [
		stage("rules", "real daemons miss a rule of the protocol that is taken out", Step("program", ["bash", "-c", RULES]), cannot=no_mounts),
		stage("histories", "random histories of clusters and trees in memory, and of a real one", *histories(fresh_seed()), cannot=no_mounts),
	]
	found += [stage(f"chaos-{seed}", f"20 minutes of all faults at once, {nodes} nodes, {etcds} etcds, seed {seed}", chaos(seed, nodes, etcds), cannot=no_mounts)
		  for seed, nodes, etcds in CHAOS]
	found += [stage("threads", "the thread sanitizer under e2e cases", *tsan_steps())]
	found += [stage(name, f"{' '.join(names)} at full size", cases(names, long_env)) for name, names in ALONE.items()]
	rest = [c for c in CASES if not any(c in names for names in ALONE.values())]
	found += [
		stage("e2e-1", "cases 01 to 39 at full size", cases([c for c in rest if c < "4"], long_env)),
		stage("e2e-2", "cases 40 to 86 at full size", cases([c for c in rest if c >= "4" and not CLUSTER.match(c)], long_env)),
		stage("cluster", "cases over several daemons at full size", cases([c for c in rest if CLUSTER.match(c)], long_env)),
	]
	found += [stage("frameworks", "each row of the table of frameworks in docs/formats.md, by the real libraries",
			Step("program", ["tests/lint/frameworks", "--run"]), cannot=no_mounts)]
	for suite, debian in (("bookworm", "Debian 12"), ("trixie", "Debian 13")):
		found += [stage(f"package-{suite}", f"the package in a fresh root of {debian}: installed, upgraded, removed, purged",
				Step("program", ["tests/package/run", suite]), cannot=no_roots),
			  stage(f"unit-{suite}", f"the unit under {debian}'s systemd: restarts, kills, reloads and upgrades break no open file",
				Step("program", ["tests/package/unit", suite]), cannot=no_roots)]
	found += [stage("bench-small", "every case of the benchmark, small", Step("program", ["tools/bench", "--check"]), cannot=no_mounts)]
	found += [stage("bench", "the benchmark's figures against the committed ones", Step("program", ["tools/bench", "--long"]), cannot=no_mounts)]
	found += [stage("fuzz", f"hostile input for every parser, for {FUZZ_SECONDS // 60} minutes each, a new seed each time",
			Step("program", [BUILD / "tests/fuzz", "--seconds", FUZZ_SECONDS, "--seed", fresh_seed()], FUZZED))]
	return [[[s]] for s in found]


# --- what could not be built ---

def not_built():
	"""Why parts of the product, and with them tests, are not here."""
	have = lambda *paths: any((ROOT / p).exists() for p in paths)
	found = []
	if not have("build-asan/tests/test_gpu_pipeline"):
		found.append("the pipeline for GPUs: no headers of CUDA: run tools/setup --test")
	if not have("build-asan/tests/test_gpu_boxes-ptx"):
		found.append("the GPU's kernel as nvcc compiles it: no nvcc or ptxas: run tools/setup --gpu")
	if not (shutil.which("etcd") or have(".deps/etcd/usr/bin/etcd")):
		found.append("the client of etcd, and nodes over it (member/etcd, member/nodes): there is no package etcd-server")
	if not have(".deps/ucx/lib/libucp.so.0") and subprocess.run(["pkg-config", "--exists", "ucx >= 1.13"]).returncode:
		found.append("nodes over UCX (reshard/net-ucx): there are no packages libucx-dev and libucx0")
	if not os.path.exists("/dev/nvidiactl"):
		found.append("the pipeline on a GPU (prop/rounds-gpu): there is no NVIDIA driver")
	if not have("build/fs/scalai-gpu"):
		found.append("the program scalai-gpu: no nvcc: run tools/setup --gpu")
	return found
