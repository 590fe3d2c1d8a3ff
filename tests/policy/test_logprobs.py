"""`dapo_ref/policy/logprobs.py`: the chunked head against the plain log-softmax, in value, gradient and
alignment."""

import dataclasses

import pytest
import torch
from torch import nn

from dapo_ref.policy import logprobs as module
from dapo_ref.policy.batching import microbatches
from dapo_ref.policy.logprobs import LogprobHead, Policy, token_logprobs
from tests.support.helpers import filled_batch, random_groups, random_llama, reference_logprobs

GROUPS = random_groups([[1, 7, 12], [5, 2, 9]])


def plain(hidden, weight, bias, targets, temperature):
    logits = torch.nn.functional.linear(hidden, weight, bias) / temperature
    logp = torch.log_softmax(logits, dim=-1)
    return logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(dim=-1)


@pytest.mark.parametrize("chunk_elements", [1, 3 * 11, 2**25], ids=["one token", "three tokens", "all"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_equal_the_plain_path(monkeypatch, chunk_elements, with_bias, temperature):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk_elements)
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(7, 5), torch.randn(11, 5), torch.randn(11)
    targets, upstream = torch.randint(11, (7,)), torch.randn(7)
    inputs = [hidden, weight, bias] if with_bias else [hidden, weight]
    results = []
    for function in (plain, token_logprobs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        logp, entropy = function(leaves[0], leaves[1], leaves[2] if with_bias else None, targets, temperature)
        grads = torch.autograd.grad((logp * upstream).sum(), leaves)
        results.append([logp.detach(), entropy.detach(), *grads])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_bf16_weight_adds_up_over_chunks(monkeypatch):
    """7 tokens, 2 a chunk. A bf16 number has 8 bits, each factor and the sum round to 2⁻⁹ of themselves: 3 %
    of the largest gradient is ample, and the last chunk alone is one token of seven."""
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 2 * 11)
    torch.manual_seed(0)
    hidden, weight = torch.randn(7, 5).bfloat16(), torch.randn(11, 5).bfloat16()
    targets = torch.randint(11, (7,))
    grads = []
    for function, dtype in ((plain, torch.float32), (token_logprobs, torch.bfloat16)):
        leaf = weight.to(dtype).requires_grad_()
        logp, _ = function(hidden.to(dtype), leaf, None, targets, 1.0)
        grads.append(torch.autograd.grad(logp.sum(), leaf)[0].float())
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=0.03 * grads[0].abs().max().item())


def test_gradient_is_softmax_minus_one_hot_by_hand():
    # Two words with logits (ln 3, 0): π = (3/4, 1/4). d log π(word 0) / dz = (1 − 3/4, −1/4) = (0.25, −0.25);
    # at temperature 1 the logits are bias, so that is the gradient of the bias.
    bias = torch.tensor([3.0, 1.0]).log().requires_grad_()
    weight = torch.zeros(2, 1, requires_grad=True)
    logp, entropy = token_logprobs(torch.ones(1, 1), weight, bias, torch.tensor([0]))
    logp.sum().backward()
    assert logp.item() == pytest.approx(torch.tensor(0.75).log().item(), abs=1e-7)
    # H = −(3/4 ln 3/4 + 1/4 ln 1/4) = 0.562335
    assert entropy.item() == pytest.approx(0.562335, abs=1e-6)
    torch.testing.assert_close(bias.grad, torch.tensor([0.25, -0.25]))


def test_entropy_does_not_grow_with_the_size_of_the_logits():
    """Beside float64. At 500 a float32 is known to 2⁻¹⁵ = 3.05e-5, and so is log Z. A log Z that is off by δ
    moves −Σ p·log p by δ·(H − 1); H is about ln 50 = 3.9, so by 8.9e-5 at most."""
    torch.manual_seed(0)
    for shift in (-500.0, -340.0, 0.0, 340.0, 500.0):
        bias = shift + torch.rand(50)
        _, entropy = token_logprobs(torch.zeros(1, 1), torch.zeros(50, 1), bias, torch.tensor([0]))
        logp = bias.double().log_softmax(dim=0)
        assert entropy.item() == pytest.approx(-(logp.exp() * logp).sum().item(), abs=1e-4), shift


def test_no_logits_are_kept_for_backward(monkeypatch):
    # 64 tokens × 1000 words: 64,000 logits. Saved tensors: hidden 64 × 8, weight 1000 × 8, targets and
    # norms 64.
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        hidden = torch.randn(64, 8, requires_grad=True)
        token_logprobs(
            hidden, torch.randn(1000, 8, requires_grad=True), None, torch.zeros(64, dtype=torch.long)
        )
    assert sum(saved) == 64 * 8 + 1000 * 8 + 2 * 64


