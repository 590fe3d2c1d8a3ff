"""`dapo_ref/policy/keyed.py`: a response follows from its key, and is a draw from the policy."""

import dataclasses
import logging

import pytest
import torch

from dapo_ref.policy import rollout
from dapo_ref.policy.keyed import KeyedSampling, gumbel_noise, key_of
from dapo_ref.policy.rollout import sample_groups
from tests.policy.test_rollout import PROMPTS, SAMPLING
from tests.support.helpers import END, char_tokenizer, ending_llama, reference_logprobs


def responses(model, prompts, keys, **changes):
    sampling = dataclasses.replace(SAMPLING, group_size=4, max_response_length=25, **changes)
    groups = sample_groups(model, char_tokenizer(), prompts, sampling, [END], keys=keys)
    return [rollout for group in groups for rollout in group.rollouts]


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_neither_batch_nor_order_nor_torchs_generator_takes_part(top_p):
    model = ending_llama()
    keys = [key_of(0, i, g) for i in range(3) for g in range(4)]
    expected = [r.response_ids for r in responses(model, PROMPTS, keys, rollout_batch_size=1, top_p=top_p)]
    for capacity in (2, 5, 64):
        torch.manual_seed(capacity)
        found = responses(model, PROMPTS, keys, rollout_batch_size=capacity, top_p=top_p)
        assert [r.response_ids for r in found] == expected
    found = responses(model, PROMPTS[::-1], keys[8:] + keys[4:8] + keys[:4], top_p=top_p)
    ids = [r.response_ids for r in found]
    assert ids[8:] + ids[4:8] + ids[:4] == expected
    assert len({tuple(row) for row in expected}) == 12  # each key its own response
    other = responses(model, PROMPTS, [key + 1 for key in keys], top_p=top_p)
    assert [r.response_ids for r in other] != expected


def test_in_one_piece_as_in_segments(monkeypatch):
    model, keys = ending_llama(), list(range(12))
    expected = [r.response_ids for r in responses(model, PROMPTS, keys)]
    monkeypatch.setattr(rollout, "can_be_repacked", lambda model: False)
    monkeypatch.setattr(rollout._Sampler, "run", None)
    assert [r.response_ids for r in responses(model, PROMPTS, keys, rollout_batch_size=5)] == expected


def test_torchs_generator_is_left_alone_and_transformers_has_nothing_to_say(caplog):
    state = torch.get_rng_state()
    with caplog.at_level(logging.WARNING, logger="transformers"):
        responses(MODEL, PROMPTS, list(range(12)))
    assert torch.equal(torch.get_rng_state(), state)
    assert not caplog.records


MODEL = ending_llama()
KEY = -8520117046096705500


def test_draws_have_the_probabilities_of_softmax_with_temperature_and_nucleus():
    # p = softmax(log(1, 2, 4, 8, 1) / 1/2) ∝ 1, 4, 16, 64, 1, of 86. Counts of n draws: within 5 σ.
    scores, count = torch.tensor([1.0, 2, 4, 8, 1]).log(), 40_000
    keys = torch.tensor([key_of("draw", i) for i in range(count)])
    starts = torch.zeros(count, dtype=torch.int64)
    for top_p, weights in ((1.0, [1, 4, 16, 64, 1]), (0.9, [0, 0, 16, 64, 0])):  # 80 of 86 is the nucleus
        sampler = KeyedSampling(keys, starts, temperature=0.5, top_p=top_p)
        drawn = sampler(torch.zeros(count, 3, dtype=torch.int64), scores.expand(count, -1)).argmax(dim=1)
        found = drawn.bincount(minlength=5) / count
        p = torch.tensor(weights) / sum(weights)
        assert torch.all((found - p).abs() <= 5 * (p * (1 - p) / count).sqrt())


def test_noise_differs_by_key_position_and_token_and_is_fixed_for_ever():
    keys, positions = torch.tensor([5, 5, 6, -7]), torch.tensor([0, 1, 0, 0])
    noise = gumbel_noise(keys, positions, 300)
    assert len(noise.unique()) == noise.numel()
    assert torch.equal(noise[1], gumbel_noise(torch.tensor([5]), torch.tensor([1]), 300)[0])
    # Gumbel: mean 0.5772, std π/√6 = 1.2825; 1200 draws, 4 σ of the mean are 0.15.
    assert abs(float(noise.mean()) - 0.5772) < 0.15
    assert (
        len({key_of(0, "1 + 1", 2), key_of(0, "1 + 12", 2), key_of(1, "1 + 1", 2), key_of(0, "1 + 1", 3)})
        == 4
    )
    # By hashlib: the first 8 bytes of SHA-256 of 0, 1 + 1 and 2 with a zero byte between them.
    assert key_of(0, "1 + 1", 2) == KEY


def test_mean_probability_is_that_of_one_plain_forward_pass():
    found = responses(MODEL, PROMPTS, list(range(12)), temperature=0.7, rollout_batch_size=5)
    for i, response in enumerate(found):
        logprobs, _ = reference_logprobs(MODEL, PROMPTS[i // 4][1], response.response_ids, 0.7)
        assert response.mean_prob == pytest.approx(float(logprobs.detach().exp().mean()), abs=1e-5)
