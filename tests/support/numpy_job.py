# SPDX-License-Identifier: Apache-2.0
"""
Jobs that tests make of numpy's arrays: control files, and tensors as safetensors has them, read and written without its library.
"""
import json
import struct

import numpy as np

TYPES = {"f4": "F32", "f2": "F16", "f8": "F64", "i4": "I32", "i8": "I64", "u1": "U8", "u2": "BF16", "b1": "BOOL", "c8": "C64"}
KINDS = {**{v: k for k, v in TYPES.items()}, "F8_E4M3": "u1"}


class Refused(Exception):
    """With the sentence of .ctl/error."""


def write(job, control, text):
    try:
        (job / ".ctl" / control).write_text(text + "\n")
    except OSError:
        raise Refused((job / ".ctl/error").read_text().strip()) from None


def save(path, tensors, types=None):
    """Writes arrays by name; `types` names types that numpy has not."""
    head, data, at = {}, [], 0
    for name, a in tensors.items():
        head[name] = {"dtype": types[name] if types else TYPES[a.dtype.str[1:]], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        data.append(np.ascontiguousarray(a).tobytes())
        at += a.nbytes
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def load(path):
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    return {k: np.frombuffer(raw[8 + n:][slice(*t["data_offsets"])], KINDS[t["dtype"]]).reshape(t["shape"])
            for k, t in json.loads(raw[8:8 + n]).items() if k != "__metadata__"}
