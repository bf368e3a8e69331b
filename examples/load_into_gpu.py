# SPDX-License-Identifier: Apache-2.0
"""
Loads a rank's file from `.gpu` of a mount into PyTorch: load_into_gpu.py FILE prints the tensors that it has.

Needs PyTorch and the CUDA runtime that it has loaded, and no library of Scalai's.
"""
import contextlib
import ctypes
import json
import sys

import torch

TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64",
	 "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
	 "F8_E8M0": "float8_e8m0fnu", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
	 "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool"}


class Handle(ctypes.Structure):
	"""cudaIpcMemHandle_t, which is passed by value."""
	_fields_ = [("reserved", ctypes.c_ubyte * 64)]


class Memory:
	"""Bytes of a GPU, of which torch.as_tensor() makes a tensor without a copy."""
	def __init__(self, at, nr):
		self.__cuda_array_interface__ = {"shape": (nr,), "typestr": "|u1", "data": (at, False), "version": 2}


def check(rc):
	if rc:
		raise RuntimeError(f"CUDA error {rc}")


@contextlib.contextmanager
def opened(path):
	"""The file's bytes as a tensor in the memory of its GPU, which is there until the block ends."""
	cudart = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
	device, at = ctypes.c_int(), ctypes.c_void_p()
	with open(path) as f: # which returns when all bytes are there
		said = json.load(f)
		check(cudart.cudaDeviceGetByPCIBusId(ctypes.byref(device), said["device"].encode()))
		handle = Handle.from_buffer_copy(bytes.fromhex(said["handle"]))
		with torch.cuda.device(device.value):
			check(cudart.cudaIpcOpenMemHandle(ctypes.byref(at), handle, 1)) # 1: cudaIpcMemLazyEnablePeerAccess
			try:
				yield torch.as_tensor(Memory(at.value, said["bytes"]), device=f"cuda:{device.value}")
			finally:
				torch.cuda.synchronize() # what was enqueued has ended
				check(cudart.cudaIpcCloseMemHandle(at)) # before the file is closed


def tensor(part, dtype, shape):
	"""Bytes of a file as a tensor: without a copy, if they are aligned in it."""
	of = getattr(torch, TYPES.get(dtype, ""), None)
	if of is None:
		raise TypeError(f"this PyTorch has no {dtype}")
	return (part.clone() if part.storage_offset() % of.itemsize else part).view(of).reshape(shape)


def tensors(file):
	"""name -> tensor, of the bytes of a .safetensors file."""
	begin = 8 + int.from_bytes(bytes(file[:8].tolist()), "little")
	header = json.loads(file[8:begin].cpu().numpy().tobytes())
	header.pop("__metadata__", None)
	return {name: tensor(file[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]], t["dtype"], t["shape"])
		for name, t in header.items()}


def load(path):
	"""name -> tensor, copied: the tensors stay."""
	with opened(path) as file:
		return {name: t.clone() for name, t in tensors(file).items()}


if __name__ == "__main__":
	for tensor_name, loaded in load(sys.argv[1]).items():
		print(tensor_name, loaded.dtype, tuple(loaded.shape), loaded.device)
