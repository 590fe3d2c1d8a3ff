"""The ladder: Table 1's rungs and DAPO with one technique taken out, over seeds, on two cores.

    python benchmarks/ladder.py                   # what is missing, then the table and the pictures
    python benchmarks/ladder.py --quick           # naive GRPO and DAPO, one seed
    python benchmarks/ladder.py --report_only     # the table and the pictures of what is there
    python benchmarks/ladder.py --group failures  # what the field reports to go wrong, three seeds

A run is `train.py` on one core, then `ladder_heldout.py` on its checkpoints. What is kept of it is one small
JSON file; one that exists is not run again, and a run that was interrupted goes on after its newest
checkpoint. What is compared, and how, was written down before the runs: `ladder_hypotheses.md`.
"""

import argparse
import concurrent.futures
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started from anywhere, without an install

import ladder_failures
import ladder_report

from dapo_ref.report.data import rollout_files
from dapo_ref.run.files import read_lines
from dapo_ref.tiny.make_columns import on_the_right_way, way_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "ladder_results"
SEEDS = (101, 102, 103, 104, 105)
LONGER_CAP = 36
"""Tokens; checkpoints are evaluated at the training's cap and at this one."""


@dataclass(frozen=True)
class Condition:
    """A row of the ladder.

    Attributes:
        rung: file of `configs/ladder/`.
        changes: keys set on the command line, over the files.
        program: what is run: `train.py`, or a fault put into it.
    """

    rung: str
    changes: Mapping[str, str] = field(default_factory=dict)
    program: Sequence[str] = ("train.py",)


CONDITIONS = {
    "1_naive_grpo": Condition("1_naive_grpo"),
    "2_overlong_filtering": Condition("2_overlong_filtering"),
    "3_clip_higher": Condition("3_clip_higher"),
    "4_soft_overlong_punishment": Condition("4_soft_overlong_punishment"),
    "5_token_level_loss": Condition("5_token_level_loss"),  # also DAPO without dynamic sampling
    "6_dynamic_sampling": Condition("6_dynamic_sampling"),  # DAPO
    "dapo_without_clip_higher": Condition("6_dynamic_sampling", {"clip_eps_high": "0.2"}),
    "dapo_without_soft_punishment": Condition("6_dynamic_sampling", {"soft_overlong_punishment": "false"}),
    "dapo_without_token_level": Condition("6_dynamic_sampling", {"loss_aggregation": "sample_level"}),
}
QUICK = ("1_naive_grpo", "6_dynamic_sampling")


def failure(rung: str, *fault: str, **changes: float) -> Condition:
    """A condition of the second group: the first half of a run, which is where it shows."""
    program = ("benchmarks/ladder_faults.py", *fault) if fault else ("train.py",)
    return Condition(rung, {"rollout_steps": "50", **{k: str(v) for k, v in changes.items()}}, program)


def groups_of(size: int, **changes: float) -> Condition:
    """DAPO with other groups, 256 responses a step as before, and as many responses a round at most."""
    prompts = 256 // size
    changes = {"prompts_per_step": prompts, "max_prompts_per_round": 2 * prompts, **changes}
    return failure("6_dynamic_sampling", group_size=size, **changes)


NAIVE, DAPO = QUICK
FAILURES = {  # in the order of the runs
    "fast_naive": failure(NAIVE, learning_rate=1e-3),
    "fast_clip_higher": failure(NAIVE, learning_rate=1e-3, clip_eps_high=0.28),
    "fast_dual_clip_10": failure(NAIVE, learning_rate=1e-3, clip_eps_high=0.28, dual_clip=10),
    "fast_dual_clip_3": failure(NAIVE, learning_rate=1e-3, clip_eps_high=0.28, dual_clip=3),
    "updates_1": failure(DAPO, responses_per_update=256),
    "updates_4": failure(DAPO, responses_per_update=64),
    "filter_on_reward": failure(DAPO, "filter_on_reward"),
    "clip_none": failure(DAPO, clip_eps_low=0.9999, clip_eps_high=10_000),
    "clip_high_1": failure(DAPO, clip_eps_high=1),
    "clip_high_0.5": failure(DAPO, clip_eps_high=0.5),
    "groups_of_4": groups_of(4),
    "groups_of_16": groups_of(16),
    "groups_of_32": groups_of(32, responses_per_update=32),  # a mini-batch holds whole groups
    "updates_8": failure(DAPO, responses_per_update=32),  # what groups of 32 are compared with
    "fast_clip_none": failure(NAIVE, learning_rate=1e-3, clip_eps_low=0.9999, clip_eps_high=10_000),
    "microbatch_means": failure(DAPO, "microbatch_means", tokens_per_microbatch=128),
}
GROUPS: dict[str, tuple[dict[str, Condition], Sequence[int]]] = {
    "ladder": (CONDITIONS, SEEDS),
    "failures": (FAILURES, SEEDS[:3]),  # paired with the ladder's own runs of these seeds
}
ALL = CONDITIONS | FAILURES


