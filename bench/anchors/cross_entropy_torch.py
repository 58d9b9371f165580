"""Times what people use today for a frozen head and its loss: torch, Liger and Apple's CCE (each where it is installed), forward and the
gradient of x. Run it in the same call as `products_bench`, which times ours:

    ./products_bench; python3 cross_entropy_torch.py

bf16, vocabulary 163840, random data, medians of 11, 192 MB written before each sample. Prints ms and the peak memory beside the operands."""
import torch

V = 163840


def median(work, flush):
    work()
    times = []
    for _ in range(11):
        flush.fill_(0)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[5]


def forms():
    yield "torch", lambda x, w, y: torch.nn.functional.cross_entropy(x @ w.T, y)
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as liger

        def run(x, w, y):
            out = liger.apply(x, w, y)
            return out[0] if isinstance(out, tuple) else out
        yield "liger", run
    except ImportError as e:
        print("SKIPPED liger:", e)
    try:
        from cut_cross_entropy import linear_cross_entropy
        yield "cce", lambda x, w, y: linear_cross_entropy(x, w, y)
    except ImportError as e:
        print("SKIPPED cce:", e)


def main():
    if not torch.cuda.is_available():
        print("SKIPPED: no CUDA device")
        return
    flush = torch.empty(192 << 20, dtype=torch.uint8, device="cuda")
    for hidden in (2304, 7168):
        w = torch.randn(V, hidden, device="cuda", dtype=torch.bfloat16) * 0.02
        for tokens in (4096, 8192, 16384):
            x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            y = torch.randint(0, V, (tokens,), device="cuda")
            for name, loss in forms():
                def step():
                    x.grad = None
                    loss(x, w, y).backward()
                try:
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                    ms = median(step, flush)
                    print(f"{name:6s} h {hidden} t {tokens:6d} forward + dx {ms:8.3f} ms, peak {(torch.cuda.max_memory_allocated() - before) / 1e6:.0f} MB", flush=True)
                except Exception as e:  # noqa: BLE001: what cannot run here is said, the rest goes on
                    print(f"{name:6s} h {hidden} t {tokens:6d} failed: {str(e)[:120]}", flush=True)


main()
