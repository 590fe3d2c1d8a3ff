"""`dapo_ref/policy/waiting.py`: which rows join and which are put back, and that no token depends on it."""

import dataclasses
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dapo_ref.data import Problem
from dapo_ref.policy import rollout, waiting
from dapo_ref.policy.kv_cache import Rows
from dapo_ref.policy.rollout import sample_groups
from dapo_ref.policy.waiting import Queue, Waiting, bytes_per_token, token_budget
from tests.policy.test_rollout import SAMPLING
from tests.support.helpers import END, char_tokenizer, ending_llama, greedy, random_llama

PROMPTS = [
    (Problem((), "0", f"test#{i}"), [1, *range(10, 10 + 3 * i % 11)]) for i in range(9)
]  # 1 to 11 tokens


def responses(budget: int, seed: int = 0, keys: Any = None, **changes: Any) -> list[list[int]]:
    sampling = dataclasses.replace(
        SAMPLING,
        group_size=2,
        rollout_batch_size=8,
        max_response_length=25,
        rollout_kv_tokens=budget,
        **changes,
    )
    torch.manual_seed(seed)
    groups = sample_groups(ending_llama(), char_tokenizer(), PROMPTS, sampling, [END], keys=keys)
    return [r.response_ids for group in groups for r in group.rollouts]


@pytest.mark.parametrize("budget", [1, 60, 150])
def test_no_token_depends_on_the_budget_and_the_cache_keeps_to_it(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    """Greedy, and by key. The widest row has 10 + 1 + 25 columns: alone it may exceed any budget."""
    held, back = [], []
    generate, put_back = rollout._Sampler._generate, Queue.put_back

    def seen(self: Any, ids: Any, *args: Any, **kwargs: Any) -> Any:
        output = generate(self, ids, *args, **kwargs)
        held.append(output.sequences.shape)
        return output

    def noted(self: Any, rows: Rows) -> Rows:
        before = len(rows.index)
        rows = put_back(self, rows)
        back.append(before - len(rows.index))
        return rows

    monkeypatch.setattr(rollout._Sampler, "_generate", seen)
    monkeypatch.setattr(Queue, "put_back", noted)
    model = ending_llama()
    found = responses(budget, temperature=1e-4)
    expected = [greedy(model, prompt, 25, [END]) for _, prompt in PROMPTS for _ in range(2)]
    assert found == expected
    assert all(rows == 1 or rows * width <= budget for rows, width in held)
    assert max(rows for rows, _ in held) == {1: 1, 60: 6, 150: 8}[budget]
    assert (sum(back) > 0) == (budget > 1)
    keys = list(range(18))
    assert responses(budget, keys=keys) == responses(0, keys=keys)


def test_a_row_that_was_put_back_keeps_its_log_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.helpers import reference_logprobs

    sampling = dataclasses.replace(
        SAMPLING, group_size=2, rollout_batch_size=8, max_response_length=25, rollout_kv_tokens=60
    )
    model = ending_llama()
    for group in sample_groups(model, char_tokenizer(), PROMPTS, sampling, [END]):
        for response in group.rollouts:
            expected, _ = reference_logprobs(model, group.prompt_ids, response.response_ids)
            assert torch.allclose(torch.tensor(list(response.logprobs)), expected.detach(), rtol=0, atol=1e-4)


def test_without_a_budget_rows_join_as_there_is_room_for_whole_groups() -> None:
    """Groups of 3, 7 rows at once: two groups, and the third once three rows have left."""
    queue = Queue([[1], [1, 2], [3]], group_size=3, capacity=7, budget=None)
    assert queue.admit(0, 0) == [Waiting([1], [0, 1, 2]), Waiting([1, 2], [3, 4, 5])]
    assert queue.admit(5, 4) == []
    assert queue.admit(4, 4) == [Waiting([3], [6, 7, 8])]
    assert not queue
    assert queue.last_column(3) == float("inf")


def test_groups_larger_than_the_batch_are_cut() -> None:
    queue = Queue([[1]], group_size=5, capacity=2, budget=None)
    assert [queue.admit(0, 0)[0].index for _ in range(2)] == [[0, 1], [2, 3]]
    assert queue.admit(0, 0) == [Waiting([1], [4])]


def test_rows_join_while_an_eighth_is_left() -> None:
    """16 columns and 2 of an eighth and 1 more are 19: five rows want 95. With 94 four join."""
    queue = Queue([[0] * 16, [0] * 3], group_size=5, capacity=64, budget=95)
    assert [item.index for item in queue.admit(0, 0)] == [[0, 1, 2, 3, 4]]
    queue = Queue([[0] * 16, [0] * 3], group_size=5, capacity=64, budget=94)
    assert [item.index for item in queue.admit(0, 0)] == [[0, 1, 2, 3]]
    assert queue.admit(4, 17) == []
    # Others have grown to 24: with 24 + 3 + 1 = 28 columns three rows fit, of which two are there.
    assert queue.admit(2, 24) == [Waiting([0] * 16, [4])]
    assert queue.last_column(4) == 23


def test_one_row_alone_is_never_kept_out() -> None:
    queue = Queue([[0] * 50], group_size=2, capacity=64, budget=10)
    assert queue.admit(0, 0) == [Waiting([0] * 50, [0])]
    assert queue.admit(1, 51) == []
    assert queue.last_column(1) == float("inf")


def rows_of(lengths: list[int], width: int) -> Rows:
    mask = torch.tensor([[0] * (width - n) + [1] * n for n in lengths])
    ids = torch.arange(len(lengths))[:, None] * 100 + torch.arange(width)
    starts = torch.tensor([width - n + 2 for n in lengths])  # prompts of two tokens
    return Rows([7, 8, 9, 10], ids, mask, starts, None)


def test_the_shortest_rows_are_put_back_with_their_tokens() -> None:
    """4 × 24 columns are 96: one more column would be 100. Of 24 + 3 + 1 = 28 columns three rows fit."""
    queue = Queue([[1]], group_size=1, capacity=8, budget=99)
    rows = rows_of([20, 5, 24, 9], 24)
    kept = queue.put_back(rows)
    assert kept.index == [7, 9, 10]
    assert kept.ids[:, -1].tolist() == [23, 223, 323]
    assert queue._items == deque([Waiting([119, 120, 121, 122, 123], [8], generated=3), Waiting([1], [0])])
    assert Queue([], 1, 8, budget=100).put_back(rows_of([20, 5, 24, 9], 24)).index == [7, 8, 9, 10]


def test_the_budget_of_a_gpu_comes_from_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 layers of 2 KV heads of 8 numbers of 4 bytes, keys and values: 256 bytes a token."""
    model = random_llama()
    assert bytes_per_token(model) == 256
    assert bytes_per_token(model.bfloat16()) == 128
    assert token_budget(model, 0) is None
    assert token_budget(model, 77) == 77
    gpu = SimpleNamespace(device=torch.device("cuda"), config=model.config, dtype=torch.float32)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3_000_000, 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 1_560_000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 2_000_000)
    # 80 % of 3 000 000 + 1 560 000 − 2 000 000 = 2 560 000 are 2 048 000 bytes: 8000 tokens of 256.
    assert token_budget(gpu, 0) == 8000  # type: ignore[arg-type]
    assert waiting.FREE_SHARE == 0.8
