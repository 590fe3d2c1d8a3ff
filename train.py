"""Algorithm 1 of DAPO (arXiv 2503.14476): wiring of the parts in `dapo_ref/`, in the paper's order.

    accelerate launch --config_file configs/accelerate/zero3.yaml train.py --config configs/tiny_cpu.yaml

Every process runs this file. They share the policy under ZeRO-3 and nothing else: each samples and verifies
its own prompts, then all exchange their groups, so that every process holds the whole batch, takes the same
decisions, and picks its own part of each mini-batch.
"""

import contextlib
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from dapo_ref.config import Config, load_config
from dapo_ref.data import PromptStream, keep_short_prompts, load_problems
from dapo_ref.distributed.engine import Engine
from dapo_ref.dynamic_sampling import (
    AcceptanceRate,
    GroupBuffer,
    any_outcome,
    has_mixed_outcomes,
    next_round_size,
)
from dapo_ref.errors import TrainingError
from dapo_ref.loss import group_advantages
from dapo_ref.objective import build_objective
from dapo_ref.policy.batching import MicroBatch, MiniBatch, collate, microbatches, minibatches
from dapo_ref.policy.pretrained import load_tokenizer
from dapo_ref.policy.rollout import Prompt, end_token_ids, sample_groups
from dapo_ref.run import checkpoint
from dapo_ref.run.command import exit_code, launched_as_main, leave
from dapo_ref.run.folder import RunFolder
from dapo_ref.run.metrics import StepMetrics, summary_line
from dapo_ref.run.preemption import InterruptedRolloutError, StoppedError, StopSignals
from dapo_ref.scoring import Scorer, correct_matrix, recipe_disagreement, rewards_of, rollout_rows
from dapo_ref.types import Batch, Group

log = logging.getLogger("dapo_ref.train")


