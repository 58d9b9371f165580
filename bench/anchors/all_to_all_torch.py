#!/usr/bin/env python3
"""torch.distributed.all_to_all_single at the expert exchanges of `multi_gpu_bench`, balanced: one process a GPU, NCCL.

python3 all_to_all_torch.py [RANKS]   (needs torch with CUDA and at least two GPUs; else it says SKIPPED)
The slowest rank's median of seven batches that begin together, as there.
"""
import os
import statistics
import sys


def main() -> int:
    try:
        import torch
    except ImportError:
        print("SKIPPED all_to_all_torch: no torch")
        return 77
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    if ranks < 2 or torch.cuda.device_count() < ranks:
        print(f"SKIPPED all_to_all_torch: {ranks} ranks asked for, {torch.cuda.device_count()} devices here")
        return 77
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29533")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    torch.multiprocessing.spawn(rank_main, args=(ranks,), nprocs=ranks)
    return 0


def rank_main(rank: int, ranks: int) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    sizes = [("all_to_all", 1, bytes_ // 2) for bytes_ in (1 << 10, 1 << 15, 1 << 20, 1 << 23, 1 << 26, 1 << 29)]
    for model, top_k, hidden in (("kimi-k3", 16, 3584), ("deepseek-v3", 8, 7168), ("qwen3-30b-a3b", 8, 2048)):
        sizes += [(f"{model} dispatch, {tokens} tokens, max/mean 1.00", tokens * top_k, hidden) for tokens in (1024, 4096)]
    if rank == 0:
        print(f"{ranks} devices, torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    for name, rows, width in sizes:
        elements = rows * width // ranks * ranks
        send = torch.zeros(elements, dtype=torch.bfloat16, device="cuda")
        receive = torch.empty_like(send)
        repeats = max(1, min(20, (64 << 20) // max(1, 2 * elements)))
        taken = []
        for batch in range(8):
            dist.barrier()
            torch.cuda.synchronize()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(repeats):
                dist.all_to_all_single(receive, send)
            end.record()
            end.synchronize()
            slowest = torch.tensor(begin.elapsed_time(end) / repeats, device="cuda")
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if batch:
                taken.append(slowest.item())
        if rank == 0:
            print(f"{name:52} {2 * elements / 1e6:10.4g} MB {1e3 * statistics.median(taken):10.1f} us", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
