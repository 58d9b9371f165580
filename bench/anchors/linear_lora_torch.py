"""A linear layer with a LoRA pair of rank 64, forward + dx + dA + dB over the frozen forward + dx: torch by hand, torch.compile, and PEFT's layer where
it is installed, beside ours at the shapes of bench/products.cpp.

    ninja products_bench; python3 bench/anchors/linear_lora_torch.py build/products_bench
"""
from beside import bf16, heading, median, optional, ours, torch

SHAPES = {"K3 q_proj": (7168, 12288), "K3 o_proj": (12288, 7168), "K3 kv_a": (7168, 576), "K3 shared up": (7168, 6144), "Kimi-Linear q_proj": (2304, 4096),
          "Kimi-Linear o_proj": (4096, 2304), "Kimi-Linear dense up": (2304, 18432), "Qwen3-235B q_proj": (4096, 8192)}
RANK = 64


def timed(f, x, trained, dy):
    with torch.no_grad():
        forward = median(lambda: f(x))
    y = f(x)
    return forward, median(lambda: torch.autograd.grad(y, [x, *trained], dy, retain_graph=True))


def more(all_, frozen):
    return f"{sum(all_):.4f} ms, {100 * (sum(all_) / sum(frozen) - 1):+.1f} %"


heading()
peft = optional("peft.tuners.lora.layer")
mine = {(m[1].strip(), int(m[2])): (float(m[3]) + float(m[4]), float(m[5]))
        for m in ours(r"^(.+?) +t +(\d+) +frozen .* LoRA r64 ([\d.]+) \+ ([\d.]+) ms: \+?([-\d.]+) %")}
for name, (k, n) in SHAPES.items():
    w = bf16(n, k, scale=k**-0.5)
    a, b = bf16(RANK, k, grad=True, scale=k**-0.5), bf16(n, RANK, grad=True)
    for tokens in (4096, 8192):
        x, dy = bf16(tokens, k, grad=True), bf16(tokens, n)
        frozen = timed(lambda x: x @ w.T, x, (), dy)
        pair = lambda x: x @ w.T + 2.0 * (x @ a.T) @ b.T
        line = f"{name} {k} -> {n} t {tokens}: must arithmetic {150 * RANK * (k + n) / (k * n):.1f} % + 8; "
        own = mine.get((name, tokens))
        line += f"ours {own[0]:.4f} ms, {own[1]:+.1f} %; " if own else "ours -; "
        line += f"torch {more(timed(pair, x, (a, b), dy), frozen)}; torch.compile {more(timed(torch.compile(pair, dynamic=False), x, (a, b), dy), frozen)}"
        if peft:
            base = torch.nn.Linear(k, n, bias=False, device="cuda", dtype=torch.bfloat16)
            base.weight.requires_grad_(False).copy_(w)
            layer = peft.Linear(base, "default", r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0).to(device="cuda", dtype=torch.bfloat16)
            line += "; PEFT " + more(timed(layer, x, [p for p in layer.parameters() if p.requires_grad], dy), frozen)
        print(line, flush=True)
