#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Would the tests see it?  planted.py BUILD-DIRECTORY [WORD]

Each mistake below is made in a copy of a source, which is linked to a test in place of the right one: the test must fail, and
with the copy unchanged it must pass.  WORD: only mistakes whose sentence has it.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KERNEL, BOXES, BUNDLES, ROUNDS, GATHER = ("reshard/gpu/kernels.cu", "reshard/gpu/boxes.c", "reshard/rounds/bundles.c",
					  "reshard/rounds/rounds.c", "reshard/plan/gather.c")
# where the source is compiled, the test that is to fail
USES = {KERNEL: ("tests/gpu/host_run.cc", "test_gpu_boxes"), BOXES: (BOXES, "test_gpu_boxes"), BUNDLES: (BUNDLES, "test_prop_rounds"),
	ROUNDS: (ROUNDS, "test_prop_rounds"), GATHER: (GATHER, "test_prop_rounds")}
MISTAKES = [
	(KERNEL, "rest * e[k].d;", "rest * e[0].d;", "a dimension is divided by the length of another"),
	(KERNEL, "word >= to + 3 && word + WORD + 3 <= to + run", "word >= to && word + WORD <= to + run", "words around a row are loaded beyond its ends"),
	(KERNEL, "__funnelshift_r(d, e, bits)", "__funnelshift_r(d, d, bits)", "the last word of a shifted load"),
	(KERNEL, "e = bits ? LOAD(w + 4) : 0", "e = LOAD(w + 4)", "an aligned load takes a word more"),
	(KERNEL, "end = to + run - word < WORD ? (uint32_t)(to + run - word) : WORD;", "end = WORD;", "the end of a row is not cut"),
	(KERNEL, "begin = word < to ? (uint32_t)(to - word) : 0;", "begin = 0;", "the begin of a row is not cut"),
	(KERNEL, "for (; u < end; u += step) {", "for (; u + 1 < end; u += step) {", "the last unit of a tile is left out"),
	(KERNEL, "*ret_from += i * fs[k];", "*ret_from += (uint32_t)(i * fs[k]);", "32 bits of a stride's product"),
	(KERNEL, "* sizeof(T);", "* 4;", "every unit is 4 bytes wide"),
	(KERNEL, "from += word - to;", "from += word > to ? word - to : 0;", "the source of a row's first word"),
	(KERNEL, "i < nr; i += gridDim.x", "i < nr; i += gridDim.x + 1", "tiles that no block takes"),
	(KERNEL, "kind == RS_BOX_ZERO ? (uint8_t)0 : LOAD", "0 ? (uint8_t)0 : LOAD", "the ends of zeros are loaded"),
	(BOXES, "apart % WORD ? RS_BOX_SHIFT : RS_BOX_PEEL", "RS_BOX_PEEL", "both sides are taken for aligned"),
	(BOXES, "apart |= c->to_stride[k] ^ c->from_stride[k];", "", "rows that drift apart are taken for aligned"),
	(BOXES, "both |= c->to_stride[k] | c->from_stride[k];", "both |= c->to_stride[k];", "the source's strides are not asked"),
	(BOXES, "c->run + 2 * (WORD - 1)", "c->run + WORD - 1", "a row that touches a word more"),
	(BOXES, "(32 + v.shift)) + d - 1) / d", "(32 + v.shift))) / d", "a divisor is rounded down"),
	(BOXES, "c->from_stride[last] == c->ext[k] * c->from_stride[k]", "1", "dimensions are joined that only the target joins"),
	(BOXES, "b.from += from;", "b.from += to;", "the second half of a large box"),
	(BOXES, "bytes > to->bytes || ", "", "a target may have a byte twice"),
	(BOXES, "is_inside(&c, c.from, c.from_stride, from->bytes)", "1", "sources may be outside"),
	(BOXES, "(uint32_t)sc_min_u64(step, units - at)", "(uint32_t)step", "the last tile is as long as the others"),
	(BOXES, "*t = before;", "", "a refused copy leaves boxes in the tables"),
	(GATHER, "ret->from += c->ext[0] / c->rows * before * c->from_stride[0];", "ret->from += before * c->from_stride[0];", "rows that are some indexes of a collapsed dimension"),
	(GATHER, "c->row = k < shape->nr ? region->off[k] : 0;", "c->row = 0;", "all copies begin at row 0"),
	(BUNDLES, "join(s, sources[g->copies[0].source]);", "", "copies of a tensor are not joined"),
	(ROUNDS, "like - *used", "*used - like", "places in windows at another byte of 16"),
	(ROUNDS, "out && s->held < all[i].bytes", "false", "padding between rows is not made 0"),
	(ROUNDS, "rs_copy_bytes(&c->copy) + PACK_EXTRA", "rs_copy_bytes(&c->copy)", "what packing takes for alignment is not counted"),
	(ROUNDS, "p->to = from->sends[c->writer].at + c->packed;", "p->to = from->sends[c->writer].at;", "packed boxes on each other"),
	(ROUNDS, "at = r->done.at[i].hi;", "at = r->done.at[i].lo;", "the rest has what rounds wrote"),
	(ROUNDS, "go_on(r, r->row + rows);", "go_on(r, r->row + rows - (full && rows > 1));", "a row is taken twice"),
	(ROUNDS, "a->unpacks + b->unpacks > boxes", "0", "a table is longer than it may be"),
	(ROUNDS, "if (r->done.nr > 2", "if (r->out.nr == 1) r->done.nr--; if (r->done.nr > 2", "what was written is forgotten"),
]


