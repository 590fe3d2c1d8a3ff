"""Small stand-ins that tests share: a character tokenizer, random models, random groups. Nothing is
downloaded."""

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dapo_ref.data import Problem
from dapo_ref.distributed.processes import Processes
from dapo_ref.loss import group_advantages
from dapo_ref.policy import rollout
from dapo_ref.policy.batching import collate
from dapo_ref.types import Batch, Group, Rollout
from dapo_ref.verifier import Status, Verdict

ROOT = Path(__file__).resolve().parents[2]
PAD, BOS, END = 0, 1, 2
CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n"]
VOCABULARY = ["<|pad|>", "<|bos|>", "<|end|>", *CHARACTERS]


class OneProcess(Processes):
    """The only process of a run, without a process group."""

    rank, world_size, is_main = 0, 1, True  # type: ignore[assignment]
    device = torch.device("cpu")  # type: ignore[assignment]

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._watch = SimpleNamespace(doing="", alive=lambda: None, enter=lambda: None)  # type: ignore[assignment]

    def gather(self, items: list[Any]) -> list[Any]:
        return list(items)

    def sum(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def max(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def barrier(self) -> None:
        pass

    def peak_memory_mb(self) -> float:
        return 1.0


def char_tokenizer() -> PreTrainedTokenizerFast:
    """One token a printable character."""
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(VOCABULARY)}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|end|>", pad_token="<|pad|>"
    )


SMALL_MODEL: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "pad_token_id": PAD,
    "eos_token_id": END,
}
"""Of a configuration: two layers, with weights large enough for distributions far from uniform."""


def random_llama(tied: bool = False, seed: int = 0, **overrides: object) -> LlamaForCausalLM:
    """A Llama of `SMALL_MODEL`'s sizes."""
    torch.manual_seed(seed)
    settings = {"tie_word_embeddings": tied, "bos_token_id": BOS, "max_position_embeddings": 512}
    return LlamaForCausalLM(LlamaConfig(**SMALL_MODEL | settings | overrides)).eval()


def ending_llama(**overrides: object) -> LlamaForCausalLM:
    """A model that ends its responses often and at very different lengths."""
    model = random_llama(**overrides)
    model.lm_head.weight.data[END] *= 2.5
    return model


def save_model(directory: Path, model: LlamaForCausalLM) -> Path:
    """A model with its tokenizer as a Hugging Face directory."""
    model.save_pretrained(directory)
    char_tokenizer().save_pretrained(directory)
    return directory


def random_groups(shape: Sequence[Sequence[int]], seed: int = 0) -> list[Group]:
    """Groups of given response lengths, `shape[p][g]` tokens each, with prompts of random lengths.

    Responses alternate between right and wrong; every third is truncated, the others end in the end token."""
    rng = random.Random(seed)
    groups = []
    for p, lengths in enumerate(shape):
        rollouts = []
        for g, length in enumerate(lengths):
            truncated = (p + g) % 3 == 2
            ids = [rng.randrange(3, len(VOCABULARY)) for _ in range(length - (not truncated))]
            status = Status.CORRECT if (p + g) % 2 == 0 else Status.WRONG
            verdict = Verdict(correct=status is Status.CORRECT, status=status, answer=None)
            reward = 1.0 if verdict.correct else -1.0
            rollouts.append(Rollout(ids + [END] * (not truncated), "", truncated, verdict, reward))
        prompt = [BOS] + [rng.randrange(3, len(VOCABULARY)) for _ in range(rng.randrange(1, 9))]
        groups.append(Group(Problem((), "0", f"test#{p}"), prompt, rollouts))
    return groups


def filled_batch(groups: Sequence[Group], overlong_filtering: bool = False) -> Batch:
    """The batch of some groups, advantages filled in."""
    batch = collate(groups, overlong_filtering)
    batch.advantages = group_advantages(batch.rewards.view(len(groups), -1)).flatten()
    return batch


def reference_logprobs(
    model: torch.nn.Module,
    prompt: Sequence[int],
    response: Sequence[int],
    temperature: float = 1.0,
    num_tokens: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log π(oₜ | q, o_<ₜ) and the entropy there, the plain way: one row, all logits, one log-softmax, of a
    padded vocabulary over the first `num_tokens`."""
    ids = torch.tensor([[*prompt, *response]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1, :num_tokens].float() / temperature
    logp = torch.log_softmax(logits, dim=-1)
    picked = logp.gather(1, torch.tensor(response)[:, None]).squeeze(1)
    return picked, -(logp.exp() * logp).sum(dim=-1)


def greedy(model: torch.nn.Module, prompt: Sequence[int], length: int, end_ids: Sequence[int]) -> list[int]:
    """The likeliest response, by one full forward pass a token: no cache, no padding."""
    ids = list(prompt)
    for _ in range(length):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] in end_ids:
            break
    return ids[len(prompt) :]


class MultinomialRecorder:
    """Stands in for torch.multinomial: picks like it and keeps the distributions it was given."""

    def __init__(self) -> None:
        self.probs: list[torch.Tensor] = []
        self.original = torch.multinomial

    def __call__(self, probs: torch.Tensor, num_samples: int, **kwargs: Any) -> torch.Tensor:
        self.probs.append(probs.clone())
        return self.original(probs, num_samples, **kwargs)


def sample_with_logprobs(
    monkeypatch: pytest.MonkeyPatch, model: Any, *arguments: Any
) -> tuple[list[Group], list[torch.Tensor], int]:
    """Groups as `sample_groups` gives them, the sampler's own log-probabilities of each response, and the
    number of segments it took."""
    recorder, segments = MultinomialRecorder(), []
    segment = rollout._Sampler._segment

    def recorded(self: Any, rows: Any, *args: Any) -> Any:
        index, first = list(rows.index), len(recorder.probs)
        result = segment(self, rows, *args)
        segments.append((index, recorder.probs[first:]))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(torch, "multinomial", recorder)
        patch.setattr(rollout._Sampler, "_segment", recorded)
        groups = rollout.sample_groups(model, *arguments)
    responses = [r.response_ids for group in groups for r in group.rollouts]
    found: list[list[float]] = [[] for _ in responses]
    for index, calls in segments:
        for probs in calls:
            for i, row in enumerate(index):
                if len(found[row]) < len(responses[row]):
                    found[row].append(float(probs[i, responses[row][len(found[row])]].log()))
    assert [len(row) for row in found] == [len(response) for response in responses]
    return groups, [torch.tensor(row) for row in found], len(segments)


def launch(script: Path, *arguments: str, num_processes: int, timeout: float = 500) -> str:
    """Runs a script under `accelerate launch` with ZeRO-3; returns what it printed, fails with it
    otherwise."""
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", str(ROOT / "configs/accelerate/zero3.yaml")),
        *("--num_processes", str(num_processes), str(script), *arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout
