"""The same DAPO step here and in TRL's GRPOTrainer: `python benchmarks/step.py [--quick] [--json FILE]`.

Needs `pip install -r requirements-benchmark.txt`. Both sides train the same weights on the same prompts, in
groups of 8, in float32, with AdamW, the decoupled clip and the token-level loss, under ZeRO-3, and generate
with HF `generate`. Rewards are given out by position, so that nothing depends on what random weights say.
Sides alternate; each run is a launch of its own, whose first step is left out. What counts is response tokens
a second.

Workloads: `tail`, where a bias on the end token makes lengths geometric with a mean of about a quarter of the
cap, and `cap`, where no response ends before it.

TRL's settings: one `generate` for all responses of a process, micro-batches of up to `--trl_microbatch`
responses, no gradient checkpointing, no logging, no saving.
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dapo_ref  # noqa: E402, F401, I001  first: it sets what must stand before torch is imported
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: E402

from dapo_ref.data.problems import load_problems  # noqa: E402

TINY = ROOT / "dapo_ref/tiny/model"
GROUP_SIZE = 8
PROMPTS = {"tiny": 32, "small": 4}
"""A step: 256 and 32 responses."""
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
"""Of the larger model, 135 million parameters."""


@dataclass(frozen=True)
class Case:
    """What is run; `shape` differs from SHAPE, for the table of growth."""

    model: str
    workload: str
    processes: int
    prompts: int
    cap: int = 64
    shape: dict[str, int] = field(default_factory=dict)


def make_model(name: str, folder: Path, shape: dict[str, int] | None = None) -> Path:
    """The shipped model, or random weights with its tokenizer."""
    if name == "tiny":
        return TINY
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE | (shape or {}))).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY).save_pretrained(folder)
    return folder


def make_prompts(name: str, file: Path, count: int) -> None:
    """The tiny model's own questions; for the larger one several of them in a row, about 75 tokens.

    As many as a step takes, so that every step of both sides has the same, whatever their order."""
    questions = [
        problem.messages[-1]["content"]
        for problem in load_problems("tiny:train", prompt_template="{question}")
    ]
    together = 1 if name == "tiny" else 8
    rows = [" ".join(questions[i : i + together]) for i in range(0, count * together, together)]
    file.write_text(
        "".join(json.dumps({"question": row, "answer": "0"}) + "\n" for row in rows), encoding="utf-8"
    )


def end_bias(model_dir: Path, prompts: Path, workload: str, cap: int) -> float:
    """What to add to the end token's logit for lengths with a mean of a quarter of the cap."""
    if workload == "cap":
        return -1e4
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    rows = [json.loads(line)["question"] for line in prompts.read_text(encoding="utf-8").splitlines()[:8]]
    differences = []
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer(row)["input_ids"]])).logits[0, -1].float()
        others = torch.cat([logits[: tokenizer.eos_token_id], logits[tokenizer.eos_token_id + 1 :]])
        differences.append(float(others.logsumexp(0) - logits[tokenizer.eos_token_id]))
    wanted = 4 / cap
    return statistics.mean(differences) + math.log(wanted / (1 - wanted))


