#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Can the gate fail?  mistakes.py [--in FOLDER] [WORD]... | --check

Each mistake below is made in a copy of this checkout, which is built, and a stage of the gate runs there: it must end with another
status than 0, and name what is wrong.  WORD: only mistakes whose name has one of these.  --check: only that each has its place.
--in: the copy, which stays: its builds are made anew once, for many minutes, since they have the folder's name in them.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CASES = "tests/e2e/cases"
ALL = object()	# likewise: it is written anew, whole

# name: edits (file, text, what takes its place), arguments of tools/test, environment, what the output must have
MISTAKES = {
	"an unmount waits for a node that does not answer": (
		[("reshard/cluster/node/member.c", "	rs_net_free(m->net); /* what waits for other nodes' bytes, ends here */\n	m->net = NULL;\n", ""),
		 ("reshard/cluster/node/member.c", "	rs_follow_stop(m);\n", "	rs_follow_stop(m);\n	rs_net_free(m->net);\n")],
		["--stage", "cluster", "^96_silent_node$"], {}, r"96_silent_node.*\n(.*\n)*.*has not ended within"),
	"a byte of a view is wrong": (
		[("reshard/engine/plan/gather.c", "memcpy(w->to + (lo - w->lo), w->from[i] + from + (lo - at), hi - lo);",
		  "memcpy(w->to + (lo - w->lo), w->from[i] + from + (lo - at), hi - lo), w->to[lo - w->lo] ^= hi - lo == 6;")],
		["--stage", "unit", "^prop/"], {}, r"FAILED +unit prop/"),
	"a commit is lost when the power is": (
		[("meta/catalog/db.c", '"PRAGMA synchronous = FULL"', '"PRAGMA synchronous = NORMAL"')],
		["--stage", "power"], {}, r"BAD|lost"),
	"a commit is half there when the daemon is killed": (
		[("meta/catalog/db.c", '	if (rc == 0)\n	\trc = exec(c, "BEGIN IMMEDIATE", err);', '	if (rc == 0)\n	\trc = exec(c, "SELECT 1", err);')],
		["--stage", "kills"], {}, r"BAD|error"),
	"a case leaves a network namespace": (
		[("tests/cluster/nodes.py", "for h in self.etcds + self.nodes] + [self.hub]:", "for h in self.etcds + self.nodes]:")],
		["--stage", "cluster", "^94_cluster_data$"], {}, r"94_cluster_data.*(left|leaves).*"),
	"a case leaves a mount": (
		[(f"{CASES}/01_shell_life", ALL, '. "$E2E/lib.sh"\nmkdir "$WORK/x"\nmount -t tmpfs none "$WORK/x"\nsame 1 1\n')],
		["--stage", "e2e", "^01_shell_life$"], {}, r"01_shell_life.*(left|leaves)"),
	"a case leaves a process": (
		[(f"{CASES}/01_shell_life", ALL, '. "$E2E/lib.sh"\nsame 1 1\nsetsid sleep 1000 >/dev/null 2>&1 &\n')],
		["--stage", "e2e", "^01_shell_life$"], {}, r"01_shell_life.*(left|leaves)"),
	"a unit test hangs": (
		[("tests/unit/meta/base/test_map.c", "	unsigned dice = 1;\n", "	unsigned dice = 1;\n\n	for (;;)\n		(void)usleep(1000);\n"),
		 ("tests/unit/meta/base/test_map.c", "#include <string.h>\n", "#include <string.h>\n#include <unistd.h>\n")],
		["--stage", "unit", "^base/map$"], {}, r"base/map.*did not end|it did not end.*"),
	"a test asserts nothing": (
		[("tests/unit/meta/base/test_map.c", "	assert_int_equal(0, sc_map_put(&map, keys[i], strlen(keys[i]), (void *)step));",
		  "	(void)sc_map_put(&map, keys[i], strlen(keys[i]), (void *)step);"),
		 ("tests/unit/meta/base/test_map.c", "assert_int_equal(values[i], (uintptr_t)sc_map_get(&map, keys[i], strlen(keys[i])));", ";"),
		 ("tests/unit/meta/base/test_map.c", "		assert_int_equal(nr, map.nr);\n", "		(void)nr;\n")],
		["--stage", "unit", "^lint/asserts$"], {}, r"test_map\.c \w+: asserts nothing"),
	"a case only prints": (
		[(f"{CASES}/01_shell_life", ALL, '. "$E2E/lib.sh"\nmount_up\necho "all is well"\nmount_down\n')],
		["--stage", "unit", "^lint/asserts$"], {}, r"01_shell_life: checks nothing"),
	"a document links to a page that is not there": (
		[("docs/architecture.md", "[decisions.md](decisions.md)", "[decisions.md](decision.md)")],
		["--stage", "unit", "^lint/links$"], {}, r"docs/architecture\.md:\d+: there is no decision\.md"),
	"a room of fs/ calls one above it": (
		[("fs/cache/current.c", '#include "fs/cache/cache.h"\n', '#include "fs/cache/cache.h"\n#include "fs/open/open.h"\n'),
		 ("fs/cache/current.c", "	if (!fs->epoch)\n", "	(void)fs_handle_has(fs, 0);\n	if (!fs->epoch)\n")],
		["--stage", "unit", "^lint/layers$"], {}, r"fs/cache may not (include|call) fs/open"),
	"there is no etcd, and this is CI": (
		[], ["--stage", "nodes"], {"CI": "true", "PATH": "/nonexistent"}, r"etcd"),
	"a case is skipped in CI for a reason that is not listed": (
		[(f"{CASES}/01_shell_life", ALL, '. "$E2E/lib.sh"\nsame 1 1\nskip "it is Sunday: wait"\n')],
		["--stage", "e2e", "^01_shell_life$"], {"CI": "true"}, r"not listed in tools/allowed-skips.*01_shell_life"),
	"a case is late that may not be": (
		[(f"{CASES}/01_shell_life", ALL, '. "$E2E/lib.sh"\nsame 1 1\necho "late: x: 2 s, 1 s allowed, load 1, steal 0%"\nexit 75\n')],
		["--stage", "e2e", "^01_shell_life$"], {}, r"FAILED +01_shell_life"),
	"a sanitizer speaks in the log of a node": (
		[("tests/cluster/silent.py", "for n in cluster.nodes:\n	n.down()\n",
		  'for n in cluster.nodes:\n	n.down()\nwith open(cluster.nodes[1].log, "a") as f:\n	f.write("x.c:1:2: runtime error: shift exponent 64\\n")\n')],
		["--stage", "cluster", "^96_silent_node$"], {}, r"FAILED +96_silent_node"),
	"a truncated header is read beyond its end": (
		[("reshard/codec/format/safetensors.c", "	if (n > file->bytes - sizeof(length))\n", "	if (n > file->bytes + 64)\n"),
		 ("reshard/codec/format/safetensors.c", "	return file->read(file->arg, sizeof(length), n, *ret, err);\n",
		  "	return file->read(file->arg, sizeof(length), n - (n > file->bytes - sizeof(length)) * 8, *ret, err);\n")],
		["--stage", "unit", "^reshard/safetensors$"], {}, r"FAILED +unit reshard/safetensors"),
	"memory is not given back": (
		[("meta/base/mem.c", "	sc_sys.release(map->slots);\n	*map = (struct sc_map){0};", "	*map = (struct sc_map){0};")],
		["--stage", "unit", "^base/map$"], {}, r"LeakSanitizer"),
}


