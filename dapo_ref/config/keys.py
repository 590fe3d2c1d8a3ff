"""Every key with its default and its help, and the combinations that cannot work."""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dapo_ref.errors import ConfigError
from dapo_ref.layout import Layout


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
    keep_rollouts: int = option(0, "steps whose responses stay in rollouts/, the newest; 0 is all")
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
            "clip_eps_high dual_clip evaluate_every record_tokens overlong_penalty_factor rollout_kv_tokens "
            "keep_rollouts"
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
        return str(Path(__file__).parent.parent / "tiny" / "model")
    folder = Path(model)
    if not (folder / "config.yaml").is_file() or (folder / "config.json").is_file():
        return model
    if not (folder / "model").is_dir():
        raise ConfigError(f"model: {model} is a run that has no {folder / 'model'} yet")
    return str(folder / "model")


def _groups(pattern: str) -> int:
    """How many groups a regular expression has; -1 where it is none."""
    try:
        return re.compile(pattern).groups
    except re.error:
        return -1


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
