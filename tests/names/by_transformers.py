# SPDX-License-Identifier: Apache-2.0
"""
SCALAI MOUNT [FAMILY...]: presets for Hugging Face's models, against transformers' own names and shards.

A tiny random model of each family is saved by transformers, imported at tp=2 and tp=4, and each rank's tensors are compared
with those that transformers itself leaves to that rank by the model's plan for tensor parallelism (the processes of a job
are played by one, one rank after the other).  Each topology is read from the other one, too, and the unsharded model is
the same again.  Models without a plan of their own are cut and made whole again.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
warnings.filterwarnings("ignore")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers as hf  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.distributed.checkpoint import state_dict as dcp  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from transformers.distributed.configuration_utils import DistributedConfig  # noqa: E402
from transformers.distributed.tensor_parallel import apply_tensor_parallelism  # noqa: E402

scalai, mount = sys.argv[1], pathlib.Path(sys.argv[2])
hf.logging.set_verbosity_error()
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 64,
         "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
KV = {"num_key_value_heads": 4}
MLA = {"kv_lora_rank": 8, "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4,
       "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 16, "num_experts_per_tok": 2,
       "first_k_dense_replace": 1}
# class, more of its configuration, layout
FAMILIES = {
    "llama": (hf.LlamaConfig, KV, "hf-llama"),
    "llama-tied": (hf.LlamaConfig, KV | {"tie_word_embeddings": True}, "hf-llama"),
    "mistral": (hf.MistralConfig, KV, "hf-llama"),
    "qwen2": (hf.Qwen2Config, KV, "hf-llama"),
    "qwen3": (hf.Qwen3Config, KV | {"head_dim": 8}, "hf-llama"),
    "gemma": (hf.GemmaConfig, KV | {"head_dim": 8}, "hf-llama"),
    "gemma2": (hf.Gemma2Config, KV | {"head_dim": 8}, "hf-llama"),
    "gemma3": (hf.Gemma3TextConfig, KV | {"head_dim": 8}, "hf-llama"),
    "olmo": (hf.OlmoConfig, KV, "hf-llama"),
    "olmo2": (hf.Olmo2Config, KV, "hf-llama"),
    "olmo3": (hf.Olmo3Config, KV, "hf-llama"),
    "granite": (hf.GraniteConfig, KV, "hf-llama"),
    "cohere": (hf.CohereConfig, KV, "hf-llama"),
    "cohere2": (hf.Cohere2Config, KV, "hf-llama"),
    "starcoder2": (hf.Starcoder2Config, KV, "hf-llama"),
    "stablelm": (hf.StableLmConfig, KV, "hf-llama"),
    "smollm3": (hf.SmolLM3Config, KV, "hf-llama"),
    "phi": (hf.PhiConfig, KV, "hf-llama"),
    "glm": (hf.GlmConfig, KV | {"head_dim": 8}, "hf-glm gate_up=1:1"),
    "glm4": (hf.Glm4Config, KV | {"head_dim": 8}, "hf-glm gate_up=1:1"),
    "helium": (hf.HeliumConfig, KV | {"head_dim": 8}, "hf-llama"),
    "ernie4.5": (hf.Ernie4_5Config, KV | {"head_dim": 8}, "hf-llama"),
    "seed-oss": (hf.SeedOssConfig, KV | {"head_dim": 8}, "hf-llama"),
    "arcee": (hf.ArceeConfig, KV | {"head_dim": 8}, "hf-llama"),
    "exaone4": (hf.Exaone4Config, KV, "hf-llama"),
    "nemotron": (hf.NemotronConfig, KV | {"head_dim": 8}, "hf-llama"),
    "apertus": (hf.ApertusConfig, KV, "hf-llama"),
    "hunyuan": (hf.HunYuanDenseV1Config, KV | {"head_dim": 8}, "hf-llama"),
    "olmoe": (hf.OlmoeConfig, KV | {"num_experts": 4, "num_experts_per_tok": 2}, "hf-moe"),
    "glm4-moe": (hf.Glm4MoeConfig, KV | MLA | {"head_dim": 8}, "hf-moe"),
    "deepseek-v2": (hf.DeepseekV2Config, {"num_key_value_heads": 8} | MLA, "hf-moe"),
    "deepseek-v3": (hf.DeepseekV3Config, {"num_key_value_heads": 8} | MLA, "hf-moe"),
    "bert": (hf.BertConfig, {}, "hf-bert"),
    "gpt2": (hf.GPT2Config, {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, "hf-gpt2"),
    "mixtral": (hf.MixtralConfig, KV | {"num_local_experts": 4}, "hf-moe"),
    "qwen2-moe": (hf.Qwen2MoeConfig, KV | {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
                                           "num_experts_per_tok": 2, "decoder_sparse_step": 1}, "hf-moe"),
    "qwen3-moe": (hf.Qwen3MoeConfig, KV | {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 8, "num_experts_per_tok": 2,
                                           "decoder_sparse_step": 1, "mlp_only_layers": [1]}, "hf-moe"),
    "phi3": (hf.Phi3Config, KV, "hf-phi3 qkv=2:1:1"),
    "gpt-neox": (hf.GPTNeoXConfig, {}, "hf-gpt-neox"),
}
# Where a preset cuts otherwise than the model's own plan.  fused: the plan cuts the rows of both as one, and gathers them again
# in each forward pass; whole: the plan leaves to each rank what can be cut
DIFFER = {
    "glm": {"gate_up_proj": "fused"},
    "glm4": {"gate_up_proj": "fused"},
    "phi3": {"gate_up_proj": "fused", "qkv_proj": "fused"},
    "hunyuan": dict.fromkeys(("embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), "whole"),
    "deepseek-v3": dict.fromkeys(("q_b_proj", "kv_b_proj", "o_proj"), "whole"),
    "qwen2-moe": {f"shared_expert.{x}_proj": "whole" for x in ("gate", "up", "down")},
    "gpt-neox": {"embed_in": "whole"},
}
# rows of each section of what is fused; and what is cut along its columns (where a plan leaves it whole, or for vLLM)
SECTIONS = {"qkv_proj": (32, 16, 16), "gate_up_proj": (48, 48)}
COLUMNS = ("o_proj", "down_proj")
REPLICATED = ("norm", "bias")
EXPERT = re.compile(r"(.*)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")


# what a config.json says of shapes; of some models nothing, or the size of experts alone
WRONG = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
UNKNOWN = {"gpt2": WRONG} | dict.fromkeys(("mixtral", "olmoe", "qwen2-moe"), ("intermediate_size",))


def cut(name, a, tp, rank):
    """What a rank of tp has of a tensor that is cut, here by numpy."""
    module = name.split(".")[-2]
    if module in SECTIONS:
        ends = np.cumsum(SECTIONS[module])
        return np.concatenate([np.split(s, tp)[rank] for s in np.split(a, ends[:-1])])
    return np.split(a, tp, axis=int(module in COLUMNS))[rank]


def shards(name, tp, rank):
    """What transformers leaves to a rank."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=tp)
    try:
        model = make(name)
        plan = model._resolve_parallel_plans(DistributedConfig(tp_size=tp))[0]
        there = {n for n, _ in model.named_parameters()} | {n for n, _ in model.named_modules()} # a tied head is not
        apply_tensor_parallelism(model, dist.init_device_mesh("cpu", (tp,)), {k: v for k, v in plan.items() if k in there})
        return {k: (v.to_local() if isinstance(v, DTensor) else v).detach().numpy() for k, v in model.state_dict().items()}
    finally:
        dist.destroy_process_group()
        sys.excepthook = sys.__excepthook__


