"""Every causal language model of the installed transformers: which path its log-probabilities take.

    python benchmarks/models.py                     the table, as Markdown
    python benchmarks/models.py --only llama opt    some model types

A small model of each type's default configuration with random weights is compared with its own forward, as a
run does before it loads a model (`dapo_ref/policy/paths.py`). Each type has a process of its own, with a
limit of memory and time: some default configurations are of hundreds of gigabytes.
"""

import argparse
import subprocess
import sys
import time

from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TIME_LIMIT_S = 120
MEMORY_LIMIT_GB = 24


def describe(model_type: str) -> tuple[str, str, str]:
    """Path, difference in nats and remark for a model type."""
    import logging
    import resource

    import torch

    from dapo_ref.errors import ConfigError
    from dapo_ref.policy.paths import try_paths

    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    limit = MEMORY_LIMIT_GB * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        trials = []
        for trial in try_paths(CONFIG_MAPPING[model_type](), torch.bfloat16):
            trials.append(trial)
            if trial.passed:
                break
    except ConfigError as error:
        return "refused", "", str(error).removeprefix("model: ")
    except Exception as error:  # of any model's code
        return "not built", "", f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    if not trials[-1].passed:
        return "refused", "", "; ".join(map(str, trials))
    before = "; ".join(map(str, trials[:-1]))
    return str(trials[-1].path), f"{trials[-1].difference:.1e}", before


def in_own_process(model_type: str) -> list[str]:
    """The cells of a row: path, difference, seconds, remark."""
    start = time.perf_counter()
    command = [sys.executable, __file__, "--describe", model_type]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT\t")]
        cells = lines[-1].split("\t")[1:] if lines else ["not built", "", "", f"exit code {done.returncode}"]
    except subprocess.TimeoutExpired:
        cells = ["not built", "", f"{time.perf_counter() - start:.0f}", "out of time"]
    return cells


def main() -> None:
    """Prints a row for each type, in the order of the names, and the number of types on each path."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="TYPE", help="model types; default: all")
    parser.add_argument("--describe", metavar="TYPE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.describe:
        start = time.perf_counter()
        path, difference, remark = describe(options.describe)
        seconds = f"{time.perf_counter() - start:.1f}"
        print("RESULT", path, difference, seconds, remark.replace("|", "/"), sep="\t")
        return
    print("| type | path | difference, nats | seconds | the paths before it, or why not |")
    print("|---|---|---|---|---|")
    counts: dict[str, int] = {}
    for model_type in options.only or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        cells = in_own_process(model_type)
        counts[cells[0]] = counts.get(cells[0], 0) + 1
        print(f"| {model_type} | {' | '.join(cells)} |", flush=True)
    print(
        f"\n{sum(counts.values())} types: " + ", ".join(f"{path}: {n}" for path, n in sorted(counts.items()))
    )


if __name__ == "__main__":
    main()
