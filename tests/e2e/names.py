"""
SCALAI MOUNT: presets for Hugging Face's models, against the models' own names, shapes and plans for tensor parallelism.

A tiny random model of each family is saved by transformers, imported at several topologies, and each rank's tensors are
compared with the parts that the model's plan says (colwise: rows, rowwise: columns), cut here by numpy.  The unsharded
model is the same again.  Models without a plan of their own are cut and made whole again.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
warnings.filterwarnings("ignore")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers as hf  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

scalai, mount = sys.argv[1], pathlib.Path(sys.argv[2])
hf.logging.set_verbosity_error()
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
         "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
KV = {"num_key_value_heads": 2}
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
    "glm": (hf.GlmConfig, KV | {"head_dim": 8}, "hf-llama"),
    "glm4": (hf.Glm4Config, KV | {"head_dim": 8}, "hf-llama"),
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
    "deepseek-v2": (hf.DeepseekV2Config, {"num_key_value_heads": 4} | MLA, "hf-moe"),
    "deepseek-v3": (hf.DeepseekV3Config, {"num_key_value_heads": 4} | MLA, "hf-moe"),
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
# dimension that is cut, and the rows of each section; what is not here is on every rank.  By the last words of a name,
# from transformers' base_model_tp_plan where it has the module: colwise 0, rowwise 1, embedding_rowwise 0
CUTS = {"embed_tokens": 0, "embed_in": 0, "lm_head": 0, "embed_out": 0, "q_proj": 0, "k_proj": 0, "v_proj": 0, "o_proj": 1, "gate_proj": 0,
        "up_proj": 0, "down_proj": 1, "q_b_proj": 0, "kv_b_proj": 0, "c_fc": 0, "c_proj": 1, "fc1": 0, "fc2": 1, "w1": 0, "w2": 1, "w3": 0, "query_key_value": 0, "dense": 1, "dense_h_to_4h": 0,
        "dense_4h_to_h": 1}
# fused tensors: each section is cut by itself (transformers cuts these as one and gathers them again)
SECTIONS = {"qkv_proj": (32, 16, 16), "gate_up_proj": (48, 48)}
OF_PLAN = {"colwise": 0, "colwise_gather_output": 0, "rowwise": 1, "embedding_rowwise": 0}


# what a config.json says of shapes; of some models nothing, or the size of experts alone
WRONG = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
UNKNOWN = {"gpt2": WRONG} | dict.fromkeys(("mixtral", "olmoe", "qwen2-moe"), ("intermediate_size",))


def module_of(name):
    return name.split(".")[-2]


def part(name, a, tp, rank):
    """What a rank of tp has of a tensor."""
    module = module_of(name)
    if module in SECTIONS:
        ends = np.cumsum(SECTIONS[module])
        return np.concatenate([np.split(s, tp)[rank] for s in np.split(a, ends[:-1])])
    if module not in CUTS or (CUTS[module] == 1 and a.ndim == 1):
        return a
    return np.split(a, tp, axis=CUTS[module])[rank]


def check_plan(model):
    """CUTS is what transformers says of this model."""
    for pattern, how in (model._tp_plan or {}).items():
        module = pattern.split(".")[-1]
        if how in OF_PLAN and module in CUTS:
            assert CUTS[module] == OF_PLAN[how], (pattern, how)


def make(name):
    config, more, _ = FAMILIES[name]
    torch.manual_seed(1)
    kind = hf.AutoModelForMaskedLM if config is hf.BertConfig else hf.AutoModelForCausalLM
    model = kind.from_config(config(**(SIZES | more)))
    check_plan(model)
    return model


def family(name):
    _, more, layout = FAMILIES[name]
    model = make(name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        whole = load_file(folder + "/model.safetensors")
        for tp in 2, 4:
            if tp == 4 and KV.items() <= more.items():
                continue  # fewer kv heads than ranks
            job = f"{name}-{tp}"
            subprocess.run([scalai, "import", job, folder + "/model.safetensors", "--topology", f"tp={tp}", "--layout", layout], check=True)
            for rank in range(tp):
                got = load_file(mount / job / str(rank) / "model.safetensors")
                assert got.keys() == whole.keys(), (name, tp, rank, got.keys() ^ whole.keys())
                for tensor, a in whole.items() if model._tp_plan else ():
                    want = part(tensor, a, tp, rank)
                    assert got[tensor].shape == want.shape and np.array_equal(got[tensor], want), (name, tp, rank, tensor)
            again = load_file(mount / job / ".full/model.safetensors")
            assert again.keys() == whole.keys() and all(np.array_equal(again[k], whole[k]) for k in whole), (name, tp)
        facts(name, f"{name}-2", folder + "/config.json")
        if layout == "hf-moe":
            experts(name, folder + "/model.safetensors", whole)
    print(f"figure: {name}: {len(whole)} tensors, {len(model._tp_plan or {})} rules in its own plan")


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


def optimizer(prefix):
    """What torch calls the state of AdamW: each moment is cut as its parameter; steps are on every rank, also with FSDP2."""
    from torch.distributed.checkpoint import state_dict as dcp

    model = make("llama")
    adam = torch.optim.AdamW(model.parameters(), amsgrad=True)
    model(input_ids=torch.arange(8).reshape(1, 8)).logits.square().sum().backward()
    adam.step()
    model_state, state = dcp.get_state_dict(model, adam, options=dcp.StateDictOptions(flatten_optimizer_state_dict=True))
    tensors = {k: v for k, v in model_state.items()} | {prefix + k: v for k, v in state.items() if torch.is_tensor(v)}
    assert len(tensors) == 5 * len(model_state), len(tensors)
    with tempfile.TemporaryDirectory() as folder:
        file = folder + "/model.safetensors"
        save_file({k: v.contiguous() for k, v in tensors.items()}, file)
        whole = load_file(file)
        for topology, layout in ("tp=2", "hf-llama"), ("dp=2", "fsdp2 model=hf-llama"):
            job = f"adam{len(prefix)}-{topology[:2]}"
            subprocess.run([scalai, "import", job, file, "--topology", topology, "--layout", *layout.split()], check=True)
            for rank in range(2):
                got = load_file(mount / job / str(rank) / "model.safetensors")
                for name in model_state:
                    for key in "exp_avg", "exp_avg_sq", "max_exp_avg_sq":
                        a = got[f"{prefix}state.{name}.{key}"]
                        want = part(name, whole[f"{prefix}state.{name}.{key}"], 2, rank) if topology == "tp=2" else \
                            np.split(whole[f"{prefix}state.{name}.{key}"], 2)[rank]
                        assert a.shape == got[name].shape and np.array_equal(a, want), (topology, rank, name, key)
                    assert got[f"{prefix}state.{name}.step"] == 1, name
            again = load_file(mount / job / ".full/model.safetensors")
            assert again.keys() == whole.keys() and all(np.array_equal(again[k], whole[k]) for k in whole), topology
    print(f"figure: {prefix}state of AdamW: {len(tensors)} tensors")


def vllm(name, kv):
    """What vLLM's ranks hold: q, k and v in one tensor, key heads shared by neighbours; cut here as its linear layers do it."""
    model = make(name)
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
                    want[tensor] = part(tensor, a, tp, rank)
            got = load_file(mount / job / f".as/tp={tp}" / str(rank) / "model.safetensors")
            assert got.keys() == want.keys(), (name, tp, rank, got.keys() ^ want.keys())
            assert all(np.array_equal(got[k], want[k]) for k in want), (name, tp, rank)
    print(f"figure: {name} as vLLM has it: {len(want)} tensors a rank")


def refused(name, layout, word):
    """A model of this family must not be taken by another one's preset."""
    model = make(name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        run = subprocess.run([scalai, "import", f"{name}-wrong", folder + "/model.safetensors", "--topology", "tp=2", "--layout", layout],
                             check=False, capture_output=True, text=True)
    assert run.returncode and word in run.stderr, (name, layout, run.stderr)


for each in FAMILIES:
    family(each)
vllm("llama", 2)
vllm("qwen2", 2)
optimizer("")
optimizer("optimizer.")
refused("phi3", "hf-llama", "such as 'model.layers.{G}.self_attn.qkv_proj.weight copy'")
refused("qwen3-moe", "hf-llama", "no rule matches")
refused("mixtral", "hf-llama", "such as 'model.layers.{G}.block_sparse_moe.")
