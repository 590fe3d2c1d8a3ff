"""Algorithm 1 of DAPO (arXiv 2503.14476), in the paper's order. Line numbers are the paper's.

    accelerate launch --config_file configs/accelerate/zero3.yaml train.py --config configs/tiny_cpu.yaml

Every process runs this file. They share the policy under ZeRO-3 and nothing else: each samples and verifies
its own prompts, then all exchange their groups, so that every process holds the whole batch, takes the same
decisions, and picks its own part of each mini-batch.

`Session` holds what is not in the paper: stop and resume, metrics, response files, checkpoints.
"""

import sys

from dapo_ref.config import Config, load_config
from dapo_ref.usage import TRAIN, answer, check

if __name__ == "__main__":  # before torch is imported, which takes seconds
    answer(sys.argv[1:], Config, TRAIN, needed=["--config"])
    if "--plan" in sys.argv:  # before DeepSpeed is imported, which planning does not need
        from dapo_ref import plan
        from dapo_ref.run.command import exit_code

        sys.exit(exit_code(plan.main, sys.argv[1:]))
    check(load_config, sys.argv[1:])

from collections.abc import Sequence
from pathlib import Path

import torch

from dapo_ref.data import keep_short_prompts, load_data
from dapo_ref.distributed.engine import Engine
from dapo_ref.distributed.machine import require_machine
from dapo_ref.dynamic_sampling import GroupBuffer, any_outcome, next_round_size, pass_rate_within
from dapo_ref.launcher import launched_as_main
from dapo_ref.objective import advantages, build_objective
from dapo_ref.policy.batching import MicroBatch, MiniBatch, collate, minibatches
from dapo_ref.policy.pretrained import check_positions, check_weights, load_tokenizer
from dapo_ref.policy.rollout import sample_groups
from dapo_ref.run.command import exit_code, leave
from dapo_ref.run.evaluator import load_eval_tasks
from dapo_ref.run.folder import RunFolder
from dapo_ref.run.metrics import StepMetrics
from dapo_ref.run.preemption import StopSignals
from dapo_ref.run.session import Session
from dapo_ref.scoring import Scorer, correct_matrix
from dapo_ref.types import Batch, Group


def train(run: Session) -> None:
    """Algorithm 1."""
    for step in range(run.steps_done, run.config.rollout_steps):  # 1: for step = 1, …, M
        with run.step(step, learning_rate(run.config, step)) as metrics:
            groups = sample_batch(run, metrics)  # 2–8: sample, reward, filter, until N groups are held
            batch = make_batch(groups, run.config)  # 9: advantages
            update_policy(run, batch, metrics)  # 10–11: μ updates
    run.export_model()


def sample_batch(run: Session, metrics: StepMetrics) -> list[Group]:
    """Lines 2–8: samples rounds of groups until the dynamic sampling buffer holds N of them (Eq. 11)."""
    config, engine = run.config, run.engine
    mixed = pass_rate_within(config.min_pass_rate, config.max_pass_rate)  # Eq. 11: 0 and 1
    qualifies = mixed if config.dynamic_sampling else any_outcome
    buffer = GroupBuffer[Group](config.prompts_per_step, qualifies)
    sampled: list[Group] = []
    with run.phase("rollout", buffer.capacity) as progress, engine.rollout_model() as model:  # 3: π_old ← π_θ
        while not buffer.full and buffer.rounds < config.max_rounds:
            prompts = run.stream.take(round_size(run, buffer.missing))  # 2: D_b from D
            engine.seed(run.steps_done, buffer.rounds)
            with run.stop.here(), metrics.timed("rollout"):  # 4: G outputs for each question
                groups = sample_groups(
                    model,
                    run.tokenizer,
                    engine.share(prompts),
                    config.sampling,
                    run.end_ids,
                    on_response=run.scorer.begin,
                    on_token=run.stop.on_token,
                )
            with metrics.timed("verify"):  # 5: rewards, Eq. 7 and Eq. 13
                groups = run.scorer.score(groups)
            groups = engine.gather_in_order(groups)
            qualified = buffer.add(groups, correct_matrix(groups))  # 6–8: keep 0 < correct < G; N held?
            run.acceptance.update(qualified, len(groups))
            sampled += groups
            progress.update(len(buffer.groups) - progress.n)
    run.end_rollout(sampled, buffer, metrics)
    return buffer.groups


