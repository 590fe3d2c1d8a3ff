"""A run in progress: what the loop of `train.py` carries, and all of it that is not in the paper.

Stop and resume, metrics, response files, checkpoints, skipped updates. There is no mathematics here.
"""

import contextlib
import logging
import math
import statistics
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from dapo_ref.config import Config
from dapo_ref.data import PromptStream, data_fingerprint, of_date, prints_date
from dapo_ref.distributed.engine import Engine
from dapo_ref.dynamic_sampling import AcceptanceRate, GroupBuffer
from dapo_ref.errors import TrainingError
from dapo_ref.objective import Objective
from dapo_ref.policy.batching import MicroBatch, MiniBatch
from dapo_ref.policy.pretrained import known_tokens
from dapo_ref.policy.rollout import Prompt, end_token_ids
from dapo_ref.run import checkpoint
from dapo_ref.run.evaluator import Evaluator, Task, chunks, equal_shares, metrics_of, tasks_of_date
from dapo_ref.run.files import read_metrics
from dapo_ref.run.folder import RunFolder
from dapo_ref.run.health import Health
from dapo_ref.run.metrics import StepMetrics, seconds_of, summary_line
from dapo_ref.run.next_step import after_stop, after_training
from dapo_ref.run.preemption import InterruptedRolloutError, StoppedError, StopPoints, StopSignals
from dapo_ref.run.tokens import TokenRecorder
from dapo_ref.scoring import Scorer, recipe_disagreement, rollout_rows
from dapo_ref.types import Group

log = logging.getLogger(__name__)


