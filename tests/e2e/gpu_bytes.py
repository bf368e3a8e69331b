# SPDX-License-Identifier: Apache-2.0
"""
gpu_bytes.py FILE OF: opens FILE of .gpu, and compares what is in the GPU's memory with the file OF.  The GPU is the stand-in of
tests/gpu/fake_cuda.c: a handle has the helper's pid and address.
"""
import json
import os
import struct
import sys

with open(sys.argv[1]) as f:
	said = json.load(f)
	assert said["device"].startswith("0000:00:1"), said
	magic, pid, at, room = struct.unpack("QQQQ", bytes.fromhex(said["handle"])[:32])
	assert magic == int.from_bytes(b"handle", "little"), said
	with open(f"/proc/{pid}/mem", "rb") as memory:
		memory.seek(at)
		found = memory.read(room)
	expected = open(sys.argv[2], "rb").read()
	assert said["bytes"] == len(expected), (said, len(expected))
	assert found[:len(expected)] == expected, "other bytes"
	assert not any(found[len(expected):]), "something behind the file"
	assert os.fstat(f.fileno()).st_size == 0
