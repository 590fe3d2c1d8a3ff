"""`dapo_ref/policy/rollout.py` and sampling = training: what is recomputed is what was sampled from."""

import dataclasses

import pytest
import torch
from transformers import GenerationConfig

from dapo_ref.config import Config
from dapo_ref.data import Problem
from dapo_ref.errors import ConfigError
from dapo_ref.policy import columns, rollout
from dapo_ref.policy.kv_cache import RoomyLayer
from dapo_ref.policy.rollout import cut_at_end, end_token_ids, generation_config, sample_groups
from tests.support.helpers import (
    END,
    MultinomialRecorder,
    char_tokenizer,
    ending_llama,
    greedy,
    random_llama,
    reference_logprobs,
    sample_with_logprobs,
)

SAMPLING = dataclasses.replace(Config().sampling, group_size=3, max_response_length=12, rollout_batch_size=4)
PROMPTS = [
    (Problem((), "0", f"test#{i}"), [1, *range(10, 10 + n)]) for i, n in enumerate([2, 7, 4])
]  # ragged, so that all but one are left-padded


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("capacity", [9, 3])
def test_sampled_distribution_is_the_trained_one(monkeypatch, temperature, capacity):
    # The sampler's own probability of each token (left-padded, cached, rows taken out and added on the way)
    # against one plain forward pass a row.
    model = ending_llama()
    sampling = dataclasses.replace(
        SAMPLING, temperature=temperature, rollout_batch_size=capacity, max_response_length=30
    )
    torch.manual_seed(0)
    groups, sampled, segments = sample_with_logprobs(
        monkeypatch, model, char_tokenizer(), PROMPTS, sampling, [END]
    )
    rows = [(group.prompt_ids, r.response_ids) for group in groups for r in group.rollouts]
    for row, found in zip(rows, sampled, strict=True):
        expected = reference_logprobs(model, *row, temperature)[0].detach()
        assert torch.allclose(found, expected, rtol=0, atol=1e-4)
    assert segments > 2
    assert len({len(response) for _, response in rows}) > 2


@pytest.mark.parametrize("shared", [1, 16], ids=["", "shared beginning"])
@pytest.mark.parametrize("capacity", [1, 2, 5, 9, 64])
@pytest.mark.parametrize("ended_share", [0.01, 1 / 3, 1.0])
def test_segments_and_refills_give_the_tokens_of_an_uninterrupted_generate(
    monkeypatch, capacity, ended_share, shared
):
    monkeypatch.setattr(columns, "ENDED_SHARE", ended_share)
    model = ending_llama()
    prompts = [
        (Problem((), "0", f"test#{i}"), [*range(1, 1 + shared), *range(10, 10 + 3 * i % 11)])
        for i in range(9)
    ]
    greedy_sampling = dataclasses.replace(
        SAMPLING, temperature=1e-4, group_size=2, rollout_batch_size=capacity, max_response_length=25
    )
    groups = sample_groups(model, char_tokenizer(), prompts, greedy_sampling, [END])
    lengths = set()
    for group, (_, prompt) in zip(groups, prompts, strict=True):
        expected = greedy(model, prompt, 25, [END])
        assert [r.response_ids for r in group.rollouts] == [expected, expected]
        lengths.add(len(expected))
    assert len(lengths) > 3  # heavy-tailed enough for rows to leave at different times


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_continuous_batching_samples_the_trained_distribution(monkeypatch, temperature):
    """What it samples from, row by row in its own order, is among what plain forward passes give."""
    model, recorder = ending_llama(), MultinomialRecorder()
    sampling = dataclasses.replace(SAMPLING, temperature=temperature, sampler="continuous_batching")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "multinomial", recorder)
        torch.manual_seed(0)
        groups = sample_groups(model, char_tokenizer(), PROMPTS, sampling, [END])
    sampled = torch.cat([probs.flatten(0, -2) for probs in recorder.probs])
    for group in groups:
        for response in group.rollouts:
            ids = torch.tensor([[*group.prompt_ids, *response.response_ids]])
            logits = model(ids).logits[0, len(group.prompt_ids) - 1 : -1] / temperature
            for expected in logits.softmax(dim=-1):
                assert float((sampled - expected).abs().amax(dim=1).min()) < 1e-5


