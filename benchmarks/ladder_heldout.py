"""Held-out avg@k of every checkpoint of a run: `python benchmarks/ladder_heldout.py RUN --output FILE`.

`evaluate.py` loads one model and ends; a run of the ladder leaves ten checkpoints, and starting ten times
would cost as much as the run. So this one loads the start once and puts the weights of each checkpoint into
it. The sampler is plain `generate`, the verdict is that of the project's verifier. One process only.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from dapo_ref.tiny.make_columns import way_of
from dapo_ref.tiny.tasks import generate
from dapo_ref.verifier import judge

ROWS = 512
"""Responses generated at once."""


def checkpoints(run: Path) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """(rollout step, full weights by their Hugging Face names), oldest first."""
    for folder in sorted((run / "checkpoints").glob("step_*")):
        step = json.loads((folder / "loop.json").read_text(encoding="utf-8"))["step"]
        shard = torch.load(folder / "rank_00000.pt", weights_only=True)
        weights = {
            name.removeprefix("model."): pieces["weight"][: shard["numel"][name]]
            for name, pieces in shard["pieces"].items()
        }
        yield step, weights


@torch.no_grad()
def put(model: Any, weights: dict[str, torch.Tensor]) -> None:
    """Writes flat weights into the model; tied ones are there once."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != weights.keys():
        raise ValueError(f"the checkpoint is of another model: {parameters.keys() ^ weights.keys()}")
    for name, parameter in parameters.items():
        parameter.copy_(weights[name].view_as(parameter))


@torch.no_grad()
def respond(model: Any, tokenizer: Any, questions: Sequence[str], cap: int) -> list[tuple[str, int, bool]]:
    """(text, tokens, truncated) of one response to each question, at temperature 1 and top-p 1."""
    config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        max_new_tokens=cap,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    responses: list[tuple[str, int, bool]] = []
    for first in range(0, len(questions), ROWS):
        prompts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
            )
            for question in questions[first : first + ROWS]
        ]
        inputs = tokenizer(
            prompts,
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
            return_token_type_ids=False,
        )
        output = model.generate(**inputs, generation_config=config)[:, inputs["input_ids"].shape[1] :]
        ended = output == tokenizer.eos_token_id
        truncated = ~ended.any(dim=1)
        lengths = torch.where(truncated, output.shape[1], ended.int().argmax(dim=1) + 1)
        texts = tokenizer.batch_decode(output, skip_special_tokens=True)
        responses += zip(texts, lengths.tolist(), truncated.tolist(), strict=True)
    return responses


def evaluate(
    model: Any, tokenizer: Any, problems: Sequence[dict[str, str]], k: int, cap: int
) -> dict[str, float]:
    """avg@k and how the responses look."""
    torch.manual_seed(0)  # the same noise for all checkpoints and runs
    asked = [problem for problem in problems for _ in range(k)]
    responses = respond(model, tokenizer, [problem["question"] for problem in asked], cap)
    correct = torch.tensor(
        [judge(text, p["answer"]).correct for (text, *_), p in zip(responses, asked, strict=True)]
    ).view(-1, k)
    count = len(responses)
    return {
        "avg": float(correct.float().mean()),
        "all_correct": float(correct.all(dim=1).float().mean()),
        "all_wrong": float((~correct.any(dim=1)).float().mean()),
        "length": sum(length for _, length, _ in responses) / count,
        "truncated": sum(truncated for *_, truncated in responses) / count,
        "careful": sum(way_of(text) == "careful" for text, *_ in responses) / count,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Evaluate every checkpoint of a run on held-out problems.")
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--problems", type=int, default=256)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--longer_cap", type=int, metavar="TOKENS", help="also evaluate under this cap")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = yaml.safe_load((args.run / "config.yaml").read_text(encoding="utf-8"))
    model = AutoModelForCausalLM.from_pretrained(config["model"], dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    problems = generate(config["data"].split(":")[0], "test", args.problems, seed=0)
    caps = {"": config["max_response_length"]} | ({"long_": args.longer_cap} if args.longer_cap else {})
    lines = []
    for step, weights in chain([(0, None)], checkpoints(args.run)):
        if weights:
            put(model, weights)
        found: dict[str, float] = {"step": step}
        for prefix, cap in caps.items():
            figures = evaluate(model, tokenizer, problems, args.k, cap)
            found |= {prefix + name: value for name, value in figures.items()}
        lines.append(found)
    args.output.write_text(json.dumps(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
