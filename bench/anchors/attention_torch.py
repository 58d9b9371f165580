"""Times torch's scaled_dot_product_attention with the cuDNN backend at the shapes of bench/attention.cpp, by the same protocol: 192 MB are
written before each sample, CUDA events, median of 11, random normal bf16. Backward is timed alone (the graph is kept). TFLOP/s count the
visible pairs, five products backward. Usage: attention_torch.py. Needs torch 2.11 or later with cuDNN and a Hopper GPU."""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

flush = torch.empty(192 << 20, dtype=torch.uint8, device="cuda")


def median(f, n=11):
    f()
    times = []
    for i in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.fill_(i)
        a.record()
        f()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b))
    return sorted(times)[n // 2]


def row(t, heads, kv_heads, qk, v, causal=True):
    pairs = t * heads * (t / 2 if causal else t)
    q = torch.randn(1, t, heads, qk, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k = torch.randn(1, t, kv_heads, qk, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(1, t, kv_heads, v, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(1, t, heads, v, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            f = lambda: torch.nn.functional.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), w.transpose(1, 2), is_causal=causal, enable_gqa=heads != kv_heads)
            with torch.no_grad():
                ms = median(f)
            y = f()
            back = median(lambda: torch.autograd.grad(y, (q, k, w), dy, retain_graph=True))
    except RuntimeError as error:
        print(f"cuDNN T{t} H{heads}/{kv_heads} d{qk}/{v} causal={causal}: {str(error)[:90]}", flush=True)
        return
    one, two = 2 * pairs * (qk + v) / ms / 1e9, 2 * pairs * (3 * qk + 2 * v) / back / 1e9
    print(f"cuDNN T{t} H{heads}/{kv_heads} d{qk}/{v} causal={causal}: forward {ms:.4f} ms {one:.1f} TFLOP/s, backward {back:.4f} ms {two:.1f} TFLOP/s", flush=True)


print(torch.__version__, "cuDNN", torch.backends.cudnn.version(), torch.cuda.get_device_name())
for t in (4096, 8192, 16384, 32768):
    row(t, 32, 32, 128, 128)
    row(t, 32, 32, 192, 128)
row(8192, 128, 128, 192, 128)
row(8192, 64, 4, 128, 128)
row(8192, 64, 8, 64, 64)
row(8192, 16, 2, 256, 256)
row(8192, 32, 32, 128, 128, False)
row(5000, 24, 8, 128, 128)
