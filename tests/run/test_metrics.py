"""`dapo_ref/run/metrics.py`: what a line of `metrics.jsonl` says, and that the file survives a kill."""

import dataclasses
import json
import math

import pytest
import torch

from dapo_ref.config import Config
from dapo_ref.dynamic_sampling import GroupBuffer
from dapo_ref.objective import Clipping, build_objective
from dapo_ref.policy.batching import microbatches
from dapo_ref.run.files import MetricsFile, read_metrics
from dapo_ref.run.metrics import StepMetrics, duration, seconds_of, summary_line
from tests.support.helpers import ROOT, OneProcess, filled_batch, random_groups
from tests.support.plain_engine import in_threads

LISTED = [
    "step",
    "updates",
    "loss",
    "grad_norm",
    "lr",
    "reward/mean",
    "reward/accuracy",
    "response/length_mean",
    "response/truncated_frac",
    "policy/entropy",
    "policy/mean_prob",
    "policy/clip_frac_low",
    "policy/clip_frac_high",
    "policy/ratio_max",
    "policy/sampler_gap_mean",
    "policy/sampler_gap_max",
    "policy/sampler_gap_kl",
    "sampling/groups_generated",
    "sampling/groups_kept",
    "sampling/all_correct_frac",
    "sampling/all_wrong_frac",
    "sampling/rounds",
    "time/rollout_s",
    "time/verify_s",
    "time/logprobs_s",
    "time/update_s",
    "tokens/generated",
    "tokens/trained",
    "memory/peak_mb",
]


def record_of(metrics):
    for name in ("rollout", "verify", "logprobs", "update"):
        with metrics.timed(name):
            pass
    return metrics.record(OneProcess(), step=3, updates=7, learning_rate=0.1)


def clipping(low=0, high=0, ratio_max=1.0, log_ratio_sum=0.0, dual=0, high_prob=(0.0, 0.0)):
    return Clipping(low, high, ratio_max, log_ratio_sum, dual, *high_prob)


def filled_metrics():
    # Right where p + g is even: group 0 has 2 of 3 right, group 1 has 1 of 3.
    groups = random_groups([[4, 6, 8], [3, 5, 10]])
    rewards = iter([1.0, -1, 0.5, -1, 1, -1])  # shaped, so that they do not follow from what is right
    for group in groups:
        group.rollouts[:] = [dataclasses.replace(rollout, reward=next(rewards)) for rollout in group.rollouts]
    buffer = GroupBuffer(2)
    buffer.add(groups, torch.tensor([[r.correct for r in g.rollouts] for g in groups]))
    metrics = StepMetrics()
    metrics.add_rollout(buffer, groups)
    return metrics


def test_a_record_holds_every_listed_key():
    record = record_of(filled_metrics())
    assert set(LISTED) <= set(record)
    json.dumps(record, allow_nan=False)


def test_every_key_is_explained():
    text = (ROOT / "docs/metrics.md").read_text()
    for key in (*LISTED, *filled_metrics().rollout):
        # Written out, or as the end of a key named before it in its row: `x/a`, `_b`.
        prefix, _, name = key.rpartition("/")
        ends = [name, "_" + name.rpartition("_")[2], name.removeprefix("groups")]
        assert f"`{key}`" in text or (f"`{prefix}/" in text and any(f"`{end}`" in text for end in ends)), key


def test_rollout_figures_by_hand():
    record = record_of(filled_metrics())
    assert record["reward/mean"] == pytest.approx(-0.5 / 6)
    assert record["reward/accuracy"] == pytest.approx(3 / 6)
    assert record["response/length_mean"] == pytest.approx(36 / 6)
    assert record["response/length_max"] == 10
    assert record["response/truncated_frac"] == pytest.approx(2 / 6)
    assert record["tokens/generated"] == 36
    assert record["verdict/wrong_frac"] == pytest.approx(3 / 6)
    assert (record["sampling/groups_generated"], record["sampling/groups_kept"]) == (2, 2)
    assert (record["sampling/all_correct_frac"], record["sampling/all_wrong_frac"]) == (0, 0)


def test_figures_of_the_rollout_are_of_all_groups_kept_or_not():
    groups = random_groups([[4, 6], [3, 5], [7, 9]])
    for i, group in enumerate(groups):
        group.rollouts[:] = [dataclasses.replace(rollout, reward=float(i)) for rollout in group.rollouts]
    buffer = GroupBuffer(1)
    buffer.add(groups, torch.tensor([[True, False], [True, False], [False, False]]))
    metrics = StepMetrics()
    metrics.add_rollout(buffer, groups)
    assert len(buffer.groups) == 1
    assert metrics.rollout["reward/mean"] == 1.0
    assert (metrics.rollout["tokens/generated"], metrics.rollout["response/length_max"]) == (34, 9)


