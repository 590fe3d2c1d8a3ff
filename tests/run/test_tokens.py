"""`dapo_ref/run/tokens.py`: which groups, which tokens, and on which side the clip stopped them."""

import torch

from dapo_ref.config import Config
from dapo_ref.policy.batching import microbatches
from dapo_ref.run.folder import RunFolder
from dapo_ref.run.tokens import TokenRecorder
from tests.support.helpers import char_tokenizer, filled_batch, random_groups


def recorder(count, groups):
    config = Config(record_tokens=count, prompts_per_step=groups, group_size=2, responses_per_update=2)
    return TokenRecorder(config, char_tokenizer().decode)


def test_tokens_of_evenly_spread_groups_with_probability_and_clip():
    batch = filled_batch(random_groups([[2, 3], [2, 2], [3, 2], [2, 2]]))
    tokens = recorder(2, 4)  # of four groups numbers 0 and 2
    ratios = {}
    for micro in microbatches(batch, range(8), 20, 1, 0):
        micro.old_logprobs = torch.full(micro.response_ids.shape, 0.25).log()
        # Bounds 0.8 and 1.28: the first token of each is above, the second below, a third between.
        ratio = torch.tensor([1.3, 0.7, 1.0])[: micro.response_ids.shape[1]].expand(len(micro.rows), -1)
        tokens.add(micro, ratio)
        ratios |= dict(zip(micro.rows, micro.advantages.tolist(), strict=True))
    rows = {(row["group"], row["sample"]): row for row in tokens.take()}
    assert sorted(rows) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    for (group, sample), row in rows.items():
        index = 2 * group + sample
        ids = batch.response_ids[index]
        assert row["tokens"] == [char_tokenizer().decode([token]) for token in ids]
        assert row["probs"] == [0.25] * len(ids)
        # Â > 0 is stopped above, Â < 0 below.
        assert row["clipped"] == ("h.." if ratios[index] > 0 else ".l.")[: len(ids)]
    assert tokens.take() == []


def test_none_unless_asked_for_and_no_more_than_there_are():
    batch = filled_batch(random_groups([[2, 3], [2, 2]]))
    (micro,) = microbatches(batch, range(4), 100, 1, 0)
    micro.old_logprobs = torch.zeros(micro.response_ids.shape)
    for count, expected in ((0, 0), (1, 2), (9, 4)):
        tokens = recorder(count, 2)
        tokens.add(micro, torch.ones(micro.response_ids.shape))
        assert len(tokens.take()) == expected


def test_files_are_cut_back_with_the_rest(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        folder.write_tokens(step, [{"group": 0}])
    folder.forget_after(1)
    assert [path.name for path in (tmp_path / "tokens").iterdir()] == ["step_000001.jsonl"]


def test_each_side_has_its_own_bound_and_only_the_clipped_sign_counts():
    """Ratios 1.25, 1.3, 0.85, 0.75, bounds 1 − 0.2 and 1 + 0.28; what stands at padding is no token."""
    batch = filled_batch(random_groups([[4, 4, 2, 4]]))
    config = Config(record_tokens=1, prompts_per_step=1, group_size=4, responses_per_update=4)
    tokens = TokenRecorder(config, char_tokenizer().decode)
    for micro in microbatches(batch, range(4), 100, 1, 0):
        micro.old_logprobs = torch.full(micro.response_ids.shape, 0.123456).log()
        ratio = torch.tensor([1.25, 1.3, 0.85, 0.75]).expand(len(micro.rows), -1)
        tokens.add(micro, ratio[:, : micro.response_ids.shape[1]])
    # Right, wrong, right, wrong.
    rows = sorted(tokens.take(), key=lambda row: row["sample"])
    assert [row["clipped"] for row in rows] == [".h..", "...l", ".h", "...l"]
    assert [len(row["probs"]) for row in rows] == [4, 4, 2, 4]
    assert set(rows[0]["probs"]) == {0.1235}
