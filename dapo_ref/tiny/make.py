"""Makes the shipped tiny model: `python -m dapo_ref.tiny.make --output DIR`.

The paper starts from a pretrained base model (§4.1); this file is the pretraining of the embedded default.
It generates demonstrations of mixed quality, builds a vocabulary of a few dozen tokens, trains a Llama of
about a million parameters on them by next-token prediction, and writes a Hugging Face directory. Nothing
here is reinforcement learning.

The demonstrations leave each of DAPO's four techniques something to do. A careful solver splits every number
into tens and units; a brisk one takes a number a line; a careless one writes the result down at once; a
rambling one starts over again and again and may never answer. Every solver slips now and then. So the start
model is sometimes right (mixed groups for dynamic sampling), the better behaviour is there but not dominant
(Clip-Higher), lengths vary widely (token-level loss), and some responses run into the cap (soft overlong
punishment).
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dapo_ref.tiny.tasks import generate

PAD, BOS, EOS, UNK = "<|pad|>", "<|bos|>", "<|end|>", "<|unk|>"
_PIECES = [*"0123456789", " + ", " - ", " = ", "?", "\n", "Answer: ", "Hmm\n", "Wait\n"]
_CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ bos_token + message['content'] + '\n' }}{% endif %}{% endfor %}"
)
WARMUP_STEPS = 100
TYPICAL_TOKENS = 30  # of a response; scales the loss
_MAX_TOKENS = 112  # of a demonstration, prompt included; a longer one (rambling) is cut and has no end token

_SLIPS = {"careful": 0.01, "brisk": 0.06, "careless": 0.4, "rambling": 0.06}  # chance of a slip in a line
_LESSON = {"careful": 1.0}
_CROWD = {"careful": 0.32, "brisk": 0.22, "careless": 0.22, "rambling": 0.24}


# ----------------------------------------------------------------------------------------------------
# Demonstrations


def demonstrate(question: str, solver: str, rng: random.Random) -> str:
    """A worked response to a question of the `tiny` task, as that solver would write it; it may be wrong."""
    start, terms = _parse(question)
    slip = _SLIPS[solver]
    if solver == "careless":
        result = _slipped(start + sum(terms), slip, rng)
        return f"{question.removesuffix('?')}{result}\nAnswer: {result}"
    if solver == "rambling":
        text = "Hmm\n"
        for _ in range(rng.randint(2, 12)):
            lines, result = _steps(start, terms, slip, rng)
            text += lines + "Wait\n"
        return text.removesuffix("Wait\n") + f"Answer: {result}"
    lines, result = _steps(start, _tens_and_units(terms) if solver == "careful" else terms, slip, rng)
    return f"{lines}Answer: {result}"


def _parse(question: str) -> tuple[int, list[int]]:
    words = question.split()[:-2]
    return int(words[0]), [int(sign + number) for sign, number in zip(words[1::2], words[2::2], strict=True)]


def _tens_and_units(terms: list[int]) -> list[int]:
    parts = []
    for term in terms:
        sign = 1 if term > 0 else -1
        tens, units = divmod(abs(term), 10)
        parts += [sign * part for part in (10 * tens, units) if part]
    return parts


def _steps(total: int, terms: list[int], slip: float, rng: random.Random) -> tuple[str, int]:
    """One line a term, `47 + 38 = 85`; a slip is carried on from, as a person would."""
    text = ""
    for term in terms:
        before = total
        total = _slipped(total + term, slip, rng)
        text += f"{before} {'+' if term > 0 else '-'} {abs(term)} = {total}\n"
    return text, total


def _slipped(value: int, slip: float, rng: random.Random) -> int:
    """The value, or with probability `slip` one that is off in a digit; never negative."""
    if rng.random() >= slip:
        return value
    return abs(value + rng.choice((-10, -2, -1, 1, 2, 10)))


# ----------------------------------------------------------------------------------------------------
# Tokenizer and model


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A closed vocabulary: digits, operators with their spaces, and the few words the solvers use."""
    return tokenizer_of(_PIECES, r" [-+=] |Answer: |Hmm\n|Wait\n|\n|[0-9]|\?")


