"""Groups of responses by HF `generate` (Alg. 1, line 4: sample G outputs for each question).

What is sampled from must be what is trained. Everything that could make them differ is settled here: a
complete generation configuration, so that no default of the model's own (top-k, a repetition penalty, a
temperature) takes part; end tokens taken from the tokenizer *and* the model, which disagree for many base
models; response lengths found from those end tokens once, and everything later measured by length, never by
token id: with pad = end of sequence a mask by id would drop the token that ends the response.

Where the time goes, and what is done about it (each response is the same distribution as without):

    what all prompts begin with (instructions, worked examples) is prefilled once, each prompt's own rest
    once a problem, and its cache is repeated G times;
    `generate` runs in segments: once a share of the rows has ended, it stops, they leave the batch, and it
    goes on with the cache of the others, so that a few long responses are not accompanied by finished ones;
    rows that wait take the places that become free, as far as the cache has room for them (`waiting.py`).

Dimension key: b rows in the batch, W columns (left-padded prompts and what was generated so far), G
responses a prompt.
"""

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)

from dapo_ref.config import Sampling
from dapo_ref.data import Problem
from dapo_ref.policy.columns import EachToken, EnoughEnded, LogprobRecorder
from dapo_ref.policy.keyed import KeyedSampling
from dapo_ref.policy.kv_cache import Rows, can_be_repacked, merge, roomy_cache, select
from dapo_ref.policy.packing import shared_prefix_length
from dapo_ref.policy.pretrained import end_tokens, known_tokens
from dapo_ref.policy.waiting import Queue, Waiting, token_budget
from dapo_ref.types import Group, Rollout

Prompt = tuple[Problem, list[int]]
OnResponse = Callable[[Problem, Rollout], object]
OnToken = Callable[[], None]


def end_token_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> list[int]:
    """Every token that ends a response, as tokenizer and model name them; see `pretrained.end_tokens`."""
    return end_tokens(tokenizer, model.config, model.generation_config)


def generation_config(
    sampling: Sampling, end_ids: Sequence[int], pad_id: int, unknown: Sequence[int] = ()
) -> GenerationConfig:
    """Plain sampling from softmax(z / temperature), cut to the nucleus if top_p < 1, and nothing else; never
    a token that is unknown to the tokenizer."""
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
        suppress_tokens=list(unknown) or None,
        use_cache=True,
    )


