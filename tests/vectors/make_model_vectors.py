#!/usr/bin/env python3
"""Vectors of tiny models from public implementations: logits, loss and LoRA gradients by transformers and PEFT on a CPU, in float32.

    python3 make_model_vectors.py [NAME ...]        needs torch, transformers and peft (versions are written into each file)

For each model a folder models/NAME with config.json and model.safetensors (as save_pretrained writes them), the adapter as PEFT saves it,
and vectors.safetensors: input_ids, labels, logits, loss, and grad.<name> for each adapter tensor. Weights and pairs are seeded normal
numbers, large enough that routers choose with a margin; gate and up of one feed-forward get the same A (moeplan has one A for both).
"""
import json, os, sys, torch, transformers, peft
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
COMMON = dict(vocab_size=48, hidden_size=16, max_position_embeddings=64, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)
GQA = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
MLA = dict(num_attention_heads=2, num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=6)
V3 = dict(**MLA, num_hidden_layers=3, first_k_dense_replace=1, intermediate_size=20, moe_intermediate_size=8, n_routed_experts=8, n_shared_experts=1,
          num_experts_per_tok=3, n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5)
# Lengths of turns of 6, 63, 628 and 6283 positions: left alone, half way, and divided twice.
LLAMA = dict(_type="llama", **GQA, num_hidden_layers=2, intermediate_size=20, tie_word_embeddings=False)
MODELS = {
    "llama_31": dict(**LLAMA, rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)),
    "llama_linear": dict(**LLAMA, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "llama_longrope": dict(**LLAMA, rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, factor=4.0, short_factor=[1.0, 1.1, 1.5, 2.0], long_factor=[1.0, 1.5, 7.0, 30.0], original_max_position_embeddings=8)),
    "phimoe": dict(**GQA, num_hidden_layers=2, intermediate_size=10, num_local_experts=6, num_experts_per_tok=2, router_jitter_noise=0.3, attention_bias=True, lm_head_bias=True, rms_norm_eps=1e-5,
                   rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.04, 1.5, 2.8], long_factor=[1.0, 1.5, 7.0, 60.0], short_mscale=1.243, long_mscale=1.5, original_max_position_embeddings=32)),
    "hunyuan_v1_moe": dict(**GQA, num_hidden_layers=2, intermediate_size=8, num_experts=6, num_local_experts=6, moe_topk=2, use_qk_norm=True, use_mixed_mlp_moe=True, num_shared_expert=1, moe_intermediate_size=8,
                           rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, alpha=1000.0, factor=1.0)),
    "qwen3_moe": dict(**GQA, num_hidden_layers=2, intermediate_size=20, moe_intermediate_size=8, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True),
    "mixtral": dict(**GQA, num_hidden_layers=2, intermediate_size=10, num_local_experts=4, num_experts_per_tok=2),
    "olmoe": dict(num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=2, intermediate_size=10, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False),
    "deepseek_v3": dict(**V3),
    "deepseek_v3_yarn": dict(_type="deepseek_v3", **V3, rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=40.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=4096)),
    "gpt_oss": dict(**GQA, num_hidden_layers=2, intermediate_size=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=5, layer_types=["sliding_attention", "full_attention"],
                    rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=4096)),
    "qwen3_next": dict(**GQA, num_hidden_layers=4, intermediate_size=20, moe_intermediate_size=8, num_experts=6, num_experts_per_tok=2, shared_expert_intermediate_size=12, partial_rotary_factor=0.25,
                       linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4, linear_value_head_dim=6, linear_conv_kernel_dim=4, full_attention_interval=4),
    "kimi_linear": dict(**{**MLA, "q_lora_rank": None}, num_hidden_layers=4, intermediate_size=20, moe_intermediate_size=8, num_experts=8, num_experts_per_token=3, num_shared_experts=1, num_expert_group=1, topk_group=1,
                        moe_renormalize=True, moe_router_activation_func="sigmoid", routed_scaling_factor=2.446, first_k_dense_replace=1, moe_layer_freq=1, mla_use_nope=True, hidden_act="silu",
                        linear_attn_config=dict(full_attn_layers=[4], kda_layers=[1, 2, 3], head_dim=4, num_heads=2, short_conv_kernel_size=4)),
    "deepseek_v32": dict(**V3, index_n_heads=8, index_head_dim=8, index_topk=5),
    "glm_moe_dsa": dict(**V3, index_n_heads=8, index_head_dim=8, index_topk=5),
    "nemotron_h": dict(**GQA, intermediate_size=12, num_hidden_layers=4, layers_block_type=["mamba", "moe", "attention", "mamba"], mamba_num_heads=4, mamba_head_dim=4, n_groups=2, ssm_state_size=4, conv_kernel=4, chunk_size=8,
                       n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=8, moe_shared_expert_intermediate_size=10, n_shared_experts=1, norm_topk_prob=True, routed_scaling_factor=2.5, n_group=1, topk_group=1, mlp_hidden_act="relu2"),
}
LENGTH, ROWS, RANK, ALPHA = 12, 2, 2, 6


