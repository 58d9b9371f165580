#!/usr/bin/env python3
"""LoRA training by transformers and PEFT under FSDP2, one process a GPU: tokens/s and peak memory beside those of `moeplan run PLAN --ranks N`.

python3 peft_fsdp2.py CONFIG.json [--ranks N] [--batch B] [--seq S] [--micro-batches M] [--rank R] [--checkpointing] [--steps K] [--device cpu]
Random weights of the model's config, made where they lie; LoRA on the attention's projections, bf16, AdamW; a layer is a unit of FSDP2, weights are gathered again in the
backward pass. Needs torch, transformers and peft; without them or without the GPUs it says SKIPPED.
"""
import argparse
import os
import statistics
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    try:
        import peft  # noqa: F401
        import torch
        import transformers  # noqa: F401
    except ImportError as missing:
        print(f"SKIPPED peft_fsdp2: {missing}")
        return 77
    if arguments.device == "cuda" and torch.cuda.device_count() < arguments.ranks:
        print(f"SKIPPED peft_fsdp2: {arguments.ranks} ranks asked for, {torch.cuda.device_count()} devices here")
        return 77
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29541")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    torch.multiprocessing.spawn(rank_main, args=(arguments,), nprocs=arguments.ranks)
    return 0


def rank_main(rank: int, arguments: argparse.Namespace) -> None:
    import peft
    import torch
    import torch.distributed as dist
    import transformers
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    cuda = arguments.device == "cuda"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=arguments.ranks)
    config = transformers.AutoConfig.for_model(**__import__("json").load(open(arguments.config)))
    config.use_cache = False
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model = peft.get_peft_model(model, peft.LoraConfig(r=arguments.rank, lora_alpha=arguments.rank, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    if arguments.checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model.get_base_model().model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device=device)
    torch.manual_seed(rank)
    with torch.no_grad():
        for name, value in list(model.named_parameters()) + list(model.named_buffers()):
            local = value.to_local() if hasattr(value, "to_local") else value
            if "inv_freq" in name:
                width = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
                theta = getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]
                local.copy_(1.0 / theta ** (torch.arange(0, width, 2, device=device).float() / width))
            elif "norm" in name:
                local.fill_(1)
            elif "lora_B" in name:
                local.zero_()
            elif local.is_floating_point():
                local.normal_(0, 0.02)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    taken = []
    for step in range(arguments.steps):
        if cuda:
            torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(arguments.micro_batches):
            tokens = torch.randint(0, config.vocab_size, (arguments.batch, arguments.seq), device=device)
            loss = model(input_ids=tokens, labels=tokens).loss / arguments.micro_batches
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if cuda:
            torch.cuda.synchronize()
        dist.barrier()
        taken.append(time.perf_counter() - begin)
        if rank == 0:
            print(f"step {step + 1}  loss {loss.item() * arguments.micro_batches:.4f}  {taken[-1]:.3f} s", flush=True)
    if rank == 0:
        seconds = statistics.median(taken[1:])
        tokens = arguments.ranks * arguments.batch * arguments.seq * arguments.micro_batches
        memory = "" if not cuda else f", allocated {torch.cuda.max_memory_allocated() / 1e9:.1f} GB, reserved {torch.cuda.max_memory_reserved() / 1e9:.1f} GB"
        print(f"{os.path.basename(arguments.config)}, {arguments.ranks} ranks, batch {arguments.batch} x {arguments.micro_batches}, sequence {arguments.seq}, LoRA r{arguments.rank}"
              f"{', checkpointing' if arguments.checkpointing else ''}: torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}: "
              f"{seconds:.3f} s a step, {tokens / seconds:.0f} tokens/s{memory}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
