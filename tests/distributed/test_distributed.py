"""Two real ZeRO-3 processes over gloo do what one does, and what plain PyTorch does.

One launch a world size runs every scenario of `SCENARIOS` in `distributed_worker.py`; the tests read the
results.
"""

import json

import pytest
import torch

from dapo_ref import plan
from dapo_ref.config import Config
from dapo_ref.policy.pretrained import load_hf_config
from tests.support import reference
from tests.support.helpers import (
    ROOT,
    ending_llama,
    launch,
    random_groups,
    random_llama,
    save_model,
)

# Ragged: responses of 1 to 40 tokens, so that the processes hold different numbers of tokens and of rows.
RAGGED = [[1, 40, 7, 12], [5, 2, 33, 9], [3, 3, 28, 1], [17, 8, 2, 21]]
BASE = {
    "precision": "fp32",
    "prompts_per_step": 4,
    "group_size": 4,
    "responses_per_update": 16,
    "max_response_length": 40,
    "overlong_cache_length": 10,
    "rollout_batch_size": 8,
    "dynamic_sampling": False,
    "learning_rate": 1e-2,
    "warmup_steps": 1,
    "weight_decay": 0.1,
    "adam_eps": 1e-2,  # as large as the gradient: updates show its size and do not blow up its rounding
    "max_grad_norm": 0.5,  # below the gradient's norm: the clip is at work
}
ALL_KEYS = {
    "responses_per_update": 4,  # four mini-batches
    "temperature": 0.7,
    "learning_rate": 4e-2,
    "warmup_steps": 4,
    "weight_decay": 0.3,
    "adam_beta1": 0.7,
    "adam_beta2": 0.9,
    "adam_eps": 1e-2,
    "max_grad_norm": 0.5,
    "clip_eps_low": 0.1,
    "clip_eps_high": 0.15,
    "unbiased_std": False,
    "overlong_filtering": True,
    "tokens_per_microbatch": 60,
}
SIZES = {
    "wide_bf16": {"hidden_size": 128},
    "deep_bf16": {"num_hidden_layers": 6, "hidden_size": 64},
    "wide_fp32": {"intermediate_size": 512},
}
BUDGETS = {1: 10_000, 2: 350, 5: 110}  # micro-batches in one process: tokens_per_microbatch


def scenarios(work):
    found = {}
    for tied in (False, True):
        model = str(save_model(work / f"model_{tied}", random_llama(tied)))
        for count, budget in BUDGETS.items():
            settings = BASE | {"model": model, "tokens_per_microbatch": budget}
            found[f"{'tied' if tied else 'untied'}_{count}"] = {"config": settings, "shape": RAGGED}
    base = BASE | {"model": str(work / "model_False"), "tokens_per_microbatch": 350}
    found["several_updates"] = {
        "config": base | {"responses_per_update": 4},
        "shape": RAGGED,
        "rollouts": True,
    }
    found["all_keys"] = {"config": base | ALL_KEYS, "shape": RAGGED}
    still = base | {"responses_per_update": 4, "learning_rate": 0.0}
    found["standing_still"] = {"config": still, "shape": RAGGED}
    found["group"] = {"config": base | {"token_normalization": "group"}, "shape": RAGGED}
    found["sample_level"] = {"config": base | {"loss_aggregation": "sample_level"}, "shape": RAGGED}
    found["overlong_filtering"] = {"config": base | {"overlong_filtering": True}, "shape": RAGGED}
    found["dual_clip"] = {"config": base | {"dual_clip": 10.0, "responses_per_update": 8}, "shape": RAGGED}
    checkpointing = base | {"gradient_checkpointing": True}
    found["checkpointing"] = {"config": checkpointing, "shape": RAGGED, "rollouts": True}
    found["small_gathers"] = {"config": base, "shape": RAGGED, "rollouts": True, "gather": 700}
    found["sharded"] = {
        "config": checkpointing | {"rollout_weights": "sharded"},
        "shape": RAGGED,
        "rollouts": True,
    }
    dropout = str(save_model(work / "model_dropout", random_llama(attention_dropout=0.5)))
    found["dropout"] = {"config": base | {"model": dropout}, "shape": RAGGED}
    ending = base | {"model": str(save_model(work / "model_ending", ending_llama()))}
    for weights in ("gathered", "sharded"):
        settings = ending | {"rollout_weights": weights}
        found[f"ragged_{weights}"] = {"config": settings, "shape": RAGGED, "rollouts": True}
    for precision in ("fp32", "bf16"):
        settings = base | {"precision": precision, "responses_per_update": 8}
        found[f"poisoned_{precision}"] = {"config": settings, "shape": RAGGED, "poisoned": "advantage"}
    infinite = base | {"responses_per_update": 8}
    found["infinite"] = {"config": infinite, "shape": RAGGED, "poisoned": "loss"}
    for name, size in SIZES.items():
        model = str(save_model(work / f"model_{name}", random_llama(**size)))
        settings = base | {"model": model, "precision": name[-4:], "responses_per_update": 8}
        found[f"looked_into_{name}"] = {"config": settings, "shape": RAGGED, "bucket": 4096, "look": True}
    one = base | {"prompts_per_step": 1, "group_size": 2, "responses_per_update": 2}
    # Two responses of which one is truncated and filtered out, and each process gets one of them.
    found["only_padding"] = {"config": one | {"overlong_filtering": True}, "shape": [[9, 4]]}
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """{scenario: {processes: what came out}}, and the scenarios' settings."""
    work = tmp_path_factory.mktemp("distributed")
    settings = scenarios(work)
    (work / "scenarios.json").write_text(json.dumps(settings))
    for processes in (1, 2):
        launch(ROOT / "tests/support/distributed_worker.py", str(work), num_processes=processes)
    return settings, {
        name: {n: torch.load(work / f"{name}.{n}.pt", weights_only=False) for n in (1, 2)}
        for name in settings
    }


