"""A rollout phase beside plain `generate`: `python benchmarks/rollout.py [--quick] [--json FILE]`.

The same weights, prompts, group size, cap and bias on the end token; the plain side makes one `generate` for
as many rows as the sampler holds at once, each prompt once a response. What counts is response tokens a
second. Lengths are geometric with a mean of about a quarter of the cap; see `benchmarks/step.py`.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import step as workload  # first: it imports `dapo_ref` before torch, which must be so
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dapo_ref.config import Config, Sampling
from dapo_ref.data import Problem
from dapo_ref.policy import rollout

CAP, END = 64, 2


def plain_generate(model: Any, prompts: list[list[int]], sampling: Sampling, config: Any) -> int:
    """Response tokens of one `generate` after the other."""
    tokens, at_once = 0, max(1, sampling.rollout_batch_size // sampling.group_size)
    config.num_return_sequences = sampling.group_size
    for first in range(0, len(prompts), at_once):
        ids, mask = rollout._left_pad(prompts[first : first + at_once], END, model.device)
        found = model.generate(ids, attention_mask=mask, generation_config=config)[:, ids.shape[1] :]
        tokens += sum(len(rollout.cut_at_end(row, [END])) for row in found.tolist())
    return tokens


def timed(function: Callable[[], int]) -> float:
    """Tokens a second."""
    start = time.perf_counter()
    return function() / (time.perf_counter() - start)


def compare(name: str, rows: int, repeats: int, folder: Path) -> dict[str, Any]:
    """Both alternately, after a warm-up of each."""
    model_dir, file = workload.make_model(name, folder / name), folder / f"{name}.jsonl"
    workload.make_prompts(name, file, workload.PROMPTS[name])
    bias = workload.end_bias(model_dir, file, "tail", CAP)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    questions = [json.loads(line)["question"] for line in file.read_text(encoding="utf-8").splitlines()]
    prompts = [tokenizer(question)["input_ids"] for question in questions]
    sampling = dataclasses.replace(
        Config().sampling, group_size=8, max_response_length=CAP, rollout_batch_size=rows
    )
    plain_config = rollout.generation_config

    def biased(*args: Any, **kwargs: Any) -> Any:
        config = plain_config(*args, **kwargs)
        config.sequence_bias = [[[END], bias]]
        return config

    rollout.generation_config = biased

    def ours() -> int:
        problems = [(Problem((), "0", ""), ids) for ids in prompts]
        groups = rollout.sample_groups(model, tokenizer, problems, sampling, [END])
        return sum(len(r.response_ids) for group in groups for r in group.rollouts)

    def plain() -> int:
        return plain_generate(model, prompts, sampling, biased(sampling, [END], pad_id=END))

    torch.manual_seed(0)
    ours(), plain()
    pairs = [(timed(ours), timed(plain)) for _ in range(repeats)]
    rollout.generation_config = plain_config
    ratios = [mine / theirs for mine, theirs in pairs]
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"{name}, {len(prompts) * 8} responses, {rows} rows at once: {mine:.0f} tokens a second, `generate` "
        f"{theirs:.0f}, ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
        flush=True,
    )
    return {"model": name, "rows": rows, "pairs": pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three repeats in place of seven")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    repeats = 3 if args.quick else 7
    with tempfile.TemporaryDirectory() as temporary:
        cases = [("tiny", 64), ("tiny", 256), ("small", 32)]
        found = [compare(name, rows, repeats, Path(temporary)) for name, rows in cases]
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
