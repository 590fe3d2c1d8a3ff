"""What `train.py --plan` says: of each configuration for large models, and beside what is measured on a CPU.

    python benchmarks/plan.py
    torchrun --nproc_per_node 2 benchmarks/plan.py --measure

The first plans the configurations on the GPUs that their comments name. The second runs models with random
weights through the real engine and the real sampler, and counts the bytes of all tensors in each phase.
Buckets and chunks are small there, so that they do not hide the rest.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dapo_ref import plan
from dapo_ref.config import Config, load_config
from dapo_ref.data import Problem
from dapo_ref.policy import logprobs, packing
from dapo_ref.policy.batching import collate, minibatches
from dapo_ref.policy.pretrained import load_hf_config
from dapo_ref.policy.rollout import sample_groups
from dapo_ref.types import Group, Rollout
from tests.support.live_memory import LiveMemory
from tests.support.model_facts import FACTS

ROOT = Path(__file__).resolve().parent.parent
MARK = "# train.py --plan: "
PHASES = ("copying", "rollout", "update", "optimiser")
VOCABULARY = 2048
SIZES = ((128, 4, "bf16"), (128, 4, "fp32"), (256, 6, "fp32"))
"""Hidden size, layers, precision."""


def configurations() -> list[str]:
    """The table of the configurations, a row for each machine that one names."""
    rows = [
        "| configuration | GPUs | copying | rollout | update | optimiser | rows, most | tokens, most "
        "| a step, minutes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for file in sorted((ROOT / "configs").glob("*.yaml")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith(MARK):
                rows.append(_row(file, *(float(word) for word in line.split()[4::2])))
    return rows


def _row(file: Path, gpus: float, memory: float) -> str:
    config = load_config(["--config", str(file)])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(FACTS[config.model]), encoding="utf-8")
        shape = plan.shape_of(load_hf_config(folder))
    machine = plan.Machine(int(gpus), round(memory * plan.GB))
    totals = {phase.name: f"{phase.total / plan.GB:.1f}" for phase in plan.phases(shape, config, machine)}
    most = [
        str(plan.most_that_fit(shape, config, machine, key))
        for key in ("rollout_batch_size", "tokens_per_microbatch")
    ]
    minutes = sum(plan.times(shape, config, machine).values()) / 60
    cells = [f"`{file.name}`", f"{gpus:g} × {memory:g} GB", *(totals[name] for name in PHASES), *most]
    return f"| {' | '.join([*cells, f'{minutes:.0f}'])} |"


def measure(folder: str, hidden: int, layers: int, precision: str) -> str | None:
    """A row: each phase as planned and as measured, in MB; on the main process."""
    from accelerate.state import AcceleratorState

    from dapo_ref.distributed.engine import Engine

    AcceleratorState._reset_state(reset_partial_state=True)
    config = Config(
        model=folder,
        precision=precision,  # type: ignore[arg-type]
        gradient_checkpointing=True,
        prompts_per_step=4,
        group_size=16,
        responses_per_update=32,
        max_prompt_length=160,
        max_response_length=64,
        overlong_cache_length=64,
        rollout_batch_size=32,
        tokens_per_microbatch=1184,  # a group
    )
    shape = plan.shape_of(load_hf_config(folder))
    with LiveMemory() as memory:
        engine = Engine(config)
        peaks = _peaks(engine, config, memory)
    planned = {p.name: p.total for p in plan.phases(shape, config, plan.Machine(engine.world_size, 0))}
    cells = [f"{hidden}", f"{layers}", precision, f"{shape.parameters / 1e6:.1f}"]
    cells += [f"{planned[name] / 1e6:.1f} / {peaks[name] / 1e6:.1f}" for name in PHASES]
    return f"| {' | '.join(cells)} |" if engine.is_main else None


def _save_model(folder: str, hidden: int, layers: int) -> None:
    """To be called before an engine is made, which shards all models that are built after it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers}
    heads = {"num_attention_heads": hidden // 32, "num_key_value_heads": hidden // 64}
    hf_config = Qwen2Config(vocab_size=VOCABULARY, tie_word_embeddings=False, **sizes, **heads)
    Qwen2ForCausalLM(hf_config).save_pretrained(folder)


def _peaks(engine: Any, config: Config, memory: LiveMemory) -> dict[str, int]:
    """The most that each phase holds, once there are Adam's moments; no response ends before its cap."""
    peaks = {}
    size, prompt_ids = config.max_response_length, [3] * config.max_prompt_length
    problem = Problem((), "0", "")
    rollouts = [Rollout([7] * size, "", truncated=True, reward=0.0) for _ in range(config.group_size)]
    batch = collate(
        [Group(problem, prompt_ids, rollouts)] * config.prompts_per_step, overlong_filtering=False
    )
    batch.advantages = torch.zeros(len(batch))
    for mini in minibatches(batch, config.responses_per_update):
        memory.peak = memory.now
        micros = engine.microbatches(batch, mini)
        for micro in micros:
            values, _ = engine.logprobs(micro)
            engine.backward(1e-4 * values.sum(), last=micro is micros[-1])
            del values
        peaks["update"], memory.peak = memory.peak, memory.now
        engine.step(1e-6)
        peaks["optimiser"], memory.peak = memory.peak, memory.now
    tokenizer: Any = SimpleNamespace(batch_decode=lambda ids, skip_special_tokens: [""])
    prompts = [(problem, prompt_ids)] * config.prompts_per_step
    with engine.rollout_model() as model:
        peaks["copying"], memory.peak = memory.peak, memory.now
        sample_groups(model, tokenizer, engine.share(prompts), config.sampling, [VOCABULARY])
        peaks["rollout"] = memory.peak
    return peaks


def _small(elements: int) -> None:
    """Buckets and chunks of so many elements, in what runs and in the plan; masks that can be counted."""
    from dapo_ref.distributed import accelerator

    accelerator.REDUCE_BUCKET_ELEMENTS = plan.BUCKET_ELEMENTS = elements
    logprobs.CHUNK_ELEMENTS = plan.GPU_CHUNK_ELEMENTS = elements
    packing._visible = lambda t, length, *_: torch.ones(t, length, dtype=torch.bool).tril(length - t)


def main() -> None:
    """Prints a table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    if not parser.parse_args().measure:
        print("\n".join(configurations()))
        return
    from dapo_ref.run.command import leave

    _small(2**16)
    folders = [tempfile.mkdtemp() for _ in SIZES]
    for folder, (hidden, layers, _) in zip(folders, SIZES, strict=True):
        _save_model(folder, hidden, layers)
    rows = [measure(folder, *size) for folder, size in zip(folders, SIZES, strict=True)]
    for folder in folders:
        shutil.rmtree(folder)
    if rows[0]:
        print("| hidden | layers | precision | million parameters | copying | rollout | update | optimiser |")
        print("|---|---|---|---|---|---|---|---|")
        print("\n".join(row for row in rows if row))
    leave(0)


if __name__ == "__main__":
    main()
