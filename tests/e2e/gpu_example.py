# SPDX-License-Identifier: Apache-2.0
"""What examples/load_into_gpu.py makes of a file's bytes, in the memory of the host: tensors at any byte, of each type that PyTorch has."""
import json
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "examples"))
from load_into_gpu import TYPES, tensors # pylint: disable=wrong-import-position


def file_of(parts):
	"""A .safetensors file of (name, dtype, shape, bytes), one behind the other."""
	header, at = {"__metadata__": {"format": "pt"}}, 0
	for name, dtype, shape, data in parts:
		header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
		at += len(data)
	text = json.dumps(header).encode()
	return torch.frombuffer(bytearray(len(text).to_bytes(8, "little") + text + b"".join(p[3] for p in parts)), dtype=torch.uint8)


known = {dtype: getattr(torch, name) for dtype, name in TYPES.items() if hasattr(torch, name)}
assert len(known) >= 12, known
odd = ("odd", "U8", [3], bytes([1, 2, 3]))
for dtype, of in known.items():
	data = bytes(range(4 * of.itemsize)) if of != torch.bool else bytes([0, 1, 1, 0])
	for parts in ([("a", dtype, [2, 2], data)], [odd, ("a", dtype, [2, 2], data)], [("a", dtype, [2, 2], data), odd]):
		found = tensors(file_of(parts))
		assert found.keys() == {p[0] for p in parts}
		assert found["a"].dtype == of and found["a"].shape == (2, 2), dtype
		assert bytes(found["a"].flatten().view(torch.uint8).tolist()) == data, dtype
try:
	tensors(file_of([("a", "F4", [2], b"x")]))
	sys.exit("a type that PyTorch does not have was taken")
except TypeError as e:
	assert "F4" in str(e)
