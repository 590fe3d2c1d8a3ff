"""`dapo_ref/scoring.py`: verdicts reach their responses, rewards their rows, and the two rules can be
compared."""

import dataclasses
import math

import pytest
import torch

from dapo_ref.config import Config
from dapo_ref.data import Problem
from dapo_ref.errors import TrainingError
from dapo_ref.own_reward import Outcome
from dapo_ref.scoring import (
    REWARDS,
    Scorer,
    correct_matrix,
    dapo_reward,
    recipe_disagreement,
    rewards_of,
    rollout_rows,
)
from dapo_ref.types import Group, Rollout
from dapo_ref.verifier import Status, Verdict
from tests.support.helpers import char_tokenizer, random_groups

CONFIG = Config(max_response_length=10, overlong_cache_length=4, group_size=2, responses_per_update=2)


def group(reference, *texts):
    return Group(Problem((), reference, "test#0"), [1, 20], [Rollout([5, 2], text, False) for text in texts])


GROUPS = [group("5", "Answer: 5", "Answer: 6"), group("0.5", "no line", r"Answer: $\frac{1}{2}$")]


def test_verdicts_reach_their_responses():
    with Scorer(CONFIG) as scorer:
        for each in GROUPS:
            for rollout in each.rollouts:
                scorer.begin(each.problem, rollout)
        scored = scorer.score(GROUPS)
    assert correct_matrix(scored).tolist() == [[True, False], [False, True]]
    statuses = [rollout.verdict.status for each in scored for rollout in each.rollouts]
    assert statuses == [Status.CORRECT, Status.WRONG, Status.NO_ANSWER, Status.CORRECT]
    assert [r.text for each in scored for r in each.rollouts] == [
        r.text for each in GROUPS for r in each.rollouts
    ]


def test_the_authors_rule_can_be_chosen_and_compared_with():
    with Scorer(dataclasses.replace(CONFIG, verifier="recipe")) as scorer:
        by_recipe = scorer.score(GROUPS)
    assert correct_matrix(by_recipe).tolist() == [[True, False], [False, False]]  # 1/2 is not the string 0.5
    assert recipe_disagreement(by_recipe) == 0
    with Scorer(CONFIG) as scorer:
        assert recipe_disagreement(scorer.score(GROUPS)) == pytest.approx(1 / 4)


def test_boxed_answers_can_be_switched_off():
    boxed = [group("5", r"so \boxed{5}")]
    for allowed in (True, False):
        with Scorer(dataclasses.replace(CONFIG, boxed_answers=allowed)) as scorer:
            assert correct_matrix(scorer.score(boxed)).tolist() == [[allowed]]


@pytest.mark.parametrize("punished", [True, False])
def test_rewards_are_equation_7_plus_equation_13(punished):
    # Right, wrong; 6 tokens are within 10 − 4, 8 are half way down the slope.
    config = dataclasses.replace(CONFIG, soft_overlong_punishment=punished)
    expected = [1.0, -1.5] if punished else [1.0, -1.0]
    torch.testing.assert_close(dapo_reward(random_groups([[6, 8]]), config), torch.tensor(expected))


def test_rows_for_people_hold_what_the_verifier_saw():
    with Scorer(CONFIG) as scorer:
        rows = rollout_rows(scorer.score(GROUPS), char_tokenizer())
    assert [(row["reference"], row["answer"], row["status"]) for row in rows] == [
        ("5", "5", "correct"),
        ("5", "6", "wrong"),
        ("0.5", None, "no_answer"),
        ("0.5", r"$\frac{1}{2}$", "correct"),
    ]
    assert {"prompt", "response", "correct", "truncated"} <= rows[0].keys()
    assert [(row["length"], row["source"], row["reward"]) for row in rows[1:3]] == [(2, "test#0", -1.0)] * 2
    cut = dataclasses.replace(GROUPS[0].rollouts[0], truncated=True, reward=-0.1234567)
    with Scorer(CONFIG) as scorer:
        (judged,) = scorer.score([dataclasses.replace(GROUPS[0], rollouts=[cut])])
    shown = dataclasses.replace(judged.rollouts[0], reward=-0.1234567)
    (row,) = rollout_rows([dataclasses.replace(judged, rollouts=[shown])], char_tokenizer())
    assert (row["truncated"], row["reward"]) == (True, -0.123457)


