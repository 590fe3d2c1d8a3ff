"""Run under `accelerate launch` by `test_distributed.py`: what the engine does with several processes.

Each scenario builds a policy under ZeRO-3, trains one rollout step on a fixed batch with real
micro-batches, and the main process saves what came out.
"""

import gc
import json
import sys
from pathlib import Path

import torch
from accelerate.state import AcceleratorState
from deepspeed.utils import safe_get_full_grad

from dapo_ref.config import Config
from dapo_ref.distributed import accelerator as accelerator_module
from dapo_ref.distributed import engine as engine_module
from dapo_ref.distributed.engine import Engine
from dapo_ref.dynamic_sampling import GroupBuffer, any_outcome
from dapo_ref.objective import build_objective
from dapo_ref.policy.rollout import sample_groups
from dapo_ref.run.command import leave
from dapo_ref.run.folder import RunFolder
from dapo_ref.run.metrics import StepMetrics
from dapo_ref.run.preemption import StopSignals
from dapo_ref.run.session import Session
from dapo_ref.verifier import VerifierPool
from tests.support.helpers import char_tokenizer, random_groups
from train import learning_rate, make_batch, update_policy


def train_once(engine: Engine, config: Config, shape: list[list[int]], poisoned: str) -> dict:
    """One rollout step's updates on fixed groups; the metrics record.

    Args:
        poisoned: `advantage` makes one nan; `loss` makes the main process's first one infinite, while its
            gradient is finite.
    """
    folder = RunFolder(Path(config.output_dir))
    folder.path.mkdir(parents=True, exist_ok=True)
    groups = random_groups(shape)
    objective, prompts = build_objective(config), [(group.problem, group.prompt_ids) for group in groups]
    session = Session(config, engine, objective, None, char_tokenizer(), prompts, folder, StopSignals())
    session.learning_rate = learning_rate(config, step=0)
    buffer = GroupBuffer(len(groups), any_outcome)
    buffer.add(groups, torch.tensor([[r.correct for r in g.rollouts] for g in groups]))
    metrics = StepMetrics()
    metrics.add_rollout(buffer, groups)
    batch = make_batch(groups, config)
    if poisoned == "advantage":
        batch.advantages[0] = torch.nan
    if poisoned == "loss":
        make_one_loss_infinite(engine)
    update_policy(session, batch, metrics)
    return metrics.record(engine, 1, session.updates, session.learning_rate)


def make_one_loss_infinite(engine: Engine) -> None:
    """On the main process alone, and at its first micro-batch."""
    backward, extra = engine.backward, [torch.inf] if engine.is_main else []
    engine.backward = lambda loss, last: backward(loss + (extra.pop() if extra else 0.0), last)


def note_boundaries(engine: Engine) -> list[bool]:
    """What DeepSpeed is told before each backward pass. It minds only where the optimizer is off the GPU."""
    told: list[bool] = []
    tell = engine._zero.set_gradient_accumulation_boundary
    engine._zero.set_gradient_accumulation_boundary = lambda last: (told.append(last), tell(last))
    return told


def full_state(engine: Engine) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    for name, value in engine.full_parameters():
        assert name not in state, f"{name} is gathered twice"
        state[name] = value.to("cpu", copy=True)
    return state


def is_sharded(engine: Engine) -> bool:
    """Every parameter is away from its module, as ZeRO-3 leaves it, except the small ones that it keeps."""
    threshold = engine.accelerator.deepspeed_config["zero_optimization"]["stage3_param_persistence_threshold"]
    parameters = list(engine.policy.parameters())
    large = [p for p in parameters if p.ds_numel > threshold]
    return len(large) > 0 and all(p.data.numel() == 0 for p in large)