def round_size(run: Session, missing: int) -> int:
    """How many prompts the next round asks for, over all processes (D4)."""
    expected = run.acceptance.value if run.config.dynamic_sampling else 1.0
    return next_round_size(missing, expected, run.config.prompts_per_round, run.engine.world_size)


def make_batch(groups: Sequence[Group], config: Config) -> Batch:
    """Line 9: the kept groups as one batch, with their advantages (Eq. 9)."""
    batch = collate(groups, config.overlong_filtering)
    rewards = batch.rewards.view(-1, config.group_size)
    batch.advantages = advantages(rewards, config).flatten()
    return batch


def update_policy(run: Session, batch: Batch, metrics: StepMetrics) -> None:
    """Lines 10–11: one pass over the batch, an optimiser update for each mini-batch."""
    minis = [mini for mini in minibatches(batch, run.config.responses_per_update) if mini.num_tokens]
    plans = [run.engine.microbatches(batch, mini) for mini in minis]
    with run.phase("update", len(minis)) as progress:
        with metrics.timed("logprobs"):
            for plan in plans[1:]:  # in the first mini-batch π_θ still is π_old
                compute_old_logprobs(run, plan, metrics)
        with metrics.timed("update"):
            for mini, plan in zip(minis, plans, strict=True):
                update(run, mini, plan, metrics)
                progress.update()


@torch.no_grad()
def compute_old_logprobs(run: Session, plan: Sequence[MicroBatch], metrics: StepMetrics) -> None:
    """Fills in log π_old, the denominator of r in Eq. 9, before the first update changes π_θ."""
    for micro in plan:
        with run.stop.here():
            micro.old_logprobs, entropy = run.engine.logprobs(micro)
        metrics.add_old_policy(micro, entropy)


def update(run: Session, mini: MiniBatch, plan: Sequence[MicroBatch], metrics: StepMetrics) -> None:
    """One optimiser update: the gradient of Eq. 8 over all micro-batches and processes."""
    for micro in plan:
        run.stop.if_told()
        logprobs, entropy = run.engine.logprobs(micro)
        if micro.old_logprobs is None:  # the first mini-batch
            micro.old_logprobs = logprobs.detach()
            metrics.add_old_policy(micro, entropy)
        loss = run.objective(logprobs, micro, mini)  # this micro-batch's share of −J
        run.engine.backward(loss, last=micro is plan[-1])
        metrics.add_microbatch(loss, run.objective.clipping(logprobs, micro))
        run.note_tokens(logprobs, micro)
    grad_norm = run.engine.step(run.learning_rate)
    run.end_update(mini, plan, grad_norm, metrics)


def learning_rate(config: Config, step: int) -> float:
    """Linear warm-up over rollout steps, then constant (§4.1). The first step already trains (D5).

    Args:
        step: from 0.
    """
    return config.learning_rate * min(1.0, (step + 1) / max(config.warmup_steps, 1))


def main(argv: Sequence[str]) -> None:
    """Reads everything that can be wrong before the model is loaded, then trains."""
    config = load_config(argv)
    require_machine(config)
    folder = RunFolder(Path(config.output_dir))
    if launched_as_main():
        folder.require_usable(config)
    objective = build_objective(config)
    scorer = Scorer(config)
    tokenizer = load_tokenizer(config.model_dir)
    check_weights(config.model_dir)
    problems = load_data(config)
    prompts = keep_short_prompts(problems, tokenizer, config.max_prompt_length, config.prompt_date)
    held_out = load_eval_tasks(config, tokenizer)
    check_positions(config, prompts, [task.prompt for task in held_out if not task.too_long])
    if launched_as_main():
        folder.open(config)
    with StopSignals() as signals:
        engine = Engine(config)
        with engine.watched(), scorer:
            session = Session(
                config, engine, objective, scorer, tokenizer, prompts, folder, signals, held_out
            )
            session.begin()
            train(session)
        engine.close()


if __name__ == "__main__":
    leave(exit_code(main, sys.argv[1:]))
