"""Groups of responses by HF `generate` (Alg. 1, line 5: sample G outputs for each question).

What is sampled from must be what is trained. Everything that could make them differ is settled here: a
complete generation configuration, so that no default of the model's own (top-k, a repetition penalty, a
temperature) takes part; end tokens taken from the tokenizer *and* the model, which disagree for many base
models; response lengths found from those end tokens once, and everything later measured by length, never by
token id: with pad = end of sequence a mask by id would drop the token that ends the response.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from dapo_ref.config import Sampling
from dapo_ref.data import Problem
from dapo_ref.types import Group, Rollout

Prompt = tuple[Problem, list[int]]


def end_token_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> list[int]:
    """Every token that ends a response: the tokenizer's, and those of the model's own configurations.

    Raises:
        ValueError: none of them names one; such a model would never stop.
    """
    named = [tokenizer.eos_token_id, model.config.eos_token_id]
    if model.generation_config is not None:
        named.append(model.generation_config.eos_token_id)
    ids: set[int] = set()
    for value in named:
        ids.update(value if isinstance(value, list) else [value] if value is not None else [])
    if not ids:
        raise ValueError("neither tokenizer nor model names an end-of-sequence token: set eos_token")
    return sorted(ids)


def generation_config(sampling: Sampling, end_ids: Sequence[int], pad_id: int) -> GenerationConfig:
    """Plain sampling from softmax(z / temperature), cut to the nucleus if top_p < 1, and nothing else."""
    return GenerationConfig(
        do_sample=True,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=0,
        min_p=None,
        typical_p=1.0,
        epsilon_cutoff=0.0,
        eta_cutoff=0.0,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        num_beams=1,
        num_return_sequences=1,
        max_new_tokens=sampling.max_response_length,
        min_new_tokens=None,
        eos_token_id=list(end_ids),
        pad_token_id=pad_id,
        use_cache=True,
    )


def sample_groups(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    end_ids: Sequence[int],
    on_response: Callable[[int], object] = lambda count: None,
) -> list[Group]:
    """Samples G responses to each prompt.

    Args:
        model: in evaluation mode, with full weights, or sharded (`rollout_weights: sharded`), in which case
            all processes must call this with the same number of prompts.
        tokenizer: decodes the responses.
        prompts: (problem, prompt tokens) pairs.
        sampling: group size, cap, temperature, top-p, rows at once.
        end_ids: tokens that end a response.
        on_response: told how many responses have just been finished, for progress.

    Returns:
        One group a prompt, in order, not yet verified.
    """
    rows = [ids for _, ids in prompts for _ in range(sampling.group_size)]
    responses: list[list[int]] = []
    for start in range(0, len(rows), sampling.rollout_batch_size):
        chunk = rows[start : start + sampling.rollout_batch_size]
        responses += _generate(model, chunk, sampling, end_ids)
        on_response(len(chunk))
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    rollouts = [
        Rollout(response_ids=ids, text=text, truncated=ids[-1] not in end_ids)
        for ids, text in zip(responses, texts, strict=True)
    ]
    size = sampling.group_size
    return [
        Group(problem=problem, prompt_ids=ids, rollouts=rollouts[i * size : (i + 1) * size])
        for i, (problem, ids) in enumerate(prompts)
    ]


@torch.no_grad()
def _generate(
    model: PreTrainedModel, rows: Sequence[list[int]], sampling: Sampling, end_ids: Sequence[int]
) -> list[list[int]]:
    """One response a row, its end token included."""
    input_ids, attention_mask = _left_pad(rows, pad_id=end_ids[0], device=model.device)
    output = model.generate(  # type: ignore[operator]
        input_ids=input_ids,
        attention_mask=attention_mask,
        generation_config=generation_config(sampling, end_ids, pad_id=end_ids[0]),
        synced_gpus=sampling.rollout_weights == "sharded",
    )
    return [cut_at_end(ids, end_ids) for ids in output[:, input_ids.shape[1] :].tolist()]


def cut_at_end(ids: list[int], end_ids: Sequence[int]) -> list[int]:
    """The tokens up to the first end token, that token included; all of them if there is none."""
    for position, token in enumerate(ids):
        if token in end_ids:
            return ids[: position + 1]
    return ids


def _left_pad(rows: Sequence[list[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    input_ids = torch.full((len(rows), width), pad_id)
    attention_mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        input_ids[i, width - len(row) :] = torch.tensor(row)
        attention_mask[i, width - len(row) :] = 1
    return input_ids.to(device), attention_mask.to(device)
