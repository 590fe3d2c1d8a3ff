"""`dapo_ref/run/next_step.py`: what a run says last."""

from dapo_ref.config import Config
from dapo_ref.run.next_step import after_stop, after_training

RECORDS = [
    {"step": 0, "eval/acc": 0.1},  # an evaluation before training
    {"step": 1, "reward/accuracy": 0.25},
    {"step": 2, "reward/accuracy": 0.5},
    {"step": 3, "reward/accuracy": 0.75},
]


def test_after_training_stand_the_model_the_accuracies_and_two_commands() -> None:
    config = Config(output_dir="runs/mine")
    assert after_training(config, RECORDS, 1) == [
        "model: runs/mine/model",
        "right in training: 0.250 in step 1, 0.750 in step 3",
        "evaluate it: python evaluate.py --model runs/mine --data FILE --output runs/mine/evaluation",
        "draw it: python -m dapo_ref.report runs/mine",
    ]


def test_commands_are_those_of_this_run() -> None:
    """Its data sets, its processes, and a folder that a shell takes as one word."""
    config = Config(output_dir="my runs/a", eval_data="a.jsonl, b c.jsonl")
    lines = after_training(config, RECORDS, 2)
    launch = "accelerate launch --config_file configs/accelerate/zero3.yaml --num_processes 2"
    assert lines[2] == (
        f"evaluate it: {launch} evaluate.py --model 'my runs/a' --data a.jsonl 'b c.jsonl' "
        "--output 'my runs/a'/evaluation"
    )
    assert after_stop(config, 2) == f"resume: {launch} train.py --config 'my runs/a'/config.yaml --resume"
    assert after_stop(Config(output_dir="r"), 1) == "resume: python train.py --config r/config.yaml --resume"


def test_a_run_without_steps_names_its_model_alone() -> None:
    assert after_training(Config(output_dir="r"), [], 1)[:2] == [
        "model: r/model",
        "evaluate it: python evaluate.py --model r --data FILE --output r/evaluation",
    ]