def saved(shard, name):
    """The rank's tensor that has this name in a file: there experts are one by one, and some have other names."""
    expert = EXPERT.fullmatch(name)
    if expert:
        experts, which = f"{expert[1]}.mlp.experts.", int(expert[2])
        if expert[3] in ("down_proj", "w2"):
            return shard[experts + "down_proj"][which]
        return np.split(shard[experts + "gate_up_proj"][which], 2)[expert[3] in ("up_proj", "w3")]
    name = name.replace(".block_sparse_moe.", ".mlp.")
    return shard["lm_head.weight" if name == "embed_out.weight" else name]


def parts(name, whole, tp):
    """What each rank has: as transformers has it, but for DIFFER, which is what it says it is."""
    ranks = [{k: saved(shard, k) for k in whole} for shard in (shards(name, tp, r) for r in range(tp))]
    for words, how in DIFFER.get(name, {}).items():
        named = [k for k in whole if f".{words}." in k and not any(x in k for x in REPLICATED)]
        assert named, (name, words)
        for rank, mine in enumerate(ranks):
            for k in named:
                want = whole[k] if how == "whole" else np.split(whole[k], tp)[rank]
                assert np.array_equal(mine[k], want), f"{name}: transformers has another cut of {k} now"
                mine[k] = cut(k, whole[k], tp, rank)
    return ranks


def make(name, **other):
    config, more, _ = FAMILIES[name]
    torch.manual_seed(1)
    kind = hf.AutoModelForMaskedLM if config is hf.BertConfig else hf.AutoModelForCausalLM
    return kind.from_config(config(**(SIZES | more | other)))