def largest_difference(state, other):
    return max(float((state[k] - other[k]).abs().max() / other[k].abs().max()) for k in other)


NAMES = [
    *(f"{head}_{count}" for head in ("untied", "tied") for count in BUDGETS),
    *(
        "several_updates",
        "all_keys",
        "group",
        "sample_level",
        "overlong_filtering",
        "dual_clip",
        "checkpointing",
    ),
    *("sharded", "dropout", "only_padding", "small_gathers"),
]


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_give_the_parameters_of_one(outcomes, name):
    one, two = outcomes[1][name][1], outcomes[1][name][2]
    assert two["result"]["rank"] == [0, 1]
    assert two["result"]["world"] == 2
    assert one["state"].keys() == two["state"].keys()
    assert largest_difference(two["state"], one["state"]) <= 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_report_the_metrics_of_one(outcomes, name):
    one, two = (outcomes[1][name][n]["result"]["record"] for n in (1, 2))
    assert one.keys() == two.keys()
    for key in one:
        if one[key] is None:
            assert two[key] is None, key
        elif not key.startswith(("time/", "memory/")):
            assert two[key] == pytest.approx(one[key], rel=1e-5, abs=1e-7), key
    assert one["grad_norm"] > 0


@pytest.mark.parametrize("head", ["untied", "tied"])
@pytest.mark.parametrize("processes", [1, 2])
def test_the_number_of_micro_batches_changes_nothing(outcomes, head, processes):
    states = [outcomes[1][f"{head}_{count}"][processes]["state"] for count in BUDGETS]
    for state in states[1:]:
        assert largest_difference(state, states[0]) <= 1e-6


