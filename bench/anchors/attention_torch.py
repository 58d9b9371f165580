"""Attention by cuDNN through torch's scaled_dot_product_attention, beside ours, at the shapes of bench/attention.cpp. Backward is timed alone (the graph
is kept). TFLOP/s count the visible pairs, five products backward. Needs torch 2.11 or later with cuDNN.

    ninja attention_bench; python3 bench/anchors/attention_torch.py build/attention_bench
"""
from beside import against, bf16, heading, median, ours, torch
from torch.nn.attention import SDPBackend, sdpa_kernel

PLAIN = {"tokens", "sequence_length", "heads", "kv_heads", "d_qk", "d_v", "causal"}


def own():
    """(tokens, heads, key heads, widths, causal, pass) to ms, of the calls without window, sinks, packing or a shared key."""
    found = {}
    for m in ours(r"^ *([\d.]+) +[\d.]+ +[\d.]+  attention (.*)$"):
        words = m[2].split()
        f = dict(w.split("=") for w in words if "=" in w)
        if set(f) <= PLAIN and f["sequence_length"] == f["tokens"]:
            which = "forward" if "forward" in words else "backward"
            found[tuple(int(f[n]) for n in ("tokens", "heads", "kv_heads", "d_qk", "d_v")) + (f.get("causal") != "false", which)] = float(m[1])
    return found


def row(mine, t, heads, kv_heads, qk, v, causal=True):
    pairs = t * heads * (t / 2 if causal else t)
    q, k, w = bf16(1, t, heads, qk, grad=True), bf16(1, t, kv_heads, qk, grad=True), bf16(1, t, kv_heads, v, grad=True)
    dy = bf16(1, t, heads, v).transpose(1, 2)
    name = f"T{t} H{heads}/{kv_heads} d{qk}/{v} causal={causal}"
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            f = lambda: torch.nn.functional.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), w.transpose(1, 2), is_causal=causal, enable_gqa=heads != kv_heads)
            with torch.no_grad():
                ms = median(f)
            y = f()
            back = median(lambda: torch.autograd.grad(y, (q, k, w), dy, retain_graph=True))
    except RuntimeError as error:
        print(f"{name}: cuDNN: {str(error)[:90]}", flush=True)
        return
    for which, theirs, operations in (("forward", ms, 2 * (qk + v)), ("backward", back, 2 * (3 * qk + 2 * v))):
        print(f"{name} {which}: " + against(mine.get((t, heads, kv_heads, qk, v, causal, which)), {"cuDNN": theirs}) + f", cuDNN {operations * pairs / theirs / 1e9:.0f} TFLOP/s", flush=True)


heading()
print("cuDNN", torch.backends.cudnn.version(), flush=True)
mine = own()
for t in (4096, 8192, 16384, 32768):
    row(mine, t, 32, 32, 128, 128)
    row(mine, t, 32, 32, 192, 128)
row(mine, 8192, 128, 128, 192, 128)
row(mine, 8192, 64, 4, 128, 128)
row(mine, 8192, 64, 8, 64, 64)
row(mine, 8192, 16, 2, 256, 256)
row(mine, 8192, 32, 32, 128, 128, False)
row(mine, 5000, 24, 8, 128, 128)
