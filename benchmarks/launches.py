"""Do launches of several processes end well? `python benchmarks/launches.py [--quick] [--json FILE]`

Short training runs of two processes, one after the other, with every core kept busy by something else.
Without a GPU such runs used to abort now and then at exit, after all the work was done, the more often the
busier the machine: a gloo thread asked for the interpreter while it was finalizing. The remedy is
`dapo_ref.distributed.processes.leave`; this counts.
"""

import argparse
import collections
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = [
    *("--config", str(ROOT / "configs/tiny_cpu.yaml"), "--rollout_steps", "1", "--prompts_per_step", "2"),
    *("--responses_per_update", "8", "--max_rounds", "20", "--checkpoint_every", "1"),
]


def burn() -> None:
    """Keeps a core busy until it is killed."""
    while True:
        sum(i * i for i in range(100_000))


def launch(output: str, num_processes: int) -> int:
    """One run; its exit code."""
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", str(ROOT / "configs/accelerate/zero3.yaml")),
        *("--num_processes", str(num_processes), str(ROOT / "train.py"), *SETTINGS, "--output_dir", output),
    ]
    return subprocess.run(command, capture_output=True, cwd=ROOT).returncode


def main() -> int:
    """The command; exit code 1 if a launch failed."""
    parser = argparse.ArgumentParser(description="Count how launches end on a busy machine.")
    parser.add_argument("--launches", type=int, default=30)
    parser.add_argument("--num_processes", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="5 launches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    args = parser.parse_args()
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(multiprocessing.cpu_count())]
    for process in burners:
        process.start()
    codes: collections.Counter[int] = collections.Counter()
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(5 if args.quick else args.launches):
            start = time.perf_counter()
            codes[launch(str(Path(folder) / str(i)), args.num_processes)] += 1
            seconds.append(round(time.perf_counter() - start, 1))
            print(f"launch {i + 1}: {seconds[-1]} s; exit codes so far {dict(codes)}", flush=True)
    for process in burners:
        process.kill()
    if args.json:
        counts = {str(code): count for code, count in codes.items()}
        args.json.write_text(
            json.dumps({"exit_codes": counts, "seconds": seconds}, indent=1) + "\n", encoding="utf-8"
        )
    return 0 if set(codes) == {0} else 1


if __name__ == "__main__":
    sys.exit(main())