def edit(top, edits, before):
	"""`before`: gets what the files had."""
	for name, old, new in edits:
		path = top / name
		before.setdefault(path, path.read_text())
		if old is ALL:
			path.write_text(new)
			continue
		text = path.read_text()
		if text.count(old) != 1:
			sys.exit(f"mistakes: {name} has {old!r} {text.count(old)} times")
		path.write_text(text.replace(old, new))


def check():
	"""Whether each mistake has its place in the sources, and one only."""
	wrong = 0
	for name, (edits, *_) in MISTAKES.items():
		texts = {}
		for file, old, new in edits:
			text = texts.get(file, (ROOT / file).read_text() if (ROOT / file).exists() else "")
			if old is not ALL and text.count(old) != 1:
				print(f"mistakes: {name}: {file} has {old!r} {text.count(old)} times")
				wrong = 1
			texts[file] = new if old is ALL else text.replace(old, new)
	return wrong


def copy(top):
	"""This checkout, with its builds, and with a link to what it depends on.  Of a copy that is there already, the sources are made
	equal: those that differ have the time of now, so that they are built again."""
	for path in ROOT.iterdir():
		if path.name not in (".deps", ".git") and not (top / path.name).exists():
			subprocess.run(["cp", "-a", "--reflink=auto", path, top], check=True)
	left = [f"--exclude=/{name}" for name in (".deps", ".git", "build", "build-asan")]
	subprocess.run(["rsync", "-rlp", "--checksum", "--delete", *left, f"{ROOT}/", f"{top}/"], check=True)
	link_deps(top)


def link_deps(top):
	deps = top / ".deps"
	if deps.is_dir() and not deps.is_symlink():
		shutil.rmtree(deps)	# links, and a folder or two
	deps.unlink(missing_ok=True)
	deps.symlink_to(ROOT / ".deps")


def tries(top, name):
	"""Makes a mistake, and takes it back."""
	before = {}
	try:
		return is_seen(top, name, before)
	finally:
		for path, text in before.items():
			path.write_text(text)
		link_deps(top)


def is_seen(top, name, before):
	edits, words, env, said = MISTAKES[name]
	edit(top, edits, before)
	began = time.monotonic()
	env = {**os.environ, **env}
	if env["PATH"] == "/nonexistent":	# and no etcd of ours
		env["PATH"] = os.environ["PATH"]
		(top / ".deps").unlink()
		(top / ".deps").mkdir()
		for path in (ROOT / ".deps").iterdir():
			if path.name != "etcd":
				(top / ".deps" / path.name).symlink_to(path)
		env["http_proxy"] = env["https_proxy"] = "http://127.0.0.1:9"
	done = subprocess.run(["tools/test", *words], cwd=top, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
			      stderr=subprocess.STDOUT, text=True, errors="replace")
	named = re.search(said, done.stdout)
	print(f"{'ok    ' if done.returncode and named else 'UNSEEN'}  {name}: status {done.returncode}, {time.monotonic() - began:.0f} s: "
	      f"{named.group(0).splitlines()[-1].strip()[:150] if named else 'it is not named'}", flush=True)
	if not (done.returncode and named):
		print("\n".join("    " + line for line in done.stdout.splitlines()[-60:]), flush=True)
	return bool(done.returncode and named)


def main(words):
	if words == ["--check"]:
		return check()
	kept = None
	if words[:1] == ["--in"] and len(words) > 1:
		kept, words = pathlib.Path(words[1]).resolve(), words[2:]
	names = [n for n in MISTAKES if not words or any(w in n for w in words)]
	with tempfile.TemporaryDirectory(prefix="scalai-mistakes.") as folder:
		top = (kept or pathlib.Path(folder)) / "checkout"
		os.chmod(folder, 0o755)
		top.mkdir(parents=True, exist_ok=True)
		copy(top)
		seen = sum(tries(top, name) for name in names)
	print(f"{len(names)} mistakes, {seen} of them seen")
	return 0 if seen == len(names) else 1


sys.exit(main(sys.argv[1:]))
