"""What people use today for a frozen head and its loss, forward and the gradient of x: torch, Liger and Apple's CCE (each where it is installed) beside
ours at its best chunks of bench/products.cpp. Vocabulary 163840; the memory is the peak beside the operands.

    ninja products_bench; python3 bench/anchors/cross_entropy_torch.py build/products_bench
"""
from beside import against, bf16, heading, median, optional, ours, torch

V = 163840


def forms():
    yield "torch", lambda x, w, y: torch.nn.functional.cross_entropy(x @ w.T, y)
    if liger := optional("liger_kernel.ops.fused_linear_cross_entropy"):
        def run(x, w, y):
            out = liger.LigerFusedLinearCrossEntropyFunction.apply(x, w, y)
            return out[0] if isinstance(out, tuple) else out
        yield "liger", run
    if cce := optional("cut_cross_entropy"):
        yield "cce", lambda x, w, y: cce.linear_cross_entropy(x, w, y)


heading()
mine = {}
for m in ours(r"^cross_entropy t +(\d+) h +(\d+) v \d+ chunk .*?  ([\d.]+) \+ ([\d.]+) ms"):
    at = int(m[2]), int(m[1])
    mine[at] = min(mine.get(at, 1e9), float(m[3]) + float(m[4]))
others = list(forms())
for hidden in (2304, 7168):
    w = bf16(V, hidden, scale=0.02)
    for tokens in (4096, 8192, 16384):
        x, y, times = bf16(tokens, hidden, grad=True), torch.randint(0, V, (tokens,), device="cuda"), {}
        for name, loss in others:
            def step():
                x.grad = None
                loss(x, w, y).backward()
            try:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                ms = median(step)
                times[f"{name} [{(torch.cuda.max_memory_allocated() - before) / 1e6:.0f} MB]"] = ms
            except Exception as e:  # noqa: BLE001: what cannot run here is said, the rest goes on
                print(f"{name} h {hidden} t {tokens}: {str(e)[:120]}", flush=True)
        print(f"h {hidden} t {tokens} forward + dx: " + against(mine.get((hidden, tokens)), times), flush=True)
