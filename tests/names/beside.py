# SPDX-License-Identifier: Apache-2.0
"""
MOUNT [KIND...]: what stands beside a model's weights, and that presets know: cut here by numpy as frameworks cut it, committed at
each topology, compared at each other one, and whole again.
"""
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from numpy_job import KINDS, Refused, load, save, write  # noqa: E402

mount = pathlib.Path(sys.argv[1])
numbers = np.random.default_rng(40)
jobs = 0


class Model:
    """Whole tensors, and of each how tp cuts it: (dimension, sections, parts at most) or None."""

    def __init__(self):
        self.whole, self.cuts, self.types = {}, {}, {}

    def add(self, name, shape, dim=None, sections=(1,), upto=None, dtype="F16"):
        kind = np.dtype(KINDS[dtype])
        self.whole[name] = numbers.standard_normal(shape).astype(kind) if kind.kind == "f" else numbers.integers(0, 200, shape).astype(kind)
        self.cuts[name] = None if dim is None else (dim, sections, upto)
        self.types[name] = dtype

    def rank(self, tp, at):
        out = {}
        for name, a in self.whole.items():
            if self.cuts[name] and tp > 1:
                dim, sections, upto = self.cuts[name]
                parts = min(upto or tp, tp)
                borders = np.cumsum(sections)[:-1] * (a.shape[dim] // sum(sections))
                a = np.concatenate([np.split(s, parts, axis=dim)[at * parts // tp] for s in np.split(a, borders, axis=dim)], axis=dim)
            out[name] = a
        return out


def commit(model, layout, tp, config=None, ranks=None):
    global jobs
    jobs += 1
    job = mount / f"beside{jobs}"
    job.mkdir()
    write(job, "layout", layout)
    write(job, "topology", f"tp={tp}")
    for at in range(tp):
        (job / str(at)).mkdir(exist_ok=True)
        save(job / str(at) / "model.safetensors", ranks[at] if ranks else model.rank(tp, at), model.types)
    if config:
        (job / "config.json").write_text(json.dumps(config))
    write(job, "commit", "step=1")
    return job


def same(found, want, what):
    assert found.keys() == want.keys(), (what, found.keys() ^ want.keys())
    for k, a in want.items():
        assert found[k].shape == a.shape and found[k].tobytes() == a.tobytes(), (what, k, found[k].shape, a.shape)


def held(model, layout, topologies=(1, 2, 4), config=None):
    """From each topology to each other one every rank has what the framework's rule gives it, and all is whole again."""
    for tp in topologies:
        job = commit(model, layout, tp, config)
        for t in topologies:
            for at in range(t):
                same(load(job / f".as/tp={t}" / str(at) / "model.safetensors"), model.rank(t, at), f"{layout}: tp={tp} to tp={t}, rank {at}")
        same(load(job / ".full/model.safetensors"), model.whole, f"{layout}: whole from tp={tp}")
    print(f"figure: {layout}: {len(model.whole)} tensors at tp = {', '.join(map(str, topologies))}")


def refused(job, control, text, *words):
    try:
        write(job, control, text)
    except Refused as why:
        assert all(w in str(why) for w in words), (words, str(why))
    else:
        raise AssertionError(f"{text} was taken, want: {words}")


# what a layer's linear maps are: rows, columns, how rows are cut (None: its columns are)
HEAD, HIDDEN, INNER = 16, 64, 96
LLAMA = {"self_attn.q_proj": (8 * HEAD, HIDDEN, {}), "self_attn.k_proj": (2 * HEAD, HIDDEN, {"upto": 2}), "self_attn.v_proj": (2 * HEAD, HIDDEN, {"upto": 2}),
         "self_attn.o_proj": (HIDDEN, 8 * HEAD, None), "mlp.gate_proj": (INNER, HIDDEN, {}), "mlp.up_proj": (INNER, HIDDEN, {}),
         "mlp.down_proj": (HIDDEN, INNER, None)}
CONFIG = {"model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 2, "num_attention_heads": 8,
          "num_key_value_heads": 2, "head_dim": HEAD, "vocab_size": 128}


def lora_of(m, name, rows, columns, cut, base, adapter, rank=8, magnitude=None):
    """As vLLM's layers with LoRA: by rows A is whole and B cut as the base, by columns A is cut as the base and B whole."""
    if base:
        m.add(f"{name}.base_layer.weight", [rows, columns], *([1] if cut is None else [0]), **(cut or {}))
    m.add(f"{name}.lora_A{adapter}.weight", [rank, columns], 1 if cut is None else None)
    m.add(f"{name}.lora_B{adapter}.weight", [rows, rank], None if cut is None else 0, **(cut or {}))
    if magnitude:
        m.add(name + magnitude, [rows], None if cut is None else 0, **(cut or {}))


def lora():
    for prefix, base, adapter, magnitude in (("", False, "", ".lora_magnitude_vector"), ("", True, ".default", ".lora_magnitude_vector.default.weight"),
                                             ("base_model.model.", True, ".my.first", None)):
        m = Model()
        for i in range(2):
            for name, (rows, columns, cut) in LLAMA.items():
                lora_of(m, f"{prefix}model.layers.{i}.{name}", rows, columns, cut, base, adapter, magnitude=magnitude)
        m.add(f"{prefix}model.embed_tokens.lora_embedding_A{adapter}", [8, 128])
        m.add(f"{prefix}model.embed_tokens.lora_embedding_B{adapter}", [HIDDEN, 8])
        if base:
            m.add(f"{prefix}model.embed_tokens.base_layer.weight", [128, HIDDEN], 0)
        m.whole[f"{prefix}model.layers.1.mlp.up_proj.lora_B{adapter}.weight"][:] = 0  # as it begins
        root = f" root={prefix}" if prefix else ""
        held(m, f"use hf-llama kv=2{root}", config=CONFIG if base else None)
    job = commit(m, f"use hf-llama kv=2{root}", 1)
    try:
        list((job / ".vllm/tp=1").iterdir())
        raise AssertionError("vLLM cannot have this")
    except OSError:
        pass
    # heads are judged by the base's name, too
    job = commit(m, f"use hf-llama{root}", 2, CONFIG)
    refused(job, "topology", "tp=4", "k_proj.base_layer.weight' has 2 heads by config.json", "kv=2")
    # factors that are cut in another dimension, or are no factors of the weight
    for cuts, why in ({"o_proj.lora_A": 0}, "no factors of their weight"), ({"q_proj.lora_B": 1}, "no factors of"), \
                     ({"down_proj.lora_A": 0, "down_proj.lora_B": 1}, "no factors of"):
        m = Model()
        for name, (rows, columns, cut) in LLAMA.items():
            lora_of(m, f"model.layers.0.{name}", rows, columns, cut, True, "")
        as_is = [m.rank(2, at) for at in range(2)]
        for words, dim in cuts.items():
            for at, mine in enumerate(as_is):
                name = next(n for n in mine if words in n)
                mine[name] = np.split(m.whole[name], 2, axis=dim)[at]
        try:
            commit(m, "use hf-llama kv=2", 2, ranks=as_is)
            raise AssertionError(cuts)
        except Refused as said:
            assert why in str(said) or "copy of" in str(said), said
    m = Model()
    for i in range(2):
        h = f"model.layers.{i}."
        lora_of(m, h + "self_attn.q_a_proj", 24, HIDDEN, None, False, "")
        m.cuts[h + "self_attn.q_a_proj.lora_A.weight"] = None  # whole, as its weight is
        m.add(h + "self_attn.q_a_proj.base_layer.weight", [24, HIDDEN])
        lora_of(m, h + "self_attn.kv_b_proj", 128, 32, {}, True, "")
        lora_of(m, h + "mlp.shared_experts.up_proj", INNER, HIDDEN, {}, True, ".default")
        lora_of(m, h + "mlp.shared_experts.down_proj", HIDDEN, INNER, None, True, ".default")
        for e in range(2):
            lora_of(m, f"{h}mlp.experts.{e}.gate_proj", INNER, HIDDEN, {}, True, ".default")
            lora_of(m, f"{h}mlp.experts.{e}.down_proj", HIDDEN, INNER, None, True, ".default")
    held(m, "use hf-moe")
    for prefix in "", "transformer.":
        m = Model()
        for i in range(2):
            h = f"{prefix}h.{i}."
            for name, n, k, rows, sections in (("attn.c_attn", HIDDEN, 3 * HIDDEN, True, (1, 1, 1)), ("mlp.c_fc", HIDDEN, 4 * HIDDEN, True, (1,)), ("mlp.c_proj", 4 * HIDDEN, HIDDEN, False, (1,))):
                m.add(f"{h}{name}.base_layer.weight", [n, k], int(rows), sections)  # Conv1D: [columns, rows]
                m.add(f"{h}{name}.base_layer.bias", [k], 0 if rows else None, sections)
                m.add(f"{h}{name}.lora_A.default.weight", [8, n], None if rows else 1)
                m.add(f"{h}{name}.lora_B.default.weight", [k, 8], 0 if rows else None, sections)
        held(m, "use hf-gpt2")
    m = Model()
    for i in range(2):
        for name, (rows, columns, cut) in {"attention.query_key_value": (3 * HIDDEN, HIDDEN, {}), "mlp.dense_4h_to_h": (HIDDEN, 4 * HIDDEN, None)}.items():
            lora_of(m, f"gpt_neox.layers.{i}.{name}", rows, columns, cut, True, ".default")
    held(m, "use hf-gpt-neox")
    m = Model()
    m.add("model.layers.0.self_attn.qkv_proj.base_layer.weight", [4 * HIDDEN, HIDDEN], 0, (2, 1, 1))
    m.add("model.layers.0.self_attn.qkv_proj.lora_A.weight", [8, HIDDEN])
    m.add("model.layers.0.self_attn.qkv_proj.lora_B.weight", [4 * HIDDEN, 8], 0, (2, 1, 1))
    m.add("model.layers.0.mlp.gate_up_proj.lora_B.weight", [2 * INNER, 8], 0, (1, 1))
    held(m, "use hf-phi3 qkv=2:1:1")


def fp8():
    """Scales of blocks of 128 by 128 go with their rows and columns; those of a whole tensor are whole; those of rows by channel=0."""
    shapes = {"self_attn.q_proj": (1024, 512, {}), "self_attn.k_proj": (256, 512, {"upto": 2}), "self_attn.v_proj": (256, 512, {"upto": 2}),
              "self_attn.o_proj": (512, 1024, None), "mlp.gate_proj": (1536, 512, {}), "mlp.up_proj": (1536, 512, {}), "mlp.down_proj": (512, 1536, None)}
    m, scalar, rows = Model(), Model(), Model()
    for name, (n, k, cut) in shapes.items():
        name = "model.layers.0." + name
        for each in m, scalar, rows:
            each.add(name + ".weight", [n, k], 1 if cut is None else 0, **(cut or {}), dtype="F8_E4M3")
        m.add(name + ".weight_scale_inv", [n // 128, k // 128], 1 if cut is None else 0, **(cut or {}), dtype="F32")
        scalar.add(name + ".weight_scale", [], dtype="F32")
        scalar.add(name + ".input_scale", [1], dtype="F32")
        if not (cut or {}).get("upto"):
            rows.add(name + ".weight_scale", [n, 1], None if cut is None else 0, dtype="F32")
    scalar.add("model.layers.0.self_attn.k_scale", [], dtype="F32")
    m.add("model.layers.0.input_layernorm.weight", [512])
    config = CONFIG | {"hidden_size": 512, "intermediate_size": 1536, "head_dim": 128, "num_hidden_layers": 1, "quantization_config": {"quant_method": "fp8"}}
    held(m, "use hf-llama kv=2", config=config)
    held(scalar, "use hf-llama kv=2")
    held(rows, "use hf-llama kv=2 channel=0")
    job = commit(rows, "use hf-llama kv=2", 1)
    refused(job, "topology", "tp=2", "weight_scale' is [", "leaves all of it to each rank")
    job = commit(scalar, "use hf-llama", 2, config)
    refused(job, "topology", "tp=4", "k_proj.weight' has 2 heads by config.json")
    # blocks that two ranks would share
    for n, k, tp, name in (192, 256, 2, "up_proj"), (1536, 384, 3, "up_proj"), (256, 320, 2, "down_proj"), (128, 128, 2, "up_proj"):
        m = Model()
        m.add(f"model.layers.0.mlp.{name}.weight", [n, k], dtype="F8_E4M3")
        m.add(f"model.layers.0.mlp.{name}.weight_scale_inv", [-(-n // 128), -(-k // 128)], dtype="F32")
        job = commit(m, "use hf-llama", 1)
        if tp == 3:
            write(job, "topology", "tp=3")  # 1536 rows are 12 blocks
        else:
            refused(job, "topology", f"tp={tp}", "weight_scale_inv'")
    # as it is made at tp=2, each rank's rows on their own
    m = Model()
    m.add("model.layers.0.mlp.up_proj.weight", [384, 256], 0, dtype="F8_E4M3")
    m.add("model.layers.0.mlp.up_proj.weight_scale_inv", [4, 2], 0, dtype="F32")
    try:
        commit(m, "use hf-llama", 2)
        raise AssertionError("blocks of 96 rows")
    except Refused as why:
        assert "inside of a block" in str(why), why
    m = Model()
    m.add("model.layers.0.mlp.up_proj.weight_scale_inv", [4, 2], dtype="F32")
    try:
        commit(m, "use hf-llama", 1)
        raise AssertionError("scales of nothing")
    except Refused as why:
        assert "is in no file" in str(why), why
    m = Model()
    h = "model.layers.0."
    for name, n, k, dim in (("self_attn.q_a_proj", 192, 512, None), ("self_attn.kv_b_proj", 512, 256, 0), ("mlp.shared_experts.gate_proj", 512, 256, 0),
                            ("mlp.shared_experts.down_proj", 256, 512, 1), ("mlp.experts.0.up_proj", 512, 256, 0), ("mlp.experts.0.down_proj", 256, 512, 1)):
        m.add(f"{h}{name}.weight", [n, k], dim, dtype="F8_E4M3")
        m.add(f"{h}{name}.weight_scale_inv", [-(-n // 128), -(-k // 128)], dim, dtype="F32")
    held(m, "use hf-moe")
    fp8_fits()
    # the weights in one file, the scales in another one
    a, both = Model(), Model()
    a.add("model.layers.0.mlp.up_proj.weight", [192, 256], dtype="F8_E4M3")
    job = commit(a, "use hf-llama", 1)
    both.add("model.layers.0.mlp.up_proj.weight_scale_inv", [2, 2], dtype="F32")
    save(job / "0/second.safetensors", both.whole, both.types)
    write(job, "commit", "step=2")
    refused(job, "topology", "tp=2", "inside of a block")


def fp8_fits():
    """Scales are as many as their tensor has blocks, of one size; ranks that save a share of a block each do not make two of it."""
    up, down, q = (f"model.layers.0.{n}" for n in ("mlp.up_proj", "mlp.down_proj", "self_attn.q_a_proj"))

    def model(*tensors):  # name, weight, scale, dimension that is cut, name of the scale
        m = Model()
        for name, weight, scale, dim, *word in tensors:
            m.add(name + ".weight", weight, dim, dtype="F8_E4M3")
            m.add(f"{name}.{word[0] if word else 'weight_scale_inv'}", scale, dim if scale and len(scale) > (dim or 0) and scale[dim or 0] > 1 else None, dtype="F32")
        return m

    def taken(m, tp, layout="use hf-moe", config=None):
        same(load(commit(m, layout, tp, config) / ".full/model.safetensors"), m.whole, layout)

    def not_taken(m, tp, why, config=None, layout="use hf-moe"):
        try:
            commit(m, layout, tp, config)
        except Refused as said:
            assert why in str(said), said
        else:
            raise AssertionError(why)
    none, other, said = "but blocks of no one size make so many", "blocks of another size than those of", "config.json says blocks of 128 by 128"
    config = {"model_type": "deepseek_v3", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    real = [(up, [512, 384], [4, 3], 0), (down, [384, 512], [3, 4], 1), (q, [576, 200], [5, 2], None)]
    for tp in 1, 2, 4:
        taken(model(*real), tp, config=config)
    taken(model((up, [256, 96], [2, 1], 0), (down, [96, 256], [1, 2], 1)), 2, config=config)  # narrower than a block
    one = model((up, [128, 128], [1, 1], 0))
    taken(one, 1, config=config)
    refused(commit(one, "use hf-moe", 1), "topology", "tp=2", "1 does not divide by tp=2")
    taken(model((up, [512, 96], [512, 12], 0), (q, [64, 96], [8, 96], None)), 2)  # each row's groups; each column's
    for scale in [], [1], [1, 1], [512, 1], [512]:  # of a tensor, of each row
        m = model((up, [512, 384], scale, 0, "weight_scale"), (down, [384, 512], [], 1, "weight_scale"))
        taken(m, 2, "use hf-moe channel=0" if 512 in scale else "use hf-moe")
    # a block of 128 rows, of which each of two ranks saved the scale
    not_taken(model((up, [128, 128], [2, 1], 0)), 2, none)
    not_taken(model((up, [128, 64], [2, 1], 0)), 2, said, config)
    not_taken(model((up, [128, 64], [2, 1], 0), (q, [576, 200], [5, 2], None)), 2, other)
    m = model((up, [128, 128], [1, 1], None))
    halves = [{n: np.split(a, 2)[at] if n.endswith(".weight") else a for n, a in m.whole.items()} for at in range(2)]
    try:
        commit(m, "use hf-moe", 2, ranks=halves)
        raise AssertionError("half a block")
    except Refused as why:
        assert none in str(why), why
    # another dimension, at any topology; too many, too few, of another size; one where others have several
    for tp in 1, 2:
        for scale in [4, 4], [4, 1], [4, 5], [2, 3], [8, 3], [4, 300]:
            not_taken(model((up, [512, 384], scale, 0)), tp, none)
    not_taken(model((up, [512, 384], [8, 6], 0), (down, [384, 512], [3, 4], 1)), 2, other)
    not_taken(model((up, [512, 384], [4, 3], 0), (q, [576, 200], [1, 1], None)), 1, other)
    not_taken(model((up, [512, 384], [8, 6], 0)), 1, said, config)
    not_taken(model((q, [576, 200], [1, 1], None)), 1, said, config)
    job = mount / f"beside{jobs}"  # who says that it is right is believed
    write(job, "config", "suspicious=accept")
    write(job, "commit", "step=1")


def gptq():
    """Groups of 64 columns: by rows all is cut in its last dimension, by columns in its first one, as vLLM's parameters are."""
    shapes = {"self_attn.q_proj": (256, 128, {}), "self_attn.k_proj": (64, 128, {"upto": 2}), "self_attn.v_proj": (64, 128, {"upto": 2}),
              "self_attn.o_proj": (128, 256, None), "mlp.gate_proj": (256, 128, {}), "mlp.up_proj": (256, 128, {}), "mlp.down_proj": (128, 256, None)}
    experts = {"mlp.experts.0.gate_proj": (256, 128, {}), "mlp.experts.0.down_proj": (128, 256, None), "mlp.shared_experts.up_proj": (256, 128, {})}
    config = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 8,
              "num_key_value_heads": 2, "head_dim": 32, "quantization_config": {"quant_method": "gptq", "desc_act": False}}

    def quantized(layers, kind, group=64):
        m = Model()
        for name, (n, k, cut) in layers.items():
            name, dim, more = "model.layers.0." + name, 0 if cut is None else 1, cut or {}
            m.add(name + ".qweight", [k // 8, n] if kind == "gptq" else [k, n // 8], dim, dtype="I32", **more)
            m.add(name + ".qzeros", [-(-k // group), n // 8], dim, dtype="I32", **more)
            m.add(name + ".scales", [-(-k // group), n], dim, **more)
            if kind == "gptq":
                m.add(name + ".g_idx", [k], 0 if cut is None else None, dtype="I32")
                m.whole[name + ".g_idx"] = (np.arange(k) // group).astype("i4")
        return m
    for kind in "gptq", "awq":
        held(quantized(shapes, kind), "use hf-llama kv=2", config=config)
        held(quantized(shapes | experts, kind), "use hf-moe kv=2")
    m = quantized(shapes, "gptq")
    job = commit(m, "use hf-llama", 2, config)
    refused(job, "topology", "tp=4", "k_proj.scales' has 2 heads by config.json", "kv=2")
    job = commit(m, "use hf-llama kv=2", 1, config | {"quantization_config": {"desc_act": True}})
    refused(job, "topology", "tp=2", "g_idx' gives columns to groups", "desc_act")
    # groups that two ranks would share: one of all columns, and 3 of which the last one is not full
    for columns, group, why in (256, 256, "1 does not divide by tp=2"), (256, 86, "does not divide by tp=2"), (192, 128, "inside of a block"), (256, 43, "inside of a block"):
        job = commit(quantized({"mlp.down_proj": (128, columns, None)}, "gptq", group), "use hf-llama", 1)
        refused(job, "topology", "tp=2", why)


def stacked():
    """Experts in one tensor, as transformers 5 has them in memory: [experts, gate and up, hidden] and [experts, hidden, inner]."""
    m = Model()
    for i in range(2):
        h = f"model.layers.{i}.mlp."
        m.add(h + "gate.weight", [4, HIDDEN])
        m.add(h + "experts.gate_up_proj", [4, 2 * INNER, HIDDEN], 1, (1, 1))
        m.add(h + "experts.down_proj", [4, HIDDEN, INNER], 2)
    held(m, "use hf-moe")
    job = commit(m, "use hf-moe", 2)
    write(job, "topology", "dp=2 ep=2")
    for at in range(2):
        found = load(job / str(at) / "model.safetensors")
        want = {k: np.split(a, 2)[at] if ".experts." in k else a for k, a in m.whole.items()}
        same(found, want, f"ep=2, rank {at}")
    # gpt-oss has the same name for [experts, hidden, gate and up in turns]
    m.add("model.layers.0.mlp.experts.gate_up_proj_bias", [4, 2 * INNER])
    try:
        commit(m, "use hf-moe", 1)
        raise AssertionError("it was taken")
    except Refused as said:
        assert "gate_up_proj_bias" in str(said), said


ALL = {"lora": lora, "fp8": fp8, "gptq": gptq, "stacked": stacked}
for each in sys.argv[2:] or ALL:
    ALL[each]()
