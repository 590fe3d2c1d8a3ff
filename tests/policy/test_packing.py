"""`dapo_ref/policy/packing.py`: packed tokens have the values and gradients of one response a row."""

import pytest
import torch
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from dapo_ref.policy.attention import _visible, packed_attention
from dapo_ref.policy.batching import microbatches
from dapo_ref.policy.logprobs import Policy
from dapo_ref.policy.packing import Block, Piece, packing_of
from dapo_ref.types import Batch
from tests.support.helpers import SMALL_MODEL, filled_batch, random_groups, random_llama


def windowed() -> PreTrainedModel:
    """Sees no more than 6 keys back, less than most rows have."""
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**SMALL_MODEL, head_dim=8, sliding_window=6))


def experts() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SMALL_MODEL, **sizes))


MODELS = {"llama": random_llama, "sliding window": windowed, "experts": experts}


def batch_of_many_lengths(shared: int = 0) -> Batch:
    """Prompts of one token and more, responses from 1 to 40, two prompts of the same length; `shared` tokens
    with which all prompts begin."""
    batch = filled_batch(random_groups([[1, 40, 3], [7, 7, 19], [2, 11, 5]]))
    for row in range(3):
        batch.prompt_ids[row] = [9]
    for row in range(6, 9):
        batch.prompt_ids[row] = list(range(20, 20 + len(batch.prompt_ids[3])))
    batch.prompt_ids = [[*range(30, 30 + shared), *prompt] for prompt in batch.prompt_ids]
    return batch


def results(
    model: PreTrainedModel, packed: bool, budget: int, shared: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The batch's log-probabilities, and the gradient of a sum with a weight for each."""
    batch = batch_of_many_lengths(shared)
    policy = Policy(model, packed)
    policy.train()
    policy.zero_grad()
    found = torch.zeros(len(batch), 40)
    weights = torch.linspace(-1, 1, found.numel()).view_as(found)
    for micro in microbatches(batch, range(len(batch)), budget, 1, 0, packed):
        logprobs, _ = policy(micro, 1.0)
        width = logprobs.shape[1]
        (logprobs * weights[micro.rows, :width]).sum().backward()
        found[micro.rows, :width] = logprobs.detach()
    return found, [p.grad for p in policy.parameters() if p.grad is not None]


@pytest.mark.parametrize("budget", [60, 10_000], ids=["groups cut", "one micro-batch"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("shared", [0, 16], ids=["", "shared beginning"])
@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_those_of_padded_rows(name, shared, checkpointing, budget):
    expected_logprobs, expected = results(MODELS[name](), packed=False, budget=10_000, shared=shared)
    model = MODELS[name]()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    logprobs, found = results(model, packed=True, budget=budget, shared=shared)
    torch.testing.assert_close(logprobs, expected_logprobs, rtol=1e-5, atol=1e-5)
    for ours, plain in zip(found, expected, strict=True):
        assert float((ours - plain).norm()) <= 1e-5 * float(plain.norm())


def test_the_prompt_is_computed_once_for_its_group():
    batch = filled_batch(random_groups([[5, 5, 5, 5]]))
    (micro,) = microbatches(batch, range(4), 10_000, 1, 0)
    assert micro.input_ids.numel() == len(batch.prompt_ids[0]) + 4 * 5


def test_what_all_prompts_begin_with_is_computed_once():
    batch = batch_of_many_lengths(shared=16)
    (micro,) = microbatches(batch, range(9), 10_000, 1, 0)
    own = sum(len(batch.prompt_ids[row]) - 16 for row in (0, 3, 6))
    assert micro.input_ids.numel() == 16 + own + int(batch.lengths.sum())


def test_a_response_does_not_see_its_neighbours():
    batch = filled_batch(random_groups([[4, 4]]))
    policy = Policy(random_llama())
    found = []
    for token in (5, 6):
        batch.response_ids[0] = [token] * 4
        (micro,) = microbatches(batch, range(2), 10_000, 1, 0)
        found.append(policy(micro, 1.0)[0].detach())
    assert not torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_rows_of_like_length_share_a_block():
    prompt = range(3)
    starts = [3, 103, 153, 163]
    ends = [103, 153, 163, 168]
    responses = [Piece(range(s, e), (prompt,)) for s, e in zip(starts, ends, strict=True)]
    packing = packing_of([Piece(prompt), *responses])
    # 100 and 50 tokens; 10 and 5. No filler is more than half a row.
    assert packing.blocks == [Block(1, 3, 3), Block(2, 100, 103), Block(2, 10, 13)]
    assert packing.queries[packing.home].tolist() == list(range(168))


def test_a_window_counts_the_query_itself():
    # 3 queries at keys 2, 3, 4 of 5, each sees itself and one before.
    visible = _visible(3, 5, 2, torch.device("cpu"))
    assert visible.int().tolist() == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]


def test_attention_with_more_to_it_is_refused():
    packing = packing_of([Piece(range(1)), Piece(range(1, 2), (range(1),))])
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="passes s_aux to its attention; set packing: false"):
        packed_attention(torch.nn.Linear(1, 1), x, x, x, None, packing=packing, s_aux=torch.zeros(1))
    packed_attention(torch.nn.Linear(1, 1), x, x, x, None, packing=packing, s_aux=None)


def test_generation_finds_the_attention_it_knows():
    policy = Policy(random_llama())
    policy.train()
    ids = torch.tensor([[1, 5, 6]])
    expected = random_llama().generate(ids, max_new_tokens=4, do_sample=False)
    with policy.generating() as model:
        assert not model.training
        assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), expected)
    assert policy.training
    batch = filled_batch(random_groups([[3]]))
    (micro,) = microbatches(batch, [0], 100, 1, 0)
    assert policy(micro, 1.0)[0].shape == (1, 3)