class Trainer:
    """A run in progress: the policy and what the loop carries from step to step."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        scorer: Scorer,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Prompt],
        folder: RunFolder,
        signals: StopSignals,
    ) -> None:
        self.config = config
        self.engine = engine
        self.tokenizer = tokenizer
        self.folder = folder
        self.signals = signals
        self.stream = PromptStream(prompts, seed=config.seed)
        self.end_ids = end_token_ids(tokenizer, engine.policy.model)
        self.scorer = scorer
        self.objective = build_objective(config)
        self.acceptance = AcceptanceRate()
        self.steps_done = 0
        self.updates = 0
        self.skipped_in_a_row = 0
        self.last_finished = self.state_dict()

    def train(self) -> None:
        """Algorithm 1. Line numbers are the paper's."""
        for step in range(self.steps_done, self.config.rollout_steps):  # 1: for step = 1, …, M
            metrics = StepMetrics()
            with self.checkpoint_if_stopped():
                buffer = self.fill_buffer(step, metrics)  # 2–8: sample, reward, filter, until N are held
                batch = self.make_batch(buffer)  # 9: advantages
                self.update_policy(step, batch, metrics)  # 10–11: μ updates
                self.end_step(step, metrics)
                self.stop_if_told()
        checkpoint.export(self.engine, self.folder, self.tokenizer)

    # --- Lines 2–8 --------------------------------------------------------------------------------------

    def fill_buffer(self, step: int, metrics: StepMetrics) -> GroupBuffer[Group]:
        """Samples rounds of groups until the dynamic sampling buffer holds N of them (Eq. 11)."""
        config = self.config
        self.engine.watch.doing = f"step {step + 1}: rollout"
        qualifies = has_mixed_outcomes if config.dynamic_sampling else any_outcome
        buffer = GroupBuffer[Group](config.prompts_per_step, qualifies)
        sampled: list[Group] = []
        progress = self.progress(config.prompts_per_step, f"step {step + 1}: groups")
        with self.engine.sampler() as model:  # 3: π_old ← π_θ, which does not change until line 11
            while not buffer.full and buffer.rounds < config.max_rounds:
                prompts = self.stream.take(self.round_size(buffer))  # 2: D_b from D
                self.engine.seed(step, buffer.rounds)
                with self.stop_point(), metrics.timed("rollout"):  # 4: G outputs for each question
                    groups = sample_groups(
                        model,
                        self.tokenizer,
                        self.my_share(prompts),
                        config.sampling,
                        self.end_ids,
                        on_response=self.scorer.begin,
                        on_token=self.on_token,
                    )
                with metrics.timed("verify"):  # 5: rewards, by the rule of Eq. 7
                    groups = self.scorer.score(groups)
                groups = self.in_data_order(groups)
                held = len(buffer.groups)
                qualified = buffer.add(groups, correct_matrix(groups))  # 6: keep 0 < correct < G
                self.acceptance.update(qualified, len(groups))
                sampled += groups
                progress.update(len(buffer.groups) - held)
                progress.set_postfix(rounds=buffer.rounds, sampled=buffer.groups_generated)
        progress.close()
        self.acceptance.end_step()
        metrics.add_rollout(buffer, sampled, rewards_of(sampled, config))
        if config.compare_recipe:
            metrics.rollout["verdict/recipe_disagrees_frac"] = recipe_disagreement(sampled)
        self.write_rollouts(step, sampled, buffer)
        self.require_groups(buffer)
        return buffer

    def round_size(self, buffer: GroupBuffer[Group]) -> int:
        """How many prompts the next round asks for, over all processes."""
        expected = self.acceptance.value if self.config.dynamic_sampling else 1.0
        return next_round_size(
            buffer.missing, expected, self.config.prompts_per_round, multiple_of=self.engine.world_size
        )

    def my_share(self, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
        """Every W-th prompt; a round is a multiple of W."""
        return prompts[self.engine.rank :: self.engine.world_size]

    def in_data_order(self, mine: list[Group]) -> list[Group]:
        """All processes' groups on every process, dealt back into the order of the prompts."""
        everyones = self.engine.gather(mine)
        share = len(mine)
        return [everyones[rank * share + i] for i in range(share) for rank in range(self.engine.world_size)]

    def require_groups(self, buffer: GroupBuffer[Group]) -> None:
        """The one choice when `max_rounds` is reached: `on_round_limit`."""
        if buffer.full:
            return
        share = (
            f"after {buffer.rounds} rounds {len(buffer.groups)} of {buffer.capacity} groups are held; of "
            f"{buffer.groups_generated} groups sampled {buffer.groups_all_correct} were all correct and "
            f"{buffer.groups_all_wrong} all wrong"
        )
        if not buffer.groups or self.config.on_round_limit == "stop":
            raise TrainingError(f"{share}: use easier or harder data, a larger group_size or max_rounds")
        if self.engine.is_main:
            log.warning("%s; training on what is held (on_round_limit: train)", share)

    # --- Line 9 -----------------------------------------------------------------------------------------

    def make_batch(self, buffer: GroupBuffer[Group]) -> Batch:
        """The kept groups with their rewards and advantages."""
        batch = collate(buffer.groups, self.config.overlong_filtering)
        batch.rewards = rewards_of(buffer.groups, self.config)
        grouped = batch.rewards.view(-1, self.config.group_size)
        batch.advantages = group_advantages(grouped, unbiased=self.config.unbiased_std).flatten()  # Eq. 9
        return batch

    # --- Lines 10–11 ------------------------------------------------------------------------------------

    def update_policy(self, step: int, batch: Batch, metrics: StepMetrics) -> None:
        """One pass over the batch, an optimiser update a mini-batch."""
        self.engine.watch.doing = f"step {step + 1}: update"
        minis = [m for m in minibatches(batch, self.config.responses_per_update) if m.num_tokens]
        plans = [self.plan(batch, mini) for mini in minis]
        with metrics.timed("logprobs"):
            self.compute_old_logprobs(plans[1:], metrics)  # in the first mini-batch π_θ still is π_old
        progress = self.progress(len(minis), f"step {step + 1}: updates")
        with metrics.timed("update"):
            for mini, plan in zip(minis, plans, strict=True):
                self.update(step, mini, plan, metrics)
                progress.update()
        progress.close()

    def plan(self, batch: Batch, mini: MiniBatch) -> list[MicroBatch]:
        """This process's micro-batches of a mini-batch, on its device."""
        engine = self.engine
        micros = microbatches(
            batch,
            mini.rows,
            self.config.tokens_per_microbatch,
            engine.world_size,
            engine.rank,
            packed=engine.policy.packed,
        )
        return [micro.to(engine.device) for micro in micros]

    @torch.no_grad()
    def compute_old_logprobs(self, plans: Sequence[list[MicroBatch]], metrics: StepMetrics) -> None:
        """Fills in log π_old, the denominator of r in Eq. 9, before the first update changes π_θ."""
        for micro in (micro for plan in plans for micro in plan):
            with self.stop_point():
                micro.old_logprobs, entropy = self.engine.logprobs(micro, micro.loss_mask)
            metrics.add_old_policy(micro.old_logprobs, entropy, micro.loss_mask)

    def update(self, step: int, mini: MiniBatch, plan: Sequence[MicroBatch], metrics: StepMetrics) -> None:
        """One optimiser update: the gradient of Eq. 8 over all micro-batches and processes."""
        clip = (self.config.clip_eps_low, self.config.clip_eps_high)
        losses = []
        for i, micro in enumerate(plan):
            self.stop_if_told()
            logprobs, entropy = self.engine.logprobs(micro, micro.loss_mask)
            old_logprobs = micro.old_logprobs
            if old_logprobs is None:
                old_logprobs = logprobs.detach()
                metrics.add_old_policy(logprobs, entropy, micro.loss_mask)
            loss = self.objective(logprobs, old_logprobs, micro, mini)
            losses.append(float(loss.detach()))
            last = i == len(plan) - 1
            if last and not all(map(math.isfinite, losses)):
                loss = loss * math.nan  # the gradient of all processes is not finite then: all skip together
            self.engine.backward(loss, last)
            metrics.add_microbatch(losses[-1], logprobs, old_logprobs, micro, clip)
        grad_norm = self.engine.step(self.learning_rate(step))
        metrics.add_update(grad_norm, mini.num_tokens)
        self.updates += 1
        if math.isfinite(grad_norm):
            self.skipped_in_a_row = 0
        else:
            self.skip(step, plan, losses)

    def skip(self, step: int, plan: Sequence[MicroBatch], losses: Sequence[float]) -> None:
        """Counts an update that was not made, keeps what led to it, and ends the run after too many."""
        self.skipped_in_a_row += 1
        tensors = [{k: v for k, v in vars(micro).items() if k != "packing"} for micro in plan]
        content = {"losses": list(losses), "microbatches": tensors}
        self.folder.write_bad_update(step + 1, self.updates, self.engine.rank, content)
        if self.engine.is_main:
            log.warning("update %d of step %d skipped: its gradient is not finite", self.updates, step + 1)
        if self.skipped_in_a_row >= self.config.max_skipped_updates:
            raise TrainingError(
                f"{self.skipped_in_a_row} updates in a row had a loss or gradient that is not finite; their "
                f"micro-batches are in {self.folder.path / 'bad_updates'}"
            )

    def learning_rate(self, step: int) -> float:
        """Linear warm-up over rollout steps, then constant (§4.1). The first step already trains (D5)."""
        return self.config.learning_rate * min(1.0, (step + 1) / max(self.config.warmup_steps, 1))

    # --- What a step leaves -----------------------------------------------------------------------------

    def end_step(self, step: int, metrics: StepMetrics) -> None:
        """Metrics, summary line, checkpoint."""
        config = self.config
        self.steps_done = step + 1
        record = metrics.record(self.engine, self.steps_done, self.updates, self.learning_rate(step))
        if self.engine.is_main:
            self.folder.metrics.append(record)
            tqdm.write(summary_line(record, config.rollout_steps), file=sys.stdout)
            sys.stdout.flush()
        numbers = {k: v for k, v in record.items() if k != "step" and v is not None}
        self.engine.accelerator.log(numbers, step=self.steps_done)
        self.last_finished = self.state_dict()
        last = self.steps_done == config.rollout_steps
        if config.checkpoint_every and (last or self.steps_done % config.checkpoint_every == 0):
            checkpoint.save(self.engine, self.folder, self.last_finished, config)

    def write_rollouts(self, step: int, sampled: Sequence[Group], buffer: GroupBuffer[Group]) -> None:
        """Every sampled response of the step, for people to read."""
        if not self.engine.is_main:
            return
        kept = {id(group) for group in buffer.groups}
        in_batch = [id(group) in kept for group in sampled for _ in group.rollouts]
        rewards = rewards_of(sampled, self.config).tolist()
        rows = rollout_rows(sampled, self.tokenizer)
        for row, reward, is_kept in zip(rows, rewards, in_batch, strict=True):
            row |= {"reward": round(reward, 6), "kept": is_kept}
        self.folder.write_rollouts(step + 1, rows)

    def progress(self, total: int, what: str) -> Any:
        """A progress bar on the main process, where there is a terminal to show it."""
        return tqdm(total=total, desc=what, leave=False, disable=None if self.engine.is_main else True)

    # --- Stop and resume --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What the loop carries from step to step, beside weights and optimiser."""
        return {
            "step": self.steps_done,
            "updates": self.updates,
            "skipped_in_a_row": self.skipped_in_a_row,
            "stream": self.stream.state_dict(),
            "acceptance": self.acceptance.state_dict(),
        }

    def on_token(self) -> None:
        """Ends the sampling of a process that was told to stop. On sharded weights the processes sample in
        step, and none can leave alone."""
        self.engine.watch.alive()
        if self.signals.received and self.config.rollout_weights == "gathered":
            raise InterruptedRolloutError

    @contextlib.contextmanager
    def stop_point(self) -> Iterator[None]:
        """A block of a step that can be discarded; after it all processes stop if one was told to."""
        with contextlib.suppress(InterruptedRolloutError):
            yield
        self.stop_if_told()

    def stop_if_told(self) -> None:
        """Raises StoppedError on all processes together if one of them got a signal; a collective.

        Not once the step has changed the weights: those of the last finished step are gone then, and the step
        is carried to its end."""
        if self.updates == self.last_finished["updates"]:
            (number,) = self.engine.max([self.signals.received])
            if number:
                raise StoppedError(int(number))

    @contextlib.contextmanager
    def checkpoint_if_stopped(self) -> Iterator[None]:
        """Sees to it that there is a checkpoint of the last finished step before StoppedError goes on."""
        try:
            yield
        except StoppedError as stopped:
            done = self.steps_done
            if done and not checkpoint.exists(self.engine, self.folder, done):
                checkpoint.save(self.engine, self.folder, self.last_finished, self.config)
            if self.engine.is_main:
                log.info("%s after step %d; --resume goes on from there", stopped, done)
            raise

    def resume(self) -> None:
        """Continues after the newest whole checkpoint, as if the run had not been stopped."""
        found = checkpoint.newest_whole(self.engine, self.folder)
        if found is not None:
            path, state = found
            checkpoint.say_what_differs(self.engine, state)
            checkpoint.load_state(self.engine, path, state["num_processes"])
            self.steps_done, self.updates = state["step"], state["updates"]
            self.skipped_in_a_row = state["skipped_in_a_row"]
            self.stream.load_state_dict(state["stream"])
            self.acceptance = AcceptanceRate(**state["acceptance"])
            self.last_finished = self.state_dict()
        if self.engine.is_main:
            self.folder.keep_config(self.config)
            self.folder.forget_after(self.steps_done)
            log.info("resuming after step %d", self.steps_done)
        self.engine.barrier()


def run(argv: Sequence[str]) -> None:
    """Reads everything that can be wrong before the model is loaded, then trains."""
    config = load_config(argv)
    tokenizer = load_tokenizer(config.model_dir)
    problems = load_problems(config.data, prompt_template=config.prompt_template)
    prompts = keep_short_prompts(problems, tokenizer, config.max_prompt_length)
    folder = RunFolder(Path(config.output_dir))
    if launched_as_main():
        folder.open(config)
    with StopSignals() as signals:
        engine = Engine(config)
        engine.start_tracker()
        with engine.watched(), Scorer(config) as scorer:
            trainer = Trainer(config, engine, scorer, tokenizer, prompts, folder, signals)
            if config.resume:
                trainer.resume()
            checkpoint.warn_of_little_space(engine, folder, config)
            signals.loop_begins()
            trainer.train()
        engine.close()


if __name__ == "__main__":
    leave(exit_code(run, sys.argv[1:]))