def test_a_sampler_that_agrees_has_a_gap_of_zero_and_one_that_does_not_tell_has_none():
    (micro,) = microbatches(filled_batch(random_groups([[2, 3]])), [0, 1], 100, 1, 0)
    micro.old_logprobs = torch.full(micro.response_mask.shape, -1.0)
    for sampler, expected in ((micro.old_logprobs, 0.0), (None, None)):
        metrics = filled_metrics()
        micro.sampler_logprobs = sampler
        metrics.add_old_policy(micro, torch.ones(micro.response_mask.shape))
        record = record_of(metrics)
        assert [record[f"policy/sampler_gap_{name}"] for name in ("mean", "max", "kl")] == [expected] * 3
    # A micro-batch without a trained token (all of it filtered) adds nothing.
    micro.sampler_logprobs, micro.response_mask = micro.old_logprobs, torch.zeros_like(micro.response_mask)
    metrics = filled_metrics()
    metrics.add_old_policy(micro, torch.ones(micro.response_mask.shape))
    assert metrics.gap_tokens == metrics.sampled_tokens == 0


def test_policy_figures_by_hand():
    metrics = filled_metrics()
    batch = filled_batch(random_groups([[2, 2]]))  # right, wrong: Â = ±1/√2
    (micro,) = microbatches(batch, [0, 1], 100, 1, 0)
    order = [micro.rows.index(0), micro.rows.index(1)]
    logprobs, old = torch.zeros(2, 2), torch.zeros(2, 2)
    # Â > 0: ratios 1.3 (clipped high) and 1.2; Â < 0: ratios 0.7 (clipped low) and 1.5, of 4 tokens.
    logprobs[order[0]] = torch.tensor([1.3, 1.2]).log()
    logprobs[order[1]] = torch.tensor([0.7, 1.5]).log()
    micro.old_logprobs = old
    objective = build_objective(Config(clip_eps_low=0.2, clip_eps_high=0.28))
    metrics.add_microbatch(torch.tensor(0.25), objective.clipping(logprobs, micro))
    assert metrics.end_update(grad_norm=2.0, num_tokens=4) == [0.25]
    # Probabilities 1/2 and 1/4 where valid; the third position is padding.
    micro.response_mask = torch.tensor([[True, True, False]])
    micro.old_logprobs = torch.tensor([[0.5, 0.25, 9.0]]).log()
    # The sampler had log-probabilities 0.02 below and 0.04 above; of the next micro-batch it does not tell.
    micro.sampler_logprobs = micro.old_logprobs + torch.tensor([[-0.02, 0.04, 9.0]])
    metrics.add_old_policy(micro, torch.tensor([[0.1, 0.3, 9.0]]))
    micro.sampler_logprobs = None
    metrics.add_old_policy(micro, torch.tensor([[0.1, 0.3, 9.0]]))
    record = record_of(metrics)
    assert record["policy/sampler_gap_mean"] == pytest.approx(0.03, rel=1e-5)
    assert record["policy/sampler_gap_max"] == pytest.approx(0.04, rel=1e-5)
    assert record["policy/sampler_gap_kl"] == pytest.approx(0.01, rel=1e-5)
    assert record["policy/clip_frac_high"] == pytest.approx(1 / 4)
    assert record["policy/clip_frac_low"] == pytest.approx(1 / 4)
    assert record["policy/ratio_max"] == pytest.approx(1.5)
    assert record["policy/mean_prob"] == pytest.approx(0.375)
    assert record["policy/entropy"] == pytest.approx(0.2)
    assert (record["loss"], record["grad_norm"], record["tokens/trained"]) == (0.25, 2.0, 4)


def test_a_skipped_update_is_counted_and_leaves_the_line_valid_json():
    metrics = filled_metrics()
    metrics.end_update(grad_norm=math.inf, num_tokens=4)
    record = record_of(metrics)
    assert record["updates/skipped"] == 1
    assert record["grad_norm"] is None
    json.dumps(record, allow_nan=False)
    assert "skipped" in summary_line(record, of_steps=5)


def test_summary_line_names_step_and_groups():
    line = summary_line(record_of(filled_metrics()), of_steps=5, left_s=3.0)
    assert line.startswith("step 3/5  right 0.500")
    assert "kept      2/2 in 1" in line
    assert line.endswith(" s  3.0 s left")
    assert not summary_line(record_of(filled_metrics()), of_steps=5, left_s=0.0).endswith("left")