def targets(model):
    """Linear layers that moeplan trains as attention, dense and shared; and the experts' 3-D parameters."""
    skip = ("lm_head", ".gate", "shared_expert_gate", "indexer", "router")
    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and not any(n == s or n.endswith(s) or s + "." in n for s in skip) and ".experts." not in n]
    experts = sorted({n.split(".", 3)[3] if n.startswith("model.layers") else n for n, p in model.named_parameters() if ".experts." in n and n.rsplit(".", 1)[1] in ("gate_up_proj", "down_proj", "up_proj") and p.dim() == 3})
    return linear, experts


def make(name):
    spec = dict(MODELS[name])
    kind = spec.pop("_type", name)
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(kind, **{**COMMON, **spec})
    config._attn_implementation = "eager"
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for n, p in list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if "bias" in n]:
            if n.endswith("A_log"): p.copy_(torch.log(torch.rand_like(p) * 8 + 1))
            elif "norm" in n and n.endswith("weight"): p.copy_(p + 0.2 * torch.randn_like(p))
            elif n.endswith("bias") or n.endswith("sinks"): p.copy_(0.2 * torch.randn_like(p))
            elif "gate.weight" in n or "router" in n: p.copy_(0.8 * torch.randn_like(p))
            elif n.endswith(".D"): p.copy_(1 + 0.2 * torch.randn_like(p))
            else: p.copy_(0.25 * torch.randn_like(p))
    folder = os.path.join(HERE, "models", name)
    model.save_pretrained(folder)
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(folder, extra)): os.remove(os.path.join(folder, extra))
    if kind == "kimi_linear":   # saving names the dense layer like the others; the published checkpoint does not
        path = os.path.join(folder, "model.safetensors")
        tensors = {k.replace("layers.0.block_sparse_moe.", "layers.0.mlp."): v for k, v in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    if kind == "glm_moe_dsa":   # published GLM-5 configs say that the choice is corrected; saving leaves it out
        path = os.path.join(folder, "config.json")
        text = json.load(open(path))
        json.dump(dict(sorted({**text, "topk_method": "noaux_tc"}.items())), open(path, "w"), indent=2)
    linear, experts = targets(model)
    lora = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=linear, target_parameters=experts or None, task_type="CAUSAL_LM")
    kind_there, model.config.model_type = model.config.model_type, "plain"   # by the name, PEFT refuses out_proj of Mamba models and joins gate and up of experts and dense layers under twice the rank
    model = peft.get_peft_model(model, lora)
    model.config.model_type = kind_there
    with torch.no_grad():
        named = dict(model.named_parameters())
        for n, p in named.items():
            if "lora_" in n: p.copy_(0.3 * torch.randn_like(p))
        for n, p in named.items():
            if ".up_proj." in n and "lora_A" in n and n.replace(".up_proj.", ".gate_proj.") in named: p.copy_(named[n.replace(".up_proj.", ".gate_proj.")])
    if kind == "phimoe": model.eval()   # in training its router draws the experts at random
    ids = torch.randint(0, COMMON["vocab_size"], (ROWS, LENGTH))
    labels = ids.clone()
    labels[0, :3] = -100
    out = model(input_ids=ids, labels=labels, use_cache=False)
    out.loss.backward()
    tensors = {"input_ids": ids.float(), "labels": labels.float(), "logits": out.logits.detach().float(), "loss": out.loss.detach().reshape(1)}
    for n, p in model.named_parameters():
        if "lora_" in n: tensors["grad." + n.replace(".default", "")] = p.grad.detach().clone()
    model.save_pretrained(folder)
    if os.path.exists(os.path.join(folder, "README.md")): os.remove(os.path.join(folder, "README.md"))
    versions = dict(torch=torch.__version__, transformers=transformers.__version__, peft=peft.__version__)
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(folder, "vectors.safetensors"), metadata=versions)
    print(name, "loss", float(out.loss), "linear", len(linear), "experts", experts, "gradients", sum(k.startswith("grad.") for k in tensors))


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        try:
            make(name)
        except Exception as e:
            print(name, "FAILED", type(e).__name__, str(e)[:300])
