# SPDX-License-Identifier: Apache-2.0
"""Megatron-core's layer specs: the smallest model of each, and the topologies that it is held at."""
import dataclasses

import torch
from megatron.core import parallel_state as ps
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt import gpt_layer_specs as gpt
from megatron.core.models.T5 import T5Model, t5_spec
from megatron.core.models.bert import bert_layer_specs as bert
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants
from megatron.core.models.mamba import MambaModel, mamba_layer_specs
from megatron.core.models.vision import vit_layer_specs as vit
from megatron.core.models.vision.clip_vit_model import CLIPViTModel
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

DENSE = ("tp=2", "tp=1", "tp=4", "pp=2", "tp=2 pp=2")
EXPERTS = ("tp=2", "tp=1", "tp=4", "dp=2 ep=2", "tp=2 dp=2 ep=2", "dp=4 ep=4", "pp=2")
ONE_TP = ("tp=2 etp=1", "tp=1", "tp=4 etp=1", "tp=2 dp=2 ep=2 etp=1", "dp=4 ep=4", "pp=2")  # each expert is whole
LLAMA = {"normalization": "RMSNorm", "gated_linear_unit": True, "activation_func": torch.nn.functional.silu, "add_bias_linear": False}
MOE = {"num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 24}
SHARED = {"moe_shared_expert_intermediate_size": 24}
MLA = {"multi_latent_attention": True, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4, "v_head_dim": 8}


@dataclasses.dataclass
class Spec:
    make: object            # of degrees, in a process that plays a rank
    variables: str = ""     # of the preset
    topologies: tuple = DENSE
    preset: str = "megatron-gpt"
    vocabulary: int = 300
    refused: str = ""       # why no layout has it


def padded(tp, vocabulary=300):
    return -(-vocabulary // (128 * tp)) * 128 * tp


def config(degrees, **more):
    base = {"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "ffn_hidden_size": 48, "use_cpu_initialization": True,
            "bias_activation_fusion": False, "pipeline_dtype": torch.float32, "tensor_model_parallel_size": degrees.get("tp", 1),
            "pipeline_model_parallel_size": degrees.get("pp", 1), "expert_model_parallel_size": degrees.get("ep", 1),
            "expert_tensor_parallel_size": degrees.get("etp")}
    kind = MLATransformerConfig if more.get("multi_latent_attention") else TransformerConfig
    return kind(**(base | more))


def gpt_model(spec, untied=True, position="rope", **more):
    """`spec`: makes a layer's or a block's spec of a configuration."""
    def make(degrees):
        c = config(degrees, **more)
        s = spec(c)
        mtp = gpt.get_gpt_mtp_block_spec(c, s, "_te" in spec.__name__) if c.mtp_num_layers else None
        return GPTModel(c, s, padded(degrees.get("tp", 1)), 16, pre_process=ps.is_pipeline_first_stage(),
                        post_process=ps.is_pipeline_last_stage(), position_embedding_type=position,
                        share_embeddings_and_output_weights=not untied, mtp_block_spec=mtp)
    return make


def local(c):
    return gpt.get_gpt_layer_local_spec(c.num_moe_experts, c.moe_grouped_gemm, c.qk_layernorm, c.multi_latent_attention,
                                        moe_use_legacy_grouped_gemm=c.moe_use_legacy_grouped_gemm, normalization=c.normalization)


def block_local(c):
    return gpt.get_gpt_decoder_block_spec(c, False, c.normalization)


def layer_te(c):
    return gpt.get_gpt_layer_with_transformer_engine_spec(c.num_moe_experts, c.moe_grouped_gemm, c.qk_layernorm, c.multi_latent_attention)


def block_te(c):
    return gpt.get_gpt_decoder_block_spec(c, True, c.normalization)


def experimental(c):
    return variants.get_transformer_block_with_experimental_attention_variant_spec(c)


def dsa(c):
    from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider
    layer = layer_te(c)
    layer.submodules.self_attention = variants.get_dsa_module_spec_for_backend(c, TESpecProvider())
    return layer


def mamba_model(pattern):
    """`pattern`: a letter for each layer, M for Mamba, * for attention, - for a feed-forward one, E for experts."""
    def make(degrees):
        c = config(degrees, **{"normalization": "RMSNorm", "add_bias_linear": False}, **(MOE if "E" in pattern else {}), mamba_state_dim=8, mamba_head_dim=16,
                   mamba_num_groups=4, num_layers=len(pattern))
        return MambaModel(c, mamba_layer_specs.mamba_stack_spec, padded(degrees.get("tp", 1)), 16, hybrid_override_pattern=pattern,
                          pre_process=ps.is_pipeline_first_stage(), post_process=ps.is_pipeline_last_stage())
    return make


def bert_model(spec):
    def make(degrees):
        return BertModel(config(degrees), 2, spec(), padded(degrees.get("tp", 1)), 16, pre_process=ps.is_pipeline_first_stage(),
                         post_process=ps.is_pipeline_last_stage(), share_embeddings_and_output_weights=False)
    return make


def t5_model(encoder, decoder):
    def make(degrees):
        c = config(degrees)
        return T5Model(c, config(degrees, num_layers=2), encoder(2), decoder(4), 512, 16,    # without padding: one of its two names would hold it
                       share_embeddings_and_output_weights=True)
    return make


def vit_model(spec):
    def make(degrees):
        return CLIPViTModel(config(degrees), spec(), img_h=28, img_w=28)
    return make


ONE_STAGE = ("tp=2", "tp=1", "tp=4")
MAMBA = "in=64:64:32:32:4 conv=64:32:32"
GATED = "glu=1:1"
MTP = GATED + " embedding=first,last"
SPECS = {
    "gpt": Spec(gpt_model(local, False, "learned_absolute"), "tied=embedding.word_embeddings.weight"),
    "llama": Spec(gpt_model(local, **LLAMA, num_query_groups=4, qk_layernorm=True), GATED),
    "te-mla-no-q-lora": Spec(gpt_model(layer_te, **LLAMA, **MLA | {"q_lora_rank": None}, qk_layernorm=True), GATED),
    "gpt-oss": Spec(gpt_model(local, **LLAMA | {"add_bias_linear": False}, **MOE, add_qkv_bias=True, softmax_type="learnable"), GATED, EXPERTS),
    "moe": Spec(gpt_model(local, **LLAMA, **MOE, **SHARED), GATED, EXPERTS),
    "moe-bias": Spec(gpt_model(local, **MOE), "", ONE_TP),
    "moe-some": Spec(gpt_model(block_local, **LLAMA, **MOE, **SHARED, moe_layer_freq=[0, 1, 0, 1], moe_shared_expert_gate=True), GATED, EXPERTS),
    "grouped-legacy": Spec(gpt_model(local, **LLAMA, **MOE, moe_grouped_gemm=True, moe_use_legacy_grouped_gemm=True), GATED, ("tp=2",),
                           refused="no rule matches 'model.safetensors:decoder.layers.0.mlp.experts.weight1'"),
    "mtp": Spec(gpt_model(local, **LLAMA, mtp_num_layers=2), MTP),
    "te-gpt": Spec(gpt_model(layer_te, False, "learned_absolute"), "tied=embedding.word_embeddings.weight"),
    "te-llama": Spec(gpt_model(layer_te, **LLAMA, num_query_groups=4, qk_layernorm=True), GATED),
    "te-mla": Spec(gpt_model(layer_te, **LLAMA, **MLA, qk_layernorm=True), GATED),
    "te-moe": Spec(gpt_model(layer_te, **LLAMA, **MOE, **SHARED), GATED, EXPERTS),
    "te-grouped": Spec(gpt_model(layer_te, **LLAMA, **MOE, **SHARED, moe_grouped_gemm=True), GATED, EXPERTS),
    "te-grouped-fp8": Spec(gpt_model(layer_te, **LLAMA, **MOE, moe_grouped_gemm=True), GATED + " grouped=each=ep", ("dp=2 ep=2", "tp=2 dp=2 ep=2")),
    "te-mtp": Spec(gpt_model(layer_te, **LLAMA, mtp_num_layers=2), MTP),
    "te-deepseek-v3": Spec(gpt_model(block_te, **LLAMA, **MLA, **MOE, **SHARED, qk_layernorm=True, moe_grouped_gemm=True, mtp_num_layers=1,
                                     moe_layer_freq=[0, 1, 1, 1], moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid"),
                           MTP, EXPERTS),
    "mamba": Spec(mamba_model("MMMM"), MAMBA, preset="megatron-mamba"),
    "mamba-hybrid": Spec(mamba_model("M*-MM*-M"), MAMBA, preset="megatron-mamba"),
    "mamba-moe": Spec(mamba_model("M*EMM*EM"), MAMBA, EXPERTS, preset="megatron-mamba"),
    "gated-delta-net": Spec(gpt_model(experimental, **LLAMA, experimental_attention_variant="gated_delta_net", linear_attention_freq=2,
                                      linear_key_head_dim=4, linear_value_head_dim=8, linear_num_key_heads=4, linear_num_value_heads=8), GATED + " in=16:16:64:64:8:8 conv=16:16:64",
                            preset="megatron-mamba"),
    "dsa": Spec(gpt_model(dsa, **LLAMA, **MLA, qk_layernorm=True, experimental_attention_variant="dsa", dsa_indexer_n_heads=4, dsa_indexer_head_dim=8, dsa_indexer_topk=4), GATED),
    "bert": Spec(bert_model(lambda: bert.bert_layer_local_spec), preset="megatron-encoder"),
    "te-bert": Spec(bert_model(bert.get_bert_layer_with_transformer_engine_spec), preset="megatron-encoder"),
    "t5": Spec(t5_model(t5_spec.get_t5_encoder_with_local_block_spec, t5_spec.get_t5_decoder_with_local_block_spec), "", ONE_STAGE, preset="megatron-encoder", vocabulary=512),
    "te-t5": Spec(t5_model(t5_spec.get_t5_encoder_with_transformer_engine_block_spec, t5_spec.get_t5_decoder_with_transformer_engine_block_spec), "", ONE_STAGE, preset="megatron-encoder", vocabulary=512),
    "vit": Spec(vit_model(vit.get_vit_layer_with_local_spec), "", ONE_STAGE, preset="megatron-encoder"),
    "te-vit": Spec(vit_model(vit.get_vit_layer_with_transformer_engine_spec), "", ONE_STAGE, preset="megatron-encoder"),
}
