"""Data: what is read, what is refused and where, the chat template, and the stream that resumes exactly."""

import json
import logging
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dapo_ref import verifier
from dapo_ref.data import (
    DataError,
    Problem,
    PromptStream,
    encode_prompt,
    keep_short_prompts,
    load_problems,
)
from dapo_ref.data.__main__ import main
from dapo_ref.policy.packing import shared_prefix_length
from dapo_ref.tiny import tasks

TEMPLATE = "Q: {question}\nEnd with Answer: <result>"

Writer = Callable[..., str]


@pytest.fixture
def jsonl(tmp_path: Path) -> Writer:
    """Writes rows (or raw lines) to a file and returns its name."""

    def write(*rows: Any) -> str:
        file = tmp_path / "problems.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        file.write_text("".join(line + "\n" for line in lines))
        return str(file)

    return write


def load(source: str, **changes: Any) -> list[Problem]:
    return load_problems(source, prompt_template=TEMPLATE, **changes)


def refusal(source: str, **changes: Any) -> str:
    """The message a source is refused with: one line."""
    with pytest.raises(DataError) as caught:
        load(source, **changes)
    message = str(caught.value)
    assert "\n" not in message
    return message


def bare(question: str = "1 + 1?", answer: Any = "2") -> dict[str, Any]:
    return {"question": question, "answer": answer}


def chat(content: Any = "1 + 1? Answer:", truth: Any = "2", role: str = "user") -> dict[str, Any]:
    return {
        "data_source": "math",
        "prompt": [{"role": role, "content": content}],
        "reward_model": {"ground_truth": truth, "style": "rule"},
    }


# ------------------------------------------------------------------------------------------------------------
# What is read


@pytest.mark.parametrize("key", ["question", "problem"])
def test_a_bare_question_is_wrapped_by_the_template(jsonl: Writer, key: str) -> None:
    file = jsonl({key: " What is $\\frac{1}{2}$ of {4}? ", "answer": " 2 ", "level": 5})
    (problem,) = load(file)
    content = "Q: What is $\\frac{1}{2}$ of {4}?\nEnd with Answer: <result>"
    assert problem.messages == ({"role": "user", "content": content},)
    assert problem.reference == "2"
    assert problem.source == f"{file}:1"


def test_problem_stands_in_where_question_is_null(jsonl: Writer) -> None:
    (problem,) = load(jsonl({"question": None, "problem": "1 + 1?", "answer": "2"}))
    assert problem.messages[0]["content"].startswith("Q: 1 + 1?")


def test_a_chat_prompt_stays_as_it_is(jsonl: Writer) -> None:
    row = chat()
    row["prompt"] = [
        {"role": "system", "content": "Be brief.\n", "name": None},
        {"role": "user", "content": " {question}? Answer: "},
    ]
    (problem,) = load(jsonl(row))
    assert problem.messages == (
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": " {question}? Answer: "},
    )


def test_a_reward_model_may_be_json_text(jsonl: Writer) -> None:
    row = chat() | {"reward_model": '{"ground_truth": 0.50, "style": "rule"}'}
    assert load(jsonl(row))[0].reference == "0.50"


@pytest.mark.parametrize(
    ("written", "reference"),
    [
        ("34", "34"),
        ("-3", "-3"),
        ("34.0", "34"),
        ("1e3", "1000"),
        ("0.1", "0.1"),
        ("3.14159265358979323846", "3.14159265358979323846"),  # a float would have lost the last digits
        ('"\\\\frac{1}{2}"', "\\frac{1}{2}"),
    ],
)
def test_a_number_becomes_its_digits(jsonl: Writer, written: str, reference: str) -> None:
    assert load(jsonl(f'{{"question": "q", "answer": {written}}}'))[0].reference == reference


def test_blank_lines_and_a_byte_order_mark_are_skipped_and_lines_still_counted(tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"question": "a", "answer": 1}\r\n\n  \n{"question": "b", "answer": 2}')
    assert [problem.source for problem in load(str(file))] == [f"{file}:1", f"{file}:4"]


