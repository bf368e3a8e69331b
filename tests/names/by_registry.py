# SPDX-License-Identifier: Apache-2.0
"""
MOUNT [all | KIND...]: presets against every model of transformers' registry that has a plan for tensor parallelism.

A tiny random model of each kind, under the names that it has in memory and under those that `save_pretrained` gives its tensors
(if these are others), is committed whole and as the ranks of the model's own plan have it, at tp = 2 and 4, with each preset.
What a preset takes is right: whole again it is the model, and each rank has what the plan leaves to it, or a part of what the
plan leaves whole (then the plan's own ranks are refused).  EQUAL are kinds whose plan a preset has, tensor by tensor; CUTS those
without a plan, held against the cuts of vLLM's linear layers, here by numpy.
"""
import os
import pathlib
import re
import sys
import warnings

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers as hf  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from transformers.core_model_loading import revert_weight_conversion  # noqa: E402
from transformers.distributed.configuration_utils import DistributedConfig  # noqa: E402
from transformers.distributed.tensor_parallel import apply_tensor_parallelism  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

mount, asked = pathlib.Path(sys.argv[1]), sys.argv[2:]
hf.logging.set_verbosity_error()
AUTO = (hf.AutoModelForImageTextToText, hf.AutoModelForCausalLM, hf.AutoModelForSeq2SeqLM, hf.AutoModel)
MOST = 4e6    # parameters: what is larger is of a configuration that these numbers do not make small
TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
        "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 24, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "kv_lora_rank": 8, "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_shared_experts": 1, "n_group": 2,
        "topk_group": 1, "first_k_dense_replace": 1, "intermediate_size_mlp": 40, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4, "depth": 2, "num_heads": 4, "embed_dim": 16,
        "out_hidden_size": 32, "image_size": 28, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 16,
        "fullatt_block_indexes": [1], "deepstack_visual_indexes": [0], "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64,
        "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "ssm_state_size": 8, "num_kv_shared_layers": 0,
        "layer_types": None, "mlp_layer_types": None, "decoder_sparse_step": 1, "mlp_only_layers": [], "index_n_heads": 4, "index_head_dim": 8,
        "index_topk": 4, "num_nextn_predict_layers": 0, "kv_channels": 8, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1,
        "num_shared_experts": 1, "qk_head_dim": 12, "num_global_key_value_heads": 4, "global_head_dim": 8}
SEEING = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2, "head_dim": 8, "projection_dim": 16,
          "num_heads": 2, "embed_dim": 16}
OF_TEXT = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "layer_types")
MORE = {"opt": {"ffn_dim": 48, "word_embed_proj_dim": 32}, "t5": {"d_model": 32, "d_kv": 4, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 8},
        "bart": {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 8,
                 "decoder_attention_heads": 8}}
EQUAL = dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "llava", "llava_next", "llava_onevision", "gemma3", "mistral3", "internvl", "paligemma", "aya_vision",
                       "idefics3", "smolvlm", "exaone4_5", "glmasr", "qwen3_5"), "hf-vl")
