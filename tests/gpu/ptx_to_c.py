#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Writes a compiled kernel as C, a statement for each instruction: ptx_to_c.py KERNEL.ptx OUT.c

So what nvcc made runs on the CPU, not only what it was given.  Registers are arrays; loads and stores of data (those with a cache
operator) go through host_access(), others are of tables.  For kernels whose threads do not meet; an instruction that is not known
here is an error.
"""
import re
import sys

TYPES = {kind + bits: f"{'int' if kind == 's' else 'uint'}{bits}_t" for kind in "usb" for bits in ("8", "16", "32", "64")} | {"pred": "uint8_t"}
SPECIAL = {"%tid.x": "tid", "%ctaid.x": "ctaid", "%ntid.x": "ntid", "%nctaid.x": "nctaid"}
BINARY = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^", "mul.lo": "*"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def value(operand):
	if operand in SPECIAL:
		return SPECIAL[operand]
	register = re.fullmatch(r"%([a-z]+)(\d+)", operand)
	if register:
		return f"{register[1]}[{register[2]}]"
	if not re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", operand):
		sys.exit(f"ptx_to_c: unknown operand {operand}")
	return f"({operand}LL)"


def typed(kind, operand):
	return f"({TYPES[kind]}){value(operand)}"


def address(operand):
	base, add = re.fullmatch(r"\[(%rd\d+)(?:\+(-?\d+))?\]", operand).groups()
	return f"({value(base)} + ({add or 0}LL))"


def memory(parts, operands):
	"""ld.global and st.global; of a vector, each element."""
	load, kind = parts[0] == "ld", parts[-1]
	elements = next((int(p[1]) for p in parts if p in ("v2", "v4")), 1)
	registers, at = (operands[:-1], operands[-1]) if load else (operands[1:], operands[0])
	place = address(at)
	if "cs" in parts or "cg" in parts:
		place = f"host_access(device, {place}, {elements} * sizeof({TYPES[kind]}), {int(not load)})"
	if not load:
		return f"memcpy((void *){place}, ({TYPES[kind]}[]){{{', '.join(typed(kind, r) for r in registers)}}}, {elements} * sizeof({TYPES[kind]}));"
	moves = " ".join(f"{value(r)} = v_[{i}];" for i, r in enumerate(registers))
	return f"{{ {TYPES[kind]} v_[{elements}]; memcpy(v_, (void *){place}, sizeof(v_)); {moves} }}"


def statement(code, o):
	parts = code.split(".")
	name, kind = parts[0], parts[-1]
	if code.startswith("ld.param"):
		return f"{value(o[0])} = {o[1][1:-1]};"
	if code.startswith(("ld.global", "st.global")):
		return memory(parts, o)
	if name == "bra":
		return f"goto {o[0].replace('$', '_')};"
	if name == "ret":
		return "return;"
	if name in ("mov", "cvta"):
		return f"{value(o[0])} = {value(o[1])};"
	to = f"{value(o[0])} = "
	if name == "cvt":
		return to + f"({TYPES[parts[-2]]}){typed(kind, o[1])};"
	if name in BINARY or ".".join(parts[:2]) in BINARY:
		unsigned = kind.replace("s", "u") # it wraps
		sign = BINARY.get(name) or BINARY[".".join(parts[:2])]
		return to + f"{typed(unsigned, o[1])} {sign} {typed(unsigned, o[2])};"
	if code == "mul.hi.u32":
		return to + f"(uint32_t)((uint64_t){typed('u32', o[1])} * {typed('u32', o[2])} >> 32);"
	if parts[:2] == ["mul", "wide"]:
		wide = "int64_t" if kind == "s32" else "uint64_t"
		return to + f"(uint64_t)(({wide}){typed(kind, o[1])} * ({wide}){typed(kind, o[2])});"
	if name in ("shl", "shr"):
		bits = kind[1:]
		return to + f"{typed('u32', o[2])} >= {bits} ? 0 : {typed('u' + bits, o[1])} {'<<' if name == 'shl' else '>>'} {typed('u32', o[2])};"
	if code == "shf.r.wrap.b32":
		return to + f"(uint32_t)(((uint64_t){typed('u32', o[2])} << 32 | {typed('u32', o[1])}) >> ({value(o[3])} & 31));"
	if name == "not":
		return to + f"{'!' if kind == 'pred' else '~'}{typed(kind, o[1])};"
	if name in ("min", "max"):
		a, b = typed(kind, o[1]), typed(kind, o[2])
		return to + f"{a} {'<' if name == 'min' else '>'} {b} ? {a} : {b};"
	if name == "setp" and len(parts) == 3:
		return to + f"{typed(kind, o[1])} {COMPARE[parts[1]]} {typed(kind, o[2])};"
	if name == "selp":
		return to + f"{value(o[3])} ? {typed(kind, o[1])} : {typed(kind, o[2])};"
	sys.exit(f"ptx_to_c: unknown instruction {code} {', '.join(o)}")


def main(path, out):
	text = open(path).read()
	text = text[text.index(".entry"):]
	head, body = text.split("{", 1)
	name = re.search(r"\.entry\s+(\w+)\(", head)[1]
	params = [f"{TYPES[t]} {p}" for t, p in re.findall(r"\.param\s+\.(u\d+)\s+(\w+)", head)]
	registers, lines = [], []
	for line in body[:body.rindex("}")].split("\n"):
		line = line.split("//")[0].strip()
		declared = re.fullmatch(r"\.reg\s+\.(\w+)\s+%([a-z]+)<(\d+)>;", line)
		label = re.fullmatch(r"(\$\w+):", line)
		if declared:
			registers.append(f"\t{TYPES[declared[1]]} {declared[2]}[{declared[3]}];")
		elif label:
			lines.append(f"{label[1].replace('$', '_')}: ;")
		elif line and not line.startswith(".pragma"):
			no, predicate, code, operands = re.fullmatch(r"(?:@(!?)(%p\d+)\s+)?([\w.]+)\s*(.*?);", line).groups()
			made = statement(code, [o for o in re.split(r"[\s,{}]+", operands) if o])
			lines.append(f"\tif ({no}{value(predicate)}) {made}" if predicate else f"\t{made}")
	arguments = ", ".join(params + ["uint32_t " + s for s in SPECIAL.values()] + ["struct host_device *device"])
	with open(out, "w") as f:
		f.write(f"/* made by tests/gpu/ptx_to_c.py */\n#include \"tests/gpu/host_run.h\"\n\n#include <string.h>\n\nvoid {name}_ptx({arguments});\nvoid {name}_ptx({arguments})\n{{\n")
		f.write("\n".join(registers + ["\t(void)tid, (void)ctaid, (void)ntid, (void)nctaid;"] + lines) + "\n}\n")


main(*sys.argv[1:])