def test_summary_line_shows_each_figure_in_its_place():
    record = record_of(filled_metrics()) | {"policy/entropy": 1.25, "grad_norm": 0.375, "loss": 9.0}
    record |= {"sampling/groups_kept": 1, "sampling/groups_qualified": 2, "sampling/groups_generated": 3}
    record |= {"sampling/rounds": 4, "time/rollout_s": 5.0, "time/update_s": 6.0}
    line = summary_line(record, of_steps=5)
    # Lengths 36 / 6 and at most 10; two of six truncated; all phases together take 11 s.
    expected = "length 6 cut 0.33 kept 1/3 in 4 entropy 1.25 grad 0.375 11 s"
    assert " ".join(line.split()).endswith(expected)
    assert seconds_of({"time/a_s": 1.5, "time/b_s": 2.0, "memory/peak_mb": 9.0}) == 3.5


def test_summary_lines_fit_120_columns_and_stand_under_one_another():
    small, large = record_of(filled_metrics()), record_of(filled_metrics())
    large |= {"step": 1000, "sampling/groups_generated": 1536, "sampling/groups_kept": 512, "loss": None}
    large |= {"response/length_mean": 12345.6, "grad_norm": None, "policy/entropy": 1.234}
    large |= {"reward/mean": -1.99, "sampling/rounds": 9, "time/rollout_s": 5000.0}
    small |= {"loss": 0.01, "grad_norm": 0.3}
    lines = [summary_line(record, of_steps=1000, left_s=4e5) for record in (small, large)]
    assert max(map(len, lines)) <= 120
    assert len({line.index("grad") for line in lines}) == 1
    times = {9.71: "9.7 s", 10.0: "10 s", 119.9: "120 s", 120: "2 min", 7199: "120 min", 7200: "2 h"}
    assert [duration(s) for s in times] == list(times.values())


