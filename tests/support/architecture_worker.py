"""Run under `accelerate launch` by `test_architectures.py`: the loop and a resume on each stand-in.

Random models never answer rightly, so a stand-in for the verifier calls a response right by its length;
everything else is the loop as `train.py` runs it.
"""

import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from accelerate.state import AcceleratorState

from dapo_ref.config import Config, read_config
from dapo_ref.data import Problem, keep_short_prompts, load_problems
from dapo_ref.distributed.engine import Engine
from dapo_ref.objective import build_objective
from dapo_ref.policy.pretrained import load_tokenizer
from dapo_ref.run.command import leave
from dapo_ref.run.folder import RunFolder
from dapo_ref.run.preemption import StopSignals
from dapo_ref.run.session import Session
from dapo_ref.types import Group, Rollout
from dapo_ref.verifier import Status, Verdict
from train import train


class EvenIsRight:
    """A response of an even number of tokens is right."""

    def begin(self, problem: Problem, rollout: Rollout) -> None:
        """Nothing to prepare."""

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with their verdicts and rewards."""
        return [
            dataclasses.replace(group, rollouts=[scored(rollout) for rollout in group.rollouts])
            for group in groups
        ]


def scored(rollout: Rollout) -> Rollout:
    even = len(rollout.response_ids) % 2 == 0
    verdict = Verdict(correct=even, status=Status.CORRECT if even else Status.WRONG, answer=None)
    return dataclasses.replace(rollout, verdict=verdict, reward=1.0 if even else -1.0)


def run(config: Config) -> Engine:
    """`train.main` without the command line and with the other scorer; the engine is left open."""
    AcceleratorState._reset_state(reset_partial_state=True)
    tokenizer = load_tokenizer(config.model_dir)
    problems = load_problems(config.data, prompt_template=config.prompt_template)
    prompts = keep_short_prompts(problems, tokenizer, config.max_prompt_length)
    folder = RunFolder(Path(config.output_dir))
    folder.open(config)
    engine = Engine(config)
    objective = build_objective(config)
    session = Session(config, engine, objective, EvenIsRight(), tokenizer, prompts, folder, StopSignals())
    session.begin()
    train(session)
    return engine


def copy_as_of_step(step: int, whole: Path, copy: Path) -> Config:
    """The run folder as if its run had been killed after the checkpoint of that step."""
    shutil.copytree(whole, copy)
    shutil.rmtree(copy / "model")
    for checkpoint in RunFolder(copy).checkpoints()[step:]:
        shutil.rmtree(checkpoint)
    return dataclasses.replace(read_config(copy / "config.yaml"), output_dir=str(copy), resume=True)


def main(work: Path) -> None:
    for name, settings in json.loads((work / "runs.json").read_text()).items():
        whole = work / name / "whole"
        run(Config(**settings, output_dir=str(whole)))
        engine = run(copy_as_of_step(1, whole, work / name / "resumed"))
    engine.barrier()
    engine.close()
    leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