def test_repeats_are_dropped_and_counted(jsonl: Writer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    file = jsonl(bare("a", 1), bare("b", 1), bare("a", "1"), bare("a ", 1.0), bare("c", 1))
    assert [problem.source for problem in load(file)] == [f"{file}:1", f"{file}:2", f"{file}:5"]
    assert "5 rows, 2 repeats dropped, 3 problems" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_white_space_around_a_prompt_makes_no_other_prompt(jsonl: Writer) -> None:
    (problem,) = load(jsonl(chat(" q Answer:"), chat("q Answer:\n")))
    assert problem.messages[0]["content"] == " q Answer:"


def test_another_reference_for_the_same_prompt_is_a_warning(
    jsonl: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    file = jsonl(bare("a", 1), bare("a", 2), bare("a", 3), bare("a", 1))
    assert [problem.reference for problem in load(file)] == ["1"]
    assert f"2 rows repeat a prompt with another reference (the first: {file}:2)" in caplog.text


def test_the_same_words_in_another_role_are_another_prompt(jsonl: Writer) -> None:
    assert len(load(jsonl(chat(role="user"), chat(role="system")))) == 2


def test_chat_prompts_that_ask_for_no_answer_line_are_warned_about(
    jsonl: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    load(jsonl(chat("1 + 1?"), chat("2 + 2? Put it in \\boxed{}."), chat("3 + 3? End with Answer: x.")))
    assert "1 prompts in chat format ask for no last line" in caplog.text


def test_a_problem_survives_pickling_and_does_not_depend_on_its_place(jsonl: Writer) -> None:
    (problem,) = load(jsonl(bare()))
    copy = pickle.loads(pickle.dumps(problem))
    assert (copy, copy.source) == (problem, problem.source)
    assert Problem(problem.messages, problem.reference, "elsewhere:7") == problem


def test_parquet_reads_like_jsonl(jsonl: Writer, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    rows = [chat(f"{i}? Answer:", str(i)) for i in range(3000)]  # more than one batch
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "problems.parquet")
    read = load(str(tmp_path / "problems.parquet"))
    assert read == load(jsonl(*rows))
    assert read[2999].source == f"{tmp_path / 'problems.parquet'}:row 3000"


def test_parquet_numbers_become_digits(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    file = tmp_path / "numbers"  # known by its first bytes, not by its name
    parquet.write_table(pyarrow.table({"question": ["a", "b"], "answer": [34.0, 0.1]}), file)
    assert [problem.reference for problem in load(str(file))] == ["34", "0.1"]


# ------------------------------------------------------------------------------------------------------------
# Generated tasks and packages


def test_a_generated_task_is_read_by_name() -> None:
    problems = load("tiny:train:50")
    expected = tasks.generate("tiny", "train", 50, 0)
    assert [problem.reference for problem in problems] == [row["answer"] for row in expected]
    assert problems[17].source == "tiny:train#17"
    held_out = {problem.messages[0]["content"] for problem in load("tiny:test")}
    assert len(held_out) == 256
    assert held_out.isdisjoint(problem.messages[0]["content"] for problem in load("tiny:train"))


def test_a_small_generated_task_gives_all_it_has(monkeypatch: pytest.MonkeyPatch) -> None:

    def generate(task: str, split: str, count: int, seed: int) -> list[dict[str, str]]:
        if count > 81:
            raise ValueError("holds about 81")
        return [{"question": f"{i}?", "answer": str(i)} for i in range(count)]

    monkeypatch.setattr(tasks, "generate", generate)
    assert len(load("tiny:train")) == 81
    assert refusal("tiny:train:82") == "tiny:train:82: holds about 81; ask for fewer"


def test_an_unknown_generated_task_names_the_known_ones() -> None:
    message = refusal("tinny:train")
    assert message.startswith("tinny:train: no such file, and no generated task or source 'tinny'; did you ")
    assert "mean 'tiny'?" in message
    assert " tiny" in message


def test_reasoning_gym_splits_are_disjoint(monkeypatch: pytest.MonkeyPatch) -> None:

    def create_dataset(name: str, size: int, seed: int) -> list[dict[str, Any]]:
        if name != "sums":
            raise ValueError(f"Dataset '{name}' not registered")
        return [{"question": f"{i % 700} + 1?", "answer": str(i % 700 + 1)} for i in range(size)]

    monkeypatch.setitem(sys.modules, "reasoning_gym", SimpleNamespace(create_dataset=create_dataset))
    train, test = load("reasoning_gym:sums:train:200"), load("reasoning_gym:sums:test:50")
    assert (len(train), len(test)) == (200, 50)
    assert not {str(p.messages) for p in train} & {str(p.messages) for p in test}
    assert train == load("reasoning_gym:sums")[:200]
    assert refusal("reasoning_gym:nope") == "reasoning_gym:nope: Dataset 'nope' not registered"


def test_the_hub_is_read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Table(list[dict[str, Any]]):
        column_names = ("question", "answer")

    def load_dataset(name: str, split: str) -> Table:
        if (name, split) != ("org/sums", "test"):
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist on the Hub\nor cannot be accessed")
        return Table([bare("a", 1), bare("b", 2)])

    errors = SimpleNamespace(DatasetsError=RuntimeError)
    stub = SimpleNamespace(load_dataset=load_dataset, exceptions=errors)
    monkeypatch.setitem(sys.modules, "datasets", stub)
    assert [problem.source for problem in load("org/sums:test")] == [
        "org/sums:test:row 1",
        "org/sums:test:row 2",
    ]
    message = refusal("org/gone")
    assert message.startswith(
        "org/gone:train: no such file, and not to be had from the hub (Dataset 'org/gone'"
    )
    assert "download its JSONL or parquet file" in message


@pytest.mark.parametrize(
    ("package", "source", "where", "remedy"),
    [
        ("pyarrow", "problems.parquet", "problems.parquet", "`pip install pyarrow`"),
        (
            "reasoning_gym",
            "reasoning_gym:chain_sum",
            "reasoning_gym:chain_sum",
            "`pip install reasoning-gym`",
        ),
        ("datasets", "org/name", "org/name: no such file", "`pip install datasets`"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, source: str, where: str, remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("problems.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, package, None)  # makes its import fail
    message = refusal(source)
    assert message.startswith(where)
    assert remedy in message


# ------------------------------------------------------------------------------------------------------------
# What is refused


@pytest.mark.parametrize(
    ("second_line", "message"),
    [
        ('{"question": "q", "answer": 1', "broken JSON: Expecting ',' delimiter (column 30)"),
        ('{"question": "q", "answer": NaN}', "broken JSON: NaN is not JSON"),
        ("[" * 100_000, "broken JSON: maximum recursion depth exceeded"),
        ('["q", "1"]', "expected one JSON object a line, found list"),
        ("question,answer", "broken JSON: Expecting value (column 1); expected one JSON object a line"),
        (
            '{"question": "q", "id": 3}',
            "no question and answer among `question`, `id`; expected `question` or",
        ),
        ('{"answer": "1"}', "no question and answer among `answer`; expected `question` or `problem` beside"),
        ("{}", "no question and answer among no keys"),
        (
            '{"question": " ", "answer": 1}',
            "`question` is empty; expected text, found keys `question`, `answer`",
        ),
        ('{"problem": "q", "answer": ""}', "`answer` is empty; expected text or a number"),
        ('{"problem": "q", "answer": null}', "`answer` is empty; expected text or a number"),
        ('{"problem": "q", "answer": true}', "`answer` must be text or a number, found bool True"),
        ('{"problem": "q", "answer": ["1"]}', "`answer` must be text or a number, found list ['1']"),
        ('{"problem": ["q"], "answer": 1}', "`problem` must be text, found list ['q']"),
        ('{"problem": "\\ud800", "answer": 1}', "`problem` holds half a surrogate pair"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(jsonl: Writer, second_line: str, message: str) -> None:
    file = jsonl(bare(), second_line, bare("another"))
    assert refusal(file).startswith(f"{file}:2: {message}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"prompt": "1 + 1?"},
            "`prompt` must be a list of chat messages {role, content}, found str '1 + 1?'",
        ),
        ({"prompt": []}, "`prompt` must be a list of chat messages {role, content}, found list []"),
        ({"prompt": [{"role": "user"}]}, "`prompt`: `content` is missing; expected text, found keys `role`"),
        ({"prompt": [{"role": "user", "content": ""}]}, "`prompt`: `content` is empty"),
        ({"prompt": [{"role": "user", "content": [{"text": "q"}]}]}, "`prompt`: `content` must be text"),
        ({"prompt": [{"role": "assistant", "content": "2"}]}, "`prompt` ends with an assistant message"),
        ({"reward_model": None}, "`reward_model` must hold `ground_truth`, found NoneType None"),
        ({"reward_model": {"style": "rule"}}, "`reward_model`: `ground_truth` is missing"),
        ({"reward_model": {"ground_truth": " "}}, "`reward_model`: `ground_truth` is empty"),
        ({"reward_model": "rule"}, "`reward_model` is text but not JSON: str 'rule'"),
    ],
)
def test_a_bad_chat_row_is_refused_with_its_line(jsonl: Writer, change: dict[str, Any], message: str) -> None:
    file = jsonl(chat(), chat() | change)
    assert refusal(file).startswith(f"{file}:2: {message}")


def test_a_chat_row_without_reward_model_is_another_layout(jsonl: Writer) -> None:
    file = jsonl({"prompt": [{"role": "user", "content": "q"}], "ability": "math"})
    assert refusal(file).startswith(f"{file}:1: no question and answer among `prompt`, `ability`; expected")


@pytest.mark.parametrize("rows", [[], ["", "  "]])
def test_an_empty_data_set_is_refused(jsonl: Writer, rows: list[str]) -> None:
    file = jsonl(*rows)
    assert refusal(file) == f"{file}: no problems: the data set is empty"


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_bytes(b'{"question": "q", "answer": 1}\n{"question": "\xff", "answer": 1}\n')
    assert refusal(str(file)).startswith(f"{file}:2: not UTF-8 text (invalid start byte)")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    file = f"{tmp_path}/gone.jsonl"
    assert refusal(file).startswith(f"{file}: no such file; data is a JSONL, JSON, CSV or parquet file")
    assert refusal("data/gone.parquet").startswith("data/gone.parquet: no such file; data is")
    assert refusal("tiny:dev").startswith("tiny:dev: no such file; data is")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)).startswith(f"{tmp_path}: cannot be read: Is a directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is readable for root")
def test_an_unreadable_file_is_refused(jsonl: Writer) -> None:
    file = jsonl(bare())
    Path(file).chmod(0)
    assert refusal(file).startswith(f"{file}: cannot be read: Permission denied")


def test_a_parquet_file_in_another_layout_is_refused(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    file = tmp_path / "other.parquet"
    parquet.write_table(pyarrow.table({"instruction": ["q"], "output": ["a"]}), file)
    assert refusal(str(file)).startswith(
        f"{file}: no question and answer among `instruction`, `output`; expected `question` or `problem`"
    )


def test_a_bad_parquet_row_is_refused_with_its_number(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    file = tmp_path / "problems.parquet"
    parquet.write_table(pyarrow.table({"question": ["a", "b"], "answer": [1.0, float("nan")]}), file)
    assert refusal(str(file)).startswith(f"{file}:row 2: `answer` must be text or a number")
    parquet.write_table(pyarrow.table({"question": ["a", None], "answer": ["1", "2"]}), file)
    assert refusal(str(file)).startswith(f"{file}:row 2: `question` is empty")


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    file = tmp_path / "problems.parquet"
    file.write_bytes(b"PAR1 and then nothing of use")
    assert refusal(str(file)).startswith(f"{file}: cannot be read as parquet: ")


def test_a_template_without_a_place_for_the_question_is_refused(jsonl: Writer) -> None:
    with pytest.raises(DataError, match=r"prompt_template must contain \{question\}"):
        load_problems(jsonl(bare()), prompt_template="Solve it.")


def test_references_that_cannot_verify_are_listed(jsonl: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "check_reference", lambda text: "no number" if "x" in text else None)
    rows = [bare(f"q{i}", "x" * i if i % 2 else str(i)) for i in range(10)]
    file = jsonl(*rows)
    message = refusal(file)
    assert message.startswith(f"{file}: 5 of 10 references do not verify against themselves")
    assert f"{file}:2 'x': no number; {file}:4 'xxx': no number; {file}:6 'xxxxx': no number; …" in message
    assert len(load(file, check_references=False)) == 10


# ------------------------------------------------------------------------------------------------------------
# Prompts


def word_tokenizer(*, bos: bool, chat_template: str | None) -> PreTrainedTokenizerFast:
    """Words and newlines; with `bos`, one that puts its bos before every text it encodes, as Llama's does."""
    vocab = {
        piece: i for i, piece in enumerate(["<unk>", "<s>", "<|user|>", "<|assistant|>", "\n", *"abcde"])
    }
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split("\n", "isolated")]
    )
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>" if bos else None,
        extra_special_tokens=["<|user|>", "<|assistant|>"],
    )
    fast.chat_template = chat_template
    return fast


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
    "{% endif %}<|user|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def problem(*contents: str, role: str = "user") -> Problem:
    return Problem(tuple({"role": role, "content": text} for text in contents), "1", "f.jsonl:3")


def test_the_chat_template_is_applied_without_a_second_bos() -> None:
    tokenizer = word_tokenizer(bos=True, chat_template=CHAT_TEMPLATE)
    assert tokenizer("a")["input_ids"] == [1, 5]  # it would add one of its own
    assert encode_prompt(problem("a b"), tokenizer) == [1, 2, 5, 6, 3]  # <s> <|user|> a b <|assistant|>


def test_without_a_template_the_prompt_is_bos_contents_newline() -> None:
    with_bos, without = (word_tokenizer(bos=bos, chat_template=None) for bos in (True, False))
    assert encode_prompt(problem("a", "b"), with_bos) == [1, 5, 4, 4, 6, 4]  # <s> a \n \n b \n
    assert encode_prompt(problem("a"), without) == [5, 4]


def test_a_prompt_the_template_refuses_is_named() -> None:
    tokenizer = word_tokenizer(bos=True, chat_template=CHAT_TEMPLATE)
    with pytest.raises(
        DataError, match=r"^f.jsonl:3: the chat template refuses this prompt: no system role$"
    ):
        encode_prompt(problem("a", role="system"), tokenizer)


def test_long_prompts_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = word_tokenizer(bos=False, chat_template=None)
    problems = [problem("a b c"), problem("a"), problem("a b"), problem("a b c d")]  # 4, 2, 3, 5 tokens
    assert keep_short_prompts(problems, tokenizer, 3) == [(problems[1], [5, 4]), (problems[2], [5, 6, 4])]
    assert "2 of 4 prompts are longer than max_prompt_length 3" in caplog.text
    # Of 2, 3, 4 and 5 tokens three are above 2; half of the prompts have at most 3.
    with pytest.raises(DataError, match=r"^3 of 4 prompts .* 2, more .*at most 3 tokens, the longest 5\)"):
        keep_short_prompts(problems, tokenizer, 2)


# ------------------------------------------------------------------------------------------------------------
# The stream

sizes = st.integers(1, 13)
seeds = st.integers(0, 5)


@given(size=sizes, seed=seeds, epochs=st.integers(1, 4))
def test_every_epoch_is_a_permutation(size: int, seed: int, epochs: int) -> None:
    stream = PromptStream(range(size), seed)
    for epoch in range(epochs):
        assert stream.epoch == epoch
        assert sorted(stream.take(size)) == list(range(size))


@given(size=sizes, seed=seeds, takes=st.lists(st.integers(0, 30), max_size=6))
def test_the_sequence_does_not_depend_on_the_takes(size: int, seed: int, takes: list[int]) -> None:
    stream = PromptStream(range(size), seed)
    pieces = [item for n in takes for item in stream.take(n)]
    assert pieces == PromptStream(range(size), seed).take(sum(takes))
    assert stream.position == sum(takes)


@given(size=sizes, seed=seeds, before=st.integers(0, 40), after=st.integers(0, 40))
def test_resuming_anywhere_continues_the_stream(size: int, seed: int, before: int, after: int) -> None:
    stream = PromptStream(range(size), seed)
    stream.take(before)
    state = json.loads(json.dumps(stream.state_dict()))
    expected = stream.take(after)
    resumed = PromptStream(range(size), seed)
    resumed.take(7)  # whatever it did before
    resumed.load_state_dict(state)
    assert resumed.take(after) == expected
    assert PromptStream(range(size), seed, position=before).take(after) == expected


def test_epochs_and_seeds_give_different_orders() -> None:
    """Twenty items: two orders agree by chance once in 20! ≈ 2·10¹⁸."""
    stream = PromptStream(range(20), seed=0)
    orders = {tuple(stream.take(20)) for _ in range(5)} | {tuple(PromptStream(range(20), seed=1).take(20))}
    assert len(orders) == 6


def test_the_order_is_the_same_in_every_version() -> None:
    """Golden, so that a checkpoint resumes tomorrow: random.Random("7/0").shuffle of 0 … 4, then "7/1"."""
    assert "".join(PromptStream("abcde", seed=7).take(10)) == "bedaccdeba"


def test_resuming_on_other_data_or_with_another_seed_is_refused() -> None:
    state = PromptStream([problem("a"), problem("b")], seed=0).state_dict()
    with pytest.raises(DataError, match="cannot resume on other data"):
        PromptStream([problem("a"), problem("c")], seed=0).load_state_dict(state)
    with pytest.raises(DataError, match="cannot resume on other data"):
        PromptStream([problem("b"), problem("a")], seed=0).load_state_dict(state)
    with pytest.raises(DataError, match="cannot resume with seed 1: the checkpoint's is 0"):
        PromptStream([problem("a"), problem("b")], seed=1).load_state_dict(state)


def test_the_same_data_in_another_folder_are_the_same_data() -> None:
    here = [Problem(({"role": "user", "content": "a"},), "1", "here.jsonl:1")]
    there = [Problem(({"role": "user", "content": "a"},), "1", "there/here.jsonl:9")]
    assert PromptStream(here, 0).fingerprint == PromptStream(there, 0).fingerprint


def test_a_stream_of_nothing_or_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one item"):
        PromptStream([], seed=0)
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        PromptStream([1], seed=0, position=-1)
    with pytest.raises(ValueError, match="cannot take -1 items"):
        PromptStream([1], seed=0).take(-1)


# ------------------------------------------------------------------------------------------------------------
# Command line


def test_the_command_shows_counts_and_prompts(jsonl: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    file = jsonl(bare("a", 1), bare("a", 1), bare("b", 2), bare("c", 3))
    assert main([file, "--show", "2", "--prompt_template", "<{question}>"]) == 0
    output = capsys.readouterr().out
    assert f"{file}: 4 rows, 1 repeats dropped, 3 problems\n" in output
    assert "3 references verify against themselves\n" in output
    assert f"--- {file}:1, reference 1\n[user] <a>\n" in output
    assert f"--- {file}:3, reference 2\n[user] <b>\n" in output
    assert "<c>" not in output


def test_the_command_renders_by_a_models_template(
    jsonl: Writer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    word_tokenizer(bos=True, chat_template=CHAT_TEMPLATE).save_pretrained(tmp_path / "model")
    template = ["--prompt_template", "{question}"]
    assert main([jsonl(bare("a b", 1), bare("c", 1)), "--model", str(tmp_path / "model"), *template]) == 0
    output = capsys.readouterr().out
    assert "<s><|user|>a b<|assistant|>\n" in output
    assert "prompt tokens: median 4.5, longest 5\n" in output  # 5 and 4 tokens


def test_the_command_fails_with_one_line(
    jsonl: Writer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = jsonl("{")
    assert main([file]) == 1
    assert main([jsonl(bare()), "--model", str(tmp_path / "no_model")]) == 1
    word_tokenizer(bos=True, chat_template=CHAT_TEMPLATE).save_pretrained(tmp_path / "model")
    assert main([jsonl(chat(role="system")), "--model", str(tmp_path / "model")]) == 1
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {file}:1: broken JSON")
    assert second.startswith(f"error: {tmp_path / 'no_model'}: no tokenizer can be loaded from it: ")
    assert third == f"error: {file}:1: the chat template refuses this prompt: no system role"


# ------------------------------------------------------------------------------------------------------------
# Real data sets, where they are at hand

SHARED = Path(os.environ.get("DAPO_SHARED", Path(__file__).parents[3] / "shared"))

# file → rows, repeats, rows with another reference. Not all 17,917 rows of DAPO-Math-17K differ in text.
REAL = {
    "aime2024_dapo.parquet": (960, 930, 0),  # 30 problems × 32
    "aime2025.jsonl": (30, 0, 0),
    "amc23.jsonl": (40, 0, 0),
    "dapo_math_17k.jsonl": (17_917, 650, 12),
    "dapo_math_17k.parquet": (17_917, 650, 12),
    "gsm8k_test.jsonl": (1_319, 0, 0),
    "gsm8k_train.jsonl": (7_473, 0, 0),
    "math500.jsonl": (500, 0, 0),
    "multiarith.jsonl": (600, 20, 0),
    "singleop.jsonl": (562, 31, 0),
    "svamp.jsonl": (1_000, 0, 0),
}


@pytest.mark.parametrize("name", REAL)
def test_real_data_sets_load_and_verify(name: str, caplog: pytest.LogCaptureFixture) -> None:
    file = SHARED / "data" / name
    if not file.exists():
        pytest.skip(f"{name} is not at hand (set DAPO_SHARED)")
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    caplog.set_level(logging.INFO)
    rows, repeats, conflicts = REAL[name]
    problems = load(str(file))
    assert len(problems) == rows - repeats - conflicts
    assert f"{rows} rows, {repeats} repeats dropped" in caplog.text
    assert max(Counter(problem.messages[0]["content"] for problem in problems).values()) == 1


@pytest.mark.parametrize(
    ("content", "found"), [("question,answer\n1 + 1,2\n", "'question,answer'"), ("[1,\n2\n]\n", r"'\[1,'")]
)
def test_a_table_or_a_list_in_place_of_lines_is_shown_by_its_first_line(tmp_path, content, found) -> None:
    file = tmp_path / "data.json"
    file.write_text(content)
    with pytest.raises(DataError, match=rf"data\.json:1: .*; expected one JSON object a line, found {found}"):
        load_problems(str(file), prompt_template="{question}")


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([[5, 6], [5, 7, 8], [5]], 20),  # each keeps a token of its own
        ([[5, 6, 1], [5, 6, 2], [5, 6, 1]], 22),
        ([[5], [5]], 0),  # one prompt, twice
        ([[5]], 0),
    ],
)
def test_shared_prefix(own, expected):
    prompts = [[*range(20), *ids] for ids in own]
    assert shared_prefix_length(prompts) == expected
    assert shared_prefix_length([ids[10:] for ids in prompts]) == 0  # no more than 12: too short
