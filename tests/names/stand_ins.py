# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for libraries that Megatron-core takes layers from and that need a GPU: Transformer Engine, mamba-ssm, grouped_gemm.

Of a layer they have what a checkpoint sees: its parameters, with names and shapes, and opaque bytes.  How they are cut by
tensor parallelism, and what they are called, is Megatron's own code (extensions/transformer_engine.py, ssm/, moe/).
"""
import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from unittest.mock import MagicMock

import torch

NAMES = ("transformer_engine", "transformer_engine_torch", "mamba_ssm", "causal_conv1d", "einops", "grouped_gemm", "fla")
KERNELS = "megatron.core.inference.contexts.attention_context.triton"     # of inference, in Triton
ONE_SIDE = {"column": "out", "row": "in", None: ""}


class Empty(types.ModuleType):
    """A module in which every name is something that can be called, or a base of a class."""
    __version__ = "2.8.0"
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in NAMES or name.startswith(KERNELS) else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


def weight(*shape):
    return torch.nn.Parameter(torch.empty(*shape))


class Layer(torch.nn.Module):
    """What layers of Transformer Engine have in common: a state of opaque bytes, the same on ranks that share a layer."""

    def sides(self, in_features, out_features, tp_size, parallel_mode):
        self.parallel_mode, self.tp_size = parallel_mode, tp_size
        side = ONE_SIDE[parallel_mode]
        return out_features // (tp_size if side == "out" else 1), in_features // (tp_size if side == "in" else 1)

    def get_extra_state(self):
        return torch.arange(self.opaque, dtype=torch.uint8)

    def set_extra_state(self, state):
        pass

    opaque = 96     # bytes; by tp=2 and 4 they could be cut


class Linear(Layer):
    def __init__(self, in_features, out_features, tp_size=1, bias=True, parallel_mode=None, **_):
        super().__init__()
        rows, columns = self.sides(in_features, out_features, tp_size, parallel_mode)
        self.use_bias = bias
        self.weight = weight(rows, columns)
        if bias:
            self.bias = weight(rows)


class LayerNormLinear(Linear):
    def __init__(self, in_features, out_features, normalization="LayerNorm", **more):
        super().__init__(in_features, out_features, **more)
        self.layer_norm_weight = weight(in_features)
        if normalization == "LayerNorm":
            self.layer_norm_bias = weight(in_features)


class GroupedLinear(Layer):
    def __init__(self, num_gemms, in_features, out_features, tp_size=1, bias=True, parallel_mode=None, **_):
        super().__init__()
        rows, columns = self.sides(in_features, out_features, tp_size, parallel_mode)
        self.num_gemms, self.use_bias = num_gemms, bias
        self.fp8 = self.fp8_calibration = False
        self.fp8_meta = {"fp8_checkpoint": False}
        for i in range(num_gemms):
            setattr(self, f"weight{i}", weight(rows, columns))
            if bias:
                setattr(self, f"bias{i}", weight(rows))


class RMSNorm(torch.nn.Module):
    def __init__(self, hidden_size, **_):
        super().__init__()
        self.weight = weight(hidden_size)


class LayerNorm(RMSNorm):
    def __init__(self, hidden_size, **_):
        super().__init__(hidden_size)
        self.bias = weight(hidden_size)


class DotProductAttention(Layer):
    def __init__(self, *_, **__):
        super().__init__()


def install():
    sys.meta_path.insert(0, Finder())
    import mamba_ssm.ops.triton.layernorm_gated as gated
    import transformer_engine
    import transformer_engine.pytorch as te
    transformer_engine.pytorch = te
    for kind in Linear, LayerNormLinear, GroupedLinear, RMSNorm, LayerNorm, DotProductAttention:
        setattr(te, kind.__name__, kind)
    import transformer_engine.pytorch.cpu_offload as offload
    offload.get_cpu_offload_context = lambda *_, **__: (contextlib.nullcontext(), None)
    gated.RMSNorm = RMSNorm
