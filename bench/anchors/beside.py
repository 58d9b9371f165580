"""What the scripts of this folder share: the protocol, and ours beside it. bf16, random data, 192 MB written before each sample (empties the cache,
hides the launch), CUDA events, median of 11. Ours are timed by the same protocol by the program named on the command line, which is run first, on the
same device and in the same call. What is not installed says SKIPPED and the rest goes on."""
import importlib
import re
import subprocess
import sys

try:
    import torch
except ImportError:
    print("SKIPPED: torch is not installed")
    sys.exit(0)
if not torch.cuda.is_available():
    print("SKIPPED: no CUDA device")
    sys.exit(0)

flush = torch.empty(192 << 20, dtype=torch.uint8, device="cuda")


def median(work, samples=11):
    work()
    times = []
    for i in range(samples):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.fill_(i)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[samples // 2]


def optional(module):
    """The module, or None and a word."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # noqa: BLE001: packages fail in many ways where their own needs are missing
        print(f"SKIPPED {module}: {str(error).splitlines()[0][:100] if str(error) else type(error).__name__}", flush=True)
        return None


def ours(pattern, arguments=()):
    """Matches of `pattern` in what our program prints, line by line."""
    if len(sys.argv) < 2:
        print("SKIPPED ours: name the program that times them (see above) on the command line", flush=True)
        return []
    text = subprocess.run([sys.argv[1], *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [m for m in (re.search(pattern, line) for line in text.splitlines()) if m]


def bf16(*shape, grad=False, scale=1.0):
    return (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * scale).requires_grad_(grad)


def heading():
    print("torch", torch.__version__, torch.cuda.get_device_name(), flush=True)


def against(mine, others):
    """ "ours 0.1234 ms, torch 0.2345 (1.90x)": above 1 ours is faster; `others`: name to ms or None."""
    line = f"ours {mine:.4f} ms" if mine else "ours -"
    for name, ms in others.items():
        line += f", {name} -" if ms is None else f", {name} {ms:.4f}" + (f" ({ms / mine:.2f}x)" if mine else "")
    return line