def test_file_is_cut_back_and_a_half_written_line_is_mended(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.cut_after(0)  # nothing there yet
    for step in (1, 2, 3):
        file.append({"step": step, "loss": 0.1 * step})
    with file.path.open("a") as out:
        out.write('{"step": 4, "lo')
    file.cut_after(2)
    assert read_metrics(file.path) == [{"step": 1, "loss": 0.1}, {"step": 2, "loss": 0.2}]
    file.append({"step": 3})
    assert [line["step"] for line in read_metrics(file.path)] == [1, 2, 3]


def test_losses_and_norms_are_means_over_the_updates_that_were_made():
    """Two updates of two micro-batches each, and one between them that was skipped."""
    metrics = filled_metrics()
    for shares, norm, tokens in (
        ((0.5, 0.25), 2.0, 10),
        ((math.nan, 9.0), math.nan, 20),
        ((1.0, 0.75), 4.0, 30),
    ):
        for share in shares:
            metrics.add_microbatch(torch.tensor(share), clipping())
        assert metrics.end_update(norm, tokens) == pytest.approx(list(shares), nan_ok=True)
    record = record_of(metrics)
    assert record["loss"] == (0.5 + 0.25 + 1.0 + 0.75) / 2
    assert record["grad_norm"] == 3.0
    assert record["tokens/trained"] == 60  # of the skipped one too: it was computed
    assert record["updates/skipped"] == 1
    assert (record["step"], record["updates"], record["lr"]) == (3, 7, 0.1)


def test_clip_fractions_add_up_over_micro_batches_by_side():
    metrics = filled_metrics()
    metrics.add_microbatch(torch.tensor(0.0), clipping(3, 1, 1.25, 0.5, dual=2, high_prob=(0.75, 0.75)))
    metrics.add_microbatch(torch.tensor(0.0), clipping(4, 1, 7.5, -2.5, dual=3, high_prob=(0.25, 0.25)))
    metrics.add_microbatch(torch.tensor(0.0), clipping(ratio_max=2.0))
    metrics.end_update(1.0, 20)
    record = record_of(metrics)
    assert (record["policy/clip_frac_low"], record["policy/clip_frac_high"]) == (7 / 20, 2 / 20)
    assert record["policy/clip_frac_dual"] == 5 / 20
    assert record["policy/kl_old"] == -2 / 20
    assert (record["policy/clip_high_prob"], record["policy/clip_high_prob_max"]) == (1 / 2, 0.75)
    assert record["policy/ratio_max"] == 7.5


def test_masked_tokens_are_in_no_figure_of_the_policy():
    """At masked-out positions stand ratios of e⁹, probabilities of e⁹, entropies of 99."""
    batch = filled_batch(random_groups([[3, 1]]))
    (micro,) = microbatches(batch, [0, 1], 100, 1, 0)
    mask = micro.response_mask
    micro.old_logprobs = torch.where(mask, math.log(0.5), 9.0)
    logprobs = torch.where(mask, micro.old_logprobs, torch.tensor(18.0))
    metrics = filled_metrics()
    objective = build_objective(Config())
    metrics.add_microbatch(torch.tensor(0.0), objective.clipping(logprobs, micro))
    metrics.end_update(1.0, 4)
    metrics.add_old_policy(micro, torch.where(mask, 0.25, 99.0))
    record = record_of(metrics)
    assert record["policy/ratio_max"] == 1.0
    assert record["policy/clip_frac_low"] == record["policy/clip_frac_high"] == 0
    assert record["policy/clip_high_prob"] is record["policy/clip_high_prob_max"] is None  # of no token
    assert record["policy/mean_prob"] == pytest.approx(0.5)
    assert record["policy/entropy"] == pytest.approx(0.25)


def test_groups_that_are_all_right_and_all_wrong_are_counted_apart():
    groups = random_groups([[2, 2]] * 5)
    buffer = GroupBuffer(1)
    correct = torch.tensor([[True, True], [True, True], [False, False], [True, False], [True, True]])
    buffer.add(groups, correct)
    buffer.add(groups[:3], correct[2:])
    metrics = StepMetrics()
    metrics.add_rollout(buffer, groups)
    record = record_of(metrics)
    assert record["sampling/all_correct_frac"] == 4 / 8
    assert record["sampling/all_wrong_frac"] == 2 / 8
    assert (record["sampling/groups_generated"], record["sampling/groups_qualified"]) == (8, 2)
    assert (record["sampling/rounds"], record["sampling/groups_kept"]) == (2, 1)


def test_what_is_not_finite_is_null_in_the_file():
    metrics = filled_metrics()
    metrics.sampled_tokens, metrics.entropy, metrics.ratio_max = 1.0, math.nan, math.inf
    record = record_of(metrics)
    assert record["policy/entropy"] is None
    assert record["policy/ratio_max"] is None


def test_sums_and_maxima_are_taken_over_the_processes():
    """Two processes: sums of losses, clipped and sampled tokens; the largest ratio and the slowest timer."""

    def work(processes):
        rank = processes.rank
        metrics = filled_metrics()
        metrics.timers = {"rollout": 1.0 + rank}
        # Rank 1 alone has tokens clipped high: 3 of them, probabilities 0.5, 0.5 and 0.25.
        shares = clipping(
            *(1 + rank, 3 * rank, 2.0 + rank, rank - 4.0, 2 + 4 * rank), high_prob=(1.25 * rank, 0.5 * rank)
        )
        metrics.add_microbatch(torch.tensor(0.25 + rank), shares)
        metrics.end_update(1.0, 10)
        metrics.sampled_tokens, metrics.entropy, metrics.prob = 4.0, 1.0 + rank, 2.0 + 2 * rank
        metrics.gap_tokens, metrics.gap_abs, metrics.gap_sum = 1.0 + 2 * rank, 1.0 + rank, rank - 2.0
        metrics.gap_max = 0.5 * rank
        return metrics.record(processes, 1, 1, 0.1)

    for record in in_threads(2, work):
        assert record["loss"] == 0.25 + 1.25
        assert (record["policy/clip_frac_low"], record["policy/clip_frac_high"]) == (3 / 10, 3 / 10)
        assert (record["policy/clip_frac_dual"], record["policy/kl_old"]) == (8 / 10, -7 / 10)
        assert (record["policy/clip_high_prob"], record["policy/clip_high_prob_max"]) == (1.25 / 3, 0.5)
        assert record["policy/ratio_max"] == 3.0
        assert record["time/rollout_s"] == 2.0
        gap = [record[f"policy/sampler_gap_{name}"] for name in ("mean", "max", "kl")]
        assert gap == [3 / 4, 0.5, -3 / 4]
        assert (record["policy/entropy"], record["policy/mean_prob"]) == (3 / 8, 6 / 8)


def test_timers_add_up_by_name(monkeypatch):
    clock = iter([10.0, 11.5, 20.0, 22.0, 30.0, 30.25])
    monkeypatch.setattr("dapo_ref.run.metrics.time.perf_counter", lambda: next(clock))
    metrics = StepMetrics()
    for name in ("rollout", "verify", "rollout"):
        with metrics.timed(name):
            pass
    assert metrics.timers == {"rollout": 1.75, "verify": 2.0}
