"""`docs/extending.md`: its code runs as it stands, and each row is reached from the configuration."""

import re
from collections.abc import Iterator

import pytest
import torch

from dapo_ref.config import Config
from dapo_ref.data import load_problems
from dapo_ref.data.sources import SOURCES
from dapo_ref.errors import ConfigError, DataError, TrainingError
from dapo_ref.objective import VARIANTS, build_objective
from dapo_ref.policy.batching import microbatches, minibatches
from dapo_ref.scoring import REWARDS, Scorer, rewards_of
from tests.support.helpers import ROOT, filled_batch, random_groups
from tests.test_scoring import CONFIG, GROUPS

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def page() -> Iterator[None]:
    """The page's code has run; the tables are as before afterwards."""
    tables: list[dict] = [VARIANTS, REWARDS, SOURCES]
    before = [dict(table) for table in tables]
    names: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    yield
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)


def test_the_loss_of_the_page_is_trained_by_its_name() -> None:
    """Â = ±1/√2: ratio 2 at each token. Right: 1.28 Â; wrong: 2 Â."""
    batch = filled_batch(random_groups([[2, 2]]))  # right, wrong
    (mini,) = minibatches(batch, 2)
    (micro,) = microbatches(batch, mini.rows, 100, 1, 0)
    micro.old_logprobs = torch.zeros(2, 2)
    logprobs = torch.full((2, 2), 2.0).log()
    loss = build_objective(Config(loss_variant="one_sided"))(logprobs, micro, mini)
    expected = -(2 * 1.28 - 2 * 2) / 2**0.5 / 4  # two tokens each, four in all
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_reward_of_the_page_is_given_by_its_name() -> None:
    """Two tokens of at most 10: 0.5 · 0.8 more for the right ones, nothing for the wrong ones."""
    config = Config(**vars(CONFIG) | {"reward": "brevity"})
    with Scorer(config) as scorer:
        found = rewards_of(scorer.score(GROUPS))
    assert found.tolist() == pytest.approx([1.4, -1.0, -1.0, 1.4])


def test_the_source_of_the_page_is_read_by_its_name() -> None:
    problems = load_problems("squares:4", prompt_template="{question}")
    assert [(p.messages[0]["content"], p.reference) for p in problems][2:] == [
        ("2 * 2 = ?", "4"),
        ("3 * 3 = ?", "9"),
    ]
    with pytest.raises(DataError, match="squares:many: expected squares:COUNT"):
        load_problems("squares:many", prompt_template="{question}")


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"reward: unknown name 'brevety'; did you mean 'brevity'\?"):
        Scorer(Config(reward="brevety"))
    with pytest.raises(
        ConfigError, match=r"loss_variant: unknown name 'onesided'; did you mean 'one_sided'\?"
    ):
        build_objective(Config(loss_variant="onesided"))
    with pytest.raises(DataError, match=r"did you mean 'squares'\?"):
        load_problems("square:train", prompt_template="{question}")


@pytest.mark.parametrize("bad", [torch.tensor([1.0, torch.nan, 1.0, 1.0]), torch.ones(3), torch.ones(2, 2)])
def test_a_reward_that_is_not_a_finite_number_a_response_ends_the_run(bad: torch.Tensor) -> None:
    REWARDS["bad"] = lambda groups, config: bad
    with (
        Scorer(Config(**vars(CONFIG) | {"reward": "bad"})) as scorer,
        pytest.raises(TrainingError, match="reward 'bad' must give a finite number for each of 4 responses"),
    ):
        scorer.score(GROUPS)