class InterruptedRunError(Exception):
    """The whole command was told to stop."""


class Runner:
    """Runs trainings, one a core, and keeps what the report needs of them."""

    def __init__(self, work: Path, results: Path, config: Path, cores: Sequence[int], keep: bool) -> None:
        self.work = work
        self.results = results
        self.config = config
        self.keep = keep
        self.cores: queue.Queue[int] = queue.Queue()
        for core in cores:
            self.cores.put(core)
        self.running: set[subprocess.Popen[bytes]] = set()
        self.stopping = False

    def run(self, name: str, seed: int) -> str:
        """One run from its command line to its JSON file; returns a line for the screen."""
        core = self.cores.get()
        try:
            return self._run(name, seed, core)
        finally:
            self.cores.put(core)

    def _run(self, name: str, seed: int, core: int) -> str:
        start = time.perf_counter()
        folder = self.work / f"{name}_seed{seed}"
        self._call(self._training(name, seed, folder), core, folder.with_suffix(".log"))
        heldout = folder / "heldout.json"
        script = str(ROOT / "benchmarks" / "ladder_heldout.py")
        words = [script, str(folder), "--longer_cap", str(LONGER_CAP), "--output", str(heldout)]
        self._call(words, core, folder.with_suffix(".log"))
        result = collect(folder, name, seed, json.loads(heldout.read_text(encoding="utf-8")))
        file = result_file(self.results, name, seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".tmp")
        partial.write_text(json.dumps(result, separators=(",", ":")) + "\n", encoding="utf-8")
        partial.replace(file)
        if not self.keep:
            shutil.rmtree(folder)
        last = result["heldout"][-1]
        return f"{name} seed {seed}: held-out {last['avg']:.3f}, {time.perf_counter() - start:.0f} s"

    def _training(self, name: str, seed: int, folder: Path) -> list[str]:
        condition = ALL[name]
        rung = ROOT / "configs" / "ladder" / f"{condition.rung}.yaml"
        program, *rest = condition.program
        words = [str(ROOT / program), *rest, "--config", str(self.config), str(rung)]
        words += ["--seed", str(seed), "--output_dir", str(folder)]
        for key, value in condition.changes.items():
            words += [f"--{key}", value]
        return [*words, "--resume", "true"] if (folder / "config.yaml").exists() else words

    def _call(self, words: Sequence[str], core: int, log: Path) -> None:
        """A Python program on one core, from the root of the repository."""
        if self.stopping:
            raise InterruptedRunError
        log.parent.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with log.open("ab") as out:
            process = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env, stdout=out, stderr=out)
            self.running.add(process)
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(process.pid, {core})
            code = process.wait()
            self.running.discard(process)
        if self.stopping:
            raise InterruptedRunError
        if code:
            raise RuntimeError(f"{' '.join(words[:1])} ended with code {code}; see {log}")

    def stop(self) -> None:
        """Ends what runs; `train.py` leaves a checkpoint of its last finished step."""
        self.stopping = True
        for process in list(self.running):
            process.send_signal(signal.SIGTERM)


def result_file(results: Path, name: str, seed: int) -> Path:
    """Where the figures of a run are kept."""
    return results / f"{name}_seed{seed}.json"


# --- What is kept of a run ----------------------------------------------------------------------------------

KEPT = (
    *("updates", "tokens/generated", "reward/accuracy", "reward/mean", "response/length_mean"),
    *("response/truncated_frac", "policy/entropy", "policy/mean_prob", "policy/clip_frac_low"),
    *("policy/clip_frac_high", "policy/clip_frac_dual", "policy/clip_high_prob", "policy/clip_high_prob_max"),
    *("policy/kl_old", "policy/ratio_max", "grad_norm"),
    *("sampling/all_correct_frac", "sampling/all_wrong_frac"),
    *("sampling/groups_generated", "sampling/groups_kept", "sampling/rounds", "updates/skipped"),
    *("time/rollout_s", "time/verify_s", "time/logprobs_s", "time/update_s"),
)


