"""Configuration: one flat frozen dataclass, read from YAML files and the command line.

Defaults are the paper's values (§4.1) wherever the paper gives one; the help of each key says so. Files are
given with `--config a.yaml b.yaml`, later ones override earlier ones, and `--key value` overrides them all.
An unknown key is an error that names the nearest known one, or ours for a key of another project
(`coming_from.py`). Combinations that cannot work are refused here, before a model is loaded.
"""

import dataclasses
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from transformers import HfArgumentParser

from dapo_ref import coming_from
from dapo_ref.errors import ConfigError
from dapo_ref.layout import Layout

T = TypeVar("T")


def option(default: Any, help: str) -> Any:
    """A dataclass field with the help that the command line shows."""
    return dataclasses.field(default=default, metadata={"help": help})


DEFAULT_PROMPT_TEMPLATE = (
    "{question}\n\nReason step by step. When you are done, write the final result alone on the last line, "
    "in the form\nAnswer: <result>"
)


@dataclass(frozen=True)
class Sampling:
    """What the sampler needs to know, the same for training and evaluation; fields as in `Config`."""

    group_size: int
    max_response_length: int
    temperature: float
    top_p: float
    rollout_batch_size: int
    rollout_weights: str
    sampler: str
    rollout_kv_tokens: int


