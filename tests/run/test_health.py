"""`dapo_ref/run/health.py`: each way to go wrong is said once, with its key; a good run is silent."""

import pytest

from dapo_ref.run.health import Health

GOOD = {
    **{"policy/entropy": 0.3, "sampling/all_correct_frac": 0.5, "sampling/all_wrong_frac": 0.1},
    **{"sampling/groups_qualified": 10, "sampling/groups_generated": 100, "response/truncated_frac": 0.2},
    **{"policy/clip_frac_low": 0.001, "policy/clip_frac_high": 0.0, "grad_norm": 0.5},
    **{"verdict/timeout_frac": 0.0, "policy/sampler_gap_mean": 0.05},
}


def said(records):
    health = Health()
    return [
        warning for step, r in enumerate(records, 1) for warning in health.check({"step": step} | GOOD | r)
    ]


def test_a_good_run_is_silent():
    assert said([{"grad_norm": norm} for norm in (0.5, None, 4.9) * 10]) == []


@pytest.mark.parametrize(
    ("record", "step", "key"),
    [
        ({"policy/entropy": 0.009}, 5, "policy/entropy"),
        ({"sampling/all_correct_frac": 1.0}, 1, "sampling/all_correct_frac"),
        ({"sampling/all_wrong_frac": 1.0}, 1, "sampling/all_wrong_frac"),
        ({"sampling/groups_qualified": 9}, 1, "sampling/groups_qualified"),
        ({"response/truncated_frac": 0.21}, 1, "response/truncated_frac"),
        ({"policy/clip_frac_low": 0.0}, 20, "policy/clip_frac_low"),
        ({"verdict/timeout_frac": 0.001}, 1, "verdict/timeout_frac"),
        ({"policy/sampler_gap_mean": 0.051}, 1, "policy/sampler_gap_mean"),
    ],
)
def test_what_goes_wrong_is_said_once(record, step, key):
    (warning,) = said([record] * 30)
    assert warning.startswith(f"step {step}: {key}")


def test_a_jump_of_the_gradient_norm():
    # The median of 3 and eight norms of 0.5 is 0.5: 5.1 is more than ten times that, 4.9 is not (above).
    (warning,) = said([{"grad_norm": 3.0}, *[{}] * 8, {"grad_norm": 5.1}])
    assert warning.startswith("step 10: grad_norm")


def test_one_good_step_interrupts_what_must_last():
    assert said([{"policy/entropy": 0.001}] * 4 + [{}] + [{"policy/entropy": 0.001}] * 4) == []