EQUAL |= dict.fromkeys(("qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe"), "hf-vl-moe")
EQUAL |= dict.fromkeys(("qwen3_next", "llama4_text", "minimax_m2", "ernie4_5_moe", "deepseek_v32", "glm_moe_dsa", "dots1", "flex_olmo"), "hf-moe")
EQUAL |= dict.fromkeys(("ministral", "ministral3", "cwm", "vaultgemma", "internlm3"), "hf-llama")
EQUAL |= {"glm": "hf-glm gate_up=1", "glm4": "hf-glm gate_up=1", "phi3": "hf-phi3 qkv=1 gate_up=1"}
PRESETS = ("hf-llama", "hf-moe", "hf-vl", "hf-vl-moe", "hf-vl-moe up=2 down=1", "hf-gpt-oss", "hf-gpt-neox", "hf-glm gate_up=1")
# last words of names: (dimension, sections); what is in none is whole
HEADS = {"q_proj": (0, 1), "k_proj": (0, 1), "v_proj": (0, 1)}
CUTS = {"gpt_oss": ("hf-gpt-oss", HEADS | {"embed_tokens": (0, 1), "lm_head": (0, 1), "sinks": (0, 1), "o_proj.weight": (1, 1), "gate_up_proj": (2, 1),
                                           "gate_up_proj_bias": (1, 1), "down_proj": (1, 1)}),
        "opt": ("hf-opt", HEADS | {"fc1": (0, 1), "out_proj.weight": (1, 1), "fc2.weight": (1, 1)}),
        "bart": ("hf-bart", HEADS | {"fc1": (0, 1), "out_proj.weight": (1, 1), "fc2.weight": (1, 1)}),
        "t5": ("hf-t5", {"q": (0, 1), "k": (0, 1), "v": (0, 1), "o": (1, 1), "wi": (0, 1), "wo": (1, 1), "relative_attention_bias": (1, 1)})}
jobs = 0


def small(config, at=""):
    base = config()
    numbers = {k: v for k, v in (TINY | (SEEING if "vision" in at or "audio" in at else {})).items() if hasattr(base, k)}
    parts = getattr(config, "sub_configs", {})
    for part in parts:
        if getattr(base, part, None) is not None:
            numbers[part] = small(type(getattr(base, part)), part).to_dict()
    if "text_config" in parts:
        numbers = {k: v for k, v in numbers.items() if k not in OF_TEXT}
    return config(**(numbers | MORE.get(config.model_type, {})))


def make(kind):
    config = small(CONFIG_MAPPING[kind])
    torch.manual_seed(1)
    model = next(a for a in AUTO if type(config) in a._model_mapping.keys()).from_config(config)
    assert sum(p.numel() for p in model.parameters()) < MOST, "not small"
    return model


def tensors(model):
    """[those of the model in memory, those that save_pretrained writes]"""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    own = {k: (v.to_local() if isinstance(v, DTensor) else v).detach().clone() for k, v in model.state_dict().items() if k not in tied}
    return [own, {k: v.contiguous().clone() for k, v in revert_weight_conversion(model, dict(own)).items()}]


