#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders of DeepSpeed, without DeepSpeed.

    deepspeed_folders.py equal FILE EXPECTED        compares two files of whole tensors
    deepspeed_folders.py spoil FROM STAGE HOW...    copies a folder to HOW, and makes it wrong
"""
import os
import pickle
import shutil
import sys
import types

import torch
from safetensors.torch import load_file


def stand_in(module, name):
    """A class that is not installed: it keeps arguments and state, and is saved as it was."""
    parts = module.split(".")
    for i in range(len(parts)):
        sys.modules.setdefault(".".join(parts[:i + 1]), types.ModuleType(".".join(parts[:i + 1])))
    m = sys.modules[module]
    if not hasattr(m, name):
        def new(cls, *args):
            o = object.__new__(cls)
            o.__dict__["_args"] = args
            return o

        def reduce(self, _protocol):
            state = {k: v for k, v in self.__dict__.items() if k != "_args"}
            return type(self), self._args, state or None
        setattr(m, name, type(name, (), {"__module__": module, "__new__": new, "__init__": lambda self, *a: None,
                                         "__reduce_ex__": reduce}))
    return getattr(m, name)


class Pickles:
    """The module pickle, for torch.load()."""
    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            try:
                return super().find_class(module, name)
            except (ImportError, AttributeError):
                return stand_in(module, name)

    load = staticmethod(pickle.load)


def change(path, fn):
    state = torch.load(path, pickle_module=Pickles, weights_only=False)
    fn(state)
    torch.save(state, path)


def spoil_one(how, source, to, stage):
    shutil.copytree(source, to)
    model = os.path.join(to, "zero_pp_rank_0_mp_rank_00_model_states.pt" if stage == 3 else "mp_rank_00_model_states.pt")
    optim = [os.path.join(to, f"bf16_zero_pp_rank_{i}_mp_rank_00_optim_states.pt") for i in (0, 1, 2)]

    def shapes(fn):
        def edit(state):
            group = state["param_shapes"][0]
            pairs = fn(list(group.items()))
            group.clear()
            group.update(pairs)
        change(model, edit)
    if how == "missing":
        os.unlink(optim[1])
    elif how == "another":
        shutil.copy(optim[1], optim[2])
    elif how == "cut":
        os.truncate(optim[1], 3000)
    elif how == "order":
        shapes(lambda pairs: pairs[::-1])
    elif how == "larger":
        shapes(lambda pairs: [(k, torch.Size([s[0] + 40, *s[1:]])) for k, s in pairs])
    elif how == "fewer":
        change(model, lambda state: state["param_shapes"][0].clear())
    elif how == "count":
        for path in optim[:2]:
            change(path, lambda state: state["optimizer_state_dict"].update(partition_count=[1, 1]))
    elif how == "parts":
        def halve(state):
            o = state["optimizer_state_dict"]
            key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
            o[key][0] = o[key][0][:len(o[key][0]) // 2].clone()
        change(optim[0], halve)
    elif how == "parallel":
        shutil.copy(model, os.path.join(to, "mp_rank_01_model_states.pt"))


def spoil(source, stage, *ways):
    for how in ways:
        spoil_one(how, source, how, int(stage))


def equal(path, expected):
    a, b = load_file(path), load_file(expected)
    assert set(a) == set(b), set(a) ^ set(b)
    bad = [k for k in a if a[k].dtype != b[k].dtype or a[k].shape != b[k].shape or not torch.equal(a[k], b[k])]
    assert not bad, bad
    print(len(a), "tensors are equal")


if __name__ == "__main__":
    {"equal": equal, "spoil": spoil}[sys.argv[1]](*sys.argv[2:])