def same(found, want, what):
    assert found.keys() == want.keys(), (what, found.keys() ^ want.keys())
    for k, a in want.items():
        assert found[k].shape == a.shape and np.array_equal(found[k], a), (what, k, found[k].shape, a.shape)


def family(name):
    layout = FAMILIES[name][2]
    model = make(name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        whole = load_file(folder + "/model.safetensors")
        want = {tp: parts(name, whole, tp) for tp in (2, 4)} if model._tp_plan else {}
        for tp in 2, 4:
            job = f"{name}-{tp}"
            subprocess.run([scalai, "import", job, folder + "/model.safetensors", "--topology", f"tp={tp}", "--layout", *layout.split()], check=True)
            for rank in range(tp):
                found = load_file(mount / job / str(rank) / "model.safetensors")
                assert found.keys() == whole.keys(), (name, tp, rank, found.keys() ^ whole.keys())
            for t, ranks in want.items():
                for rank, mine in enumerate(ranks):
                    same(load_file(mount / job / f".as/tp={t}" / str(rank) / "model.safetensors"), mine, f"{name} from tp={tp} to tp={t}, rank {rank}")
            same(load_file(mount / job / ".full/model.safetensors"), whole, f"{name} from tp={tp}, whole")
        facts(name, f"{name}-2", folder + "/config.json")
        if layout == "hf-moe":
            experts(name, folder + "/model.safetensors", whole)
    other = ", ".join(f"{k} ({how} there)" for k, how in DIFFER.get(name, {}).items())
    print(f"figure: {name}: {len(whole)} tensors,", "as transformers cuts them" + (f", but for {other}" if other else "") if want else "no plan of its own")


def facts(name, job, config):
    """The config.json of the model is taken beside its tensors; one that says otherwise is refused, and the tensor named."""
    text = pathlib.Path(config).read_text()
    at = mount / job / "config.json"
    at.write_text(text)
    (mount / job / ".ctl/commit").write_text("\n")
    for key in WRONG:
        own = json.loads(text)
        if key in own and key not in UNKNOWN.get(name, ()):
            more = {key: own[key] - 1, "num_nextn_predict_layers": 0} if key == "num_hidden_layers" else {key: own[key] + 1}
            at.write_text(json.dumps(own | more))
            try:
                (mount / job / ".ctl/commit").write_text("\n")
                raise AssertionError((name, key, "was taken"))
            except OSError:
                why = (mount / job / ".ctl/error").read_text()
            assert f"{key} in 'config.json' of the job" in why and "suspicious=accept" in why, (name, why)
        else:
            assert name in UNKNOWN, (name, key)
    (mount / job / ".ctl/discard").write_text("\n")
    assert at.read_text() == text


def experts(name, file, whole):
    """Over ep=2 each rank has half of the experts, under their own numbers, and all that is of no expert."""
    job = f"{name}-ep"
    subprocess.run([scalai, "import", job, file, "--topology", "dp=2 ep=2", "--layout", "hf-moe"], check=True)
    ranks = [load_file(mount / job / str(r) / "model.safetensors") for r in range(2)]
    for tensor, a in whole.items():
        words = tensor.split(".")
        has = [int(words[words.index("experts") + 1]) // 2 == r for r in range(2)] if "experts" in words else [True, True]
        assert [tensor in r for r in ranks] == has, (name, tensor, has)
        assert all(np.array_equal(r[tensor], a) for r in ranks if tensor in r), (name, tensor)
    again = load_file(mount / job / ".full/model.safetensors")
    assert again.keys() == whole.keys() and all(np.array_equal(again[k], whole[k]) for k in whole), name


def adam(prefix, tp, dp, rank):
    """What a rank's states of model and AdamW have after a step, by torch's own names, with FSDP2 over dp."""
    world = tp * dp
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        model = make("llama")
        mesh = dist.init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
        if tp > 1:
            apply_tensor_parallelism(model, mesh["tp"], model._resolve_parallel_plans(DistributedConfig(tp_size=tp))[0])
        if dp > 1:
            for module in (*model.model.layers, model):
                fully_shard(module, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
        for p in model.parameters():
            p.grad = p.detach().clone()
        optimizer.step()
        state = dcp.get_state_dict(model, optimizer, options=dcp.StateDictOptions(flatten_optimizer_state_dict=True))
        local = {n: (t.to_local() if isinstance(t, DTensor) else t).detach().contiguous() for n, t in state[0].items()}
        return local | {prefix + n: (t.to_local() if isinstance(t, DTensor) else t).contiguous() for n, t in state[1].items() if torch.is_tensor(t)}
    finally:
        dist.destroy_process_group()
        sys.excepthook = sys.__excepthook__


def optimizer(prefix):
    """Each rank's states, from each topology to each other one, are what torch leaves to it; uneven parts of FSDP2 among them."""
    ranks = {(tp, dp): [adam(prefix, tp, dp, r) for r in range(tp * dp)] for tp, dp in ((1, 1), (1, 2), (1, 3), (2, 3), (4, 1))}
    whole = ranks[1, 1][0]
    assert len(whole) == 5 * 21, len(whole)
    for source, files in ranks.items():
        job = mount / f"adam{len(prefix)}-{source[0]}-{source[1]}"
        job.mkdir()
        (job / ".ctl/layout").write_text("use fsdp2 model=hf-llama\n")
        (job / ".ctl/topology").write_text("tp={} dp={}\n".format(*source))
        for r, tensors in enumerate(files):
            (job / str(r)).mkdir(exist_ok=True)
            save_file(tensors, job / str(r) / "model.safetensors")
        try:
            (job / ".ctl/commit").write_text("\n")
        except OSError:
            raise AssertionError((source, (job / ".ctl/error").read_text())) from None
        for t, of in ranks.items():
            for r, want in enumerate(of):
                found = load_file(job / ".as" / "tp={},dp={}".format(*t) / str(r) / "model.safetensors")
                same(found, {k: v.numpy() for k, v in want.items()}, f"{prefix}state of AdamW from {source} to {t}, rank {r}")
    print(f"figure: {prefix}state of AdamW: {len(whole)} tensors")


def vllm(name, kv):
    """What vLLM's ranks hold: q, k and v in one tensor, key heads shared by neighbours; cut here as its linear layers do it."""
    model = make(name, num_key_value_heads=kv)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        whole = load_file(folder + "/model.safetensors")
        job = f"{name}-vllm"
        subprocess.run([scalai, "import", job, folder + "/model.safetensors", "--topology", "tp=1", "--layout", "hf-llama"], check=True)
    (mount / job / ".ctl/layout").write_text(f"use vllm-llama kv={kv}\n")
    for tp in 1, 2, 4:
        for rank in range(tp):
            want = {}
            for tensor, a in whole.items():
                if ".q_proj." in tensor:
                    k, v = (whole[tensor.replace("q_proj", x)] for x in ("k_proj", "v_proj"))
                    n = k.shape[0] // min(tp, kv)
                    want[tensor.replace("q_proj", "qkv_proj")] = np.concatenate(
                        [np.split(a, tp)[rank], *(x[(rank * min(tp, kv) // tp) * n:][:n] for x in (k, v))])
                elif "gate_proj" in tensor:
                    up = whole[tensor.replace("gate", "up")]
                    want[tensor.replace("gate_proj", "gate_up_proj")] = np.concatenate([np.split(a, tp)[rank], np.split(up, tp)[rank]])
                elif not any(x in tensor for x in ("k_proj", "v_proj", "up_proj")):
                    want[tensor] = a if "norm" in tensor else cut(tensor, a, tp, rank)
            got = load_file(mount / job / f".as/tp={tp}" / str(rank) / "model.safetensors")
            assert got.keys() == want.keys(), (name, tp, rank, got.keys() ^ want.keys())
            assert all(np.array_equal(got[k], want[k]) for k in want), (name, tp, rank)
    print(f"figure: {name} as vLLM has it: {len(want)} tensors a rank")


def refused(name, layout, word, file="/model.safetensors"):
    """A model of this family must not be taken by another one's preset, or by a wrong one's own."""
    model = make(name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        run = subprocess.run([scalai, "import", f"{name}-as-{layout.replace(' ', '-')}", folder + file, "--topology", "tp=2", "--layout", *layout.split()],
                             check=False, capture_output=True, text=True)
    assert run.returncode and word in run.stderr, (name, layout, run.stderr)


for each in sys.argv[3:] or FAMILIES:
    family(each)
vllm("llama", 2)
vllm("qwen2", 2)
optimizer("")
optimizer("optimizer.")
refused("phi3", "hf-llama", "or tp=0 sections=1:1: each has some of gate and some of up")
refused("phi3", "hf-glm gate_up=1:1", "such as 'model.layers.{G}.self_attn.qkv_proj.weight copy'")
refused("glm", "hf-glm", "gate_up")
refused("glm4", "hf-llama", "or tp=0 sections=1:1: each has some of gate and some of up")
refused("qwen3-moe", "hf-llama", "no rule matches")
refused("mixtral", "hf-llama", "such as 'model.layers.{G}.block_sparse_moe.")
refused("phi3", "hf-phi3 qkv=1:1", "is q, k and v by 'config.json' of", "")
