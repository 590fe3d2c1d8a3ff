"""What a run would train on: `python -m dapo_ref.data FILE [--model DIR] …`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from dapo_ref.config import DEFAULT_PROMPT_TEMPLATE, resolve_model
from dapo_ref.data.problems import read_problems
from dapo_ref.data.prompts import encode_prompt, render_prompt
from dapo_ref.data.survey import columns, convert, histogram, overlap, plain, survey, visible
from dapo_ref.errors import DataError
from dapo_ref.layout import Layout

BARE = "{question}"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what a data set holds; returns the exit code: 1 where training would refuse it."""
    parser = argparse.ArgumentParser(prog="python -m dapo_ref.data", description="Show a data set.")
    add = parser.add_argument
    add("source", metavar="FILE", help="JSONL, JSON, CSV or parquet file, TASK:SPLIT, or hub name")
    add("--show", type=int, default=2, metavar="N", help="prompts to print (default 2)")
    add("--model", metavar="DIR", help="render with the chat template of this model, and count its tokens")
    add("--prompt_template", default=DEFAULT_PROMPT_TEMPLATE, help="wraps a bare question")
    add("--max_prompt_length", type=int, default=2048, metavar="TOKENS", help="as in the configuration")
    add("--question_column", default="", metavar="PATH", help="as in the configuration")
    add("--answer_column", default="", metavar="PATH", help="as in the configuration")
    add("--answer_pattern", default="", metavar="REGEX", help="as in the configuration")
    add("--against", nargs="+", default=[], metavar="FILE", help="data sets that must not be trained on")
    add("--convert", metavar="OUT.jsonl", help="write what can be used, with columns `question` and `answer`")
    args = parser.parse_args(argv)
    try:
        return _show(args)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _show(args: argparse.Namespace) -> int:
    layout = Layout(args.question_column, args.answer_column, args.answer_pattern)
    found = survey(args.source, args.prompt_template, layout)
    print(*found.text(), columns(args.source, layout), sep="\n")
    tokenizer = _load_tokenizer(args.model) if args.model else None
    if tokenizer is None:
        lengths = [sum(len(m["content"]) for m in problem.messages) for problem in found.problems]
        print(*histogram(lengths, 0, "characters (--model counts tokens)"), sep="\n")
    else:
        lengths = [len(encode_prompt(problem, tokenizer)) for problem in found.problems]
        print(*histogram(lengths, args.max_prompt_length, "tokens"), sep="\n")
    bare = survey(args.source, BARE, plain(layout)) if args.against or args.convert else found
    for other in args.against:
        theirs, _ = read_problems(other, BARE, False, Layout(optional=True))
        both = [problem.source for problem in overlap(bare.problems, theirs)]
        print(f"{len(both)} problems stand in {other}, too" + (f": {', '.join(both[:3])} …" if both else ""))
    if args.convert:
        print(f"{args.convert}: {convert(bare, Path(args.convert))} problems written")
    for problem in found.problems[: args.show]:
        print(f"\n--- {problem.source}, reference {problem.reference}")
        if tokenizer is None:
            print("\n".join(f"[{m['role']}] {m['content']}" for m in problem.messages))
        else:
            print(render_prompt(problem, tokenizer))
            print(f"--- the same as {len(encode_prompt(problem, tokenizer))} tokens, special ones in ⟦ ⟧")
            print(visible(problem, tokenizer))
    return 1 if found.refused else 0


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
