"""Chat templates that print the date: one date for a run, on all ranks and on every day it is resumed."""

import datetime
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import train
from dapo_ref.data import (
    DataError,
    Problem,
    PromptStream,
    data_fingerprint,
    keep_short_prompts,
    render_prompt,
)
from dapo_ref.run import session
from dapo_ref.run.evaluator import Task
from tests.support.helpers import char_tokenizer, random_llama, save_model
from tests.support.plain_engine import PlainEngine, ThreadProcesses, in_threads

DATED = (
    "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}: "
    "{% for m in messages %}{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}> {% endif %}"
)
"""As Llama 3.2 and Granite ask for it."""
PROBLEM = Problem(({"role": "user", "content": "1+1"},), "2", "test#0")


def tokenizer(template: str = DATED) -> Any:
    found = char_tokenizer()
    found.chat_template = template
    return found


def days(monkeypatch: pytest.MonkeyPatch, day: str) -> None:
    """Lets a run begin on a day."""
    fixed = SimpleNamespace(today=lambda: datetime.date.fromisoformat(day))
    monkeypatch.setattr(session, "date", fixed)


def test_a_template_prints_the_date_it_is_given() -> None:
    assert render_prompt(PROBLEM, tokenizer(), "2024-07-06") == "06 Jul 2024: 1+1\n> "
    granite = "{%- set day = strftime_now('%B %-d, %Y: 100%%') %}\n  {% if true %}\n[{{ day }}]{% endif %}"
    # As transformers renders it: block tags take their line's indentation and end of line with them.
    assert render_prompt(PROBLEM, tokenizer(granite), "2024-07-06") == "[July 6, 2024: 100%]"


def test_the_short_prompts_are_the_same_ones_whatever_the_date_is() -> None:
    dated = "{{ 'x' * (strftime_now('%d') | int) }}" + DATED  # up to 31 tokens longer
    length = len(render_prompt(PROBLEM, tokenizer(dated), "2000-12-31"))
    for day in ("2026-01-01", "2026-01-28"):
        kept = keep_short_prompts([PROBLEM], tokenizer(dated), length, day)
        assert [len(ids) for _, ids in kept] == [length - 31 + int(day[-2:])]
        with pytest.raises(DataError, match="more than half of the data"):
            keep_short_prompts([PROBLEM], tokenizer(dated), length - 1, day)


def test_the_fingerprint_is_of_problems_and_template() -> None:
    base = data_fingerprint([PROBLEM], tokenizer())
    assert base == data_fingerprint([PROBLEM], tokenizer())
    assert base != data_fingerprint([PROBLEM], tokenizer(DATED + "!"))
    assert base != data_fingerprint([PROBLEM, PROBLEM], tokenizer())
    assert base.startswith("problems:")


def test_a_checkpoint_of_before_resumes_with_its_own_fingerprint() -> None:
    items = [(PROBLEM, [5, 6])]
    before = PromptStream(items, seed=0)
    before.take(3)
    now = PromptStream(items, seed=0, fingerprint=data_fingerprint([PROBLEM], tokenizer()))
    now.load_state_dict(before.state_dict())
    assert now.position == 3
    other = PromptStream([(PROBLEM, [5, 7])], seed=0, fingerprint=now.fingerprint)
    with pytest.raises(DataError, match="other data"):
        other.load_state_dict(before.state_dict())  # its tokens are not those of before
    other.load_state_dict(now.state_dict())  # a new one holds no tokens


def test_all_ranks_take_the_date_of_the_first_for_training_and_evaluation() -> None:
    def settled(processes: ThreadProcesses) -> Any:
        run: Any = SimpleNamespace(
            config=SimpleNamespace(seed=0),
            engine=processes,
            tokenizer=tokenizer(),
            prompt_date=f"2026-12-0{processes.rank + 1}",  # as if midnight were between them
            stream=PromptStream([(PROBLEM, [1])], seed=0, position=4),
            _held_out=[Task("sums", 0, (PROBLEM, [1]))],
        )
        run._stream_of = lambda prompts: session.Session._stream_of(run, prompts)
        session.Session._settle_date(run)
        return run.prompt_date, run.stream.items, run.stream.position, run._held_out

    first, second = in_threads(2, settled)
    assert first == second
    day, items, position, held_out = first
    assert (day, position) == ("2026-12-01", 4)
    text = tokenizer().decode(items[0][1])
    assert text == "01 Dec 2026: 1+1\n> "
    assert held_out[0].prompt == items[0]


def test_a_run_keeps_its_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_model(tmp_path / "model", random_llama())
    tokenizer().save_pretrained(model)
    data = tmp_path / "sums.jsonl"
    lines = [json.dumps({"question": f"{n}+1", "answer": n + 1}) + "\n" for n in range(4)]
    data.write_text("".join(lines), encoding="utf-8")
    monkeypatch.setattr(train, "Engine", PlainEngine)
    common = [
        *(f"--model={model}", f"--data={data}", "--prompts_per_step=2", "--group_size=2"),
        *("--responses_per_update=4", "--dynamic_sampling=false", "--max_response_length=6"),
        *("--soft_overlong_punishment=false", "--precision=fp32", "--verifier_workers=1"),
        *("--max_prompt_length=100", "--prompt_template={question}"),
    ]

    def run_of(name: str, day: str, *more: str) -> tuple[list[str], dict[str, Any]]:
        days(monkeypatch, day)
        train.main([*common, f"--output_dir={tmp_path / name}", *more])
        files = sorted((tmp_path / name / "rollouts").glob("*.jsonl"))
        state = sorted((tmp_path / name / "checkpoints").glob("step_*/loop.json"))[-1]
        return [f.read_text(encoding="utf-8") for f in files], json.loads(state.read_text(encoding="utf-8"))

    whole, _ = run_of("whole", "2026-12-01", "--rollout_steps=2")
    run_of("resumed", "2026-12-01", "--rollout_steps=1")
    resumed, state = run_of("resumed", "2026-12-02", "--rollout_steps=2", "--resume")
    assert resumed == whole
    prompts = json.loads((tmp_path / "resumed/model/prompts.json").read_text(encoding="utf-8"))
    assert prompts == {"prompt_template": "{question}", "prompt_date": "2026-12-01"}
    assert state["prompt_date"] == "2026-12-01"
    given, state = run_of("given", "2026-12-02", "--rollout_steps=1", "--prompt_date=2026-12-01")
    assert given == whole[:1]
    assert state["prompt_date"] == "2026-12-01"


@pytest.mark.parametrize(
    ("template", "refused"),
    [
        ("{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}", True),
        ("{% for m in messages %}{{ m['content'] }}\n{% endfor %}", False),  # nothing stands between
        (DATED, False),
    ],
)
def test_a_template_without_generation_prompt_is_refused(template: str, refused: bool) -> None:
    if refused:
        with pytest.raises(DataError, match=r"no generation prompt.*'\[assistant\]'"):
            keep_short_prompts([PROBLEM], tokenizer(template), 100)
    else:
        assert len(keep_short_prompts([PROBLEM], tokenizer(template), 100)) == 1