def test_no_more_logits_than_a_chunk_are_made_at_once(monkeypatch):
    # 7 tokens × 11 words at 22 logits a chunk: 2, 2, 2 and 1 tokens, and the same again in the backward pass.
    made = []
    plain_logits = module._scaled_logits
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 22)
    monkeypatch.setattr(
        module, "_scaled_logits", lambda *args: made.append(len(args[0])) or plain_logits(*args)
    )
    hidden = torch.randn(7, 5, requires_grad=True)
    logp, _ = token_logprobs(hidden, torch.randn(11, 5), None, torch.zeros(7, dtype=torch.long))
    assert made == [2, 2, 2, 1]
    logp.sum().backward()
    assert made == [2, 2, 2, 1] * 2


def test_no_tokens_give_zero_gradients_and_keep_the_graph():
    weight = torch.randn(4, 3, requires_grad=True)
    hidden = torch.randn(0, 3, requires_grad=True)
    logp, _ = token_logprobs(hidden, weight, None, torch.zeros(0, dtype=torch.long))
    logp.sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.zeros(4, 3))


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("own_head", [True, False], ids=["own head", "head in chunks"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_policy_equals_one_row_at_a_time(packed, own_head, tied, temperature):
    model = random_llama(tied)
    batch = filled_batch(GROUPS)
    rows = range(len(batch))
    expected = [
        reference_logprobs(model, batch.prompt_ids[r], batch.response_ids[r], temperature) for r in rows
    ]
    policy = Policy(model, packed, own_head)
    for micro in microbatches(batch, list(rows), 60, 1, 0, packed):
        with torch.no_grad():
            logp, entropy = policy(micro, temperature)
        for i, row in enumerate(micro.rows):
            n = len(batch.response_ids[row])
            torch.testing.assert_close(logp[i, :n], expected[row][0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(entropy[i, :n], expected[row][1], rtol=1e-4, atol=1e-5)
            assert torch.equal(logp[i, n:], torch.zeros_like(logp[i, n:]))


def test_end_of_sequence_token_is_trained_where_pad_is_end():
    # Row 0 is [prompt, 1 token = end]; the mask holds it although its id is the padding's.
    batch = filled_batch(random_groups([[1, 4]]))
    (micro,) = microbatches(batch, [0, 1], 100, 1, 0)
    end = micro.rows.index(0)
    assert micro.response_mask[end].tolist() == [True, False, False, False]
    policy = Policy(random_llama(pad_token_id=2))
    logp, _ = policy(micro, 1.0)
    assert logp[end, 0] != 0


def test_what_stands_in_the_padding_changes_nothing():
    batch = filled_batch(GROUPS)
    (micro,) = microbatches(batch, list(range(6)), 10_000, 1, 0, packed=False)
    policy = Policy(random_llama(), packed=False)
    results = []
    for fill in (0, 5):
        ids = micro.input_ids.clone()
        for i, row in enumerate(micro.rows):
            ids[i, len(batch.prompt_ids[row]) + len(batch.response_ids[row]) :] = fill
        policy.zero_grad()
        logp, _ = policy(dataclasses.replace(micro, input_ids=ids), 1.0)
        logp.sum().backward()
        body = [p.grad.clone() for n, p in policy.named_parameters() if "embed" not in n]
        results.append([logp.detach(), *body])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_head_still_gives_logits_for_generation():
    head = nn.Linear(3, 5)
    x = torch.randn(2, 3)
    expected = head(x)
    head.__class__ = LogprobHead
    assert torch.equal(head(x), expected)


@pytest.mark.parametrize("chunk_elements", [2 * 11, 2**25], ids=["two tokens", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_beyond_the_tokenizer_have_no_share(monkeypatch, chunk_elements, dtype):
    """A vocabulary of 11 of which 9 are tokens is one of 9; the other rows get no gradient."""
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk_elements)
    torch.manual_seed(0)
    hidden, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((7, 5), (11, 5), (11,)))
    targets, upstream = torch.randint(9, (7,)), torch.randn(7)
    results = []
    for rows, known in ((9, None), (11, 9)):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight[:rows], bias[:rows])]
        logp, entropy = token_logprobs(*leaves, targets, 0.7, known)
        grads = torch.autograd.grad((logp * upstream).sum(), leaves)
        results.append([logp.detach(), entropy, *grads])
    assert [grad[9:].abs().sum() for grad in results[1][3:]] == [0, 0]
    results[1][3:] = [grad[:9] for grad in results[1][3:]]
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("own_head", [False, True])
def test_a_policy_of_a_padded_vocabulary_is_one_over_its_tokens(own_head):
    model = random_llama(vocab_size=160)
    batch = filled_batch(GROUPS)
    expected = []
    for prompt, response in zip(batch.prompt_ids, batch.response_ids, strict=True):
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1, :99]
        expected.append(logits.log_softmax(dim=-1).gather(1, torch.tensor(response)[:, None])[:, 0])
    policy = Policy(model, own_head=own_head)
    policy.num_tokens = 99
    (micro,) = microbatches(batch, list(range(6)), 10_000, 1, 0)
    with torch.no_grad():
        logp, _ = policy(micro, 1.0)
    for i, row in enumerate(micro.rows):
        found = logp[i, : len(batch.response_ids[row])]
        torch.testing.assert_close(found, expected[row], rtol=1e-4, atol=1e-5)