def plain_step(settings, shape):
    """The same updates in plain PyTorch: one row at a time, all logits, loops, AdamW, no DeepSpeed."""
    config = Config(**settings)
    model = random_llama(tied="True" in settings["model"])
    groups = reference.samples_of(random_groups(shape))
    step = reference.train_step(model, reference.adamw(model, config), groups, config, step=0)
    return step, {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", ["untied_5", "tied_5", "overlong_filtering", "only_padding"])
def test_an_update_equals_plain_pytorch(outcomes, name, processes):
    settings, found = outcomes
    step, state = plain_step(settings[name]["config"], settings[name]["shape"])
    outcome = found[name][processes]
    assert outcome["result"]["record"]["grad_norm"] == pytest.approx(step.record()["grad_norm"], rel=1e-5)
    assert largest_difference(outcome["state"], state) <= 1e-6


@pytest.mark.parametrize("processes", [1, 2])
def test_a_step_of_several_updates_equals_plain_pytorch(outcomes, processes):
    """π_old fixed while π_θ moves, a temperature, betas, warm-up, both clips and the norm clip at work."""
    settings, found = outcomes
    step, state = plain_step(settings["all_keys"]["config"], settings["all_keys"]["shape"])
    assert min(step.clipped_low, step.clipped_high) > 0
    assert min(step.grad_norms) > settings["all_keys"]["config"]["max_grad_norm"]
    outcome = found["all_keys"][processes]
    for key, value in step.record().items():
        assert outcome["result"]["record"][key] == pytest.approx(value, rel=3e-5, abs=1e-7), key
    assert outcome["result"]["record"]["lr"] == pytest.approx(ALL_KEYS["learning_rate"] / 4)
    assert largest_difference(outcome["state"], state) <= 1e-5


def test_no_key_of_that_step_has_its_default():
    unchanged = [key for key, value in ALL_KEYS.items() if value == getattr(Config(), key)]
    assert unchanged == []


@pytest.mark.parametrize("name", ["checkpointing", "sharded", "dropout", "small_gathers"])
def test_what_must_change_nothing_changes_nothing(outcomes, name):
    # Gradient checkpointing; generating layer by layer; a model whose configuration asks for dropout; full
    # weights gathered a few parameters at a time.
    plain, other = (outcomes[1][scenario][2]["state"] for scenario in ("untied_2", name))
    assert largest_difference(other, plain) <= 1e-6


def test_dropout_is_off_in_the_model_that_is_trained(outcomes):
    assert random_llama(attention_dropout=0.5).config.attention_dropout == 0.5
    for processes in (1, 2):
        assert outcomes[1]["dropout"][processes]["result"]["dropout"] == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_the_last_micro_batch_of_a_mini_batch_is_the_boundary(outcomes, processes):
    for name, updates in (("all_keys", 4), ("untied_5", 1)):
        told = outcomes[1][name][processes]["result"]["boundaries"]
        assert [process.count(True) for process in told] == [updates] * processes
        assert all(process[-1] for process in told)
    assert all(process.count(False) > 0 for process in told)  # of untied_5: several micro-batches everywhere


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", ["several_updates", "checkpointing", "sharded", "small_gathers"])
def test_the_policy_is_sharded_before_and_after_rollouts_and_after_an_error_in_one(outcomes, name, processes):
    result = outcomes[1][name][processes]["result"]
    assert result["sharded"] == [True, True, True]
    assert len(result["ids"]) == 4


def test_symbolic_verdicts_come_from_worker_processes_of_every_rank(outcomes):
    for processes in (1, 2):
        symbolic = outcomes[1]["several_updates"][processes]["result"]["symbolic"]
        assert symbolic == [[True, False]] * processes


def test_weights_gathered_a_few_at_a_time_sample_what_weights_gathered_at_once_do(outcomes):
    for processes in (1, 2):
        at_once, few = (
            outcomes[1][name][processes]["result"]["ids"] for name in ("checkpointing", "small_gathers")
        )
        assert few == at_once


def test_generation_on_full_weights_uses_plain_linear_layers_and_restores_those_of_zero(outcomes):
    for processes in (1, 2):
        assert outcomes[1]["several_updates"][processes]["result"]["plain_linear"] == [True, False]


@pytest.mark.parametrize("name", ["checkpointing", "sharded"])
def test_the_cache_is_on_in_generation_also_with_gradient_checkpointing(outcomes, name):
    # Prompts are run once, at their width; after that each forward pass sees one column.
    widths = outcomes[1][name][2]["result"]["widths"]
    assert widths.count(1) >= len(widths) - 2 > 2


@pytest.mark.parametrize("weights", ["gathered", "sharded"])
def test_processes_sample_differently_and_end_at_different_lengths(outcomes, weights):
    ids = outcomes[1][f"ragged_{weights}"][2]["result"]["ids"]
    assert ids[0] != ids[2]  # the first prompt of either process
    longest = [max(len(response) for group in share for response in group) for share in (ids[:2], ids[2:])]
    assert longest[0] != longest[1]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", ["poisoned_fp32", "poisoned_bf16", "infinite"])
def test_an_update_that_is_not_finite_is_skipped_on_all_processes(outcomes, name, processes):
    # In the first of two mini-batches, on one process: a gradient that is nan, or an infinite loss whose
    # gradient is finite. The second mini-batch is trained.
    outcome = outcomes[1][name][processes]
    record = outcome["result"]["record"]
    assert (record["updates"], record["updates/skipped"]) == (2, 1)
    assert record["grad_norm"] > 0
    assert all(value.isfinite().all() for value in outcome["state"].values())
    start = {name: value.detach() for name, value in random_llama().named_parameters()}
    moved = largest_difference({k: v.float() for k, v in outcome["state"].items()}, start)
    assert moved > 1e-3  # the second update is there


def test_ratio_is_one_where_old_logprobs_come_from_the_same_weights(outcomes):
    # At learning rate 0 θ stays π_old, and the pass that computes log π_old agrees with the training pass
    # of all four mini-batches; at 0.01 θ moves away from π_old after the first, and the ratio with it.
    for processes in (1, 2):
        still, moved = (
            outcomes[1][name][processes]["result"]["record"] for name in ("standing_still", "several_updates")
        )
        assert still["policy/ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert still["policy/clip_frac_low"] == still["policy/clip_frac_high"] == 0
        assert moved["policy/ratio_max"] > 1.01


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", SIZES)
def test_states_are_as_large_as_planned(monkeypatch, outcomes, name, processes):
    """Within 10 %, and in the second update, when there are Adam's moments, its gradients once more."""
    monkeypatch.setattr(plan, "BUCKET_ELEMENTS", 4096)
    settings, found = outcomes
    result = found[f"looked_into_{name}"][processes]["result"]
    shape = plan.shape_of(load_hf_config(settings[f"looked_into_{name}"]["config"]["model"]))
    states = plan.state_bytes(shape, processes, name[-4:])
    assert result["bytes"] == pytest.approx(states, rel=0.1)
    assert result["bytes_in_step"] == pytest.approx(states + 4 * shape.parameters / processes, rel=0.1)


def test_gradients_of_bf16_weights_are_summed_over_the_processes_in_fp32(outcomes):
    """Each process has one micro-batch, whose gradient has the 8 significant bits of bf16; the mean of two of
    those has more, unless it was rounded to bf16 on the way."""
    for processes, rounded in ((1, True), (2, False)):
        gradients = outcomes[1]["looked_into_wide_bf16"][processes]["result"]["gradients"]
        weight = gradients["model.model.layers.0.mlp.up_proj.weight"]
        assert torch.equal(weight.bfloat16().float(), weight) == rounded
