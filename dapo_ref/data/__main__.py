"""What a run would train on: `python -m dapo_ref.data FILE --show 2 [--model DIR]`."""

import argparse
import statistics
import sys
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from dapo_ref.config import DEFAULT_PROMPT_TEMPLATE, resolve_model
from dapo_ref.data.problems import read_problems, summary
from dapo_ref.data.prompts import encode_prompt, render_prompt
from dapo_ref.errors import DataError


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what a data set holds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dapo_ref.data", description="Show a data set.")
    parser.add_argument("source", metavar="FILE", help="JSONL or parquet file, TASK:SPLIT, or hub name")
    parser.add_argument("--show", type=int, default=2, metavar="N", help="prompts to print (default 2)")
    parser.add_argument("--model", metavar="DIR", help="render with the chat template of this model")
    parser.add_argument("--prompt_template", default=DEFAULT_PROMPT_TEMPLATE, help="wraps a bare question")
    args = parser.parse_args(argv)
    try:
        _show(args.source, args.prompt_template, args.model, args.show)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _show(source: str, prompt_template: str, model: str | None, number: int) -> None:
    problems, counts = read_problems(source, prompt_template)
    print(summary(source, problems, counts))
    print(
        f"{counts.conflicts} repeats with another reference dropped, "
        f"{counts.unasked} prompts ask for no `Answer:`"
    )
    print(f"{len(problems)} references verify against themselves")
    tokenizer = _load_tokenizer(model) if model else None
    if tokenizer is not None:
        lengths = [len(encode_prompt(problem, tokenizer)) for problem in problems]
        print(f"prompt tokens: median {statistics.median(lengths):g}, longest {max(lengths)}")
    for problem in problems[:number]:
        print(f"\n--- {problem.source}, reference {problem.reference}")
        if tokenizer is not None:
            print(render_prompt(problem, tokenizer))
        else:
            print("\n".join(f"[{m['role']}] {m['content']}" for m in problem.messages))


def _load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer  # here, since it loads torch, which takes seconds

    try:
        return AutoTokenizer.from_pretrained(resolve_model(model))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{model}: no tokenizer can be loaded from it: {' '.join(str(error).split())}"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