def command(build, of):
	"""How the build compiles a source: a list of words, and its folder."""
	for unit in json.load(open(os.path.join(build, "compile_commands.json"))):
		if os.path.relpath(os.path.join(unit["directory"], unit["file"]), ROOT) == of:
			return shlex.split(unit["command"])
	sys.exit(f"planted: {build} does not compile {of}")


def compiled(build, source, text, folder):
	"""An object of the source's user, made of this text."""
	use = USES[source][0]
	copy = pathlib.Path(folder, source)
	copy.parent.mkdir(parents=True)
	copy.write_text(text)
	words = command(build, use)
	words[words.index("-o") + 1] = f"{folder}/out.o"
	words[words.index("-c") + 1] = str(copy if use == source else ROOT / use)
	words = [w for w in words if not w.startswith("-O") and w not in ("-MD", "-g")] + ["-O1"]
	for flag in ("-MQ", "-MF"):
		del words[words.index(flag):words.index(flag) + 2]
	words.insert(1, f"-I{folder}")
	subprocess.run(words, cwd=build, check=True, stderr=subprocess.DEVNULL)
	return f"{folder}/out.o"


def passes(build, source, text):
	test = USES[source][1]
	with tempfile.TemporaryDirectory(prefix="scalai-planted.") as folder:
		obj = compiled(build, source, text, folder)
		link = subprocess.run(["ninja", "-t", "commands", "-s", f"tests/{test}"], cwd=build, check=True, capture_output=True, text=True).stdout
		words = shlex.split(link)
		words[words.index("-o") + 1] = f"{folder}/test"
		words.insert(words.index("-o"), obj)
		subprocess.run(words, cwd=build, check=True)
		env = {**os.environ, "ROUNDS": os.environ.get("ROUNDS", "600"), "UBSAN_OPTIONS": "halt_on_error=1",
		       "ASAN_OPTIONS": "detect_leaks=0"}
		try:
			return subprocess.run([f"{folder}/test"], env=env, capture_output=True, timeout=120).returncode == 0
		except subprocess.TimeoutExpired:
			return False	# it never ends: seen


def tries(mistake):
	source, old, new, _ = mistake
	text = (ROOT / source).read_text()
	if text.count(old) != 1:
		sys.exit(f"planted: {source} has '{old}' {text.count(old)} times")
	return passes(sys.argv[1], source, text.replace(old, new))


def main():
	word = sys.argv[2] if len(sys.argv) > 2 else ""
	mistakes = [m for m in MISTAKES if word in m[3]]
	failed = 0
	with concurrent.futures.ThreadPoolExecutor(2) as pool:
		right = {s: pool.submit(passes, sys.argv[1], s, (ROOT / s).read_text()) for s in USES if any(m[0] == s for m in mistakes)}
		planted = [(m, pool.submit(tries, m)) for m in mistakes]
		for source, result in right.items():
			if not result.result():
				failed += 1
				print(f"{source} is unchanged, and {USES[source][1]} fails", flush=True)
		for (source, _, _, what), result in planted:
			if result.result():
				failed += 1
				print(f"{source}: not seen by {USES[source][1]}: {what}", flush=True)
	print(f"{len(mistakes)} mistakes planted, {len(mistakes) + len(right) - failed} of {len(mistakes) + len(right)} tests as they should be")
	return 1 if failed else 0


sys.exit(main())