class Session:
    """What the loop needs: the policy, the parts that a configuration asks for, and what a step hands over.

    Attributes:
        stream: deals out the prompts.
        stop: where in a step the run may stop.
        acceptance: the share of groups that qualify.
        steps_done: rollout steps that are finished, so the index of the one in progress.
        updates: optimiser updates made so far, skipped ones included.
        learning_rate: of the step in progress.
        prompt_date: what templates print that ask for the date.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        objective: Objective,
        scorer: Scorer,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Prompt],
        folder: RunFolder,
        signals: StopSignals,
        held_out: Sequence[Task] = (),
    ) -> None:
        self.config = config
        self.engine = engine
        self.objective = objective
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.end_ids = end_token_ids(tokenizer, engine.policy.model)
        engine.policy.num_tokens = known_tokens(tokenizer, self.end_ids)
        self.prompt_date = config.prompt_date
        self.stream = self._stream_of(prompts)
        self.stop = StopPoints(signals, engine, interruptible=config.rollout_weights == "gathered")
        self.acceptance = AcceptanceRate()
        self.steps_done = 0
        self.updates = 0
        self.learning_rate = 0.0
        self._folder = folder
        self._signals = signals
        self._tokens = TokenRecorder(config, tokenizer.decode)  # type: ignore[arg-type]
        self._health = Health()
        self._rows: Sequence[Mapping[str, Any]] = ()  # of the step, on the main process
        self._seconds: deque[float] = deque(maxlen=10)  # of the last steps
        self._held_out = held_out
        self._evaluator = Evaluator(tokenizer, self.end_ids, config.eval_sampling, config.seed, scorer)
        self._skipped_in_a_row = 0
        self._last_finished = self.state_dict()

    def begin(self) -> None:
        """Resumes if that is asked for; from here on stop signals wait for the loop."""
        if self.config.resume:
            self._resume()
        self._settle_date()
        self._last_finished = self.state_dict()
        checkpoint.warn_of_little_space(self.engine, self._folder, self.config)
        self.engine.start_tracker(self.steps_done)
        if self._held_out and self.steps_done == 0:
            self._evaluate_first()
        self._signals.loop_begins()

    def _stream_of(self, prompts: Sequence[Prompt]) -> PromptStream[Prompt]:
        fingerprint = data_fingerprint((problem for problem, _ in prompts), self.tokenizer)
        return PromptStream(prompts, seed=self.config.seed, fingerprint=fingerprint)

    def _settle_date(self) -> None:
        """One date for all ranks and for the whole run, for templates that print it; a collective."""
        if not prints_date(self.tokenizer):
            return
        self.prompt_date = self.engine.gather([self.prompt_date or date.today().isoformat()])[0]
        position = self.stream.position
        self.stream = self._stream_of(of_date(self.stream.items, self.tokenizer, self.prompt_date))
        self.stream.position = position
        self._held_out = tasks_of_date(self._held_out, self.tokenizer, self.prompt_date)

    @contextlib.contextmanager
    def step(self, step: int, learning_rate: float) -> Iterator[StepMetrics]:
        """One rollout step: yields its metrics; at the end writes them, and a checkpoint if it is due.

        Raises:
            StoppedError: the run was told to stop; there is a checkpoint of the last finished step then.
        """
        self.learning_rate = learning_rate
        metrics = StepMetrics()
        try:
            yield metrics
            self._end_step(step, metrics)
            self.stop.if_told()
        except StoppedError as stopped:
            self._checkpoint_for(stopped)
            raise

    @contextlib.contextmanager
    def phase(self, what: str, total: int) -> Iterator[Any]:
        """A part of a step, with a name and a progress bar for those who wait."""
        name = f"step {self.steps_done + 1}: {what}"
        self.engine.watch.doing = name
        with self.engine.progress(total, name) as bar:
            yield bar

    # --- What a step hands over -------------------------------------------------------------------------

    def end_rollout(self, sampled: Sequence[Group], buffer: GroupBuffer[Group], metrics: StepMetrics) -> None:
        """Takes note of all sampled groups, kept or not, and writes them down.

        Raises:
            TrainingError: as for `require_groups`.
        """
        self.acceptance.end_step()
        metrics.add_rollout(buffer, sampled)
        if self.config.compare_recipe:
            metrics.rollout["verdict/recipe_disagrees_frac"] = recipe_disagreement(sampled)
        if self.engine.is_main:
            self._write_rollouts(sampled, buffer.groups)
        warning = require_groups(buffer, self.config.on_round_limit)
        if warning and self.engine.is_main:
            log.warning(warning)

    def _write_rollouts(self, sampled: Sequence[Group], kept: Sequence[Group]) -> None:
        """Every sampled response of the step, for people to read, and whether it is trained."""
        rows = rollout_rows(sampled, self.tokenizer)
        trained = {id(group) for group in kept}
        marks = [id(group) in trained for group in sampled for _ in group.rollouts]
        for row, mark in zip(rows, marks, strict=True):
            row["kept"] = mark
        self._folder.write_rollouts(self.steps_done + 1, rows)
        self._rows = rows

    def note_tokens(self, logprobs: Tensor, micro: MicroBatch) -> None:
        """Keeps the tokens of a few groups, where that is asked for (`record_tokens`)."""
        if self.config.record_tokens:
            assert micro.old_logprobs is not None
            ratio = self.objective.ratio(logprobs.detach(), micro.old_logprobs, micro.response_mask)
            self._tokens.add(micro, ratio)

    def end_update(
        self, mini: MiniBatch, plan: Sequence[MicroBatch], grad_norm: float, metrics: StepMetrics
    ) -> None:
        """Counts an update; one whose gradient is not finite was skipped.

        Raises:
            TrainingError: `max_skipped_updates` were skipped in a row.
        """
        losses = metrics.end_update(grad_norm, mini.num_tokens)
        self.updates += 1
        self.stop.may_stop = False
        if math.isfinite(grad_norm):
            self._skipped_in_a_row = 0
        else:
            self._skip(plan, losses)

    def _skip(self, plan: Sequence[MicroBatch], losses: Sequence[float]) -> None:
        """Keeps what led to an update that was not made, and ends the run after too many."""
        self._skipped_in_a_row += 1
        step = self.steps_done + 1
        tensors = [{k: v for k, v in vars(micro).items() if k != "packing"} for micro in plan]
        content = {"losses": list(losses), "microbatches": tensors}
        self._folder.write_bad_update(step, self.updates, self.engine.rank, content)
        if self.engine.is_main:
            log.warning("update %d of step %d skipped: its gradient is not finite", self.updates, step)
        if self._skipped_in_a_row >= self.config.max_skipped_updates:
            raise TrainingError(
                f"{self._skipped_in_a_row} updates in a row had a loss or gradient that is not finite; their "
                f"micro-batches are in {self._folder.path / 'bad_updates'}"
            )

    def _end_step(self, step: int, metrics: StepMetrics) -> None:
        """Metrics, summary line, checkpoint."""
        config = self.config
        self.steps_done = step + 1
        last = self.steps_done == config.rollout_steps
        figures = {}
        if self._held_out and (last or self.steps_done % config.evaluate_every == 0):
            with metrics.timed("evaluate"):
                figures = self._evaluate()
        record = metrics.record(self.engine, self.steps_done, self.updates, self.learning_rate) | figures
        tokens = self.engine.gather(self._tokens.take()) if config.record_tokens else []
        if self.engine.is_main:
            if tokens:
                self._folder.write_tokens(self.steps_done, tokens)
            self._folder.metrics.append(record)
            self._say(record)
        self.engine.track(record, self._rows)
        self._last_finished = self.state_dict()
        self.stop.may_stop = True
        if config.checkpoint_every and (last or self.steps_done % config.checkpoint_every == 0):
            checkpoint.save(self.engine, self._folder, self._last_finished, config)

    def _say(self, record: Mapping[str, Any]) -> None:
        """The step's line, with the time until the run's end, and what looks wrong."""
        self._seconds.append(seconds_of(record))
        left = statistics.mean(self._seconds) * (self.config.rollout_steps - self.steps_done)
        tqdm.write(summary_line(record, self.config.rollout_steps, left), file=sys.stdout)
        sys.stdout.flush()
        for warning in self._health.check(record):
            log.warning("%s", warning)

    # --- Evaluation -------------------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, float]:
        """Figures of the policy on the held-out problems; a collective. Training's numbers stay the same.

        A run that is told to stop leaves the evaluation out: its checkpoint comes first."""
        parts = equal_shares(chunks(self._held_out, self.config.eval_sampling), self.engine.world_size)
        rows: list[dict[str, Any]] = []
        stopped = True
        with (
            self.phase("evaluation", len(parts)) as progress,
            self.engine.rollout_model() as model,
            contextlib.suppress(InterruptedRolloutError),
        ):
            for part in self.engine.share(parts):
                rows += self._evaluator.rows(model, part, self.stop.on_token)
                progress.update(self.engine.world_size)
            stopped = False
        if any(self.engine.gather([stopped])):
            return {}
        return metrics_of(self._evaluator.complete(self.engine.gather(rows), self._held_out))

    def _evaluate_first(self) -> None:
        """The policy before training, as a line of step 0."""
        record = {"step": 0, "updates": 0, **self._evaluate()}
        if self.engine.is_main:
            self._folder.metrics.cut_after(-1)  # of a start that did not come to step 1
            self._folder.metrics.append(record)
        self.engine.track(record)

    def export_model(self) -> None:
        """Writes the policy as a plain Hugging Face directory, and says what to do with it."""
        checkpoint.export(self.engine, self._folder, self.tokenizer, self.config, self.prompt_date)
        if self.engine.is_main:
            records = read_metrics(self._folder.path / "metrics.jsonl")
            log.info("%s", "\n".join(after_training(self.config, records, self.engine.world_size)))

    # --- Stop and resume --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What the loop carries from step to step, beside weights and optimiser."""
        return {
            "step": self.steps_done,
            "updates": self.updates,
            "skipped_in_a_row": self._skipped_in_a_row,
            "stream": self.stream.state_dict(),
            "acceptance": self.acceptance.state_dict(),
            **({"prompt_date": self.prompt_date} if self.prompt_date else {}),
        }

    def _checkpoint_for(self, stopped: StoppedError) -> None:
        """Writes a checkpoint of the last finished step if there is none yet."""
        done = self.steps_done
        if done and not checkpoint.exists(self.engine, self._folder, done):
            checkpoint.save(self.engine, self._folder, self._last_finished, self.config)
        if self.engine.is_main:
            log.info("%s after step %d", stopped, done)
            log.info("%s", after_stop(self.config, self.engine.world_size))

    def _resume(self) -> None:
        """Continues after the newest whole checkpoint, as if the run had not been stopped."""
        found = checkpoint.newest_whole(self.engine, self._folder)
        if found is not None:
            path, state = found
            checkpoint.say_what_differs(self.engine, state)
            checkpoint.load_state(self.engine, path, written_by=state["num_processes"])
            self.steps_done, self.updates = state["step"], state["updates"]
            self._skipped_in_a_row = state["skipped_in_a_row"]
            self.prompt_date = self.prompt_date or state.get("prompt_date", "")
            self.stream.load_state_dict(state["stream"])
            self.acceptance = AcceptanceRate(**state["acceptance"])
            self._last_finished = self.state_dict()
        if self.engine.is_main:
            self._folder.keep_config(self.config)
            self._folder.forget_after(self.steps_done)
            log.info("resuming after step %d", self.steps_done)
        self.engine.barrier()


def require_groups(buffer: GroupBuffer[Any], on_round_limit: str) -> str:
    """The one choice when `max_rounds` is reached with a batch that is not full.

    Returns:
        What to warn of if training goes on with fewer groups; empty if the batch is full.

    Raises:
        TrainingError: there is no group at all, or `on_round_limit` is `stop`.
    """
    if buffer.full:
        return ""
    share = (
        f"after {buffer.rounds} rounds {len(buffer.groups)} of {buffer.capacity} groups are held; of "
        f"{buffer.groups_generated} groups sampled {buffer.groups_all_correct} were all correct and "
        f"{buffer.groups_all_wrong} all wrong"
    )
    if not buffer.groups or on_round_limit == "stop":
        raise TrainingError(f"{share}: use easier or harder data, a larger group_size or max_rounds")
    return f"{share}; training on what is held (on_round_limit: train)"
