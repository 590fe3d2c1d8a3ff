"""Checks a machine, or many, before a run: two minutes, without weights, under the launcher of the run.

    accelerate launch --config_file configs/accelerate/zero3.yaml -m dapo_ref.preflight --config FILE

The configuration's model is cut to its first layers, at its real widths, and given random weights. It goes
through the run's own parts: engine, packing, sampler. Each check ends as ok, as failed with what to do, or as
not here. The exit code is 1 if one failed.
"""

import dataclasses
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from accelerate import init_empty_weights
from accelerate.state import AcceleratorState
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from dapo_ref.config import Config, load_config
from dapo_ref.distributed.accelerator import make_accelerator
from dapo_ref.distributed.engine import Engine
from dapo_ref.distributed.machine import require_machine
from dapo_ref.distributed.processes import Processes
from dapo_ref.launcher import launched_as_main
from dapo_ref.plan import Machine, Phase, largest_phase, shape_of
from dapo_ref.policy.pretrained import load_hf_config, torch_dtype
from dapo_ref.policy.small_model import fill, first_layers
from dapo_ref.preflight import machine
from dapo_ref.preflight.checks import Checks
from dapo_ref.preflight.policy import PolicyChecks
from dapo_ref.run.command import exit_code, leave

TIMEOUT_S = 600
"""Of a check that hangs on one process: then all end, and it is named."""


def first_layers_of(config: Config) -> tuple[PreTrainedModel | None, int]:
    """A model of the first layers with random weights, on the main process, and how many parameters the whole
    one has; before ZeRO-3 is on, which would shard it."""
    hf_config = load_hf_config(config.model_dir)
    with init_empty_weights():
        whole = AutoModelForCausalLM.from_config(hf_config)
    parameters = sum(parameter.numel() for parameter in whole.parameters())
    if not launched_as_main():
        return None, parameters
    model = AutoModelForCausalLM.from_config(first_layers(hf_config), dtype=torch_dtype(config))
    fill(model)
    return model, parameters


def of_preflight(config: Config, model: Path) -> Config:
    """The configuration of the checks: the small model, short waits, no weights of tokens."""
    return dataclasses.replace(
        config,
        model=str(model),
        process_group_timeout_s=min(TIMEOUT_S, config.process_group_timeout_s),
        importance_correction="none",
        importance_cap=2.0,
        tracker="none",
    )


def main(argv: Sequence[str]) -> list[str]:
    """All checks; returns the names of those that failed."""
    config = load_config(argv)
    require_machine(config)
    small, parameters = first_layers_of(config)
    folder = Path(config.output_dir).resolve()
    folder = folder.with_name(folder.name + ".preflight")
    short = of_preflight(config, folder / "model")
    processes = Processes(make_accelerator(short), config.seed, short.process_group_timeout_s)
    checks = Checks(processes)
    try:
        with processes.watched():
            checks.run("versions", machine.versions)
            checks.run("data", lambda: machine.data(config))
            checks.run("collectives", lambda: machine.collectives(processes))
            shared = checks.run("shared folder", lambda: machine.shared_folder(processes, folder))
            if shared:
                checks.run("lock", lambda: machine.lock(processes, folder))
                checks.run("disk", lambda: machine.disk(config, folder, parameters))
                if small is not None:
                    small.save_pretrained(folder / "model", state_dict=small.state_dict())
                processes.barrier()
                check_policy(checks, short, lambda: planned(config, processes.world_size))
    finally:
        if launched_as_main():
            shutil.rmtree(folder, ignore_errors=True)
    if checks.failed and launched_as_main():  # before another rank leaves: the launcher then ends this one
        print(f"failed: {', '.join(checks.failed)}", flush=True)
    processes.barrier()
    processes.close()
    return checks.failed


def planned(config: Config, gpus: int) -> Phase:
    """The largest phase of the run; ConfigError where its model cannot be planned."""
    shape = shape_of(load_hf_config(config.model_dir))
    return largest_phase(shape, config, Machine(gpus, memory=0))


def check_policy(checks: Checks, config: Config, largest: Callable[[], Phase]) -> None:
    """The checks that need the engine; `largest` plans the run's largest phase."""
    made: list[Engine] = []

    def make() -> str:
        # The engine makes an accelerator of its own, and a model before that, for which ZeRO-3 must be off.
        AcceleratorState._reset_state(reset_partial_state=True)
        unset_hf_deepspeed_config()
        made.append(Engine(config))
        return f"{made[0].policy.model.config.get_text_config().num_hidden_layers} layers, " + (
            "packed" if made[0].policy.packed else "padded"
        )

    if not checks.run("engine", make):
        return
    policy = PolicyChecks(made[0])
    checks.run("precision", policy.precision)
    checks.run("update", policy.update)
    checks.run("packing", policy.packing)
    checks.run("sampling", policy.sampling)
    checks.run("decoding", policy.decoding)
    checks.run("attention kernels", policy.kernels)
    checks.run("memory", lambda: policy.memory(largest))


if __name__ == "__main__":
    failed: list[str] = []
    leave(exit_code(lambda argv: failed.extend(main(argv)), sys.argv[1:]) or int(bool(failed)))
