"""Makes tests/vectors/kda_softplus.txt and kda_bounded.txt with a public implementation.

    pip install fla-core==0.5.2 torch triton einops
    python3 make_kda_vectors.py OUTPUT_FOLDER

The recurrence and the gates are flash-linear-attention's plain PyTorch ones (fla.ops.kda.naive, fla.ops.kda.gate),
differentiated by autograd; the L2 norm is x / sqrt(sum x^2 + 1e-6). One line per tensor: name, count, values.
"""
import sys

import torch
from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_recurrent_kda

tokens, heads, width = 37, 2, 8


def make(name, gate):
    torch.manual_seed(20261129)
    leaf = lambda *shape: torch.randn(*shape).requires_grad_()
    q, k, v, z = (leaf(1, tokens, heads, width) for _ in range(4))
    beta = torch.rand(1, tokens, heads).requires_grad_()
    a_log, bias, state = leaf(heads), leaf(heads * width), leaf(1, heads, width, width)
    norm = lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
    out, final = naive_recurrent_kda(norm(q), norm(k), v, gate(z, a_log, bias), beta, initial_state=state,
                                     output_final_state=True)
    d_out, d_final = torch.randn_like(out), torch.randn_like(final)
    ((out * d_out).sum() + (final * d_final).sum()).backward()
    tensors = dict(q=q, k=k, v=v, gate=z, beta=beta, a_log=a_log, dt_bias=bias, initial_state=state, d_out=d_out,
                   d_final_state=d_final, out=out, final_state=final, dq=q.grad, dk=k.grad, dv=v.grad, dgate=z.grad,
                   dbeta=beta.grad, da_log=a_log.grad, ddt_bias=bias.grad, dinitial_state=state.grad)
    with open(f"{sys.argv[1]}/{name}.txt", "w") as file:
        for key, x in tensors.items():
            values = x.detach().flatten().tolist()
            file.write(f"{key} {len(values)} " + " ".join(f"{y:.8g}" for y in values) + "\n")


make("kda_softplus", naive_kda_gate)
make("kda_bounded", naive_kda_lowerbound_gate)