def held_of_needed(layers):
    """Bytes that the layers keep from being freed, over those of the keys and values that they show."""
    shown = [x for layer in layers for x in (layer.keys, layer.values)]
    kept = [x for layer in layers for x in (*(layer._room or ()), layer.keys, layer.values)]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept if x is not None}
    return sum(storages.values()) / sum(x.nbytes for x in shown if x is not None)


def test_the_cache_is_never_held_twice(monkeypatch):
    """Prompts of 295 to 305 tokens: a row has at least 294 columns, and the room to come is an eighth, or 32
    columns where that is more: at most 32 / 294 = 0.11 of what is needed."""
    points: dict[str, list[float]] = {}
    freed = []

    def observe(name):
        real = getattr(rollout, name)

        def observed(*args):
            rows = real(*args)
            points.setdefault(name, []).append(held_of_needed(rows.cache.layers))
            if name == "merge":
                freed.extend(layer.keys is None and layer.values is None for layer in args[1].cache.layers)
            return rows

        monkeypatch.setattr(rollout, name, observed)

    observe("select")
    observe("merge")
    model = ending_llama()
    each_token, fill = rollout._Sampler._generate, rollout._Sampler._fill

    def generate(self, *args, **kwargs):
        on_token = self.on_token
        self.on_token = lambda: points.setdefault("token", []).append(held_of_needed(kwargs["cache"].layers))
        points.setdefault("start", []).append(held_of_needed(kwargs["cache"].layers))
        output = each_token(self, *args, **kwargs)
        self.on_token = on_token
        return output

    monkeypatch.setattr(rollout._Sampler, "_generate", generate)
    monkeypatch.setattr(
        rollout._Sampler,
        "_fill",
        lambda self, cache, *args: (
            fill(self, cache, *args),
            points.setdefault("prefill", []).append(held_of_needed(cache.layers)),
        ),
    )
    beginning = [3 + i % 20 for i in range(290)]
    prompts = [(Problem((), "0", f"test#{i}"), [*beginning, *range(10, 15 + 3 * i % 11)]) for i in range(9)]
    sampling = dataclasses.replace(
        SAMPLING, temperature=1e-4, group_size=2, rollout_batch_size=8, max_response_length=25
    )
    sample_groups(model, char_tokenizer(), prompts, sampling, [END])
    assert {name: round(max(found), 3) for name, found in points.items() if max(found) >= 1.2} == {}
    assert all(len(points[name]) > 1 for name in ("select", "merge", "token", "start", "prefill"))
    assert freed
    assert all(freed)


def test_rows_that_leave_or_join_leave_nothing_behind():
    """8 columns with room for more; of two rows one stays, without its first 5 columns; one joins it."""
    layer, other = RoomyLayer(), RoomyLayer()
    for part in torch.arange(16.0).view(2, 1, 8, 1).split([7, 1], dim=2):
        layer.update(part, -part)
    assert held_of_needed([layer]) > 4  # room for 32 columns
    layer.take(torch.tensor([1]), 5)
    assert layer.keys.flatten().tolist() == [13.0, 14.0, 15.0]
    assert held_of_needed([layer]) == 1
    layer.update(torch.full((1, 1, 1, 1), 16.0), torch.full((1, 1, 1, 1), -16.0))
    other.update(torch.full((1, 1, 1, 1), 5.0), torch.full((1, 1, 1, 1), -5.0))
    layer.join(other, 1, 5)
    assert layer.values.flatten().tolist() == [0.0, -13.0, -14.0, -15.0, -16.0, 0.0, 0.0, 0.0, 0.0, -5.0]
    assert held_of_needed([layer]) == 1
    layer.batch_select_indices(torch.tensor([1, 1]))
    assert layer.keys[..., -1, 0].flatten().tolist() == [5.0, 5.0]