def sample_groups(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    end_ids: Sequence[int],
    on_response: OnResponse = lambda problem, rollout: None,
    on_token: OnToken = lambda: None,
    keys: Sequence[int] | None = None,
) -> list[Group]:
    """Samples G responses to each prompt.

    Args:
        model: in evaluation mode, with full weights, or sharded (`rollout_weights: sharded`), in which case
            all processes must call this with the same number of prompts.
        tokenizer: decodes the responses.
        prompts: (problem, prompt tokens) pairs.
        sampling: group size, cap, temperature, top-p, rows at once.
        end_ids: tokens that end a response.
        on_response: told of each response as soon as it has ended, while others are still sampled.
        on_token: called after each column; what it raises ends the sampling.
        keys: one a response, which then follows from prompt and key alone (`keyed.py`); without, responses
            follow from torch's generator.

    Returns:
        One group a prompt, in order, not yet verified.
    """
    rollouts: dict[int, Rollout] = {}

    def finish(row: int, ids: list[int], logprobs: Sequence[float]) -> None:
        (text,) = tokenizer.batch_decode([ids], skip_special_tokens=True)
        rollouts[row] = Rollout(ids, text, truncated=ids[-1] not in end_ids, logprobs=logprobs)
        on_response(prompts[row // size][0], rollouts[row])

    size = sampling.group_size
    sampler = _Sampler(model, sampling, end_ids, finish, on_token, keys, known_tokens(tokenizer, end_ids))
    token_lists = [ids for _, ids in prompts]
    if sampling.sampler == "continuous_batching" and keys is None:
        sampler.run_continuously(token_lists)
    elif sampling.rollout_weights == "sharded" or not can_be_repacked(model):
        sampler.run_in_step(token_lists)
    else:
        sampler.run(token_lists)
    return [
        Group(problem, ids, [rollouts[i * size + g] for g in range(size)])
        for i, (problem, ids) in enumerate(prompts)
    ]


class _Sampler:
    """Samples rows, row g of prompt i being number i·G + g, and hands each on as it ends."""

    def __init__(
        self,
        model: PreTrainedModel,
        sampling: Sampling,
        end_ids: Sequence[int],
        finish: Callable[[int, list[int], Sequence[float]], None],
        on_token: OnToken,
        keys: Sequence[int] | None,
        num_tokens: int,
    ) -> None:
        self.model = model
        self.sampling = sampling
        self.end_ids = end_ids
        self.ends = torch.tensor(end_ids, device=model.device)
        self.on_token = on_token
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        self.unknown = range(num_tokens, vocabulary)  # rows of a padded vocabulary
        self._finish = finish
        self._keys = None if keys is None else torch.tensor(keys, dtype=torch.int64, device=model.device)
        self._logprobs: dict[int, array[float]] = {}  # of each row's tokens so far

    def finish(self, row: int, ids: list[int]) -> None:
        """Hands on a response that has ended."""
        self._finish(row, ids, self._logprobs.pop(row, array("f"))[: len(ids)])

    @torch.no_grad()
    def run(self, prompts: Sequence[list[int]]) -> None:
        """In segments, with full weights and without any collective: processes need not agree on anything."""
        budget = token_budget(self.model, self.sampling.rollout_kv_tokens)
        capacity = self.sampling.rollout_batch_size
        queue = Queue(prompts, self.sampling.group_size, capacity, budget)
        rows: Rows | None = None
        while rows is not None or queue:
            num_rows, width = (len(rows.index), rows.ids.shape[1]) if rows else (0, 0)
            admitted = queue.admit(num_rows, width)
            if admitted:
                fresh = self._prefill(admitted)
                rows = merge(rows, fresh) if rows else fresh
            assert rows is not None
            rows = self._segment(rows, queue.last_column(len(rows.index)))
            if rows is not None:
                rows = queue.put_back(rows)

    @torch.no_grad()
    def run_in_step(self, prompts: Sequence[list[int]]) -> None:
        """One uninterrupted `generate` for each batch of rows. On sharded weights all processes make the same
        calls, and `synced_gpus` keeps them going until the last has ended."""
        rows = [ids for ids in prompts for _ in range(self.sampling.group_size)]
        for first in range(0, len(rows), self.sampling.rollout_batch_size):
            ids, mask = _left_pad(
                rows[first : first + self.sampling.rollout_batch_size], self.end_ids[0], self.model.device
            )
            output = self._generate(
                ids,
                mask,
                list(range(first, first + len(ids))),
                torch.full((len(ids),), ids.shape[1], device=ids.device),
                max_new_tokens=self.sampling.max_response_length,
                synced_gpus=self.sampling.rollout_weights == "sharded",
            )
            for i, response in enumerate(output.sequences[:, ids.shape[1] :].tolist()):
                self.finish(first + i, cut_at_end(response, self.end_ids))

    @torch.no_grad()
    def run_continuously(self, prompts: Sequence[list[int]]) -> None:
        """By transformers' continuous batching: a paged cache, blocks of the prompt shared by its rows, a row
        that ends replaced at once. Which row draws which random number depends on its scheduling.

        Raises:
            RuntimeError: transformers ended it or left a row out; it reports that in its log alone.
        """
        size = self.sampling.group_size
        rows = [ids for ids in prompts for _ in range(size)]
        config = generation_config(self.sampling, self.end_ids, self.end_ids[0], self.unknown)
        batching = ContinuousBatchingConfig(
            max_requests_per_batch=self.sampling.rollout_batch_size,
            # CPU: what is reserved is also written to, so take little of the memory.
            max_memory_percent=0.05 if self.model.device.type == "cpu" else None,
            seed=int(torch.randint(2**31, ())),
            drop_unsupported_processors=False,
            return_logprobs=self.sampling.top_p == 1,  # they are those after the cut to the nucleus
        )
        with self.model.continuous_batching_context_manager(  # type: ignore[operator]
            generation_config=config, continuous_batching_config=batching, timeout=60.0
        ) as manager:
            requests = manager.add_requests(rows, max_new_tokens=self.sampling.max_response_length)
            row_of = {request: row for row, request in enumerate(requests)}
            while row_of:
                result = manager.get_result(timeout=1.0)
                self.on_token()
                if result is not None and result.error is not None:
                    raise RuntimeError(f"continuous batching failed: {result.error}")
                if result is not None and result.is_finished():
                    row = row_of.pop(result.request_id)
                    self._logprobs[row] = array("f", result.logprobs)
                    self.finish(row, cut_at_end(result.generated_tokens, self.end_ids))
                elif result is None and not manager.is_running():
                    raise RuntimeError("continuous batching ended before all responses had; see the log")

    def _prefill(self, admitted: Sequence[Waiting]) -> Rows:
        """Runs all but the last token of each prompt through the model once, for all rows of the prompt.

        The columns are: what all prompts begin with, padding, the rest of each prompt."""
        prompts = [item.tokens for item in admitted]
        shared = shared_prefix_length(prompts)
        ids, mask = _left_pad([prompt[shared:] for prompt in prompts], self.end_ids[0], self.model.device)
        beginning = torch.tensor(prompts[0][:shared], dtype=torch.long, device=ids.device)
        ids = torch.cat([beginning.expand(len(ids), -1), ids], dim=1)
        mask = torch.cat([torch.ones_like(ids[:, :shared]), mask], dim=1)
        cache = roomy_cache(self.model) if ids.shape[1] > 1 else None
        if cache is not None and shared:
            self._fill(cache, ids[:1, :shared], mask[:1, :shared])
            cache.batch_select_indices(torch.zeros(len(ids), dtype=torch.long, device=ids.device))
        if cache is not None and ids.shape[1] > shared + 1:
            self._fill(cache, ids[:, shared:-1], mask[:, :-1])
        counts = torch.tensor([len(item.index) for item in admitted], device=ids.device)
        repeat = torch.arange(len(prompts), device=ids.device).repeat_interleave(counts)
        if cache is not None:
            cache.batch_select_indices(repeat)
        starts = ids.shape[1] - torch.tensor([item.generated for item in admitted], device=ids.device)
        index = [row for item in admitted for row in item.index]
        return Rows(index, ids[repeat], mask[repeat], starts[repeat], cache)

    def _fill(self, cache: DynamicCache, ids: Tensor, mask: Tensor) -> None:
        """Runs columns through the model; the mask covers those in the cache too."""
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        self.model.base_model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions[:, -ids.shape[1] :],
            cache=cache,
            use_cache=True,
        )

    def _segment(self, rows: Rows, last_column: float = math.inf) -> Rows | None:
        """Generates until enough rows have ended, or there are so many columns; hands on those that have and
        returns the others."""
        cap = self.sampling.max_response_length
        width = rows.ids.shape[1]
        stop = EnoughEnded(self.ends, rows.starts + cap, last_column)
        output = self._generate(
            rows.ids,
            rows.mask,
            rows.index,
            rows.starts,
            max_new_tokens=cap - int((width - rows.starts).min()),
            cache=rows.cache,
            stop=stop,
        )
        added = torch.ones_like(output.sequences[:, width:])
        rows = Rows(
            rows.index, output.sequences, torch.cat([rows.mask, added], dim=1), rows.starts, output.cache
        )
        responses = rows.ids.tolist()
        for i in stop.ended.nonzero().flatten().tolist():
            start = int(rows.starts[i])
            self.finish(rows.index[i], cut_at_end(responses[i][start : start + cap], self.end_ids))
        going_on = (~stop.ended).nonzero().flatten()
        return select(rows, going_on) if len(going_on) else None

    def _generate(
        self,
        ids: Tensor,
        mask: Tensor,
        index: Sequence[int],
        starts: Tensor,
        max_new_tokens: int,
        stop: EnoughEnded | None = None,
        **kwargs: Any,
    ) -> Any:
        config = generation_config(self.sampling, self.end_ids, self.end_ids[0], self.unknown)
        config.max_new_tokens = max_new_tokens
        config.return_dict_in_generate = True
        kwargs.setdefault("synced_gpus", False)
        recorder = LogprobRecorder(self.sampling.temperature)
        criteria = [EachToken(recorder, self.on_token)]
        kwargs["stopping_criteria"] = StoppingCriteriaList(criteria if stop is None else [stop, *criteria])
        kwargs["logits_processor"] = LogitsProcessorList([recorder])
        if kwargs.get("cache") is None:
            kwargs.pop("cache", None)
        if self._keys is not None:
            config.do_sample, config.temperature, config.top_p, config.top_k = False, 1.0, 1.0, None
            sampling = self.sampling
            keyed = KeyedSampling(self._keys[list(index)], starts, sampling.temperature, sampling.top_p)
            kwargs["logits_processor"].append(keyed)
        output = self.model.generate(  # type: ignore[operator]
            input_ids=ids, attention_mask=mask, generation_config=config, **kwargs
        )
        for row, logprobs in zip(index, torch.stack(recorder.columns, dim=1).tolist(), strict=True):
            self._logprobs.setdefault(row, array("f")).extend(logprobs)
        return output


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