def specification(args: argparse.Namespace, case: Case, folder: Path) -> dict[str, Any]:
    """What both workers are told."""
    name, world, cap = case.model, case.processes, case.cap
    prompts, model = folder / f"{name}.jsonl", make_model(name, folder / name, case.shape)
    make_prompts(name, prompts, case.prompts)
    responses = case.prompts * GROUP_SIZE
    per_update = responses // args.updates
    micro = min(args.trl_microbatch, per_update // world)
    steps = args.steps + 1
    ours = {
        **{"model": model, "data": prompts, "prompt_template": "{question}", "precision": "fp32"},
        **{"rollout_steps": steps, "prompts_per_step": case.prompts, "group_size": GROUP_SIZE},
        **{"responses_per_update": per_update, "max_response_length": cap, "learning_rate": 1e-6},
        **{"warmup_steps": 0, "dynamic_sampling": "false", "soft_overlong_punishment": "false"},
        **{"rollout_batch_size": responses // world, "tokens_per_microbatch": args.tokens_per_microbatch},
        **{"checkpoint_every": 0, "max_grad_norm": 1.0},
    }
    trl = {
        **{"per_device_train_batch_size": micro, "gradient_accumulation_steps": per_update // world // micro},
        **{"steps_per_generation": responses // world // micro, "num_generations": GROUP_SIZE},
        **{"max_completion_length": cap, "max_steps": steps * args.updates, "learning_rate": 1e-6},
    }
    return {
        **{"model": str(model), "data": str(prompts), "trl": trl},
        **{"ours": {key: str(value) for key, value in ours.items()}, "end_id": 2},
        "end_bias": end_bias(model, prompts, case.workload, cap),
    }


def launch(side: str, spec: Path, world: int, output: Path, plain: bool = False) -> list[dict[str, float]]:
    """Runs one side; its steps but the first, tokens summed and times maximal over the processes."""
    command = [
        *("-m", "accelerate.commands.launch"),
        *("--config_file", str(ROOT / "configs/accelerate/zero3.yaml"), "--num_processes", str(world)),
        *("--main_process_port", "0"),
    ]
    worker = [str(ROOT / "benchmarks/step_worker.py"), side, str(spec), str(output)]
    command = [sys.executable, *([] if plain else command), *worker]
    # A cache of native code for each side: the two build DeepSpeed's operator over each other.
    cache = os.environ.get("TORCH_EXTENSIONS_DIR", str(Path.home() / ".cache/torch_extensions"))
    env = os.environ | {"TORCH_EXTENSIONS_DIR": f"{cache}/{side}"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=output.parent, env=env)
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    ranks = [
        [json.loads(line) for line in Path(f"{output}.{rank}").read_text(encoding="utf-8").splitlines()]
        for rank in range(world)
    ]
    return [_merged(step) for step in list(zip(*ranks, strict=True))[1:]]


def _merged(step: tuple[dict[str, float], ...]) -> dict[str, float]:
    merged = {key: max(rank.get(key, 0.0) for rank in step) for key in {key for rank in step for key in rank}}
    for key in ("tokens", "prompt_tokens"):
        merged[key] = sum(rank[key] for rank in step)
    if "training_s" in merged:  # TRL generates inside its training step
        merged.setdefault("logprobs_s", 0.0)
        merged["update_s"] = merged["step_s"] - merged["rollout_s"] - merged["logprobs_s"]
    return merged


# --- Physical limits ----------------------------------------------------------------------------------------


def _median_seconds(function: Callable[[], Any], times: int) -> float:
    function()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def matmul_rate(dtype: torch.dtype, size: int = 2048, times: int = 7) -> float:
    """Floating-point operations a second of size³ products."""
    a = torch.randn(size, size).to(dtype)
    return 2 * size**3 / _median_seconds(lambda: a @ a, times)


@torch.no_grad()
def decode_rate(model_dir: Path, rows: int, context: int) -> float:
    """Tokens a second of bare decoding: one token for each of a full batch, greedy, its context in place."""
    from transformers import DynamicCache

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    cache = DynamicCache(config=model.config)
    model(torch.zeros(rows, context, dtype=torch.long), cache=cache, logits_to_keep=1)

    def step() -> None:
        model(torch.zeros(rows, 1, dtype=torch.long), cache=cache).logits[:, -1].argmax(-1)
        cache.crop(-1)

    return rows / _median_seconds(step, 5)


def update_flops(model_dir: Path, steps: list[dict[str, float]]) -> float:
    """Of the forward and backward products that cannot be avoided: each prompt once, the vocabulary for
    response tokens alone, nothing twice. Attention's own products, about a hundredth, are left out."""
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    head = model.config.vocab_size * model.config.hidden_size
    embeddings = head if model.config.tie_word_embeddings else 2 * head
    body = sum(p.numel() for p in model.parameters()) - embeddings
    responses = sum(step["tokens"] for step in steps)
    prompts = sum(step["prompt_tokens"] for step in steps)
    return 6 * (body * (responses + prompts) + head * responses)


# --- Report -------------------------------------------------------------------------------------------------


def rates(steps: list[dict[str, float]]) -> dict[str, float]:
    """Tokens a second of each part over some steps, and the memory."""
    tokens = sum(step["tokens"] for step in steps)
    found = {"memory_mb": max(step["memory_mb"] for step in steps), "tokens_a_step": tokens / len(steps)}
    for part in ("rollout", "logprobs", "update", "step"):
        seconds = sum(step.get(f"{part}_s", 0.0) for step in steps)
        found[part] = tokens / seconds if seconds else math.inf
    return found


def compare(args: argparse.Namespace, case: Case, folder: Path) -> dict[str, Any]:
    """One row of the table: both sides, alternately."""
    spec = specification(args, case, folder)
    file = folder / "spec.json"
    file.write_text(json.dumps(spec), encoding="utf-8")
    runs: dict[str, list[list[dict[str, float]]]] = {"ours": [], "trl": []}
    for _ in range(args.repeats):
        for side in runs:
            plain = side == "trl" and args.trl_plain
            runs[side].append(launch(side, file, case.processes, folder / "steps", plain))
    each = {
        side: [rates([step]) for steps in all_steps for step in steps] for side, all_steps in runs.items()
    }
    pairs = list(zip(each["ours"], each["trl"], strict=True))
    row: dict[str, Any] = vars(case) | {}
    for side, all_steps in runs.items():
        row[side] = rates([step for steps in all_steps for step in steps])
    row["ratio"] = {}
    for part in ("rollout", "logprobs", "update", "step", "memory_mb"):
        found = [ours[part] / trl[part] for ours, trl in pairs if math.isfinite(trl[part])]
        if found and all(map(math.isfinite, found)):
            row["ratio"][part] = [statistics.median(found), min(found), max(found)]
    our_steps = [step for steps in runs["ours"] for step in steps]
    seconds = sum(step["update_s"] for step in our_steps)
    row["update_flops_a_second"] = update_flops(Path(spec["model"]), our_steps) / seconds
    return row


def print_row(row: dict[str, Any]) -> None:
    title = f"{row['model']}, {row['workload']}, processes: {row['processes']}"
    print(f"\n{title}: {row['ours']['tokens_a_step']:.0f} / {row['trl']['tokens_a_step']:.0f} tokens a step")
    print(f"{'':12}{'here':>10}{'TRL':>10}{'ratio':>8}   spread")
    for part in ("rollout", "logprobs", "update", "step", "memory_mb"):
        line = f"{part:12}{row['ours'][part]:10.0f}{row['trl'][part]:10.0f}"
        if part in row["ratio"]:
            median, low, high = row["ratio"][part]
            line += f"{median:8.2f}   {low:.2f}–{high:.2f}"
        print(line, flush=True)
    print(f"update: {row['update_flops_a_second'] / 1e9:.0f} GFLOP/s of useful products", flush=True)


def limits(models: list[str], folder: Path) -> dict[str, Any]:
    """What this machine can do at best."""
    found: dict[str, Any] = {
        "fp32_flops": matmul_rate(torch.float32),
        "bf16_flops": matmul_rate(torch.bfloat16, size=512, times=3),  # very slow on some CPUs
        "decode": {},
    }
    fp32, bf16 = found["fp32_flops"] / 1e9, found["bf16_flops"] / 1e9
    print(f"products: {fp32:.0f} GFLOP/s fp32 (2048³), {bf16:.1f} bf16 (512³)", flush=True)
    for name in models:
        rows, context = PROMPTS[name] * GROUP_SIZE, 32 if name == "tiny" else 100
        found["decode"][name] = decode_rate(make_model(name, folder / name), rows, context)
        print(f"{name}: bare decoding of {rows} rows {found['decode'][name]:.0f} tokens a second", flush=True)
    return found


def growth(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Our step on eight layers of the larger model, one size changed at a time from the middle one."""
    base = Case("small", "tail", 1, 4, shape={"num_hidden_layers": 8})
    cases = [
        *(replace(base, prompts=prompts) for prompts in (2, 4, 8, 16)),
        *(replace(base, cap=cap) for cap in (32, 128, 256)),
        *(replace(base, shape=base.shape | {"vocab_size": size}) for size in (8192, 151936)),
        replace(base, processes=2),
    ]
    rows = []
    print("\nresponses   cap  vocabulary  ranks   tokens   seconds: rollout  logprobs  update    step")
    for case in cases:
        file = folder / "spec.json"
        file.write_text(json.dumps(specification(args, case, folder)), encoding="utf-8")
        (step, *_) = launch("ours", file, case.processes, folder / "steps")
        vocabulary = case.shape.get("vocab_size", SHAPE["vocab_size"])
        seconds = [step.get(f"{part}_s", 0.0) for part in ("rollout", "logprobs", "update", "step")]
        print(
            f"{case.prompts * GROUP_SIZE:9}{case.cap:6}{vocabulary:12}{case.processes:7}{step['tokens']:9.0f}"
            f"{seconds[0]:17.2f}{seconds[1]:10.2f}{seconds[2]:8.2f}{seconds[3]:8.2f}",
            flush=True,
        )
        rows.append(vars(case) | step)
    return rows


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny model, heavy tail, one process: minutes")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--models", nargs="+", default=["tiny", "small"], choices=["tiny", "small"])
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--workloads", nargs="+", default=["tail", "cap"], choices=["tail", "cap"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="measured in each launch")
    parser.add_argument("--updates", type=int, default=2, help="optimiser updates a rollout step")
    parser.add_argument("--trl_microbatch", type=int, default=32, help="responses")
    parser.add_argument("--growth", action="store_true", help="how our step grows, instead")
    parser.add_argument("--trl_plain", action="store_true", help="TRL without ZeRO-3, on one process")
    parser.add_argument("--tokens_per_microbatch", type=int, default=4096)
    args = parser.parse_args()
    if args.trl_plain:
        args.processes = [1]
    if args.quick:
        args.repeats, args.steps = 1, 1
        args.models, args.workloads, args.processes = ["tiny"], ["tail"], [1]
    return args


def main() -> None:
    args = options()
    if importlib.util.find_spec("trl") is None:
        sys.exit("TRL is not installed: pip install -r requirements-benchmark.txt")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        result: dict[str, Any] = {"limits": limits(args.models, folder), "rows": []}
        if args.growth:
            result["rows"] = growth(args, folder)
        for case in () if args.growth else cases(args):
            row = compare(args, case, folder)
            result["rows"].append(row)
            print_row(row)
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def cases(args: argparse.Namespace) -> list[Case]:
    """All combinations that were asked for."""
    return [
        Case(name, workload, world, PROMPTS[name])
        for name in args.models
        for workload in args.workloads
        for world in args.processes
    ]


if __name__ == "__main__":
    main()
