"""Keys of TRL, verl and OpenRLHF, answered with ours where someone brings one.

`docs/coming_from.md` shows the same table. Where names are equal there is no row, unless the meaning differs.
Names are those of TRL 1.16.0 (`GRPOConfig`), verl 0.9.1 with the published DAPO recipe, OpenRLHF 0.11.2.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple


class Counterpart(NamedTuple):
    """What a key of another project is here.

    Attributes:
        ours: our keys, separated by commas; empty where there is none.
        note: how its value becomes ours, or why there is none.
    """

    ours: str
    note: str = ""


def _none(why: str) -> Counterpart:
    return Counterpart("", why)


_NO_KL = _none("no KL term and no reference model (§2.3); a coefficient of 0 is what happens here")
_NO_ENTROPY = _none("Eq. 8 has no entropy term; 0 is what happens here")
_NO_CRITIC = _none("no critic: the advantage is taken from the group (Eq. 9)")
_NO_REWARD_MODEL = _none("no reward model: a rule gives the reward (Eq. 7)")
_NO_ENGINE = _none("responses come from Hugging Face's `generate` in the training process")
_CORRECTION = Counterpart("importance_correction", "truncated: each token weighs at most importance_cap")
_TRAINED_IS_SAMPLED = _none(
    "the sampled distribution is the trained one; only temperature and top_p change it"
)
_ONE_PASS = _none("each batch is passed over once; 1 is what happens here")
_CONSTANT = _none("constant after warm-up (§4.1)")
_LAUNCHER = _none("the launcher's: `accelerate launch --num_processes N`, see configs/accelerate/")
_SHUFFLED = _none("prompts are shuffled anew each epoch, by `seed`")
_ALL_WEIGHTS = _none("all weights are trained")
_RECORDED = _none("each step is a line of metrics.jsonl, each response a line under rollouts/")
_MICROBATCH = Counterpart(
    "tokens_per_microbatch", "in tokens of prompt and response; changes memory, no result"
)
_REWARD = Counterpart("reward_function", "FILE.py:NAME, see docs/your_task.md")
_SAVE = Counterpart("checkpoint_every", "in rollout steps")

TRL = {
    "model_name_or_path": Counterpart("model"),
    "dataset_name": Counterpart("data", "a file, or `org/name` of the hub"),
    "dataset_train_split": Counterpart("data", "after the name: `org/name:SPLIT`"),
    "num_generations": Counterpart("group_size"),
    "num_generations_eval": Counterpart("eval_samples_per_problem"),
    "max_completion_length": Counterpart("max_response_length"),
    "generation_batch_size": Counterpart("prompts_per_step", "generation_batch_size / num_generations"),
    "steps_per_generation": Counterpart(
        "prompts_per_step",
        "per_device_train_batch_size × processes × steps_per_generation / num_generations",
    ),
    "per_device_train_batch_size": Counterpart(
        "responses_per_update",
        "times processes × gradient_accumulation_steps; what is computed at once is tokens_per_microbatch",
    ),
    "gradient_accumulation_steps": Counterpart(
        "responses_per_update", "per_device_train_batch_size × processes × gradient_accumulation_steps"
    ),
    "per_device_eval_batch_size": Counterpart("rollout_batch_size"),
    "max_steps": Counterpart(
        "rollout_steps", "theirs are updates: prompts_per_step × group_size / responses_per_update a step"
    ),
    "num_train_epochs": Counterpart(
        "rollout_steps", "an epoch without dynamic sampling is problems / prompts_per_step"
    ),
    "num_iterations": _ONE_PASS,
    "epsilon": Counterpart("clip_eps_low", "clip_eps_high does not follow it: its default is 0.28"),
    "epsilon_high": Counterpart("clip_eps_high"),
    "delta": Counterpart("dual_clip"),
    "loss_type": Counterpart(
        "loss_aggregation",
        "dapo, bnpo: token_level; grpo: sample_level; dr_grpo: constant_length; cispo: loss_variant cispo",
    ),
    "importance_sampling_level": Counterpart(
        "loss_variant", "token: dapo; sequence: gspo, with loss_aggregation sample_level"
    ),
    "scale_rewards": Counterpart("advantage", "group: normalized; none: centred; there is no batch"),
    "mask_truncated_completions": Counterpart("overlong_filtering"),
    "soft_punish_cache": Counterpart("overlong_cache_length", "with soft_overlong_punishment true"),
    "max_completion_len": Counterpart("max_response_length"),
    "reward_funcs": _REWARD,
    "reward_weights": Counterpart("reward_function", "one function gives the whole reward"),
    "reward_model_name_or_path": _NO_REWARD_MODEL,
    "beta": _NO_KL,
    "sync_ref_model": _NO_KL,
    "ref_model_mixup_alpha": _NO_KL,
    "ref_model_sync_steps": _NO_KL,
    "use_bias_correction_kl": _NO_KL,
    "entropy_coef": _NO_ENTROPY,
    "use_adaptive_entropy": _NO_ENTROPY,
    "top_entropy_quantile": _none("all tokens of a response are trained; 1.0 is what happens here"),
    "off_policy_mask_threshold": _none("no sequence is masked; `importance_correction` weighs tokens"),
    "top_k": _TRAINED_IS_SAMPLED,
    "min_p": _TRAINED_IS_SAMPLED,
    "repetition_penalty": _TRAINED_IS_SAMPLED,
    "generation_kwargs": _TRAINED_IS_SAMPLED,
    "use_vllm": _NO_ENGINE,
    "vllm_importance_sampling_*": _CORRECTION,
    "vllm_*": _NO_ENGINE,
    "use_transformers_continuous_batching": Counterpart("sampler", "true: continuous_batching"),
    "use_transformers_paged": Counterpart("sampler", "true: continuous_batching"),
    "ds3_gather_for_generation": Counterpart("rollout_weights", "true: gathered; false: sharded"),
    "adam_epsilon": Counterpart("adam_eps"),
    "warmup_ratio": Counterpart("warmup_steps", "in rollout steps: ratio × rollout_steps"),
    "lr_scheduler_type": _CONSTANT,
    "optim": _none("AdamW"),
    "bf16": Counterpart("precision", "true: bf16; false: fp32"),
    "fp16": Counterpart("precision", "bf16 or fp32; there is no fp16"),
    "disable_dropout": _none("dropout is always off: the trained policy is the sampled one"),
    "use_peft": _ALL_WEIGHTS,
    "lora_*": _ALL_WEIGHTS,
    "shuffle_dataset": _SHUFFLED,
    "data_seed": Counterpart("seed"),
    "logging_steps": _RECORDED,
    "log_completions": _RECORDED,
    "report_to": Counterpart("tracker"),
    "run_name": Counterpart("output_dir"),
    "save_steps": _SAVE,
    "save_strategy": _SAVE,
    "save_total_limit": Counterpart("keep_checkpoints"),
    "eval_steps": Counterpart("evaluate_every", "in rollout steps"),
    "eval_strategy": Counterpart("evaluate_every", "0 is off"),
    "eval_on_start": Counterpart("evaluate_every", "the first evaluation always comes before step 1"),
    "resume_from_checkpoint": Counterpart("resume", "true: the newest whole checkpoint of output_dir"),
    "deepspeed": _LAUNCHER,
    "fsdp*": _LAUNCHER,
    "push_to_hub": _none("`model/` of the run is a plain Hugging Face directory"),
}

VERL = {
    "actor_rollout_ref.model.path": Counterpart("model"),
    "actor_rollout_ref.model.enable_gradient_checkpointing": Counterpart("gradient_checkpointing"),
    "actor_rollout_ref.model.use_remove_padding": Counterpart("packing"),
    "actor_rollout_ref.model.lora_*": _ALL_WEIGHTS,
    "data.train_files": Counterpart("data", "their files are read as they are, repeats are dropped"),
    "data.val_files": Counterpart("eval_data"),
    "data.prompt_key": Counterpart("question_column", "their `prompt` beside `reward_model` needs no name"),
    "data.train_batch_size": Counterpart("prompts_per_step"),
    "data.gen_batch_size": Counterpart(
        "max_prompts_per_round", "at most; a refill asks for what is missing (D4)"
    ),
    "data.max_prompt_length": Counterpart("max_prompt_length", "longer prompts are dropped, not cut"),
    "data.max_response_length": Counterpart("max_response_length"),
    "data.truncation": Counterpart("max_prompt_length", "longer prompts are dropped, not cut"),
    "data.filter_overlong_prompts": Counterpart("max_prompt_length", "longer prompts are always dropped"),
    "data.shuffle": _SHUFFLED,
    "data.seed": Counterpart("seed"),
    "actor_rollout_ref.rollout.n": Counterpart("group_size"),
    "n": Counterpart("group_size"),
    "actor_rollout_ref.rollout.temperature": Counterpart("temperature"),
    "actor_rollout_ref.rollout.top_p": Counterpart("top_p"),
    "actor_rollout_ref.rollout.top_k": _TRAINED_IS_SAMPLED,
    "actor_rollout_ref.rollout.seed": Counterpart("seed"),
    "actor_rollout_ref.rollout.max_num_seqs": Counterpart("rollout_batch_size"),
    "actor_rollout_ref.rollout.log_prob_micro_batch_size*": _MICROBATCH,
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": _MICROBATCH,
    "actor_rollout_ref.rollout.val_kwargs.n": Counterpart("eval_samples_per_problem"),
    "actor_rollout_ref.rollout.val_kwargs.top_p": Counterpart("eval_top_p"),
    "actor_rollout_ref.rollout.val_kwargs.temperature": _none("evaluation samples at 1 (§4.1)"),
    "actor_rollout_ref.rollout.*": _NO_ENGINE,
    "actor_rollout_ref.actor.clip_ratio": Counterpart("clip_eps_low, clip_eps_high"),
    "actor_rollout_ref.actor.clip_ratio_low": Counterpart("clip_eps_low"),
    "actor_rollout_ref.actor.clip_ratio_high": Counterpart("clip_eps_high"),
    "actor_rollout_ref.actor.clip_ratio_c": Counterpart("dual_clip", "their default is 3, ours is off (D3)"),
    "actor_rollout_ref.actor.ppo_mini_batch_size": Counterpart(
        "responses_per_update", "theirs are prompts: times group_size"
    ),
    "actor_rollout_ref.actor.ppo_micro_batch_size*": _MICROBATCH,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": _MICROBATCH,
    "actor_rollout_ref.actor.use_dynamic_bsz": _none("micro-batches always are filled by tokens"),
    "actor_rollout_ref.actor.loss_agg_mode": Counterpart(
        "loss_aggregation",
        "token-mean: token_level; seq-mean-token-mean: sample_level; "
        "seq-mean-token-sum-norm: constant_length",
    ),
    "actor_rollout_ref.actor.use_token_level_loss": Counterpart("loss_aggregation", "true: token_level"),
    "actor_rollout_ref.actor.policy_loss.loss_mode": Counterpart(
        "loss_variant", "vanilla: dapo; gspo; cispo"
    ),
    "actor_rollout_ref.actor.entropy_coeff": _NO_ENTROPY,
    "actor_rollout_ref.actor.use_kl_loss": _NO_KL,
    "actor_rollout_ref.actor.kl_loss_*": _NO_KL,
    "actor_rollout_ref.actor.ppo_epochs": _ONE_PASS,
    "actor_rollout_ref.actor.shuffle": _none("mini-batches hold whole groups in data order (D10)"),
    "actor_rollout_ref.actor.grad_clip": Counterpart("max_grad_norm"),
    "actor_rollout_ref.actor.optim.clip_grad": Counterpart("max_grad_norm"),
    "actor_rollout_ref.actor.optim.lr": Counterpart("learning_rate"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps": Counterpart(
        "warmup_steps", "their first step trains at 0, ours at lr / warm-up (D5)"
    ),
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": Counterpart(
        "warmup_steps", "in rollout steps: ratio × rollout_steps"
    ),
    "actor_rollout_ref.actor.optim.lr_scheduler_type": _CONSTANT,
    "actor_rollout_ref.actor.optim.weight_decay": Counterpart("weight_decay"),
    "actor_rollout_ref.actor.optim.betas": Counterpart("adam_beta1, adam_beta2"),
    "actor_rollout_ref.actor.strategy": _LAUNCHER,
    "actor_rollout_ref.actor.fsdp_config.*": _LAUNCHER,
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": _none("a sequence is computed by one process"),
    "actor_rollout_ref.ref.*": _NO_KL,
    "critic.*": _NO_CRITIC,
    "algorithm.adv_estimator": Counterpart("advantage", "grpo: normalized; rloo: leave_one_out"),
    "algorithm.norm_adv_by_std_in_grpo": Counterpart("advantage", "true: normalized; false: centred"),
    "algorithm.use_kl_in_reward": _NO_KL,
    "algorithm.kl_*": _NO_KL,
    "algorithm.gamma": _none("one advantage for all tokens of a response (Eq. 9)"),
    "algorithm.lam": _none("one advantage for all tokens of a response (Eq. 9)"),
    "algorithm.filter_groups.enable": Counterpart("dynamic_sampling"),
    "algorithm.filter_groups.metric": _none("always the count of right answers (Eq. 11), `acc` there"),
    "algorithm.filter_groups.max_num_gen_batches": Counterpart(
        "max_rounds", "they end with an error: on_round_limit stop"
    ),
    "algorithm.rollout_correction.*": _CORRECTION,
    "overlong_buffer.enable": Counterpart("soft_overlong_punishment"),
    "overlong_buffer.len": Counterpart("overlong_cache_length"),
    "overlong_buffer.penalty_factor": Counterpart("overlong_penalty_factor"),
    "overlong_buffer_cfg.enable": Counterpart("soft_overlong_punishment"),
    "overlong_buffer_cfg.len": Counterpart("overlong_cache_length"),
    "overlong_buffer_cfg.penalty_factor": Counterpart("overlong_penalty_factor"),
    "max_resp_len": Counterpart("max_response_length"),
    "custom_reward_function.path": _REWARD,
    "custom_reward_function.name": _REWARD,
    "reward_model.reward_manager": Counterpart("reward", "dapo is the default"),
    "reward.reward_manager.name": Counterpart("reward", "dapo is the default"),
    "reward_model.*": _NO_REWARD_MODEL,
    "reward.reward_model.*": _NO_REWARD_MODEL,
    "trainer.total_training_steps": Counterpart("rollout_steps"),
    "trainer.total_epochs": Counterpart(
        "rollout_steps", "an epoch without dynamic sampling is problems / prompts_per_step"
    ),
    "trainer.save_freq": Counterpart("checkpoint_every"),
    "trainer.max_actor_ckpt_to_keep": Counterpart("keep_checkpoints"),
    "trainer.test_freq": Counterpart("evaluate_every"),
    "trainer.val_before_train": Counterpart(
        "evaluate_every", "the first evaluation always comes before step 1"
    ),
    "trainer.val_only": _none("`evaluate.py` evaluates"),
    "trainer.default_local_dir": Counterpart("output_dir"),
    "trainer.project_name": Counterpart("output_dir"),
    "trainer.experiment_name": Counterpart("output_dir"),
    "trainer.logger": Counterpart("tracker", "metrics.jsonl is always written"),
    "trainer.resume_mode": Counterpart("resume", "auto: true"),
    "trainer.rollout_data_dir": _RECORDED,
    "trainer.balance_batch": _none("mini-batches hold whole groups in data order (D10)"),
    "trainer.n_gpus_per_node": _LAUNCHER,
    "trainer.nnodes": _LAUNCHER,
}

OPENRLHF = {
    "actor.model_name_or_path": Counterpart("model"),
    "data.prompt_dataset": Counterpart("data"),
    "data.prompt_split": Counterpart("data", "after the name: `org/name:SPLIT`"),
    "data.max_len": Counterpart(
        "max_prompt_length, max_response_length", "one each for prompt and response, not for their sum"
    ),
    "data.prompt_probs": Counterpart("data_weights"),
    "data.input_key": Counterpart("question_column"),
    "data.label_key": Counterpart("answer_column"),
    "rollout.max_new_tokens": Counterpart("max_response_length"),
    "rollout.batch_size": Counterpart("prompts_per_step"),
    "rollout.n_samples_per_prompt": Counterpart("group_size"),
    "n_samples_per_prompt": Counterpart("group_size"),
    "rollout.temperature": Counterpart("temperature"),
    "rollout.top_p": Counterpart("top_p"),
    "rollout.micro_batch_size": _MICROBATCH,
    "rollout.max_tokens_per_gpu": _MICROBATCH,
    "train.batch_size": Counterpart("responses_per_update", "responses in both"),
    "train.micro_batch_size": _MICROBATCH,
    "train.max_tokens_per_gpu": _MICROBATCH,
    "train.max_epochs": _ONE_PASS,
    "train.num_episodes": Counterpart("rollout_steps", "an episode is problems / prompts_per_step of them"),
    "train.seed": Counterpart("seed"),
    "actor.eps_clip": Counterpart("clip_eps_low, clip_eps_high"),
    "actor.eps_clip_low_high": Counterpart("clip_eps_low, clip_eps_high"),
    "actor.dual_clip": Counterpart("dual_clip"),
    "actor.loss_agg_mode": Counterpart(
        "loss_aggregation", "token-mean: token_level; seq-mean-token-mean: sample_level"
    ),
    "actor.policy_loss_type": Counterpart("loss_variant", "ppo: dapo; gspo"),
    "actor.entropy_coef": _NO_ENTROPY,
    "actor.adam.lr": Counterpart("learning_rate"),
    "actor.adam.betas": Counterpart("adam_beta1, adam_beta2"),
    "actor.adam.eps": Counterpart("adam_eps"),
    "actor.adam.weight_decay": Counterpart("weight_decay"),
    "actor.max_norm": Counterpart("max_grad_norm"),
    "actor.lr_warmup_ratio": Counterpart("warmup_steps", "in rollout steps: ratio × rollout_steps"),
    "actor.lr_scheduler": _CONSTANT,
    "actor.gradient_checkpointing_enable": Counterpart("gradient_checkpointing"),
    "algo.advantage.estimator": Counterpart(
        "advantage", "group_norm: normalized; dr_grpo: centred; rloo: leave_one_out"
    ),
    "algo.advantage.no_std_norm": Counterpart("advantage", "true: centred"),
    "algo.advantage.is_correction_*": _CORRECTION,
    "algo.kl.*": _NO_KL,
    "algo.dynamic_filtering_enable": Counterpart("dynamic_sampling"),
    "algo.dynamic_filtering_range": Counterpart("min_pass_rate, max_pass_rate"),
    "reward.overlong_buffer_len": Counterpart("overlong_cache_length", "with soft_overlong_punishment true"),
    "reward.overlong_penalty_factor": Counterpart("overlong_penalty_factor"),
    "reward.remote_url": _REWARD,
    "train.agent_func_path": _REWARD,
    "reward.model_name_or_path": _NO_REWARD_MODEL,
    "critic.*": _NO_CRITIC,
    "vllm.*": _NO_ENGINE,
    "ds.packing_samples": Counterpart("packing"),
    "ds.*": _LAUNCHER,
    "ckpt.output_dir": Counterpart("output_dir"),
    "ckpt.save_steps": _SAVE,
    "ckpt.max_num": Counterpart("keep_checkpoints"),
    "ckpt.load_enable": Counterpart("resume"),
    "eval.dataset": Counterpart("eval_data"),
    "eval.steps": Counterpart("evaluate_every", "in rollout steps"),
    "eval.n_samples_per_prompt": Counterpart("eval_samples_per_problem"),
    "logger.wandb.key": Counterpart("tracker", "wandb reads its key from its own environment"),
}

FRAMEWORKS = {"TRL": TRL, "verl": VERL, "OpenRLHF": OPENRLHF}
PAGE = "docs/coming_from.md"

_OVERRIDE = re.compile(r"[+~]*([A-Za-z_][\w.]*)=.*", re.DOTALL)


def override_key(word: str) -> str | None:
    """The key of an override as verl's command lines have them, `+data.seed=1`; None for any other word."""
    match = _OVERRIDE.fullmatch(word)
    return match[1] if match else None


def counterpart(key: str) -> tuple[str, Counterpart] | None:
    """The project that has a key, and what the key is here.

    A key with dots is also found by its end (`filter_groups.enable`), unless that end means several things,
    and below another beginning (`custom_reward_function.overlong_buffer.len`).
    """
    rows = [(project, row, found) for project, table in FRAMEWORKS.items() for row, found in table.items()]
    for project, row, found in rows:
        if fnmatchcase(key, row) or ("." in row and key.endswith(f".{row}")):
            return project, found
    ends = [(project, found) for project, row, found in rows if row.endswith(f".{key}")]
    return ends[0] if len({found.ours for _, found in ends}) == 1 else None


def answer(key: str, known: Sequence[str]) -> str | None:
    """What a key that another project has is here, in some words; None for a key of no other project.

    Args:
        known: the keys that the command at hand has; a counterpart that is not among them is no answer.
    """
    found = counterpart(key)
    if found is None:
        return None
    project, (ours, note) = found
    if not ours:
        return f"{key!r}: {project}'s, none here: {note}"
    if not set(ours.split(", ")) <= set(known):
        return None
    return f"{key!r}: {project}'s, here {ours}" + (f" ({note})" if note else "")