def shards(kind, tp, rank):
    """What the plan leaves to a rank, the processes of a job being played by one."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=tp)
    try:
        model = make(kind)
        plan = model._resolve_parallel_plans(DistributedConfig(tp_size=tp))[0]
        there = {n for n, _ in model.named_parameters()} | {n for n, _ in model.named_modules()}
        apply_tensor_parallelism(model, dist.init_device_mesh("cpu", (tp,)), {k: v for k, v in plan.items() if k in there})
        return tensors(model)
    finally:
        dist.destroy_process_group()
        sys.excepthook = sys.__excepthook__


def commit(layout, ranks):
    """(job, why it was refused)"""
    global jobs
    jobs += 1
    job = mount / f"registry{jobs}"
    job.mkdir()
    (job / ".ctl/layout").write_text(f"use {layout}\n")
    (job / ".ctl/topology").write_text(f"tp={len(ranks)}\n")
    if "gate_up=1" in layout.split():    # gate and up as if they were one are refused else
        (job / ".ctl/config").write_text("suspicious=accept\n")
    for r, mine in enumerate(ranks):
        (job / str(r)).mkdir(exist_ok=True)
        save_file(mine, job / str(r) / "model.safetensors")
    try:
        (job / ".ctl/commit").write_text("\n")
    except OSError:
        return job, (job / ".ctl/error").read_text()
    return job, ""


def equal(a, b):
    return a.keys() == b.keys() and all(a[k].shape == b[k].shape and torch.equal(a[k], b[k]) for k in a)


def held(what, preset, whole, ranks):
    """What this preset makes of a model: "" (it is refused), "equal", or "cuts more"."""
    job, why = commit(preset, [whole])
    if why:
        return ""
    more = set()
    for tp, of in ranks.items():
        for r, plan in enumerate(of):
            mine = load_file(job / f".as/tp={tp}" / str(r) / "model.safetensors")
            assert mine.keys() == plan.keys(), (what, preset, mine.keys() ^ plan.keys())
            other = {k for k in plan if mine[k].shape != plan[k].shape or not torch.equal(mine[k], plan[k])}
            bad = [(k, mine[k].shape, plan[k].shape) for k in other if plan[k].shape != whole[k].shape]
            assert not bad, f"{what}: {preset} has another cut than the plan: {bad}"
            more |= other
        job_of, why = commit(preset, of)
        assert why or equal(load_file(job_of / ".full/model.safetensors"), whole), f"{what}: {preset} takes the plan's ranks at tp={tp}, and joins them otherwise"
        assert bool(why) == bool(more), f"{what}: {preset}: the plan's ranks at tp={tp}: {why or 'taken'}; it cuts more: {sorted(more)}"
    return "cuts more" if more else "equal"


def by_plan(kind):
    model = make(kind)
    if not model._tp_plan:
        return "no plan"
    whole, said = tensors(model), []
    ranks = {tp: [shards(kind, tp, r) for r in range(tp)] for tp in (2, 4)}
    for i in range(1 if equal(*whole) else 2):
        of = {tp: [r[i] for r in all_ranks] for tp, all_ranks in ranks.items()}
        names = f"{kind}, {'names of a file' if i else 'names in memory'}"
        presets = PRESETS if asked == ["all"] or kind not in EQUAL else ()
        results = {p: held(names, p, whole[i], of) for p in {*presets, EQUAL.get(kind, PRESETS[0])}}
        if kind in EQUAL:
            assert results[EQUAL[kind]] == "equal", (names, results)
        said.append(", ".join(f"{p}: {how}" for p, how in sorted(results.items()) if how) or "refused by each")
    return "; ".join(said)


def by_numpy(kind):
    """Without a plan of the model's own."""
    preset, cuts = CUTS[kind]
    whole = tensors(make(kind))[0]
    job, why = commit(preset, [whole])
    assert not why, (kind, why)
    for tp in 2, 4:
        ranks = []
        for r in range(tp):
            mine = {}
            for name, a in whole.items():
                words = name.split(".")
                cut = cuts.get(".".join(words[-2:])) or cuts.get(words[-1]) or (cuts.get(words[-2]) if words[-1] in ("weight", "bias") else None)
                mine[name] = a.chunk(tp, cut[0])[r].contiguous() if cut else a
            ranks.append(mine)
            assert equal(load_file(job / f".as/tp={tp}" / str(r) / "model.safetensors"), mine), (kind, tp, r)
        of, why = commit(preset, ranks)
        assert not why and equal(load_file(of / ".full/model.safetensors"), whole), (kind, tp, why)
    return f"{len(whole)} tensors as {preset} cuts them"


def kinds():
    """All that have a plan, or consist of parts of which one may have."""
    for kind in CONFIG_MAPPING.keys():
        config = CONFIG_MAPPING[kind]
        if getattr(config, "base_model_tp_plan", None) or "text_config" in getattr(config, "sub_configs", {}):
            yield kind


unmade = []
for each in (kinds() if asked == ["all"] else asked):
    try:
        make(each)
    except Exception as e:  # noqa: BLE001: whatever a configuration of these numbers cannot make
        assert each not in EQUAL, (each, e)
        unmade.append(each)
        continue
    print(f"figure: {each}: {by_numpy(each) if each in CUTS else by_plan(each)}", flush=True)
if asked == ["all"]:
    for each in CUTS:
        print(f"figure: {each}: {by_numpy(each)}")
assert len(unmade) < 80 and not set(unmade) & set(CUTS), unmade
print(f"figure: not made small enough to try: {len(unmade)}: {', '.join(unmade)}")
