"""Every causal language model of the installed transformers: which path its log-probabilities take.

    python benchmarks/models.py --rows FILE         the table of docs/models.md, as Markdown
    python benchmarks/models.py --only llama opt    some model types

A small model of each type's default configuration with random weights is compared with its own forward, as a
run does before it loads a model (`dapo_ref/policy/paths.py`). Where there is a path, the model is saved,
loaded, exported as a run exports it and loaded again: its state must be the same key by key.

Each type has a process of its own, with a limit of memory and time: some default configurations are of
hundreds of gigabytes. `--rows FILE` keeps a row a type; those that are there already are not computed again.
"""

import argparse
import json
import logging
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dapo_ref.errors import ConfigError  # noqa: E402
from dapo_ref.policy.paths import text_architecture, try_paths  # noqa: E402
from dapo_ref.policy.pretrained import exported_state  # noqa: E402
from dapo_ref.policy.small_model import small_model  # noqa: E402

TIME_LIMIT_S = 300
MEMORY_LIMIT_GB = 8
DECODER = ", is_decoder"
"""Of a row for a type that is an encoder by default, as it is with `is_decoder: true`."""
COLUMNS = ("type", "path", "difference", "export", "seconds", "remark")
HEADINGS = ("type", "path", "difference, nats", "export", "seconds", "the paths before it, or why not")


def describe(model_type: str) -> dict[str, str]:
    """Path, difference in nats, export and remark for a model type."""
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    limit = MEMORY_LIMIT_GB * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    trials = []
    try:
        config = CONFIG_MAPPING[model_type.split(",")[0]]()
        if model_type.endswith(DECODER):
            config.is_decoder = True
        for trial in try_paths(config, torch.bfloat16):
            trials.append(trial)
            if trial.passed:
                break
    except ConfigError as error:
        return {"path": "refused", "remark": str(error).removeprefix("model: ")}
    except Exception as error:  # of any model's code
        return {"path": "not built", "remark": _line(error)}
    if not trials[-1].passed:
        return {"path": "refused", "remark": "; ".join(map(str, trials))}
    return {
        "path": str(trials[-1].path),
        "difference": f"{trials[-1].difference:.1e}",
        "export": exported(config),
        "remark": "; ".join(map(str, trials[:-1])),
    }


def exported(hf_config: Any) -> str:
    """Whether a model that was loaded, exported and loaded again has the state that it had."""

    def load(directory: Path) -> PreTrainedModel:
        model: PreTrainedModel
        model, info = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, output_loading_info=True
        )
        if info["missing_keys"]:
            raise ValueError(f"lacks {', '.join(sorted(info['missing_keys'])[:3])}")
        return model

    try:
        with tempfile.TemporaryDirectory() as folder:
            small_model(*text_architecture(hf_config)).save_pretrained(Path(folder, "source"))
            model = load(Path(folder, "source"))
            state = exported_state(model, model.named_parameters())
            model.save_pretrained(Path(folder, "export"), state_dict=state)
            before, after = model.state_dict(), load(Path(folder, "export")).state_dict()
    except Exception as error:  # of any model's code
        return _line(error)
    wrong = [k for k in before.keys() | after.keys() if not _same(before.get(k), after.get(k))]
    return "differs: " + ", ".join(sorted(wrong)[:3]) if wrong else "same"


def _same(before: Any, after: Any) -> bool:
    return before is not None and after is not None and before.equal(after)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def in_own_process(model_type: str) -> dict[str, str]:
    """A row of the table."""
    start = time.perf_counter()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send, args=(model_type, theirs))
    process.start()
    theirs.close()
    try:
        row = ours.recv() if ours.poll(TIME_LIMIT_S) else {"path": "not built", "remark": "out of time"}
    except EOFError:
        process.join()
        row = {"path": "not built", "remark": f"ended by signal or exit code {process.exitcode}"}
    process.kill()
    process.join()
    return {"type": model_type, "seconds": f"{time.perf_counter() - start:.0f}"} | row


def _send(model_type: str, connection: Connection) -> None:
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # warnings of many kinds
    connection.send(describe(model_type))


def show(rows: list[dict[str, str]]) -> None:
    """Prints the table, in the order of the names, and the number of types on each path."""
    print("| " + " | ".join(HEADINGS) + " |\n" + "|---" * len(HEADINGS) + "|")
    for row in sorted(rows, key=lambda row: row["type"]):
        cells = [" ".join(row.get(column, "").replace("|", "/").split()) for column in COLUMNS]
        print(f"| {' | '.join(cells)} |")
    counts = Counter(row["path"] for row in rows)
    print(f"\n{len(rows)} types: " + ", ".join(f"{path}: {n}" for path, n in sorted(counts.items())))


def main() -> None:
    """Computes the rows that are missing and prints them all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="TYPE", help="model types; default: all")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="JSONL, goes on with what is there")
    options = parser.parse_args()
    rows = []
    if options.rows and options.rows.exists():
        rows = [json.loads(line) for line in options.rows.read_text(encoding="utf-8").splitlines()]
    for model_type in options.only or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        if model_type in {row["type"] for row in rows}:
            continue
        added = [in_own_process(model_type)]
        if "is not causal" in added[0].get("remark", ""):
            added.append(in_own_process(model_type + DECODER))
        rows += added
        if options.rows:
            with options.rows.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in added)
    show(rows)


if __name__ == "__main__":
    main()
