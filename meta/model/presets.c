/* SPDX-License-Identifier: Apache-2.0 */
/* Has the presets that ship with Scalai: the text files that are installed, linked in. */
#include "meta/model/layout.h"

#include <string.h>

#define PRESETS(X)                                                                                 \
	X(replicated, "replicated")                                                                \
	X(megatron_gpt, "megatron-gpt")                                                            \
	X(megatron_layer, "megatron-layer")                                                        \
	X(megatron_mamba, "megatron-mamba")                                                        \
	X(megatron_encoder, "megatron-encoder")                                                    \
	X(hf_llama, "hf-llama")                                                                    \
	X(hf_gpt_neox, "hf-gpt-neox")                                                              \
	X(hf_moe, "hf-moe")                                                                        \
	X(hf_layers, "hf-layers")                                                                  \
	X(hf_experts, "hf-experts")                                                                \
	X(hf_vl, "hf-vl")                                                                          \
	X(hf_vl_moe, "hf-vl-moe")                                                                  \
	X(hf_towers, "hf-towers")                                                                  \
	X(hf_gpt_oss, "hf-gpt-oss")                                                                \
	X(hf_opt, "hf-opt")                                                                        \
	X(hf_bart, "hf-bart")                                                                      \
	X(hf_t5, "hf-t5")                                                                          \
	X(hf_glm, "hf-glm")                                                                        \
	X(hf_phi3, "hf-phi3")                                                                      \
	X(hf_gpt2, "hf-gpt2")                                                                      \
	X(hf_bert, "hf-bert")                                                                      \
	X(fsdp2, "fsdp2")                                                                          \
	X(vllm_llama, "vllm-llama")                                                                \
	X(deepspeed_zero1, "deepspeed-zero1")                                                      \
	X(deepspeed_zero3, "deepspeed-zero3")                                                      \
	X(optimizer, "optimizer")                                                                  \
	X(parameters, "parameters")

#define X(id, name)                                                                                \
	__asm__(".section .rodata\n"                                                               \
		"meta_preset_" #id ":\n"                                                           \
		".incbin \"" PRESET_DIR "/" name ".layout\"\n"                                     \
		".byte 0\n"                                                                        \
		".previous\n");                                                                    \
	extern const char meta_preset_##id[] __attribute__((visibility("hidden")));
PRESETS(X)
#undef X

#define X(id, name) name " "
const char meta_preset_names[] = PRESETS(X);
#undef X

const char *meta_preset_builtin(void *arg, const char *name)
{
	(void)arg;
#define X(id, text)                                                                                \
	if (strcmp(name, text) == 0)                                                               \
		return meta_preset_##id;
	PRESETS(X)
#undef X
	return NULL;
}
