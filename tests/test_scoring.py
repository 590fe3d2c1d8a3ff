"""`dapo_ref/scoring.py`: verdicts reach their responses, rewards their rows, and the two rules can be
compared."""

import dataclasses

import pytest
import torch

from dapo_ref.config import Config
from dapo_ref.data import Problem
from dapo_ref.scoring import (
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
    assert {"prompt", "response", "correct", "truncated", "length", "source"} <= rows[0].keys()


def test_the_pool_is_made_as_configured(monkeypatch):
    asked = {}
    monkeypatch.setattr("dapo_ref.scoring.VerifierPool", lambda **settings: asked.update(settings))
    config = dataclasses.replace(
        CONFIG, verifier_workers=3, verifier_timeout_s=0.5, verifier_memory_mb=77, boxed_answers=False
    )
    Scorer(config)
    assert asked == {"workers": 3, "timeout_s": 0.5, "memory_mb": 77, "boxed": False}


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
