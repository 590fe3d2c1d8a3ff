"""One side of `benchmarks/step.py` in processes of its own: `step_worker.py ours|trl SPECIFICATION OUTPUT`.

Started by `accelerate launch`. Every process appends a line a rollout step to OUTPUT.<rank>: seconds of the
whole step and of its parts, response tokens, prompt tokens, largest resident memory so far. Both sides get
the same prompts, the same bias on the end token and rewards that alternate within each group; none of them
is asked to verify anything.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dapo_ref  # noqa: E402, F401  sets what must stand before torch is imported; the same for both sides


class Log:
    """Times of the parts of each step; a step ends where the next one begins."""

    def __init__(self, output: str) -> None:
        self.file = Path(f"{output}.{os.environ.get('RANK', '0')}")
        self.file.write_text("", encoding="utf-8")
        self.parts: dict[str, float] = {}
        self.begun: float | None = None

    def begin_step(self) -> None:
        self.end_step()
        self.begun = time.perf_counter()

    def end_step(self) -> None:
        if self.begun is None:
            return
        record = {"step_s": time.perf_counter() - self.begun, "memory_mb": peak_memory_mb(), **self.parts}
        with self.file.open("a", encoding="utf-8") as file:
            print(json.dumps(record), file=file)
        self.parts, self.begun = {}, None

    def add(self, name: str, value: float) -> None:
        self.parts[name] = self.parts.get(name, 0.0) + value

    def timed(self, name: str, function: Any) -> Any:
        """The function, its seconds added under a name."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.add(name, time.perf_counter() - start)
            return result

        return wrapped


def peak_memory_mb() -> float:
    """Largest resident memory so far; `ru_maxrss` is inherited from the process that started this one."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 2**10


def alternating(count: int) -> list[bool]:
    """Rewards of responses in order; mixed in every group of two and more."""
    return [i % 2 == 0 for i in range(count)]


# --- This project -------------------------------------------------------------------------------------------


def run_ours(spec: dict[str, Any], log: Log) -> None:
    """`train.main` with the end token's bias in its generation and verdicts given out by position."""
    import train
    from dapo_ref.policy import rollout as sampling
    from dapo_ref.run import checkpoint
    from dapo_ref.verifier import Status, Verdict

    class AlternatingScorer(train.Scorer):
        def begin(self, problem: Any, rollout: Any) -> None:
            pass

        def verdicts(self, groups: Sequence[Any]) -> list[Verdict]:
            found = []
            for group in groups:
                log.add("prompt_tokens", len(group.prompt_ids))
                for rollout, right in zip(group.rollouts, alternating(len(group.rollouts)), strict=True):
                    log.add("tokens", len(rollout.response_ids))
                    status = Status.CORRECT if right else Status.WRONG
                    found.append(Verdict(correct=right, status=status, answer=None))
            return found

    sample_batch = train.sample_batch

    def begun(*args: Any) -> Any:
        log.begin_step()
        return sample_batch(*args)

    plain = sampling.generation_config

    def biased(*args: Any, **kwargs: Any) -> Any:
        config = plain(*args, **kwargs)
        config.sequence_bias = [[[spec["end_id"]], spec["end_bias"]]]
        return config

    sampling.generation_config = biased
    train.Scorer = AlternatingScorer  # type: ignore[misc]
    train.sample_batch = begun
    train.sample_groups = log.timed("rollout_s", train.sample_groups)
    train.compute_old_logprobs = log.timed("logprobs_s", train.compute_old_logprobs)
    train.update = log.timed("update_s", train.update)
    checkpoint.export = lambda *args: log.end_step()
    argv = [f"--{key}={value}" for key, value in spec["ours"].items()]
    train.main([*argv, f"--output_dir={log.file.with_suffix('')}.run{os.environ['MASTER_PORT']}"])


# --- TRL ----------------------------------------------------------------------------------------------------


def run_trl(spec: dict[str, Any], log: Log) -> None:
    """GRPOTrainer with the same work to do."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: list[Any], **kwargs: Any) -> list[float]:
        return [float(right) for right in alternating(len(completions))]

    class TimedTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            log.begin_step()
            result = super()._generate_and_score_completions(inputs)
            log.add("tokens", int(result["completion_mask"].sum()))
            log.add("prompt_tokens", int(result["prompt_mask"].sum()) / self.num_generations)
            return result

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            if not result[0].requires_grad:
                log.add("logprobs_s", time.perf_counter() - start)
            return result

    TimedTrainer._generate = log.timed("rollout_s", TimedTrainer._generate)
    TimedTrainer.training_step = log.timed("training_s", TimedTrainer.training_step)
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(spec["model"])
    rows = [json.loads(line) for line in Path(spec["data"]).read_text(encoding="utf-8").splitlines()]
    prompts = [{"prompt": [{"role": "user", "content": row["question"]}]} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            bf16=False,
            use_cpu=False,
            ddp_backend="gloo" if "WORLD_SIZE" in os.environ else None,
            gradient_checkpointing=False,
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
            lr_scheduler_type="constant",
            beta=0.0,
            loss_type="dapo",
            epsilon=0.2,
            epsilon_high=0.28,
            weight_decay=0.1,
            max_grad_norm=1.0,
            dataloader_pin_memory=False,
            generation_kwargs={"sequence_bias": [[[spec["end_id"]], spec["end_bias"]]]},
            **spec["trl"],
        )
        trainer = TimedTrainer(
            model=model,
            reward_funcs=reward,
            args=arguments,
            train_dataset=Dataset.from_list(prompts),
            processing_class=tokenizer,
        )
        assert trainer.is_deepspeed_enabled == ("WORLD_SIZE" in os.environ)
        trainer.train()
    log.end_step()


def main() -> None:
    side, specification, output = sys.argv[1:]
    spec = json.loads(Path(specification).read_text(encoding="utf-8"))
    log = Log(output)
    (run_ours if side == "ours" else run_trl)(spec, log)
    sys.stdout.flush()
    os._exit(0)  # see dapo_ref.distributed.processes.leave


if __name__ == "__main__":
    main()