@dataclass(frozen=True)
class Config:
    """Everything a run depends on. `[paper: …]` marks the values of arXiv 2503.14476v1, §4.1."""

    # --- Model and data -------------------------------------------------------------------------------------
    model: str = option(
        "tiny", "HF directory, hub name or run folder; `tiny` is the embedded one [paper: Qwen2.5-32B]"
    )
    data: str = option(
        "tiny:train",
        "file, TASK:SPLIT or hub name; several with commas [paper: DAPO-Math-17K]",
    )
    data_weights: str = option("", "shares of several sources, such as 1, 3")
    question_column: str = option("", "of the questions; a.b is a field of a column")
    answer_column: str = option("", "of the answers")
    answer_pattern: str = option("", "regular expression with one group: #### (.+)")
    prompt_template: str = option(
        DEFAULT_PROMPT_TEMPLATE, "wraps a bare question at {question}; chat-format data is used as it is"
    )
    prompt_date: str = option(
        "", "YYYY-MM-DD for chat templates that print the date; default: the day the run begins"
    )
    max_prompt_length: int = option(2048, "tokens; longer prompts are dropped [recipe: 2048]")
    exceed_positions: bool = option(
        False, "sample beyond the model's max_position_embeddings, which rotary positions allow"
    )
    precision: Literal["bf16", "fp32"] = option("bf16", "of weights and activations; the master copy is fp32")
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass to save memory")

    # --- Rollout (Alg. 1, lines 2–4) ------------------------------------------------------------------------
    rollout_steps: int = option(1000, "iterations of Algorithm 1")
    prompts_per_step: int = option(512, "groups in a batch, over all processes [paper: 512]")
    group_size: int = option(16, "responses a prompt, G [paper: 16]")
    max_response_length: int = option(20480, "generation cap in tokens, L_max of Eq. 13 [paper: 20480]")
    temperature: float = option(
        1.0, "of sampling; divided out of the trained log-probabilities [recipe: 1.0]"
    )
    top_p: float = option(1.0, "nucleus sampling; below 1 sampled and trained policy differ [recipe: 1.0]")
    rollout_batch_size: int = option(128, "responses generated at once by a process")
    rollout_kv_tokens: int = option(
        0, "rows × columns in a process's cache; 0: what the free memory of a GPU holds, no limit on a CPU"
    )
    rollout_weights: Literal["gathered", "sharded"] = option(
        "gathered", "generate on a full copy of the weights, or layer by layer where a copy does not fit"
    )
    sampler: Literal["segments", "continuous_batching"] = option(
        "segments", "`generate` between which ended rows leave, or transformers' continuous batching"
    )

    # --- Dynamic sampling (Eq. 11) --------------------------------------------------------------------------
    dynamic_sampling: bool = option(
        True, "fill each batch with groups that have 0 < correct < G [paper: true]"
    )
    min_pass_rate: float = option(0.0, "a group qualifies above this share of right answers [paper: 0]")
    max_pass_rate: float = option(1.0, "and below this one [paper: 1]")
    max_rounds: int = option(10, "generation rounds a step at most [recipe: 10]")
    max_prompts_per_round: int = option(0, "upper limit of a round; 0 is 3 × prompts_per_step [recipe: 1536]")
    on_round_limit: Literal["train", "stop"] = option(
        "train", "batch not full after max_rounds: train on what is held, or stop [recipe: stop]"
    )

    # --- Reward (Eq. 7, Eq. 13, §3.4) -----------------------------------------------------------------------
    reward: str = option("dapo", "a row of `scoring.REWARDS`: dapo is Eq. 7 plus Eq. 13")
    soft_overlong_punishment: bool = option(True, "add Eq. 13 to the reward [paper: true]")
    overlong_cache_length: int = option(4096, "L_cache of Eq. 13, in tokens [paper: 4096]")
    overlong_penalty_factor: float = option(1.0, "times the punishment of Eq. 13 [paper: 1]")
    overlong_filtering: bool = option(False, "mask truncated responses out of the loss, §3.4 [paper: false]")
    verifier: Literal["math", "recipe"] = option("math", "our verifier, or the authors' string rule")
    compare_recipe: bool = option(False, "record how often our verifier and the authors' rule disagree")
    boxed_answers: bool = option(True, r"accept a last \boxed{…} where there is no `Answer:` line")
    verifier_workers: int = option(1, "processes a rank for symbolic answers, or for reward_function")
    verifier_timeout_s: float = option(5.0, "seconds for one symbolic answer, or one call")
    verifier_memory_mb: int = option(1024, "memory of one of these processes")
    reward_function: str = option("", "FILE.py:NAME, yours, in place of the verifier")
    reward_in_process: bool = option(False, "call it in the training process")

    # --- Objective (Eq. 8–10, 12) ---------------------------------------------------------------------------
    loss_variant: str = option("dapo", "a row of `objective.VARIANTS`: dapo, gspo, cispo [paper: dapo]")
    clip_eps_low: float = option(0.2, "ε_low of Eq. 10 [paper: 0.2]")
    clip_eps_high: float = option(0.28, "ε_high of Eq. 10 [paper: 0.28]")
    loss_aggregation: Literal["token_level", "sample_level", "constant_length"] = option(
        "token_level",
        "Eq. 12, GRPO's mean of means, Eq. 5, or by B · max_response_length (Dr. GRPO) [paper: token_level]",
    )
    token_normalization: Literal["minibatch", "group"] = option(
        "minibatch",
        "token_level divides by the tokens of the mini-batch, or of each group (D1) [paper: group]",
    )
    advantage: str = option(
        "normalized",
        "a row of `objective.ADVANTAGES`: normalized, centred, leave_one_out [paper: normalized]",
    )
    unbiased_std: bool = option(True, "Bessel-corrected std in Eq. 9 (D2) [recipe: true]")
    dual_clip: float = option(0.0, "c of the authors' dual clip (D3); 0 is off [paper: none, recipe: 10]")

    importance_correction: Literal["none", "truncated"] = option(
        "none", "or weigh each token by min(π_old / π_sampler, importance_cap) [paper: none]"
    )
    importance_cap: float = option(2.0, "C of importance_correction truncated")

    # --- Optimisation ---------------------------------------------------------------------------------------
    responses_per_update: int = option(512, "mini-batch of one optimiser update, in responses [paper: 512]")
    tokens_per_microbatch: int = option(32768, "tokens a process computes at once; memory, not results")
    packing: bool = option(
        True, "compute each prompt once for its group, and no padding, where the model's attention allows it"
    )
    learning_rate: float = option(1e-6, "constant after warm-up [paper: 1e-6]")
    warmup_steps: int = option(20, "rollout steps of linear warm-up [paper: 20]")
    weight_decay: float = option(0.1, "of AdamW [recipe: 0.1]")
    adam_beta1: float = option(0.9, "of AdamW [recipe: 0.9]")
    adam_beta2: float = option(0.999, "of AdamW [recipe: 0.999]")
    adam_eps: float = option(1e-8, "of AdamW [recipe: 1e-8]")
    max_grad_norm: float = option(1.0, "gradient-norm clip [recipe: 1.0]")
    max_skipped_updates: int = option(
        5, "stop after so many updates in a row whose loss or gradient is not finite"
    )

    # --- Run ------------------------------------------------------------------------------------------------
    output_dir: str = option("", "run folder; default runs/<name of the first config file>")
    process_group_timeout_s: int = option(
        1800, "seconds; a rank without progress for so long ends the run, one that waits for others does not"
    )
    resume: bool = option(False, "continue the run in output_dir after its newest whole checkpoint")
    allow_config_change: bool = option(False, "resume also where the mathematics changed")
    seed: int = option(0, "of data order and sampling")
    checkpoint_every: int = option(10, "rollout steps; the last step is always saved; 0 saves only the model")
    keep_checkpoints: int = option(2, "how many complete checkpoints stay")
    on_checkpoint_error: Literal["stop", "continue"] = option(
        "stop", "a checkpoint cannot be written (a full disk, say): stop, or go on and try the next one"
    )
    record_tokens: int = option(
        0, "groups a step whose tokens are kept with probability and clip, for the report"
    )
    evaluate_every: int = option(0, "rollout steps between evaluations, the first before step 1; 0 is off")
    eval_data: str = option("", "held-out data sets as in `data`, separated by commas [paper: AIME 2024]")
    eval_samples_per_problem: int = option(32, "k of avg@k [paper: 32]")
    eval_top_p: float = option(0.7, "of evaluation [paper: 0.7]")
    tracker: Literal["none", "tensorboard", "wandb"] = option("none", "beside metrics.jsonl")

    @property
    def sampling(self) -> Sampling:
        """The part that `rollout.sample_groups` takes."""
        return Sampling(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Sampling)})

    @property
    def eval_sources(self) -> list[str]:
        """The data sets of `eval_data`."""
        return [part.strip() for part in self.eval_data.split(",") if part.strip()]

    @property
    def eval_sampling(self) -> Sampling:
        """How held-out problems are sampled: keyed, so never by continuous batching."""
        return dataclasses.replace(
            self.sampling,
            group_size=self.eval_samples_per_problem,
            top_p=self.eval_top_p,
            temperature=1.0,
            sampler="segments",
        )

    def layout(self, optional: bool) -> Layout:
        """How rows are read; optional: a source may lack the named columns."""
        return Layout(
            question=self.question_column,
            answer=self.answer_column,
            pattern=self.answer_pattern,
            keep_fields=bool(self.reward_function),
            optional=optional,
        )

    @property
    def model_dir(self) -> str:
        """Where `model` is: the embedded one's directory for `tiny`."""
        return resolve_model(self.model)

    @property
    def prompts_per_round(self) -> int:
        """Upper limit of a generation round, in prompts."""
        return self.max_prompts_per_round or 3 * self.prompts_per_step  # 3 × 512 = 1536 in the recipe

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_combinations()

    def _check_ranges(self) -> None:
        at_least_one = (
            "max_prompt_length rollout_steps prompts_per_step group_size max_response_length "
            "rollout_batch_size max_rounds verifier_workers verifier_memory_mb responses_per_update "
            "tokens_per_microbatch max_skipped_updates keep_checkpoints process_group_timeout_s "
            "eval_samples_per_problem"
        )
        for name in at_least_one.split():
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        not_negative = (
            "max_prompts_per_round warmup_steps weight_decay checkpoint_every learning_rate seed "
            "clip_eps_high dual_clip evaluate_every record_tokens overlong_penalty_factor rollout_kv_tokens"
        )
        for name in not_negative.split():
            _require(getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("temperature", "verifier_timeout_s", "max_grad_norm", "adam_eps"):
            _require(getattr(self, name) > 0, f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("adam_beta1", "adam_beta2", "clip_eps_low"):
            _require(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("top_p", "eval_top_p"):
            _require(0 < getattr(self, name) <= 1, f"{name} must be in (0, 1], got {getattr(self, name)}")
        _require(
            self.dual_clip == 0 or self.dual_clip > 1,
            f"dual_clip must be above 1, or 0 for off, got {self.dual_clip}",
        )
        _require(self.importance_cap >= 1, f"importance_cap must be at least 1, got {self.importance_cap}")
        _require(
            not self.prompt_date or re.fullmatch(r"\d{4}-\d{2}-\d{2}", self.prompt_date) is not None,
            f"prompt_date must be YYYY-MM-DD, got {self.prompt_date!r}",
        )
        _require("{question}" in self.prompt_template, "prompt_template must contain {question}")
        _require(
            not self.answer_pattern or _groups(self.answer_pattern) == 1,
            f"answer_pattern must be a regular expression with one group, got {self.answer_pattern!r}",
        )
        numbers = r"\s*\d+(\.\d+)?\s*"
        _require(
            not self.data_weights or re.fullmatch(f"{numbers}(,{numbers})*", self.data_weights) is not None,
            f"data_weights must be numbers with commas between them, got {self.data_weights!r}",
        )

    def _check_combinations(self) -> None:
        batch = self.prompts_per_step * self.group_size
        minis = [batch // n for n in range(1, self.prompts_per_step + 1) if self.prompts_per_step % n == 0]
        near = sorted(minis, key=lambda size: abs(size - self.responses_per_update))[:2]
        _require(
            self.responses_per_update in minis,
            f"responses_per_update ({self.responses_per_update}) must divide the batch of prompts_per_step × "
            f"group_size ({self.prompts_per_step} × {self.group_size} = {batch}) into mini-batches of whole "
            f"groups: set it to {' or '.join(map(str, sorted(near)))}",
        )
        _require(
            not (self.dynamic_sampling and self.group_size == 1),
            "group_size 1 never has 0 < correct < G: raise group_size, or set dynamic_sampling to false",
        )
        _require(
            not self.soft_overlong_punishment or 0 < self.overlong_cache_length <= self.max_response_length,
            f"overlong_cache_length ({self.overlong_cache_length}) must be above 0 and at most "
            f"max_response_length ({self.max_response_length}), or set soft_overlong_punishment to false",
        )
        _require(
            self.loss_aggregation == "token_level" or self.token_normalization == "minibatch",
            "token_normalization group needs loss_aggregation token_level: "
            f"{self.loss_aggregation} divides by no tokens",
        )
        _require(
            self.soft_overlong_punishment or self.overlong_penalty_factor == 1,
            "overlong_penalty_factor needs soft_overlong_punishment true: without it nothing is punished",
        )
        _require(
            0 <= self.min_pass_rate < self.max_pass_rate <= 1,
            f"min_pass_rate ({self.min_pass_rate}) must be below max_pass_rate ({self.max_pass_rate}), "
            "both in [0, 1]",
        )
        _require(
            self.dynamic_sampling or (self.min_pass_rate, self.max_pass_rate) == (0, 1),
            "min_pass_rate and max_pass_rate need dynamic_sampling true: without it every group is kept",
        )
        _require(
            self.unbiased_std or self.advantage == "normalized",
            f"unbiased_std false needs advantage normalized: {self.advantage} has no std",
        )
        _require(
            bool(self.reward_function) or not self.reward_in_process,
            "reward_in_process needs reward_function: name one, or set it to false",
        )
        _require(
            not self.reward_function or (self.verifier == "math" and not self.compare_recipe),
            "reward_function takes the place of the verifier: leave out verifier recipe and compare_recipe",
        )
        _require(
            self.importance_correction == "truncated" or self.importance_cap == 2,
            "importance_cap needs importance_correction truncated: without it no token is weighted",
        )
        _require(
            self.importance_correction == "none"
            or not (self.sampler == "continuous_batching" and self.top_p < 1),
            "importance_correction truncated with sampler continuous_batching needs top_p 1: below that the "
            "sampler does not tell its probabilities",
        )
        _require(
            not (self.sampler == "continuous_batching" and self.rollout_weights == "sharded"),
            "sampler continuous_batching needs rollout_weights gathered",
        )
        _require(
            not self.rollout_kv_tokens or (self.sampler == "segments" and self.rollout_weights == "gathered"),
            "rollout_kv_tokens needs sampler segments and rollout_weights gathered: the others have caches "
            "of their own",
        )
        _require(
            bool(self.evaluate_every) <= bool(self.eval_sources),
            f"evaluate_every ({self.evaluate_every}) needs eval_data: name data sets, or set it to 0",
        )
        _require(
            not self.max_prompts_per_round or self.max_prompts_per_round >= self.prompts_per_step,
            f"max_prompts_per_round ({self.max_prompts_per_round}) must be 0 or at least prompts_per_step "
            f"({self.prompts_per_step})",
        )


def resolve_model(model: str) -> str:
    """A model's directory or hub name; `tiny` names the one that ships with this package, and a run folder
    the model that it exported.

    Raises:
        ConfigError: a run that has no model yet.
    """
    if model == "tiny":
        return str(Path(__file__).parent / "tiny" / "model")
    folder = Path(model)
    if not (folder / "config.yaml").is_file() or (folder / "config.json").is_file():
        return model
    if not (folder / "model").is_dir():
        raise ConfigError(f"model: {model} is a run that has no {folder / 'model'} yet")
    return str(folder / "model")


def load_config(argv: Sequence[str]) -> Config:
    """Reads `--config FILE [FILE …] [--key value …]`.

    Args:
        argv: the command line without the program's name.

    Returns:
        The resolved configuration, `output_dir` filled in.

    Raises:
        ConfigError: a file that cannot be read, an unknown key, a value of the wrong kind, an impossible
            combination.
        SystemExit: after `--help`.
    """
    parser = StrictParser(Config, prog="train.py", description="Train a model with DAPO.")
    parser.add_argument(
        "--config",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="YAML, later override earlier",
    )
    given = parser.parse_given(argv)
    files = given.pop("config", [])
    if overrides := [word for word in files if coming_from.override_key(word) and not Path(word).exists()]:
        parser.refuse(overrides)  # `--config a.yaml data.seed=1`
    values: dict[str, Any] = {}
    for file in files:
        values |= _read_file(Path(file))
    values |= given
    if not values.get("output_dir"):
        values["output_dir"] = str(Path("runs") / (Path(files[0]).stem if files else "default"))
    for key in {"model", "data", "output_dir"} & values.keys():
        values[key] = os.path.expanduser(values[key])
    if values.get("eval_data"):  # separated by commas
        values["eval_data"] = re.sub(
            r"[^,\s][^,]*", lambda part: os.path.expanduser(part[0]), values["eval_data"]
        )
    return Config(**values)


@dataclass(frozen=True)
class Change:
    """A key whose value differs between two starts of a run."""

    key: str
    before: Any
    after: Any

    @property
    def changes_mathematics(self) -> bool:
        """Whether the run that goes on is another algorithm's, or another data set's."""
        return self.key not in FREE_KEYS and self.key not in INEXACT_KEYS

    def __str__(self) -> str:
        note = f"; {INEXACT_KEYS[self.key]}" if self.key in INEXACT_KEYS else ""
        return f"{self.key} changes from {self.before!r} to {self.after!r}{note}"


# Of one start, not of the run: they are not compared.
START_KEYS = frozenset({"output_dir", "resume", "allow_config_change"})

# In a file these may be lists.
LIST_KEYS = frozenset({"data", "data_weights", "eval_data"})

# What a run may change when it is resumed, with the same numbers to the last bit.
FREE_KEYS = frozenset(
    {
        *("rollout_steps", "checkpoint_every", "keep_checkpoints", "on_checkpoint_error", "tracker"),
        *("process_group_timeout_s", "max_skipped_updates", "verifier_workers", "compare_recipe"),
        "reward_in_process",
        *("record_tokens", "evaluate_every", "eval_data", "eval_samples_per_problem", "eval_top_p"),
        "exceed_positions",
    }
)

# The same mathematics, but no longer the same numbers.
INEXACT_KEYS = {
    "tokens_per_microbatch": "sums are taken in another order, the last bits differ",
    "packing": "sums are taken in another order, the last bits differ",
    "gradient_checkpointing": "activations are computed twice, the last bits may differ",
    "rollout_batch_size": "other responses are drawn from the same distribution",
    "rollout_kv_tokens": "other responses are drawn from the same distribution",
    "rollout_weights": "other responses are drawn from the same distribution",
    "sampler": "other responses are drawn from the same distribution",
}


def differences(before: Config, after: Config) -> list[Change]:
    """The keys in which two configurations of a run differ, in the order of the fields."""
    names = [field.name for field in dataclasses.fields(Config) if field.name not in START_KEYS]
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in names]
    return [Change(name, old, new) for name, old, new in pairs if old != new]


def config_text(config: Config) -> str:
    """The configuration as YAML that `read_config` reads back to an equal one."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def read_config(file: Path) -> Config:
    """Reads a file that holds `config_text`.

    Raises:
        ConfigError: as for `load_config`.
    """
    return Config(**_read_file(file))


class StrictParser(HfArgumentParser):
    """The command line of a dataclass; every error is raised, so that it can name its file."""

    def __init__(self, dataclass_type: Any, **kwargs: Any) -> None:
        super().__init__([dataclass_type], allow_abbrev=False, **kwargs)
        self._keys = [field.name for field in dataclasses.fields(dataclass_type)]

    def parse_given(self, argv: Sequence[str]) -> dict[str, Any]:
        """The keys that the command line sets, checked, and no others.

        Raises:
            ConfigError: an unknown key, or a value of the wrong kind.
        """
        namespace, unknown = self.parse_known_args(list(argv))
        if unknown:
            self.refuse(unknown)
        given = {_word_key(word) for word in argv if word.startswith("--")}
        return {key: getattr(namespace, key) for key in vars(namespace) if key in given}

    def refuse(self, words: Sequence[str]) -> None:
        """Raises ConfigError about words that are no keys."""
        raise ConfigError(unknown_keys(_unknown_words(words), "command line", self._keys))

    def error(self, message: str) -> Any:
        raise ConfigError(message)

    def _add_dataclass_arguments(self, dtype: Any) -> None:
        """Without the `--no_key` twin of each key that is true by default: one way to say a thing."""
        super()._add_dataclass_arguments(dtype)
        for action in [a for a in self._actions if any(o.startswith("--no_") for o in a.option_strings)]:
            self._remove_action(action)
            for option in action.option_strings:
                self._option_string_actions.pop(option)


class _StrictLoader(yaml.SafeLoader):
    """YAML without its surprises: a key twice, where the last would win, `010` as 8 and `off` as false."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands there twice")
        return super().construct_mapping(node, deep)

    def construct_word(self, node: Any) -> str:
        """A word as it is written; the key's own type reads it, `010` as ten and `1:30` not at all."""
        return str(node.value)


for _tag in ("int", "float", "bool", "timestamp"):
    _StrictLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _StrictLoader.construct_word)


def _read_file(file: Path) -> dict[str, Any]:
    """One YAML file as checked values.

    They go through the command line's parser: `1e-6`, a string to YAML, is a number to it, and a value of the
    wrong kind is refused in the same words."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), _StrictLoader)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{file}: must hold `key: value` lines, found {type(content).__name__}")
    known = [field.name for field in dataclasses.fields(Config)]
    leaves = [leaf for key, value in content.items() for leaf in _leaves(str(key), value)]
    unknown = [leaf for leaf in leaves if leaf not in known]
    if unknown:
        raise ConfigError(unknown_keys(unknown, str(file), known))
    words = []
    for key, value in content.items():
        if isinstance(value, list) and key in LIST_KEYS:
            value = ", ".join(map(str, value))
        if isinstance(value, (list, dict)) or value is None:
            raise ConfigError(f"{file}: {key} must be a single value, got {value!r}")
        words.append(f"--{key}={value}")
    try:
        return StrictParser(Config).parse_given(words)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _word_key(word: str) -> str:
    """`--key=value`, `--key` or `--a-key` as `key` or `a_key`."""
    return word.split("=")[0].removeprefix("--").replace("-", "_")


def choose(table: Mapping[str, T], key: str, name: str) -> T:
    """The row of a table that a configuration names.

    Raises:
        ConfigError: there is none of that name; the message gives the nearest one.
    """
    if name not in table:
        nearest = difflib.get_close_matches(name, table, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"{key}: unknown name {name!r}; did you mean {nearest!r}? (there are: {', '.join(table)})"
        )
    return table[name]


def unknown_keys(keys: Sequence[str], where: str, known: Sequence[str]) -> str:
    """The message about keys that are not known; those of other projects are answered with ours."""
    answers = [coming_from.answer(key, known) for key in keys]
    parts = [found or _nearest(key, known) for key, found in zip(keys, answers, strict=True)]
    more = f"; and {len(parts) - 8} more" if len(parts) > 8 else ""
    page = f"; {coming_from.PAGE} has the tables" if any(answers) else ""
    return f"{where}: unknown key{'s'[: len(parts) - 1]} {'; '.join(parts[:8])}{more}{page}"


def _nearest(key: str, known: Sequence[str]) -> str:
    if key in known:
        return f"{key!r}: write it as --{key} VALUE"
    if "." in key:
        return f"{key!r}: no key here has a dot in it"
    near = difflib.get_close_matches(key, known, n=1)
    return (
        f"{key!r}; did you mean {near[0]!r}?" if near else f"{key!r}: no key is spelled like it, see --help"
    )


def _unknown_words(words: Sequence[str]) -> list[str]:
    """The keys among the words that the parser does not know; its first word where none looks like a key."""
    keys = [_word_key(word) for word in words if word.startswith("--")]
    keys += [coming_from.override_key(word) or "" for word in words if not word.startswith("--")]
    return [key for key in keys if key] or [_word_key(words[0])]


def _leaves(key: str, value: Any) -> list[str]:
    """`a: {b: 1, c: 2}` as `a.b` and `a.c`, the keys of a nested file."""
    if not isinstance(value, Mapping) or not value:
        return [key]
    return [leaf for name, below in value.items() for leaf in _leaves(f"{key}.{name}", below)]


def _groups(pattern: str) -> int:
    """How many groups a regular expression has; -1 where it is none."""
    try:
        return re.compile(pattern).groups
    except re.error:
        return -1


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