def collect(folder: Path, name: str, seed: int, heldout: list[dict[str, float]]) -> dict[str, Any]:
    """Curves of a run, a value a rollout step, and its held-out figures with what they had cost by then."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    curves: dict[str, list[float | None]] = {key: [rounded(line.get(key)) for line in lines] for key in KEPT}
    for file in rollout_files(folder).values():
        for key, value in responses(file).items():
            curves.setdefault(key, []).append(rounded(value))
    tokens = seconds = 0.0
    spent = {0: (0, 0.0, 0.0)}
    for line in lines:
        tokens += line["tokens/generated"]
        seconds += sum(value for key, value in line.items() if key.startswith("time/"))
        spent[line["step"]] = (line["updates"], tokens, round(seconds, 1))
    for point in heldout:
        point["updates"], point["tokens"], point["seconds"] = spent[int(point["step"])]
    return {"condition": name, "seed": seed, "heldout": heldout, "curves": curves}


def responses(file: Path) -> dict[str, float]:
    """Shares of the sampled responses of a step by what they did, and the spread of their lengths."""
    rows = read_lines(file)
    ways = Counter(way_of(row["response"]) for row in rows)
    cut = [row for row in rows if row["truncated"]]
    sound = [row for row in cut if on_the_right_way(row["prompt"].removeprefix("<|bos|>"), row["response"])]
    lengths = sorted(row["length"] for row in rows)
    return {
        **{f"way/{way}": ways[way] / len(rows) for way in ("careful", "brisk", "guess")},
        "way/repeats": sum("Hmm" in row["response"] for row in rows) / len(rows),
        "truncated/on_the_right_way": len(sound) / max(len(cut), 1),
        "length/p10": lengths[len(lengths) // 10],
        "length/p90": lengths[len(lengths) * 9 // 10],
    }


def rounded(value: float | None) -> float | None:
    """Enough digits for a curve; the files are committed."""
    return None if value is None else float(f"{value:.4g}") if isinstance(value, float) else value


# --- The command --------------------------------------------------------------------------------------------


def run_all(runner: Runner, names: Sequence[str], seeds: Sequence[int], jobs: int) -> bool:
    """Runs what is missing, a seed of all conditions after the other; True if all of it is there now."""
    todo = [(n, s) for s in seeds for n in names if not result_file(runner.results, n, s).exists()]
    print(f"{len(todo)} runs to do", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: runner.stop())
    signal.signal(signal.SIGINT, lambda *_: runner.stop())
    whole = True
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(runner.run, *pair) for pair in todo]
        for future in concurrent.futures.as_completed(futures):
            try:
                print(future.result(), flush=True)
            except InterruptedRunError:
                whole = False
            except (RuntimeError, OSError) as error:  # one run failed: the others are worth having
                whole = False
                print(error, file=sys.stderr, flush=True)
    return whole


def main() -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(description="Run the ladder and draw its table.")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "columns_cpu.yaml")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "ladder", help="run folders in progress")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a JSON file a finished run")
    parser.add_argument("--group", choices=list(GROUPS), default="ladder")
    parser.add_argument("--conditions", nargs="+", choices=list(ALL), help="default: all of the group")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: the group's")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, a core each")
    parser.add_argument("--cores", nargs="+", type=int, help="which cores; default: the first ones")
    parser.add_argument("--quick", action="store_true", help="naive GRPO and DAPO, one seed")
    parser.add_argument("--keep", action="store_true", help="keep the run folders, with every response")
    parser.add_argument("--report_only", action="store_true")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "ladder", help="table and pictures")
    args = parser.parse_args()
    conditions, default = GROUPS[args.group]
    names = list(QUICK) if args.quick else args.conditions or list(conditions)
    seeds = (args.seeds or default)[: 1 if args.quick else None]
    cores = args.cores or list(range(args.jobs))
    whole = True
    if not args.report_only:
        runner = Runner(args.work.resolve(), args.results.resolve(), args.config.resolve(), cores, args.keep)
        whole = run_all(runner, names, seeds, len(cores))
    (ladder_report if args.group == "ladder" else ladder_failures).report(args.results, args.output)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
