"""Norms, activations, convolution and glue: torch eager, torch.compile, Liger (norm, SwiGLU), fla and causal-conv1d (convolution) beside ours, with the
share of a copy's rate that ours reaches in bench/elementwise.cpp's accounting.

    ninja elementwise_bench; python3 bench/anchors/elementwise_torch.py build/elementwise_bench
"""
from beside import against, bf16, heading, median, optional, ours, torch

F = torch.nn.functional
T = 8192


def liger(name, function):
    module = optional("liger_kernel.ops." + name)
    return getattr(module, function, None) if module else None


def both(make, inputs, dy):
    """Forward, and gradients of the inputs alone."""
    def one(f):
        if f is None:
            return None, None
        try:
            with torch.no_grad():
                forward = median(lambda: f(*inputs))
            y = f(*inputs)
            wanted = [x for x in inputs if x.requires_grad]
            return forward, median(lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True))
        except Exception as error:  # noqa: BLE001: what cannot run here is said, the rest goes on
            print("  failed:", str(error).splitlines()[0][:120], flush=True)
            return None, None
    return {name: one(f) for name, f in make.items()}


def forms(f, **more):
    return {"torch": f, "torch.compile": torch.compile(f, dynamic=False), **more}


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def rows():
    rms, swiglu = liger("rms_norm", "LigerRMSNormFunction"), liger("swiglu", "LigerSiLUMulFunction")
    causal, fla = optional("causal_conv1d"), optional("fla.modules.convolution")
    for h in (7168, 512):
        x, w, dy = bf16(T, h, grad=True), bf16(h), bf16(T, h)
        yield f"rms_norm tokens={T} hidden={h}", forms(lambda x: F.rms_norm(x, (h,), w, 1e-6), **({"liger": lambda x: rms.apply(x, w, 1e-6)} if rms else {})), (x,), dy
    x, w, b, dy = bf16(T, 7168, grad=True), bf16(7168), bf16(7168), bf16(T, 7168)
    yield f"layer_norm tokens={T} hidden=7168", forms(lambda x: F.layer_norm(x, (7168,), w, b)), (x,), dy
    i = 6144
    x, dy = bf16(T, 2 * i, grad=True), bf16(T, i)
    yield f"glu tokens={T} intermediate={i}", forms(lambda x: F.silu(x[:, :i]) * x[:, i:], **({"liger": lambda x: swiglu.apply(x[:, :i], x[:, i:])} if swiglu else {})), (x,), dy
    yield f"glu tokens={T} intermediate={i} activation=gelu", forms(lambda x: F.gelu(x[:, :i]) * x[:, i:]), (x,), dy
    x, dy = bf16(T, 7168, grad=True), bf16(T, 7168)
    yield f"activation tokens={T} width=7168", forms(F.silu), (x,), dy
    yield f"activation tokens={T} width=7168 function=gelu", forms(F.gelu), (x,), dy
    yield f"activation tokens={T} width=7168 function=relu2", forms(lambda x: F.relu(x).square()), (x,), dy
    y = bf16(T, 7168, grad=True)
    yield f"add tokens={T} hidden=7168", forms(torch.add), (x, y), dy
    x, g, dy = bf16(T, 12288, grad=True), bf16(T, 12288, grad=True), bf16(T, 12288)
    yield f"mul_gate tokens={T} width=12288 gate_width=12288", forms(lambda x, g: x * torch.sigmoid(g)), (x, g), dy
    x, dy, turn = bf16(T, 64, 128, grad=True), bf16(T, 64, 128), torch.randn(T, 1, 64, device="cuda")
    cos, sin = turn.cos().bfloat16(), turn.sin().bfloat16()
    yield f"rope tokens={T} heads=64 head_dim=128 rotary_dim=128 sequence_length={T}", forms(lambda x: rotate(x, cos, sin)), (x,), dy
    c = 12288
    w, x, dy = torch.randn(c, 4, device="cuda", dtype=torch.bfloat16), bf16(1, T, c, grad=True), bf16(1, T, c)
    more = {}
    if causal:
        more["causal_conv1d"] = lambda x: causal.causal_conv1d_fn(x.transpose(1, 2), w, activation="silu").transpose(1, 2)
    if fla:
        more["fla"] = lambda x: fla.causal_conv1d(x, w, activation="silu")[0]
    yield f"short_conv tokens={T} sequence_length={T} channels={c}", forms(lambda x: F.silu(F.conv1d(F.pad(x.transpose(1, 2), (3, 0)), w[:, None], groups=c)).transpose(1, 2), **more), (x,), dy


heading()
a, b = bf16(T, 7168), bf16(T, 7168)
ms = median(lambda: b.copy_(a))
print(f"copy of {a.nbytes / 1e6:.1f} MB: {ms:.4f} ms, {2 * a.nbytes / ms / 1e6:.0f} GB/s", flush=True)
mine = {m[3]: (float(m[1]), float(m[2])) for m in ours(r"^ *([\d.]+) +[\d.]+ +[\d.]+ +([\d.]+)  (\S.*)$")}
for key, make, inputs, dy in rows():
    times = both(make, inputs, dy)
    for end, which in ((" forward", 0), (" backward dx", 1)):
        own, share = mine.get(key + end, (None, 0.0))
        print(key + end + ": " + against(own, {name: t[which] for name, t in times.items()}) + (f"; {share:.1f} % of a copy" if own else ""), flush=True)
