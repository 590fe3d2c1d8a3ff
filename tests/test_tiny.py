"""The tiny task and its model: right answers, disjoint splits, exact text, and room for DAPO to work in."""

import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from dapo_ref.tiny import MODEL_DIR, make
from dapo_ref.tiny.tasks import _NAMES, _OBJECTS, TASKS, generate, split_of

CAP = 56  # tokens, as in the tiny configuration
EXPRESSION_TASKS = ["tiny", "one_digit_sums", "one_digit_products", "two_digit_sums", "three_term_sums"]
STORY_TASKS = ["one_step_word_problems", "two_step_word_problems"]


def evaluate(expression: str) -> int:
    """Left to right, by hand: an independent reading of `7 + 5 - 2` or `3 * 4`."""
    words = expression.split()
    total = int(words[0])
    for operator, number in zip(words[1::2], words[2::2], strict=True):
        total = {"+": total + int(number), "-": total - int(number), "*": total * int(number)}[operator]
    return total


@pytest.mark.parametrize("task", EXPRESSION_TASKS)
def test_answers_of_expressions_are_right(task: str) -> None:
    count = 30 if task.startswith("one_digit") else 300
    for problem in generate(task, "train", count, seed=3):
        (expression,) = re.findall(r"\d+(?: [-+*] \d+)+", problem["question"])
        assert int(problem["answer"]) == evaluate(expression), problem


# One hand-written rule per story, found by words that occur in that story alone.
STORY_RULES = {
    "and finds": lambda a, b: a + b,
    "on the table": lambda a, b: a + b,
    "to school": lambda a, b: a + b,
    "gave": lambda a, b: a - b,
    "A box held": lambda a, b: a - b,
    "more than": lambda a, b: a - b,
    "bags": lambda a, b: a * b,
    "children": lambda a, b: a * b,
    "then loses": lambda a, b, c: a + b - c,
    "starts the day": lambda a, b, c: a - b + c,
    "boxes": lambda a, b, c: a * b + c,
    "A shop": lambda a, b, c: a * b - c,
    "collected": lambda a, b: 2 * a + b,
    "times as many": lambda a, b: a * (b + 1),
    "neighbour": lambda a, b, c: c - (a + b),
}


