# SPDX-License-Identifier: Apache-2.0
"""
Digests of logical tensors by the definition in docs/formats.md, slowly: digest.py FILE.safetensors...

Prints DIGEST NAME of each tensor of the files.
"""
import json
import struct
import sys

ECMA, JONES = 0xC96C5795D7870F42, 0x95AC9329AC4BC9B5	# reflected: the highest power of x is the lowest bit


def table(polynomial):
	"""What a byte becomes when eight bits have passed."""
	result = []
	for crc in range(256):
		for _ in range(8):
			crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
		result.append(crc)
	return result


TABLES = table(ECMA), table(JONES)


def digest(data):
	"""Two CRC-64 without initial value and final complement, as 32 hexadecimal digits: ECMA's, then Jones'."""
	text = ""
	for t in TABLES:
		crc = 0
		for byte in data:
			crc = crc >> 8 ^ t[(crc ^ byte) & 255]
		text += f"{crc:016x}"
	return text


def tensors(path):
	"""(name, bytes) of each tensor of a safetensors file."""
	with open(path, "rb") as f:
		header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
		data = f.read()
	for name, t in header.items():
		if name != "__metadata__":
			yield name, data[t["data_offsets"][0]:t["data_offsets"][1]]


if __name__ == "__main__":
	for path in sys.argv[1:]:
		for name, data in tensors(path):
			print(digest(data), name)