def check_rollouts(engine: Engine, config: Config) -> dict:
    """Sampling on full weights, and that the model comes back sharded also when generation raises."""
    prompts = [(g.problem, g.prompt_ids) for g in random_groups([[1]] * 4)]
    before = is_sharded(engine)
    widths = []
    with engine.rollout_model() as model:
        watch = model.base_model.register_forward_pre_hook(
            lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        mine = engine.share(prompts)
        linear_inside = torch.nn.functional.linear is torch._C._nn.linear
        engine.seed(1)
        groups = sample_groups(model, char_tokenizer(), mine, config.sampling, [2])
        watch.remove()
    after = is_sharded(engine)
    try:
        with engine.rollout_model():
            raise RuntimeError("in the middle of generation")
    except RuntimeError:
        after_raising = is_sharded(engine)
    ids = engine.gather([[r.response_ids for r in g.rollouts] for g in groups])
    with VerifierPool(workers=1, timeout_s=60.0, memory_mb=1024) as pool:
        verdicts = pool.verify_many(
            [(r"Answer: $\sqrt{8}$", r"2\sqrt{2}"), (r"Answer: $\sqrt{8}$", r"3\sqrt{2}")]
        )
    linear_outside = torch.nn.functional.linear is torch._C._nn.linear
    return {
        "sharded": [before, after, after_raising],
        "ids": ids,
        "widths": widths,
        "symbolic": engine.gather([verdicts]),
        "plain_linear": [linear_inside, linear_outside],
    }


def storages() -> dict[int, torch.UntypedStorage]:
    """All that tensors of this process hold, by address."""
    found = [x.untyped_storage() for x in gc.get_objects() if isinstance(x, torch.Tensor)]
    return {storage.data_ptr(): storage for storage in found if storage.device.type == "cpu"}


class Bytes:
    """What this process holds beside what it held when this began."""

    def __init__(self) -> None:
        gc.collect()
        self._before = storages()  # kept, so that no address is used again

    def __call__(self) -> int:
        gc.collect()
        now = storages()
        return sum(now[address].nbytes() for address in now.keys() - self._before.keys())


def look_into_the_step(engine: Engine, held: Bytes, found: dict) -> None:
    """Has the next update write down its gradients, and the bytes held when Adam computes."""
    step = engine.step

    def observed(learning_rate: float) -> float:
        gradients = {n: safe_get_full_grad(p) for n, p in engine.policy.named_parameters()}
        found["gradients"] = {name: value.clone() for name, value in gradients.items()}
        del gradients
        return step(learning_rate)

    engine.step = observed
    adam = engine._zero.optimizer.optimizer
    adam.register_step_pre_hook(lambda *_: found.update(bytes_in_step=held() - copies(found)))


def copies(found: dict) -> int:
    return sum(value.nbytes for value in found["gradients"].values())


def main(work: Path) -> None:
    scenarios = json.loads((work / "scenarios.json").read_text())
    for name, scenario in scenarios.items():
        AcceleratorState._reset_state(reset_partial_state=True)
        config = Config(**scenario["config"], output_dir=str(work / "runs" / name))
        engine_module.GATHER_ELEMENTS = scenario.get("gather", 2**28)
        accelerator_module.REDUCE_BUCKET_ELEMENTS = scenario.get("bucket", 2**25)
        looks, found = scenario.get("look", False), {}
        held = Bytes() if looks else None  # slow: it goes through all objects
        engine = Engine(config)
        if looks:
            look_into_the_step(engine, held, found)
        result = {"rank": engine.gather([engine.rank]), "world": engine.world_size}
        result["dropout"] = engine.policy.model.config.attention_dropout
        boundaries = note_boundaries(engine)
        if scenario.get("rollouts"):
            result |= check_rollouts(engine, config)
        result["record"] = train_once(engine, config, scenario["shape"], scenario.get("poisoned", ""))
        result["boundaries"] = engine.gather([boundaries])
        if looks:
            result |= found | {"bytes": held() - copies(found)}
        state = full_state(engine)
        if engine.is_main:
            torch.save({"result": result, "state": state}, work / f"{name}.{engine.world_size}.pt")
    engine.barrier()
    engine.close()
    leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