def tokenizer_of(pieces: Sequence[str], pattern: str) -> PreTrainedTokenizerFast:
    """A closed vocabulary: `pattern` cuts text into pieces, each of which is a token."""
    vocab = {piece: i for i, piece in enumerate([PAD, BOS, EOS, UNK, *pieces])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
    fast.chat_template = _CHAT_TEMPLATE
    return fast


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of 0.96 M parameters."""
    return llama(tokenizer, hidden_size=128, intermediate_size=448, num_hidden_layers=4)


def llama(tokenizer: PreTrainedTokenizerFast, **sizes: Any) -> LlamaForCausalLM:
    """A Llama with four heads, embeddings tied, float32."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **sizes,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


# ----------------------------------------------------------------------------------------------------
# Supervised training


def encode_demonstrations(
    tokenizer: PreTrainedTokenizerFast, problems: list[dict[str, str]], shares: dict[str, float], seed: int
) -> list[tuple[list[int], int]]:
    """`(token ids, number of prompt tokens)`, one demonstration a problem."""
    rng = random.Random(seed)
    examples = []
    for problem in problems:
        solver = rng.choices(list(shares), list(shares.values()))[0]
        response = demonstrate(problem["question"], solver, rng)
        messages = [{"role": "user", "content": problem["question"]}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
        response_ids = tokenizer.encode(response + EOS, add_special_tokens=False)
        examples.append(((prompt_ids + response_ids)[:_MAX_TOKENS], len(prompt_ids)))
    return examples


def batches(
    examples: list[tuple[list[int], int]], size: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """`(input_ids, labels)`, both [size, T], right-padded; a batch holds examples of like length."""
    rng = random.Random(seed)
    by_length = sorted(examples, key=lambda example: (len(example[0]), rng.random()))
    chunks = [by_length[i : i + size] for i in range(0, len(by_length) - size + 1, size)]
    rng.shuffle(chunks)
    for chunk in chunks:
        width = max(len(ids) for ids, _ in chunk)
        input_ids = torch.zeros(size, width, dtype=torch.long)
        labels = torch.full((size, width), -100)
        for row, (ids, prompt_tokens) in enumerate(chunk):
            input_ids[row, : len(ids)] = torch.tensor(ids)
            labels[row, prompt_tokens : len(ids)] = torch.tensor(ids[prompt_tokens:])
        yield input_ids, labels


def train(
    model: LlamaForCausalLM,
    phases: list[list[tuple[list[int], int]]],
    *,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> None:
    """One pass over the phases; the learning rate warms up, stays, and falls to zero over the second half."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    stream = [batch for phase in phases for batch in batches(phase, batch_size, seed)]
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP_STEPS, 2 * (1 - step / len(stream)), 1.0)
    )
    progress = tqdm(stream, desc="supervised", unit="batch")
    for input_ids, labels in progress:
        logits = model(input_ids=input_ids).logits
        # summed, and divided by a constant: a mean would give a token of a long batch less weight, and the
        # long-winded solver would come out rarer than it is
        total = F.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
        )
        loss = total / (batch_size * TYPICAL_TOKENS)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        progress.set_postfix(loss=f"{loss.item():.3f}")


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, output: Path) -> None:
    """A plain Hugging Face directory. Weights are stored in bfloat16 and load as float32."""
    output.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    weights = output / "model.safetensors"
    state = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(weights).items()}
    save_file(state, weights, metadata={"format": "pt"})


def main() -> None:
    """Command line: demonstrations, tokenizer, training, export."""
    parser = argparse.ArgumentParser(description="Make the tiny warm-started model of dapo_ref.")
    parser.add_argument("--output", type=Path, required=True, help="directory to write")
    parser.add_argument("--lesson", type=int, default=56_000, help="demonstrations by the careful solver")
    parser.add_argument("--crowd", type=int, default=12_000, help="demonstrations by all the solvers")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    problems = generate("tiny", "train", args.lesson + args.crowd, args.seed)
    lesson = encode_demonstrations(tokenizer, problems[: args.lesson], _LESSON, args.seed)
    crowd = encode_demonstrations(tokenizer, problems[args.lesson :], _CROWD, args.seed)
    train(
        model, [lesson, crowd], batch_size=args.batch_size, learning_rate=args.learning_rate, seed=args.seed
    )
    save(model, tokenizer, args.output)


if __name__ == "__main__":
    main()