@pytest.mark.parametrize("task", STORY_TASKS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_answers_of_stories_are_right(task: str, split: str) -> None:
    priority = ["neighbour", "collected", *STORY_RULES]  # these two share a word with another story
    for problem in generate(task, split, 300, seed=5):  # type: ignore[arg-type]
        rule = STORY_RULES[next(words for words in priority if words in problem["question"])]
        numbers = [int(number) for number in re.findall(r"\d+", problem["question"])]
        assert int(problem["answer"]) == rule(*numbers) > 0, problem


@pytest.mark.parametrize("task", sorted(TASKS))
def test_same_arguments_same_problems_and_a_larger_count_continues(task: str) -> None:
    short, long = generate(task, "test", 10, seed=1), generate(task, "test", 25, seed=1)
    assert long[:10] == short
    assert generate(task, "test", 25, seed=1) == long
    assert generate(task, "test", 25, seed=2) != long
    assert len({problem["question"] for problem in long}) == 25


@pytest.mark.parametrize("task", sorted(TASKS))
def test_splits_are_disjoint_whatever_the_seeds(task: str) -> None:
    def operands(split: str, seed: int) -> set[tuple[str, ...]]:
        """The signed numbers of every question, in no order (for the mixture, its whole text)."""
        questions = [p["question"] for p in generate(task, split, 25, seed)]  # type: ignore[arg-type]
        if task == "mixture":
            return {(question,) for question in questions}
        return {tuple(sorted(re.findall(r"(?:- )?\d+", question))) for question in questions}

    train = set().union(*(operands("train", seed) for seed in range(8)))
    test = set().union(*(operands("test", seed) for seed in range(8)))
    assert not train & test


def test_word_problems_hold_out_names_and_objects() -> None:
    assert not set(_NAMES["train"].split()) & set(_NAMES["test"].split())
    assert not set(_OBJECTS["train"].split()) & set(_OBJECTS["test"].split())
    text = " ".join(p["question"] for task in STORY_TASKS for p in generate(task, "test", 300, seed=0))
    assert not set(re.findall(r"\w+", text)) & {*_NAMES["train"].split(), *_OBJECTS["train"].split()}


def test_the_split_belongs_to_the_key_and_a_fifth_of_the_keys_is_test() -> None:
    share = sum(split_of(f"tiny {[i, j]}") == "test" for i in range(100) for j in range(100)) / 10_000
    assert 0.18 < share < 0.22  # 0.2 ± 5 standard deviations of 10,000 draws


def test_unknown_names_and_exhausted_tasks_are_errors() -> None:
    with pytest.raises(ValueError, match=r"known tasks: .*two_digit_sums"):
        generate("three_digit_sums", "train", 1, 0)
    with pytest.raises(ValueError, match="unknown split"):
        generate("tiny", "dev", 1, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="holds about"):
        generate("one_digit_products", "test", 10_000, 0)


def test_text_survives_the_tokenizer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    text = "Hmm\n47 + 38 = 85\n85 - 9 = 76\nWait\nAnswer: 76"
    ids = tokenizer.encode(text + "<|end|>", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.unk_token_id not in ids
    assert (
        len({tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id})
        == 4
    )


def test_chat_template() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    user = {"role": "user", "content": "4 + 5 = ?"}
    prompt = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|bos|>4 + 5 = ?\n"
    both = [user, {"role": "assistant", "content": "Answer: 9"}]
    assert tokenizer.apply_chat_template(both, tokenize=False) == prompt + "Answer: 9<|end|>"
    assert len(tokenizer.encode(prompt, add_special_tokens=False)) == 7  # bos, 4, +, 5, =, ?, newline


@pytest.mark.parametrize("solver", ["careful", "brisk", "careless", "rambling"])
def test_a_solver_that_does_not_slip_is_right(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(make._SLIPS, solver, 0.0)
    rng = make.random.Random(0)
    for problem in generate("tiny", "train", 200, seed=9):
        response = make.demonstrate(problem["question"], solver, rng)
        assert response.splitlines()[-1] == f"Answer: {problem['answer']}"
        for line in response.splitlines()[:-1]:
            if " = " in line:
                left, right = line.split(" = ")
                assert evaluate(left) == int(right)


def test_shipped_weights_are_small_and_load_in_float32() -> None:
    assert sum(file.stat().st_size for file in MODEL_DIR.iterdir()) < 2_000_000
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    assert model.dtype == torch.float32  # updates of 1e-4 would vanish in bfloat16
    assert 900_000 < model.num_parameters() < 1_100_000
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(MODEL_DIR))
    saved = json.loads((MODEL_DIR / "generation_config.json").read_text())
    assert not {"temperature", "top_k", "top_p", "repetition_penalty"} & saved.keys()


def test_shipped_model_leaves_every_technique_something_to_do() -> None:
    """64 held-out problems × 8 responses at temperature 1, against the ranges the warm start aims at."""
    tokenizer, model = (
        AutoTokenizer.from_pretrained(MODEL_DIR),
        AutoModelForCausalLM.from_pretrained(MODEL_DIR),
    )
    problems = generate("tiny", "test", 64, seed=0)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": p["question"]}], tokenize=False, add_generation_prompt=True
        )
        for p in problems
    ]
    inputs = tokenizer(
        prompts, return_tensors="pt", padding=True, add_special_tokens=False, return_token_type_ids=False
    )
    sampling = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        max_new_tokens=CAP,
        num_return_sequences=8,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    responses = model.generate(**inputs, generation_config=sampling)[:, inputs["input_ids"].shape[1] :]
    lengths = (responses != tokenizer.pad_token_id).sum(-1)
    truncated = (responses != tokenizer.eos_token_id).all(-1)
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    correct = torch.tensor(
        [t.splitlines()[-1:] == [f"Answer: {problems[i // 8]['answer']}"] for i, t in enumerate(texts)]
    ).view(64, 8)
    mixed = correct.any(-1) & ~correct.all(-1)
    assert 0.30 <= correct.float().mean() <= 0.50
    assert mixed.float().mean() >= 0.5
    assert truncated.float().mean() >= 0.03
    assert lengths.float().std() >= 10
