"""Memory and time of the chunked log-probabilities: `python benchmarks/logprobs.py [--quick] [--json FILE]`.

Forward and backward of `dapo_ref.policy.logprobs.token_logprobs` against the plain path (logits, float32, log
softmax, entropy, autograd) at a vocabulary of 151,936 and hidden size 896, those of Qwen2.5-0.5B. Each point
is a process of its own, whose peak is its resident memory, or what torch allocated on a GPU. `raw` is all of
it; `net` is without what was there before the forward: hidden states, weight, and the interpreter. The
gradients that both have to hold are in it.

A point that would not fit into the memory available is left out and says so. On a CPU without instructions
for bf16, `--dtype bfloat16` takes hours.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dapo_ref.policy.logprobs import token_logprobs  # noqa: E402

VOCABULARY, HIDDEN = 151_936, 896
COPIES = 3.2
"""Arrays of [tokens, V] float32 the plain path holds at its peak (3), and some room."""
PATHS = ("chunked", "plain")


def plain_logprobs(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As it is commonly written; the entropy carries no gradient."""
    logp = torch.nn.functional.linear(hidden, weight).float().log_softmax(dim=-1)
    with torch.no_grad():
        -(logp.exp() * logp).sum(dim=-1)
    return logp.gather(1, targets[:, None]).squeeze(1)


def chunked_logprobs(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return token_logprobs(hidden, weight, None, targets)[0]


def peak_bytes() -> int:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status").read_text(
        encoding="utf-8"
    )  # `ru_maxrss` is inherited from the parent process
    return next(int(line.split()[1]) * 2**10 for line in status.splitlines() if line.startswith("VmHWM"))


def available_bytes() -> int:
    """Of the machine, or of the GPU."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 2**10 for line in lines if line.startswith("MemAvailable"))


def work(path: str, tokens: int, dtype: str) -> dict[str, float]:
    """One forward and backward; the first touch of memory is part of it on both paths."""
    if not torch.cuda.is_available():
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    kind = {"dtype": getattr(torch, dtype), "device": device}
    hidden = torch.randn(tokens, HIDDEN, **kind).requires_grad_()
    weight = torch.empty(VOCABULARY, HIDDEN, **kind).normal_(std=0.02).requires_grad_()
    targets = torch.randint(VOCABULARY, (tokens,), device=device)
    before = peak_bytes()
    run: Callable[..., torch.Tensor] = chunked_logprobs if path == "chunked" else plain_logprobs
    start = time.perf_counter()
    run(hidden, weight, targets).sum().backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    raw = peak_bytes()
    return {"raw_mb": raw / 2**20, "net_mb": (raw - before) / 2**20, "seconds": seconds}


def measure(path: str, tokens: int, dtype: str) -> dict[str, Any] | None:
    """One point in a process of its own; None if it would not fit."""
    need = 2.5 * 2**30 + (COPIES * tokens * VOCABULARY * 4 if path == "plain" else 0)
    if need > available_bytes():
        return None
    command = [sys.executable, __file__, "--worker", path, str(tokens), dtype]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path}, {tokens} tokens failed ({done.returncode}):\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def row(tokens: int, dtype: str) -> dict[str, Any]:
    """Both paths at one number of tokens, and a line of the table."""
    chunked, plain = (measure(path, tokens, dtype) for path in PATHS)
    cells = []
    for key, digits in (("raw_mb", 0), ("net_mb", 0), ("seconds", 1)):
        cells += [f"{found[key]:.{digits}f}" if found else "no room" for found in (chunked, plain)]
        cells.append(f"{chunked[key] / plain[key]:.2f}" if chunked and plain else "")
    print(f"{tokens:>7} {dtype:<9}" + "".join(f"{cell:>9}" for cell in cells), flush=True)
    return {"tokens": tokens, "dtype": dtype, "chunked": chunked, "plain": plain}


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory and time of the chunked log-probabilities.")
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024, 2048, 4096, 8192])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--quick", action="store_true", help="1,024 and 2,048 tokens")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        path, tokens, dtype = args.worker
        print(json.dumps(work(path, int(tokens), dtype)))
        return
    names = [f"{what} {path[:5]}" for what in ("raw", "net", "s") for path in (*PATHS, "ratio")]
    print(f"V {VOCABULARY}, H {HIDDEN}; MB and seconds; ratio is chunked/plain")
    print(f"{'tokens':>7} {'dtype':<9}" + "".join(f"{name[:8]:>9}" for name in names))
    rows = [row(tokens, args.dtype) for tokens in ([1024, 2048] if args.quick else args.tokens)]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
