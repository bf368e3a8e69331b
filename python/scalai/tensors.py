# SPDX-License-Identifier: Apache-2.0
"""
What PyTorch holds, saved and loaded as files of a rank, by safetensors.

    tensors.save(job, rank, tensors.local(model))
    tensors.load_into(model, tensors.load(job, rank))
"""
from __future__ import annotations

import importlib
import os
from typing import Any, Dict, Mapping, Optional, Union

from . import Job

MODEL = "model.safetensors"


def local(model: Any) -> Dict[str, Any]:
    """What this rank holds of a model, by the names of the plain one: also in DDP, torch.compile and FSDP2."""
    while hasattr(model, "_orig_mod") or hasattr(model, "module"):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return {name: t.to_local() if hasattr(t, "to_local") else t
            for name, t in model.state_dict().items() if hasattr(t, "detach")}  # Megatron has None for some


def save(job: Job, rank: int, state: Mapping[str, Any], file: str = MODEL) -> None:
    """Makes a file of a rank: the whole one, or the one of before."""
    path = os.path.join(job.folder(rank), file)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        # copies: tied tensors share their bytes, which safetensors refuses
        importlib.import_module("safetensors.torch").save_file(
            {name: t.detach().to("cpu", copy=True).contiguous() for name, t in state.items()}, path + ".tmp")
        os.replace(path + ".tmp", path)
    except BaseException:
        if os.path.exists(path + ".tmp"):
            os.unlink(path + ".tmp")
        raise


def load(job: Job, rank: int, file: str = MODEL, topology: Optional[str] = None,
         version: Optional[Union[int, str]] = None, device: str = "cpu") -> Dict[str, Any]:
    """The tensors of a rank's file, by name: of the head, of another topology, of a version."""
    state: Dict[str, Any] = importlib.import_module("safetensors.torch").load_file(
        os.path.join(job.folder(rank, topology, version), file), device=device)
    return state


def load_into(model: Any, state: Mapping[str, Any]) -> None:
    """Gives a model what local() had of it."""
    here = local(model)
    if here.keys() != state.keys():
        raise KeyError(f"the model and the file differ in {', '.join(sorted(here.keys() ^ state.keys()))}")
    with importlib.import_module("torch").no_grad():
        for name, t in here.items():
            t.copy_(state[name])
