"""What the sampler says of its own tokens, and how far that is from π_old."""

import dataclasses
from typing import Any

import pytest
import torch

import train
from dapo_ref.policy import rollout
from dapo_ref.policy.batching import microbatches
from dapo_ref.policy.rollout import sample_groups
from dapo_ref.run.files import read_metrics
from dapo_ref.types import Group
from tests.policy.test_rollout import PROMPTS, SAMPLING
from tests.support.helpers import (
    END,
    char_tokenizer,
    ending_llama,
    filled_batch,
    random_groups,
    random_llama,
    reference_logprobs,
    save_model,
)
from tests.support.plain_engine import PlainEngine

MODEL = ending_llama()


def sampled(keys: list[int] | None = None, **changes: Any) -> list[Group]:
    torch.manual_seed(0)
    sampling = dataclasses.replace(SAMPLING, max_response_length=25, temperature=0.7, **changes)
    return sample_groups(MODEL, char_tokenizer(), PROMPTS, sampling, [END], keys=keys)


@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("way", ["segments", "in one piece", "by key", "continuous_batching"])
def test_the_sampler_tells_log_pi_before_any_cut(
    monkeypatch: pytest.MonkeyPatch, way: str, top_p: float
) -> None:
    """Against one plain forward pass a row, at the temperature, over the whole vocabulary."""
    if way == "in one piece":
        monkeypatch.setattr(rollout, "can_be_repacked", lambda model: False)
    keys = list(range(9)) if way == "by key" else None
    sampler = way if way == "continuous_batching" else "segments"
    for group in sampled(keys, top_p=top_p, sampler=sampler):
        for response in group.rollouts:
            if way == "continuous_batching" and top_p < 1:
                assert list(response.logprobs) == []  # it knows only those after the cut
                continue
            expected, _ = reference_logprobs(MODEL, group.prompt_ids, response.response_ids, 0.7)
            found = torch.tensor(list(response.logprobs))
            assert torch.allclose(found, expected.detach(), rtol=0, atol=1e-4)


def test_they_stand_beside_their_tokens_in_a_micro_batch() -> None:
    groups = random_groups([[4, 6], [3, 5]])
    for p, group in enumerate(groups):
        group.rollouts[:] = [
            dataclasses.replace(r, logprobs=[-float(100 * p + t) for t in range(len(r.response_ids))])
            for r in group.rollouts
        ]
    batch = filled_batch(groups)
    for micro in microbatches(batch, [0, 1, 2, 3], 12, 1, 0):
        assert micro.sampler_logprobs is not None
        for row, values in zip(micro.rows, micro.sampler_logprobs.tolist(), strict=True):
            expected = [-float(100 * (row // 2) + t) for t in range(len(batch.response_ids[row]))]
            assert values == expected + [0.0] * (len(values) - len(expected))
    batch.sampler_logprobs[2] = []
    (micro,) = microbatches(batch, [0, 1, 2, 3], 10_000, 1, 0)
    assert micro.sampler_logprobs is None


@pytest.mark.parametrize("responses_per_update", [4, 8], ids=["two updates", "one update"])
def test_in_fp32_the_sampled_policy_is_the_trained_one(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, responses_per_update: int
) -> None:
    """With two updates π_old of the second is computed before the first, else in the update itself."""
    monkeypatch.setattr(train, "Engine", PlainEngine)
    settings = {
        **{"model": save_model(tmp_path / "model", random_llama()), "output_dir": tmp_path / "run"},
        **{"data": "tiny:train:60", "prompt_template": "{question}", "precision": "fp32"},
        **{"rollout_steps": 1, "prompts_per_step": 2, "group_size": 4, "dynamic_sampling": False},
        **{"responses_per_update": responses_per_update, "max_response_length": 26},
        **{"overlong_cache_length": 8, "temperature": 0.8, "learning_rate": 1e-2, "checkpoint_every": 0},
    }
    train.main([f"--{key}={value}" for key, value in settings.items()])
    (record,) = read_metrics(tmp_path / "run/metrics.jsonl")
    assert 0 < record["policy/sampler_gap_mean"] <= record["policy/sampler_gap_max"] < 1e-4
    assert abs(record["policy/sampler_gap_kl"]) <= record["policy/sampler_gap_mean"]