def test_the_room_of_a_wide_cache_grows_by_an_eighth():
    layer = RoomyLayer()
    layer.update(torch.zeros(1, 1, 800, 2), torch.zeros(1, 1, 800, 2))
    layer.update(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
    assert layer._room is not None
    assert layer._room[0].shape[2] == 801 + 100
    assert layer.keys is not None
    assert layer.keys[0, 0, :, 0].tolist() == [0.0] * 800 + [1.0]


def test_continuous_batching_gives_the_tokens_of_an_uninterrupted_generate():
    model = ending_llama()
    prompts = [(Problem((), "0", f"test#{i}"), [1, *range(10, 10 + 3 * i % 11)]) for i in range(9)]
    sampling = dataclasses.replace(
        SAMPLING,
        temperature=1e-4,
        group_size=2,
        rollout_batch_size=5,
        max_response_length=25,
        sampler="continuous_batching",
    )
    told = []
    groups = sample_groups(
        model, char_tokenizer(), prompts, sampling, [END], lambda p, r: told.append((p.source, r))
    )
    for group, (problem, prompt) in zip(groups, prompts, strict=True):
        expected = greedy(model, prompt, 25, [END])
        assert [r.response_ids for r in group.rollouts] == [expected, expected]
        assert group.problem is problem
    assert len(told) == 18


def test_continuous_batching_that_fails_says_so(monkeypatch):
    model = ending_llama()
    sampling = dataclasses.replace(SAMPLING, sampler="continuous_batching")

    def fail(*args, **kwargs):
        raise ValueError("no forward today")

    monkeypatch.setattr(model, "forward", fail)
    with pytest.raises(RuntimeError, match="continuous batching"):
        sample_groups(model, char_tokenizer(), PROMPTS, sampling, [END])


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        # Prompts of 3, 8 and 5 tokens: all but the last column once, [3, 7]; then one column for all 24 rows.
        (0, [(3, 7), (24, 1)]),
        # With 20 tokens more at the beginning 22 are common and leave a token to the shortest: once for all,
        # then the rests of 1, 6 and 3 tokens but for their last column.
        (20, [(1, 22), (3, 5), (24, 1)]),
    ],
)
def test_a_prompt_is_prefilled_once_for_its_whole_group(monkeypatch, shared, expected):
    model = random_llama()
    seen = []
    forward = model.base_model.forward
    monkeypatch.setattr(
        model.base_model, "forward", lambda *a, **k: seen.append(k["input_ids"].shape) or forward(*a, **k)
    )
    sampling = dataclasses.replace(SAMPLING, group_size=8, rollout_batch_size=64, max_response_length=1)
    prompts = [(problem, [*range(20, 20 + shared), *ids]) for problem, ids in PROMPTS]
    sample_groups(model, char_tokenizer(), prompts, sampling, [END])
    assert seen == expected


def test_each_response_is_told_of_as_it_ends():
    sampling = dataclasses.replace(SAMPLING, max_response_length=30, rollout_batch_size=9)
    told = []
    torch.manual_seed(0)
    groups = sample_groups(
        ending_llama(), char_tokenizer(), PROMPTS, sampling, [END], lambda p, r: told.append((p.source, r))
    )
    expected = [(group.problem.source, r) for group in groups for r in group.rollouts]
    assert sorted(told, key=str) == sorted(expected, key=str)
    lengths = [len(r.response_ids) for _, r in told]
    assert lengths != [len(r.response_ids) for _, r in expected]  # in the order in which they ended
    assert lengths[-1] == max(lengths)


def test_a_cache_that_cannot_be_repacked_is_generated_with_in_one_piece(monkeypatch):
    model = ending_llama()
    sampling = dataclasses.replace(SAMPLING, temperature=1e-4, max_response_length=25)
    expected = sample_groups(model, char_tokenizer(), PROMPTS, sampling, [END])
    monkeypatch.setattr(rollout, "can_be_repacked", lambda model: False)
    monkeypatch.setattr(rollout._Sampler, "run", None)
    assert sample_groups(model, char_tokenizer(), PROMPTS, sampling, [END]) == expected


def test_the_models_own_generation_defaults_take_no_part(monkeypatch):
    results = []
    for own in (
        GenerationConfig(),
        GenerationConfig(top_k=50, temperature=0.6, repetition_penalty=1.1, top_p=0.8),
    ):
        model = random_llama()
        model.generation_config = own
        recorder = MultinomialRecorder()
        with monkeypatch.context() as patch:
            patch.setattr(torch, "multinomial", recorder)
            torch.manual_seed(0)
            groups = sample_groups(model, char_tokenizer(), PROMPTS, SAMPLING, [END])
        results.append(([r.response_ids for g in groups for r in g.rollouts], recorder.probs))
    (ids, probs), (other_ids, other_probs) = results
    assert ids == other_ids
    assert all(torch.equal(a, b) for a, b in zip(probs, other_probs, strict=True))
    assert (probs[0] > 0).all()  # no top-k, no nucleus: every word can be sampled