def test_the_pool_is_made_as_configured(monkeypatch):
    asked = {}
    monkeypatch.setattr("dapo_ref.scoring.VerifierPool", lambda **settings: asked.update(settings))
    config = dataclasses.replace(
        CONFIG, verifier_workers=3, verifier_timeout_s=0.5, verifier_memory_mb=77, boxed_answers=False
    )
    Scorer(config)
    assert asked == {"workers": 3, "timeout_s": 0.5, "memory_mb": 77, "boxed": False}


def test_what_holds_processes_is_made_as_configured_and_closed(monkeypatch):
    class Held:
        def __init__(self, *spec, **settings):
            self.asked, self.closed = (spec, settings), False

        def close(self):
            self.closed = True

    monkeypatch.setattr("dapo_ref.scoring.VerifierPool", Held)
    monkeypatch.setattr("dapo_ref.scoring.OwnReward", Held)
    limits = {"verifier_workers": 3, "verifier_timeout_s": 0.5, "verifier_memory_mb": 77}
    config = dataclasses.replace(CONFIG, reward_function="a.py:f", reward_in_process=True, **limits)
    with Scorer(config) as scorer:
        assert not scorer._pool.closed
    given = {"workers": 3, "timeout_s": 0.5, "memory_mb": 77, "in_process": True}
    assert scorer._own.asked == (("a.py:f",), given)
    assert scorer._pool.closed
    assert scorer._own.closed


def test_a_reward_function_is_asked_with_all_messages_and_fields_and_may_be_late(monkeypatch):
    asked = []

    class Own:
        def __init__(self, *spec, **settings):
            pass

        def submit(self, *arguments):
            asked.append(arguments)
            return arguments[1]

        def result(self, ticket):
            return Outcome(ticket == "good", 0.25, "" if ticket == "good" else "slow", ticket == "slow")

        def close(self):
            pass

    monkeypatch.setattr("dapo_ref.scoring.OwnReward", Own)
    messages = ({"role": "system", "content": "Be short."}, {"role": "user", "content": "What?"})
    problem = Problem(messages, "ref", "test#0", {"worth": 2})
    rollouts = [Rollout([5], text, False) for text in ("good", "slow", "bad")]
    with Scorer(dataclasses.replace(CONFIG, reward_function="a.py:f")) as scorer:
        scorer.begin(problem, rollouts[1])
        (scored,) = scorer.score([Group(problem, [1], rollouts)])
    prompt = "Be short.\n\nWhat?"
    assert asked == [(prompt, text, "ref", {"worth": 2}) for text in ("slow", "good", "bad")]  # each once
    statuses = [rollout.verdict.status for rollout in scored.rollouts]
    assert statuses == [Status.CORRECT, Status.TIMEOUT, Status.WRONG]
    assert scorer.answer_classes(scored) == [0, None, None]


@pytest.mark.parametrize("rewards", [torch.ones(3), torch.ones(2, 2), torch.tensor([1.0, math.nan, 1, 1])])
def test_a_reward_that_is_not_one_finite_number_a_response_ends_the_run(monkeypatch, rewards):
    monkeypatch.setitem(REWARDS, "broken", lambda groups, config: rewards)
    with (
        Scorer(dataclasses.replace(CONFIG, reward="broken")) as scorer,
        pytest.raises(TrainingError, match="a finite number for each of 4 responses"),
    ):
        scorer.score(GROUPS)


def test_what_begin_started_is_not_verified_again(monkeypatch):
    submitted = []

    class Pool:
        def submit(self, text, reference):
            submitted.append((text, reference))
            return text

        def result(self, ticket):
            return Verdict(correct=ticket == "right", status=Status.CORRECT, answer=ticket)

    monkeypatch.setattr("dapo_ref.scoring.VerifierPool", lambda **settings: Pool())
    scorer = Scorer(CONFIG)
    groups = [group("5", "right", "wrong"), group("6", "wrong", "right")]
    scorer.begin(groups[0].problem, groups[0].rollouts[1])
    scored = scorer.score(groups)
    assert correct_matrix(scored).tolist() == [[True, False], [False, True]]
    assert sorted(submitted) == [("right", "5"), ("right", "6"), ("wrong", "5"), ("wrong", "6")]
    assert scorer._begun == {}
    assert rewards_of(scored).tolist() == [1.0, -1.0, -1.0, 1.0]


def test_the_punishment_can_be_scaled():
    config = dataclasses.replace(CONFIG, overlong_penalty_factor=3.0)
    torch.testing.assert_close(dapo_reward(random_groups([[6, 8]]), config), torch.tensor([1.0, -2.5]))