def test_groups_keep_their_prompts_and_order():
    groups = sample_groups(random_llama(), char_tokenizer(), PROMPTS, SAMPLING, [END])
    assert [group.problem.source for group in groups] == ["test#0", "test#1", "test#2"]
    assert [group.prompt_ids for group in groups] == [ids for _, ids in PROMPTS]
    assert [len(group.rollouts) for group in groups] == [3, 3, 3]


def test_left_padding_and_batching_change_no_token():
    # Greedy by temperature → 0: batch of ragged rows against one row at a time without padding or cache.
    model = random_llama()
    sampling = dataclasses.replace(SAMPLING, temperature=1e-4, group_size=1)
    groups = sample_groups(model, char_tokenizer(), PROMPTS, sampling, [END])
    for group, (_, prompt) in zip(groups, PROMPTS, strict=True):
        assert group.rollouts[0].response_ids == greedy(model, prompt, 12, [END])


def test_end_token_is_part_of_the_response_and_decides_truncation():
    model = ending_llama()
    sampling = dataclasses.replace(SAMPLING, group_size=16, rollout_batch_size=64)
    torch.manual_seed(0)
    rollouts = [
        r for g in sample_groups(model, char_tokenizer(), PROMPTS, sampling, [END]) for r in g.rollouts
    ]
    ended = [r for r in rollouts if not r.truncated]
    truncated = [r for r in rollouts if r.truncated]
    assert ended
    assert truncated
    assert all(r.response_ids.index(END) == len(r.response_ids) - 1 for r in ended)
    assert all(END not in r.response_ids and len(r.response_ids) == 12 for r in truncated)
    assert all("<|" not in r.text for r in rollouts)


@pytest.mark.parametrize(
    ("ids", "expected"), [([5, 2, 2], [5, 2]), ([2], [2]), ([5, 6], [5, 6]), ([7, 9, 2], [7, 9])]
)
def test_cut_at_the_first_end_token(ids, expected):
    assert cut_at_end(ids, [2, 9]) == expected


def test_tokenizer_and_model_may_disagree_on_the_end_token():
    model, tokenizer = random_llama(eos_token_id=5), char_tokenizer()
    model.generation_config = GenerationConfig(eos_token_id=[5, 7])
    assert end_token_ids(tokenizer, model) == [2, 5, 7]
    tokenizer.eos_token = None
    model.config.eos_token_id = None
    model.generation_config = None
    with pytest.raises(ConfigError, match="no end token"):
        end_token_ids(tokenizer, model)


def test_generation_config_names_every_sampling_rule_it_leaves_out():
    config = generation_config(SAMPLING, [2], pad_id=0)
    assert (config.do_sample, config.top_k, config.repetition_penalty, config.num_beams) == (True, 0, 1.0, 1)
    assert (config.temperature, config.top_p, config.max_new_tokens) == (1.0, 1.0, 12)


@pytest.mark.parametrize("keys", [None, range(18)], ids=["drawn", "by key"])
@pytest.mark.parametrize("sampler", ["segments", "continuous_batching"])
def test_tokens_that_the_tokenizer_does_not_know_are_never_sampled(keys, sampler):
    """A vocabulary padded from 99 to 160, whose unused rows are by far the likeliest."""
    model = random_llama(vocab_size=160)
    model.lm_head.weight.data[99:] *= 20
    sampling = dataclasses.replace(SAMPLING, group_size=6, sampler=sampler)
    torch.manual_seed(0)
    groups = sample_groups(model, char_tokenizer(), PROMPTS, sampling, [END], keys=keys)
    ids = [token for group in groups for r in group.rollouts for token in r.response_ids]
    assert max(ids) < 99
    assert len(set(ids)) > 20
    # An end token beyond the tokenizer is sampled still: a model may bring its own.
    groups = sample_groups(model, char_tokenizer(), PROMPTS, sampling, [END, 120], keys=keys)
    ids = [token for group in groups for r in group.rollouts for token in r.response_ids]
    assert 99 < max(ids) <= 120
