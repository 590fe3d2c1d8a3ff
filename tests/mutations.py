"""Does a test notice? One-line faults put into a copy of the project, one at a time.

    python tests/mutations.py               every mutation; exit code 1 if one survives
    python tests/mutations.py --list        their names
    python tests/mutations.py --only NAME   one of them, or those of one file, such as loss.py
    python tests/mutations.py --sample N    N of those that launch no processes, other ones every day

A mutation replaces a text that stands exactly once in its file and runs the file's tests until the first
failure, which is reported as the test that killed it; tests that hang until the time limit have seen it too.
To add one, add a row to `MUTATIONS`; for a new file,
its tests to `TESTS`.
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT_S = 300.0  # for one mutation; it takes a few seconds


class Mutation(NamedTuple):
    """One fault: `old`, which stands exactly once in the file, becomes `new`."""

    name: str
    old: str
    new: str


SCRIPTS = {"train.py", "evaluate.py"}

# Which test files answer for a file.
TESTS = {
    "launcher.py": ["tests/run/test_command.py", "tests/test_usage.py"],
    "run/command.py": ["tests/run/test_command.py"],
    "distributed/machine.py": ["tests/distributed/test_machine.py"],
    "distributed/native_build.py": ["tests/distributed/test_native_build.py"],
    "usage.py": ["tests/test_usage.py"],
    "run/next_step.py": ["tests/run/test_next_step.py"],
    "verifier/decide.py": [
        "tests/verifier/test_decide.py",
        "tests/verifier/test_cases.py",
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
    ],
    "verifier/extract.py": [
        "tests/verifier/test_extract.py",
        "tests/verifier/test_cases.py",
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
        "tests/verifier/test_properties.py",
    ],
    "verifier/clean.py": [
        "tests/verifier/test_extract.py",
        "tests/verifier/test_cases.py",
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
    ],
    "verifier/textual.py": [
        "tests/verifier/test_parse.py",
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
        "tests/verifier/test_properties.py",
    ],
    "verifier/tokens.py": [
        "tests/verifier/test_parse.py",
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
    ],
    "verifier/vocabulary.py": [
        "tests/verifier/test_parse.py",
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
    ],
    "verifier/expression.py": [
        "tests/verifier/test_parse.py",
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
    ],
    "verifier/parse.py": [
        "tests/verifier/test_parse.py",
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
    ],
    "verifier/tree.py": [
        "tests/verifier/test_parse.py",
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
    ],
    "verifier/exact.py": [
        "tests/verifier/test_exact.py",
        "tests/verifier/test_decide.py",
        "tests/verifier/test_properties.py",
    ],
    "verifier/names.py": [
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
        "tests/verifier/test_cases.py",
    ],
    "verifier/compare.py": [
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
        "tests/verifier/test_decide.py",
        "tests/verifier/test_cases.py",
    ],
    "verifier/algebra.py": [
        "tests/verifier/test_decide.py",
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
    ],
    "verifier/sets.py": [
        "tests/verifier/test_kinds.py",
        "tests/verifier/test_notation.py",
        "tests/verifier/test_decide.py",
        "tests/verifier/test_cases.py",
    ],
    "verifier/pool.py": ["tests/verifier/test_decide.py", "tests/verifier/test_pool.py"],
    "workers.py": ["tests/verifier/test_pool.py", "tests/test_own_reward.py"],
    "verifier/worker.py": ["tests/verifier/test_pool.py"],
    "verifier/recipe.py": ["tests/verifier/test_recipe.py"],
    "distributed/tracking.py": ["tests/distributed/test_tracking.py"],
    "run/tokens.py": ["tests/run/test_tokens.py"],
    "preflight/checks.py": ["tests/test_preflight.py"],
    "preflight/machine.py": ["tests/test_preflight.py"],
    "preflight/policy.py": ["tests/test_preflight.py"],
    "preflight/__main__.py": ["tests/distributed/test_preflight_command.py"],
    "run/health.py": ["tests/run/test_health.py"],
    "policy/keyed.py": ["tests/policy/test_keyed.py"],
    "evaluation.py": ["tests/test_evaluation.py", "tests/run/test_evaluator.py"],
    "compare.py": ["tests/test_evaluation.py"],
    "run/evaluator.py": ["tests/run/test_evaluator.py"],
    "distributed/shards.py": ["tests/distributed/test_shards.py"],
    "run/options.py": ["tests/run/test_evaluator.py", "tests/test_usage.py"],
    "evaluate.py": ["tests/run/test_evaluator.py"],
    "report/data.py": ["tests/test_report.py"],
    "report/page.py": ["tests/test_report.py"],
    "report/command.py": ["tests/test_report.py"],
    "report/pictures.py": ["tests/test_report.py"],
    "report/static/rollouts.js": ["tests/test_report.py"],
    "report/static/charts.js": ["tests/test_report.py"],
    "distributed/engine.py": [
        "tests/distributed/test_engine.py",
        "tests/run/test_export.py",
        "tests/distributed/test_distributed.py",
    ],
    "distributed/accelerator.py": [
        "tests/distributed/test_accelerator.py",
        "tests/distributed/test_distributed.py",
    ],
    "plan.py": ["tests/test_plan.py", "tests/test_preflight.py"],
    "types.py": ["tests/distributed/test_seeds.py"],
    "distributed/processes.py": ["tests/distributed/test_seeds.py", "tests/distributed/test_watch.py"],
    "loss.py": ["tests/test_loss.py"],
    "loss_variants.py": ["tests/test_loss_variants.py"],
    "reward.py": ["tests/test_reward.py"],
    "dynamic_sampling.py": ["tests/test_dynamic_sampling.py"],
    "objective.py": ["tests/test_objective.py"],
    "policy/pretrained.py": [
        "tests/policy/test_pretrained.py",
        "tests/policy/test_rollout.py",
        "tests/run/test_export.py",
    ],
    "policy/paths.py": ["tests/policy/test_paths.py"],
    "policy/small_model.py": ["tests/policy/test_paths.py"],
    "policy/batching.py": ["tests/policy/test_batching.py", "tests/policy/test_sampler_gap.py"],
    "policy/logprobs.py": ["tests/policy/test_logprobs.py", "tests/distributed/test_engine.py"],
    "policy/packing.py": ["tests/policy/test_packing.py", "tests/policy/test_attention.py"],
    "policy/attention.py": ["tests/policy/test_packing.py", "tests/policy/test_attention.py"],
    "policy/kv_cache.py": ["tests/policy/test_rollout.py", "tests/policy/test_real_attention.py"],
    "policy/columns.py": [
        "tests/policy/test_sampler_gap.py",
        "tests/policy/test_waiting.py",
        "tests/policy/test_rollout.py",
    ],
    "policy/waiting.py": ["tests/policy/test_waiting.py"],
    "policy/rollout.py": [
        "tests/policy/test_rollout.py",
        "tests/policy/test_sampler_gap.py",
        "tests/policy/test_waiting.py",
    ],
    "run/files.py": ["tests/run/test_manifest.py"],
    "run/manifest.py": ["tests/run/test_manifest.py"],
    "run/checkpoint.py": ["tests/run/test_checkpoint.py", "tests/run/test_export.py"],
    "run/folder.py": ["tests/run/test_folder.py", "tests/run/test_export.py"],
    "run/preemption.py": ["tests/run/test_preemption.py"],
    "distributed/watch.py": ["tests/distributed/test_watch.py"],
    "train.py": ["tests/test_wiring.py", "tests/test_keys.py"],
    "run/session.py": ["tests/test_wiring.py", "tests/data/test_prompt_dates.py"],
    "run/metrics.py": ["tests/run/test_metrics.py", "tests/test_own_reward.py"],
    "scoring.py": ["tests/test_scoring.py", "tests/test_extending.py", "tests/test_own_reward.py"],
    "config/keys.py": ["tests/test_config.py"],
    "config/names.py": ["tests/test_config.py", "tests/test_coming_from.py"],
    "config/reading.py": ["tests/test_config.py", "tests/test_coming_from.py"],
    "config/changes.py": ["tests/test_config.py", "tests/run/test_folder.py"],
    "own_reward.py": ["tests/test_own_reward.py"],
    "coming_from.py": ["tests/test_coming_from.py"],
    "data/survey.py": ["tests/data/test_survey.py"],
    "data/mixture.py": ["tests/data/test_layouts.py"],
    "data/problems.py": [
        "tests/data/test_layouts.py",
        "tests/data/test_survey.py",
        "tests/test_own_reward.py",
    ],
    "layout.py": ["tests/data/test_layouts.py"],
    "data/sources.py": ["tests/data/test_parquet_numbers.py", "tests/data/test_layouts.py"],
    "data/prompts.py": ["tests/data/test_prompt_dates.py", "tests/data/test_data.py"],
}

LAUNCHING = {
    "tests/distributed/test_distributed.py",
    "tests/distributed/test_preflight_command.py",
    "tests/test_report.py",
}
"""Tests that launch processes or a browser."""

MUTATIONS = {
    "launcher.py": [
        Mutation("the launcher is not told", "    tell_launcher(message)", "    pass"),
        Mutation("a refusal is silent", "print(message, file=sys.stderr)", "pass"),
        Mutation("a refusal is an output", "print(message, file=sys.stderr)", "print(message)"),
        Mutation("all processes speak", '(os.environ.get("RANK") or of_mpi("RANK") or "0") == "0"', "True"),
        Mutation("MPI speaks with many voices", ' or of_mpi("RANK")', ""),
        Mutation("another file", '"TORCHELASTIC_ERROR_FILE"', '"ERROR_FILE"'),
        Mutation("a full disk hides the error", "contextlib.suppress(OSError)", "contextlib.suppress()"),
        Mutation("no time", "int(time.time())", "2**40"),
    ],
    "run/command.py": [
        Mutation("a refusal says nothing", '        refuse(f"error: {error}")\n', ""),
        Mutation("a refusal is any failure", "        return 2\n", "        return 1\n"),
        Mutation(
            "the hub twice", '"huggingface_hub").propagate = False', '"huggingface_hub").propagate = True'
        ),
        Mutation("a full disk is not told", "        tell_launcher(line)", "        pass"),
        Mutation("a stop is not told", 'tell_launcher(f"{stopped}; --resume goes on")', "pass"),
        Mutation("a fault is not told", 'tell_launcher(f"error: {type(error).__name__}: {error}")', "pass"),
    ],
    "distributed/machine.py": [
        Mutation("more processes than GPUs", "processes > gpus", "processes > 2 * gpus"),
        Mutation("no GPU, no limit", "if not gpus and processes >", "if gpus and processes >"),
        Mutation("a few are too many", "max(FEW, cores)", "cores"),
        Mutation("a rank tells nothing", "_local_rank() + 1)", "1)"),
        Mutation("the first GPU for all", 'torch.device("cuda", _local_rank())', 'torch.device("cuda", 0)'),
        Mutation("the launcher's number", '"LOCAL_WORLD_SIZE", "1"', '"NO_SIZE", "1"'),
        Mutation("no compiler asked for", "    native_build.require_compiler()", "    pass"),
    ],
    "distributed/native_build.py": [
        Mutation("no compiler", "if shutil.which(compiler) is None:", "if False:"),
        Mutation("no headers", "if not headers.exists():", "if False:"),
        Mutation("always compiled", 'if (folder / f"{builder.name}.so").exists():', "if False:"),
        Mutation("one look", "if looks == 2:", "if looks == 1:"),
        Mutation("the first line", 'if "error:" in line', "if True"),
        Mutation("no offload", '"CPUAdamBuilder"] * offload', '"CPUAdamBuilder"] * False'),
        Mutation("a lock that stays", "lock.unlink(missing_ok=True)", "pass"),
    ],
    "usage.py": [
        Mutation("an error is not told", '        _leave(f"error: {error}", 2)', "        pass"),
        Mutation("starts without a configuration", "if not set(needed) <= set(words):", "if False:"),
        Mutation("--key=value is not seen", 'word.split("=")[0] for word in argv', "word for word in argv"),
        Mutation("an option taken for a key", 'if not word.startswith("-")', "if True"),
        Mutation("the authors' value for the paper's", 'f"{recipe}*" if recipe', "recipe if recipe"),
        Mutation("recipe lost behind paper", 'end.partition("recipe: ")[2]', '""'),
        Mutation("true as Python writes it", "str(default).lower() if", "str(default) if"),
        Mutation("no groups", "_groups(keys) or", "None or"),
        Mutation("no wrapping", "max(width - len(start), 30)", "200"),
        Mutation("help is a failure", "    if code:\n", "    if True:\n"),
        Mutation("help on each rank", "    elif launched_as_main():", "    else:"),
        Mutation("all may change", "if name in FREE_KEYS:", "if True:"),
    ],
    "run/next_step.py": [
        Mutation("step 0 counts", 'if "reward/accuracy" in r', 'if r.setdefault("reward/accuracy", 0.0) < 2'),
        Mutation(
            "the last before the first", "accuracies[0], accuracies[-1]", "accuracies[-1], accuracies[0]"
        ),
        Mutation(
            "spaces split the model",
            "    run = shlex.quote(config.output_dir)\n    accur",
            "    run = config.output_dir\n    accur",
        ),
        Mutation("spaces split the data", "shlex.join(config.eval_sources)", '" ".join(config.eval_sources)'),
        Mutation("always one process", "if processes == 1", "if True"),
    ],
    "verifier/decide.py": [
        Mutation(
            "leading zeros only",
            're.compile(r"[+-]?(?:\\d+|[1-9]\\d{0,2}(?:,\\d{3})+)"',
            're.compile(r"[+-]?(?:\\d+|[1-9]\\d*(?:,\\d{3})+)"',
        ),
        Mutation(
            "braces do not count",
            '" ".join(_INK.sub(" ", text).split())',
            '" ".join(re.sub("[{}]", " ", _INK.sub(" ", text)).split())',
        ),
        Mutation("no bound on length", "if len(answer) > MAX_CHARS:", "if False:"),
        Mutation("a list for one value is right", "if status is Status.WRONG and several:", "if several:"),
        Mutation(
            "words in part",
            'words[0] == words[1] else Status.WRONG, "words")',
            'words[0][:3] == words[1][:3] else Status.WRONG, "words")',
        ),
    ],
    "verifier/extract.py": [
        Mutation("the first label", "sorted(found, reverse=True)", "sorted(found)"),
        Mutation(
            "labels in the middle of a sentence",
            "return colon.end() if _BEFORE_LABEL.search(before) else None",
            "return colon.end()",
        ),
        Mutation(
            "retractions ignored",
            "return retraction is not None and any(map(str.isdigit, rest[retraction.start() :]))",
            "return False",
        ),
        Mutation("a later phrase ignored", "        later = said\n", "        pass\n"),
        Mutation(
            "a former answer counts", "if not _FORMER.search(tail, max(0, start - 20), start)", "if True"
        ),
        Mutation(
            "a later box ignored",
            "return answer if later in (None, answer) else",
            "return answer if True else",
        ),
        Mutation(
            "text after the end of the turn",
            "cut = end.start() if end else len(response)",
            "cut = len(response)",
        ),
        Mutation(
            "boxes although switched off",
            "answer = last_boxes(tail, REGION_CHARS) if boxed else None",
            "answer = last_boxes(tail, REGION_CHARS)",
        ),
        Mutation("several numbers conclude", "if len(numbers) != 1 or", "if not numbers or"),
    ],
    "verifier/clean.py": [
        Mutation(
            "a denial dropped with the tail",
            "if tail and tail.start() and not _NEGATION.search(tail[0]):",
            "if tail and tail.start():",
        ),
        Mutation("a denial before the verb", "if not _NEGATION.search(before) and not", "if not"),
        Mutation("the first of distant boxes", "run = [boxes[-1]]", "run = [boxes[0]]"),
        Mutation(
            "a box after an operator",
            "if not sign and _PART_BEFORE.search(tail, max(0, start - 30), start):",
            "if False:",
        ),
        Mutation("a box before an operator", "if sign or after:", "if sign:"),
        Mutation("what is struck out counts", 'text = _STRUCK.sub(" ", text)', "pass"),
        Mutation("two stars are always emphasis", "if _EMPHASIS.search(text):", "if True:"),
    ],
    "verifier/textual.py": [
        Mutation("digits of other scripts", "return str(digit)", "return char"),
        Mutation("superscripts beside the base", '(_SUPERSCRIPTS, "^")', '(_SUPERSCRIPTS, "")'),
        Mutation(
            "invisible characters are nothing",
            'return " " if unicodedata.category(char)',
            'return "" if unicodedata.category(char)',
        ),
    ],
    "verifier/tokens.py": [
        Mutation(
            "an ellipsis ends any decimal",
            "        if repeated is None:\n            return None\n",
            '        if repeated is None:\n            return f"{whole}.{digits}"\n',
        ),
        Mutation(
            "a pair is one number", "_NUMBER_INSIDE if self.depth else _NUMBER_OUTSIDE", "_NUMBER_OUTSIDE"
        ),
        Mutation(
            "one group of thousands after a point",
            r',\d{1,2}|(?:\.\d{3}){2,})|"',
            r',\d{1,2}|(?:\.\d{3}){1,})|"',
        ),
        Mutation("a display need not end", "        if self.displays:\n", "        if False:\n"),
        Mutation("a sign in braces is lost", 'self.emit("op", group[1])', "pass"),
        Mutation(
            "any word is a unit",
            'return self.after_value() and (word == "per" or vocabulary.is_unit_word(word))',
            "return self.after_value()",
        ),
        Mutation("no bound on tokens", "if len(self.tokens) >= MAX_TOKENS:", "if False:"),
        Mutation(
            "the period one digit late",
            "(10 ** len(period) - 1) * 10**shift",
            "(10 ** len(period) - 1) * 10 ** (shift + 1)",
        ),
        Mutation("a period without its integer part", 'Fraction(start + "0") +', 'Fraction("0") +'),
    ],
    "verifier/vocabulary.py": [
        Mutation(
            "more or less",
            '"=", "<", ">", "<=", ">=", "!=")} |',
            '"=", "<", ">", "<=", "!=")} | {">=": ">"} |',
        ),
        Mutation("units without plurals", 'word.removesuffix("s"), ', ""),
        Mutation("powers of units ignored", "* int(power or 1)", "* 1"),
        Mutation("per is times", "sign = -1 if bool(k) != bool(minus) else 1", "sign = -1 if minus else 1"),
        Mutation("letters of any case are units", "and word not in LETTER_UNITS", "and not word"),
        Mutation("squared counts things", '"counted" if singular(word) in COUNTED else ""', '"counted"'),
        Mutation("kelvins of dollars", 'if powers["K"] > 0 and len(powers) > 1:', "if False:"),
        Mutation("hundreds add", "group, room = 100 * group, 100", "group, room = 100 + group, 100"),
    ],
    "verifier/expression.py": [
        Mutation("quotients from the right", '"/": (3, 4, "div")', '"/": (3, 3, "div")'),
        Mutation("a sign binds before a power", 'SIGNS = {"+": 4, "-": 4', 'SIGNS = {"+": 4, "-": 6'),
        Mutation("no bound on depth", "if self.depth > MAX_DEPTH:", "if False:"),
        Mutation(
            "numbers side by side multiply", 'and last.op not in ("pow", "fact"):', 'and last.op == "neg":'
        ),
        Mutation("25 (twenty-five) is 625", 'if op == "" and self.words_meet_a_value():', "if False:"),
        Mutation("any fraction is mixed", "if 0 < p < q and", "if 0 < p and"),
        Mutation("a mixed number subtracts", 'Node("add", (value, tail))', 'Node("mul", (value, tail))'),
        Mutation("an arcsine is a reciprocal", "if power == num(-1) and name in", "if False and name in"),
        Mutation(
            "letters after a value are a unit",
            "or self.unit_follows(left, start) or",
            'or left.op == "num" or',
        ),
    ],
    "verifier/parse.py": [
        Mutation("half-open as open", "Node(opening + closing, inner", 'Node(opening + ")", inner'),
        Mutation(
            "a sum's index ends it",
            "(\n                level or self.peek()",
            "(\n                self.peek()",
        ),
        Mutation(
            "what is left over",
            '        if not self.sees("eof"):\n            raise',
            "        if False:\n            raise",
        ),
        Mutation(
            "a minus or plus is a plus or minus",
            'return inner if (part.op == "pm") == upper else',
            "return inner if upper else",
        ),
        Mutation(
            "rows of any length",
            "if not rows or any(len(row) != len(rows[0]) for row in rows):",
            "if not rows:",
        ),
    ],
    "verifier/tree.py": [
        Mutation(
            "products nest",
            "Node(op, (*left.args, right) if left.op == op else (left, right))",
            "Node(op, (left, right))",
        ),
        Mutation(
            "names in brackets unseen", "for part in walk(node) if part.op", "for part in [node] if part.op"
        ),
    ],
    "verifier/exact.py": [
        Mutation(
            "powers without a bound",
            "bits(base) * abs(exponent) > 2 * MAX_BITS",
            "bits(base) * abs(exponent) > 2000 * MAX_BITS",
        ),
        Mutation("any root is exact", "if root * root == x:", "if True:"),
        Mutation("work not added up", "self.work += bits(value) + 64", "self.work = bits(value) + 64"),
        Mutation("division truncates", "return x / y", "return Fraction(x // y)"),
        Mutation("ceiling is floor", 'math.floor(x) if op == "floor" else math.ceil(x)', "math.floor(x)"),
    ],
    "verifier/names.py": [
        Mutation(
            "a multiple is a name",
            'if node.op != "mul" or not is_symbol(node.args[0]):',
            'if node.op != "mul" or not any(map(is_symbol, node.args)):',
        ),
        Mutation(
            "names of a tuple ignored",
            "[named[name] for name in sorted(named, key=str)] or",
            "list(named.values()) or",
        ),
        Mutation("f(f(x)) names nothing", "or is_applied(arg) for arg", "for arg"),
        Mutation("a false gcd states a value", "return bool(symbols(node)) and (simple", "return (simple"),
        Mutation(
            "any two names",
            'return a == r or "text" in',
            'return True or "text" in',
        ),
    ],
    "verifier/compare.py": [
        Mutation("units ignored", "if a_unit and r_unit and a_unit != r_unit:", "if False:"),
        Mutation(
            "3 : 1 is 3", "or not is_expression(value) or is_integer(value):", "or not is_expression(value):"
        ),
        Mutation(
            "an inequality may turn",
            "return (op if ratio > 0 else turned) == r.args[0].args[0]",
            "return True",
        ),
        Mutation(
            "a chain need not agree",
            "return said if all(self.same(value, values[-1]) for value in values[:-1]) else None",
            "return said",
        ),
        Mutation("radians are degrees", 'and "rad^1" not in (a_unit, r_unit):', "and True:"),
        Mutation("a congruence is an equation", 'if said.op == "congruent":', "if False:"),
        Mutation(
            "percent is a hundredth of an integer",
            "return is_integer(plain) is not True and self.equal(a, r)",
            "return self.equal(a, r)",
        ),
        Mutation(
            "sets with elements left",
            "return all(any(self.same(x, y) for x in left) for y in unmatched)",
            "return True",
        ),
        Mutation(
            "tuples in any order",
            "return len(left) == len(right) and all(map(self.same, left, right))",
            "return self.unordered(left, right)",
        ),
        Mutation(
            "a modulus ignored",
            'self.equal(Node("mod", a.args), Node("mod", r.args))',
            'self.equal(Node("mod", a.args), Node("mod", a.args))',
        ),
        Mutation(
            "a number in a sum with degrees",
            "return all(map(in_degrees, node.args))",
            "return any(map(in_degrees, node.args))",
        ),
    ],
    "verifier/algebra.py": [
        Mutation("constants at few digits", "SURE_DIGITS = 1_000", "SURE_DIGITS = 30"),
        Mutation(
            "names are positive",
            "return -value if index >= POINTS // 2 and digest[0] % 2 else value",
            "return value",
        ),
        Mutation("expansion not consulted", "difference = expanded(difference)", "difference = difference"),
        Mutation("numbers and matrices add", "len(shapes) == len(args) and", "len(shapes) and"),
        Mutation("determinants are traces", 'args[0].det(method="berkowitz")', "args[0].trace()"),
        Mutation("a quotient by a matrix", "and isinstance(args[0], sympy.MatrixBase)):", "and True):"),
        Mutation(
            "a wrong exact value in sympy", "value.numerator, value.denominator)", "value.numerator, 1)"
        ),
        Mutation("one over infinity", 'if node.op != "neg" and {', "if False and {"),
        Mutation("degrees are radians", '"deg": lambda x: x * sympy.pi / 180', '"deg": lambda x: x * 1'),
        Mutation(
            "infinities are equal",
            "{sympy.oo, -sympy.oo}:\n        return bool(left == right)",
            "{sympy.oo, -sympy.oo}:\n        return True",
        ),
    ],
    "verifier/sets.py": [
        Mutation(
            "open and closed alike",
            "return bool(same_kind) and same_value(left.start",
            "return same_value(left.start",
        ),
        Mutation(
            "a relation read the wrong way",
            "left, op, right = right, _FLIPPED[op], left",
            "left, op, right = right, op, left",
        ),
        Mutation(
            "a negative factor does not turn", "ray(op if slopes[0] > 0 else", "ray(op if slopes[0] != 0 else"
        ),
        Mutation(
            "|x| > c is between",
            'join = sympy.Intersection if op in ("<", "<=") else sympy.Union',
            "join = sympy.Intersection",
        ),
    ],
    "verifier/pool.py": [
        Mutation(
            "boxes although switched off for one",
            "extract_answer(response, boxed=boxed), reference",
            "extract_answer(response), reference",
        ),
        Mutation("timeouts remembered", "if status is not Status.TIMEOUT:", "if True:"),
        Mutation("killed is too big", "Status.TIMEOUT if killed else Status.TOO_BIG", "Status.TIMEOUT"),
    ],
    "workers.py": [
        Mutation("a busy worker gets another", "worker.ready and worker.task is None:", "worker.ready:"),
        Mutation("a worker a case", "min(self.workers, len(self._pending))", "len(self._pending)"),
        Mutation("equal tasks run twice", "if key not in under_way), None)", "if True), None)"),
    ],
    "verifier/worker.py": [
        Mutation(
            "no bound on memory",
            "resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))",
            "pass",
        ),
        Mutation("no alarm", "signal.setitimer(signal.ITIMER_REAL, timeout_s + ALARM_AFTER_S)", "pass"),
    ],
    "verifier/recipe.py": [
        Mutation("the whole response", "response[-TAIL_CHARS:]", "response"),
        Mutation(
            "what stands before =", 'text = text.rpartition("=")[2]', 'text = text.partition("=")[2] or text'
        ),
    ],
    "distributed/tracking.py": [
        Mutation("a folder is a package", " or spec.origin is None", ""),
        Mutation("any tracker", "if spec is None or", "if spec is not None and"),
        Mutation("no grouping", 'return key if "/" in key else f"update/{key}"', "return key"),
        Mutation("another run each start", "if not file.exists():", "if True:"),
        Mutation("all responses shown", "[:: max(1, len(rows) // SHOWN_RESPONSES)][:SHOWN_RESPONSES]", "[:]"),
    ],
    "run/tokens.py": [
        Mutation("the first groups", "i * groups // count", "i"),
        Mutation("sides swapped", "advantage < 0 and ratio < low", "advantage > 0 and ratio < low"),
        Mutation("padding recorded", "micro.response_ids[i][mask]", "micro.response_ids[i]"),
    ],
    "preflight/checks.py": [
        Mutation("others' faults unseen", "if other == FAILED:", "if False:"),
        Mutation("errors of libraries end it", "except Exception as error:", "except KeyError as error:"),
        Mutation("nothing failed", "if row.result == FAILED]", "if False]"),
    ],
    "preflight/machine.py": [
        Mutation("any version", '.split("+")[0] != pin]', '.split("+")[0] == ""]'),
        Mutation("any folder", '.read_text(encoding="utf-8") != word', '.read_text(encoding="utf-8") == ""'),
        Mutation("no lock is a lock", "    if first:\n", "    if False:\n"),
        Mutation("any lock is seen", "if last != HELD:", "if False:"),
        Mutation(
            "disk of the checkpoints alone",
            "sum(disk_bytes(parameters, config).values())",
            'disk_bytes(parameters, config)["checkpoints"]',
        ),
        Mutation("any disk", "if needed > free:", "if False:"),
        Mutation("float32 is enough", "if total != world", "if False and total != world"),
        Mutation("any order", "for rank in range(world)]:", "for rank in range(world)] and False:"),
    ],
    "preflight/policy.py": [
        Mutation("planned beside what is held", " - torch.cuda.memory_allocated())", ")"),
        Mutation("any type", "if dtype != torch.float32]", "if dtype is None]"),
        Mutation("any norm", "if not (math.isfinite(norm) and norm > 0):", "if False:"),
        Mutation(
            "packed against packed", "padded = self._logprobs(self.batch, packed=False)", "padded = packed"
        ),
        Mutation("no row joins", "rollout_batch_size=GROUP_SIZE + 1", "rollout_batch_size=64"),
        Mutation("any gap", "if not float(gap.mean()) <= GAPS", "if False and float(gap.mean()) <= GAPS"),
        Mutation("any time", "if new > 3 * again + 0.02:", "if False:"),
        Mutation("small times too", "if new > 3 * again + 0.02:", "if new > again:"),
        Mutation("any kernel", "if not found:\n", "if False:\n"),
    ],
    "preflight/__main__.py": [
        Mutation("exit code 0", "or int(bool(failed))", "or 0"),
        Mutation(
            "folder left over",
            "            shutil.rmtree(folder, ignore_errors=True)\n",
            "            pass\n",
        ),
    ],
    "run/health.py": [
        Mutation("any gap is well", '"policy/sampler_gap_mean") > 0.05', '"policy/sampler_gap_mean") > 9'),
        Mutation("every gap warns", '"policy/sampler_gap_mean") > 0.05', '"policy/sampler_gap_mean") > 0.04'),
        Mutation("said again", "self._said.add(rule.text)", "pass"),
        Mutation("greatest for median", "statistics.median(before)", "max(before)"),
        Mutation("one step is enough", "len(recent) == rule.steps and", "recent and"),
        Mutation("acceptance bound", "< 0.1 * _value", "<= 0.1 * _value"),
        Mutation("truncation bound", "> 0.2,", ">= 0.2,"),
    ],
    "policy/keyed.py": [
        Mutation("noise without the position", "keys + positions * _signed(_STEP)", "keys + 0 * positions"),
        Mutation("noise without the key", "_mixed(keys + positions", "_mixed(0 * keys + positions"),
        Mutation("temperature left out", "scores / self._temperature", "scores / 1.0"),
        Mutation("nucleus left out", "if top_p < 1 else None", "if top_p < 0 else None"),
        Mutation("sign brought in", "& (2 ** (64 - bits) - 1)", "& -1"),
        Mutation("exponential for Gumbel", "-torch.log(-torch.log(uniform))", "-torch.log(uniform)"),
        Mutation(
            "position from the batch",
            "input_ids.shape[1] - self._starts",
            "0 * self._starts + input_ids.shape[1]",
        ),
    ],
    "evaluation.py": [
        Mutation("lengths of what was not asked", 'if not row.get("too_long")', "if True"),
        Mutation("error over samples", "values.std() / math.sqrt(len(values))", "values.std() / len(values)"),
        Mutation("ties count whole", "(0 in first) / len(first)", "float(0 in first)"),
        Mutation(
            "no answer votes", "found for found in classes if found is not None", "found for found in classes"
        ),
        Mutation("k itself left out", "if 2**i < k] + [k]", "if 2**i < k]"),
        Mutation("no figures over all", "{**found, ALL: summarize(rows)}", "found"),
    ],
    "compare.py": [
        Mutation("not paired", "mean_and_error(b.double() - a.double())", "mean_and_error(b.double())"),
        Mutation("one degree too many", "t_quantile(len(a) - 1)", "t_quantile(len(a))"),
        Mutation("by number", '(name, s[0]["prompt"], s[0]["reference"]): s', "(name, str(_)): s"),
        Mutation("a run is no evaluation", 'places = (folder, folder / "evaluation")', "places = (folder,)"),
        Mutation("pass of different k", 'figure == "pass" and sizes[0] != sizes[1]', "False"),
    ],
    "run/evaluator.py": [
        Mutation("too long asked", "if not task.too_long]", "]"),
        Mutation("too long forgotten", "[*rows, *missing]", "rows"),
        Mutation("too long for nobody", "too_long=ids is None", "too_long=False"),
        Mutation("limit of problems ignored", "problems[: limit or None]", "problems"),
        Mutation("seed left out", "key_of(self._seed, *parts, sample)", "key_of(0, *parts, sample)"),
        Mutation("samples alike", "key_of(self._seed, *parts, sample)", "key_of(self._seed, *parts)"),
        Mutation("problem left out", "key_of(self._seed, *parts, sample)", "key_of(self._seed, sample)"),
        Mutation("repeats not seen", "repeats = max(repeats, counts.times)", "pass"),
        Mutation("order of the processes", "[found[key] for key in sorted(found)]", "list(found.values())"),
        Mutation("shares uneven", "(-len(parts) % world_size)", "0"),
    ],
    "distributed/shards.py": [
        Mutation(
            "a partition from its own beginning", "values[low - first : high - first]", "values[: high - low]"
        ),
        Mutation("put at the beginning", "mine[low - start : high - start] =", "mine[: high - low] ="),
        Mutation(
            "all partitions are read", "        if low < high:", "        if values.tolist() and low < high:"
        ),
        Mutation("padding of the writers", "min((rank + 1) * size, parameter.ds_numel)", "(rank + 1) * size"),
    ],
    "run/options.py": [
        Mutation("temperature 0", "if self.temperature == 0:", "if False:"),
        Mutation("negative limit", "if self.limit < 0:", "if False:"),
        Mutation(
            "no home of an output", "output=os.path.expanduser(options.output)", "output=options.output"
        ),
    ],
    "evaluate.py": [
        Mutation("zero is not given", "key in known and value is not None", "key in known and value"),
        Mutation(
            "no samples is 32",
            "DEFAULT_SAMPLES if options.samples_per_problem is None else options.samples_per_problem",
            "options.samples_per_problem or DEFAULT_SAMPLES",
        ),
        Mutation("broken prompts.json", "except (OSError, ValueError) as error:", "except OSError as error:"),
        Mutation("date of a stopped evaluation", 'found.get("prompt_date") or ""', '""'),
        Mutation("other prompts than trained", "dataclasses.replace(base, **trained_prompts(model))", "base"),
        Mutation("exported model without its run", "of_model if is_exported else None", "None"),
        Mutation("results written over", 'if (self.path / "results.json").exists():', "if False:"),
        Mutation("results beside weights", "if model := model_around(self.path):", "if model := None:"),
        Mutation("other settings go on", "if settings[key] != before.get(key)]", "if False]"),
        Mutation("half a problem counts", 'len(counts[row["data"], row["problem"]]) == k', "True"),
        Mutation("finished sampled again", "(task.data, task.problem) not in done", "True"),
        Mutation("samples ignored", " else options.samples_per_problem),", " else DEFAULT_SAMPLES),"),
        Mutation(
            "every process does all",
            "processes.share(chunks(left, evaluator.sampling))",
            "chunks(left, evaluator.sampling)",
        ),
        Mutation("broken checkpoint", "check_file(path / name, entries[name])", "pass"),
        Mutation("every process checks it", "entries if launched_as_main() else ()", "entries"),
    ],
    "report/data.py": [
        Mutation("compressed rollouts unseen", 'for end in ("jsonl.gz", "jsonl")', 'for end in ("jsonl",)'),
        Mutation("seed is a difference", '*(*OWN_KEYS, "seed",', "*(*OWN_KEYS,"),
        Mutation("kept groups miscounted", "kept += is_kept", "kept += 1"),
        Mutation("no bound", "if used > limit and shown:", "if False:"),
        Mutation("population std", "len(rewards) - bool(unbiased)", "len(rewards)"),
        Mutation("bin off by one", "max(length - 1, 0) // width", "length // width"),
    ],
    "report/page.py": [Mutation("model text as markup", '.replace("<", "\\\\u003c")', "")],
    "report/command.py": [
        Mutation("watch draws once", "if now != before:", "if not before:"),
        Mutation("made before it is looked at", "            require_run(run)\n", "            pass\n"),
    ],
    "report/pictures.py": [
        Mutation("runs of one name are one", "names = run_names(runs)", "names = [run.name for run in runs]"),
    ],
    "report/static/rollouts.js": [
        Mutation("a filter of the page ignored", "test(group) && (!needle", "(!needle"),
        Mutation("search ignored", "(!needle || holds(group, needle))", "true"),
        Mutation("mixed is any right", "rightOf(g) > 0 && rightOf(g) < g.responses.length", "rightOf(g) > 0"),
    ],
    "report/static/charts.js": [
        Mutation("axis stays", "x: axes[state.x][i], y", "x: axes.step[i], y"),
        Mutation("no smoothing", "smoothed(values, state.smooth)", "values"),
        Mutation("no bands", "state.bands ? DATA.runs[run].seedless : run", "run"),
    ],
    "distributed/engine.py": [
        Mutation(
            "buffers left out of the export",
            "exported_state(self.policy.model, self.full_parameters(), keep=self.is_main)",
            "dict(self.full_parameters())",
        ),
        Mutation("W forgotten", "backward(loss * self.world_size)", "backward(loss)"),
        Mutation(
            "every micro-batch a boundary", "accumulation_boundary(last)", "accumulation_boundary(True)"
        ),
        Mutation("dropout left on", "        _switch_dropout_off(model)\n", ""),
        Mutation("the last gather forgotten", "        yield from _gathered(chunk)\n\n    def", "\n    def"),
        Mutation(
            "gathered twice",
            "                yield from _gathered(chunk)\n                chunk = []",
            "                yield from _gathered(chunk)",
        ),
        Mutation(
            "betas of the default", "betas=(config.adam_beta1, config.adam_beta2)", "betas=(0.9, 0.999)"
        ),
        Mutation("no weight decay", "weight_decay=config.weight_decay", "weight_decay=0.0"),
        Mutation(
            "temperature left out of training",
            "self._zero(micro, self.config.temperature)",
            "self._zero(micro, 1.0)",
        ),
        Mutation("rate of the start", 'group["lr"] = learning_rate', "pass"),
        Mutation(
            "nan on one process alone", "loss = loss if self._losses_finite else loss * math.nan", "pass"
        ),
        Mutation(
            "micro-batches of all processes on each",
            "            self.rank,\n            packed",
            "            0,\n            packed",
        ),
    ],
    "distributed/accelerator.py": [
        Mutation("a kernel planned for each length", "enable_cudnn_sdp(False)", "enable_cudnn_sdp(True)"),
        Mutation(
            "allocator set against the user", "if not any(os.environ.get(f", "if True or any(os.environ.get(f"
        ),
        Mutation(
            "accumulated over two steps",
            '["gradient_accumulation_steps"] = 1',
            '["gradient_accumulation_steps"] = 2',
        ),
        Mutation(
            "gradients summed in bf16",
            '"communication_data_type"] = "fp32"',
            '"communication_data_type"] = None',
        ),
        Mutation(
            "gradient not clipped",
            '["gradient_clipping"] = config.max_grad_norm',
            '["gradient_clipping"] = 0.0',
        ),
    ],
    "plan.py": [
        Mutation("disk of one checkpoint", "config.keep_checkpoints + 1 if", "1 if"),
        Mutation(
            "the smallest phase",
            "return max(phases(shape, config, machine), key",
            "return min(phases(shape, config, machine), key",
        ),
        Mutation("a model without attention heads", "    if not heads:\n", "    if False:\n"),
        Mutation("no moments", "width(precision) + 4 + 8 + 4", "width(precision) + 4 + 4"),
        Mutation("states not shared", "each * shape.parameters / gpus", "each * shape.parameters"),
        Mutation(
            "keys without values",
            "return 2 * width(precision) * shape.layers",
            "return width(precision) * shape.layers",
        ),
        Mutation("no room in the cache", "config.precision) * 9 / 8", "config.precision)"),
        Mutation("no copy", "size * shape.parameters}", "size}"),
        Mutation("head without its weight", "(6 if low else 4) *", "(0 if low else 4) *"),
        Mutation("logits once", "(True, True): 14", "(True, True): 7"),
        Mutation(
            "checkpoints everywhere", "if config.gradient_checkpointing else saved * (shape.layers - 1)", ""
        ),
        Mutation("one layer forgotten", "max(layer, last +", "max(0, last +"),
        Mutation("head forgotten", "max(layer, last + head_bytes", "max(layer, 0 * head_bytes"),
        Mutation(
            "cut short",
            "max(config.tokens_per_microbatch, longest_row(config))",
            "config.tokens_per_microbatch",
        ),
        Mutation("one more", "    most = 0\n", "    most = 1\n"),
        Mutation("always fits", "return DOES_NOT_FIT if wrong else 0", "return 0"),
        Mutation(
            "positions not looked at", "if longest_row(config) > shape.positions > 0 and", "if False and"
        ),
        Mutation("the memory of all", "0.95 * self.memory", "1.0 * self.memory"),
        Mutation(
            "hardware of any size",
            "if _phase(shape, least, machine, phase.name).total > machine.usable:",
            "if True:",
        ),
        Mutation("memory in GiB", "round(given.gpu_memory * GB)", "round(given.gpu_memory * 2**30)"),
    ],
    "types.py": [
        Mutation(
            "tokens sent as a list",
            '{"response_ids": array("i", self.response_ids)}',
            '{"response_ids": self.response_ids}',
        ),
        Mutation("tokens stay an array", 'state["response_ids"].tolist()', 'state["response_ids"]'),
    ],
    "distributed/processes.py": [
        Mutation("the group's own limit", "_set_pg_timeout(WATCHED_LIMIT)", "_get_default_store()"),
        Mutation("every rank samples alike", "for part in (*key, self.rank):", "for part in key:"),
    ],
    "loss.py": [
        # Eq. 9, advantages
        Mutation("population std by default", "unbiased: bool = True)", "unbiased: bool = False)"),
        Mutation("std conventions swapped", "if unbiased else group_size", "if not unbiased else group_size"),
        Mutation("group of one divides by zero", "max(group_size - 1, 1)", "(group_size - 1)"),
        Mutation("mean not subtracted", "shifted - shifted.mean(dim=1, keepdim=True)", "shifted"),
        Mutation(
            "mean over the batch", "shifted.mean(dim=1, keepdim=True)", "shifted.mean(dim=0, keepdim=True)"
        ),
        Mutation(
            "equal rewards cancel only nearly",
            "shifted = rewards.double() - rewards.double()[:, :1]",
            "shifted = rewards.double()",
        ),
        Mutation("std left out", "(centred / (std + eps)).float()", "(centred / (1 + eps)).float()"),
        Mutation("eps left out", "(centred / (std + eps))", "(centred / std)"),
        Mutation("eps as a floor", "centred / (std + eps)", "centred / std.clamp(min=eps)"),
        Mutation("variance for std", "degrees_of_freedom).sqrt()", "degrees_of_freedom)"),
        Mutation("default eps", "eps: float = 1e-6", "eps: float = 1e-4"),
        # Eq. 9, ratio
        Mutation(
            "ratio upside down", "exp(logprobs - old_logprobs.detach())", "exp(old_logprobs - logprobs)"
        ),
        Mutation(
            "ratio without exp", "torch.exp(logprobs - old_logprobs.detach())", "logprobs / old_logprobs"
        ),
        Mutation("gradient into the old policy", "old_logprobs.detach()", "old_logprobs"),
        # Eq. 10
        Mutation(
            "clip bounds swapped",
            "clamp(1.0 - clip_eps_low, 1.0 + clip_eps_high)",
            "clamp(1.0 - clip_eps_high, 1.0 + clip_eps_low)",
        ),
        Mutation("symmetric clip", "1.0 + clip_eps_high)\n    return", "1.0 + clip_eps_low)\n    return"),
        Mutation("no lower bound", "clamp(1.0 - clip_eps_low, 1.0", "clamp(0.0, 1.0"),
        Mutation(
            "max for min",
            "torch.minimum(ratio * advantages, clipped_ratio * advantages)",
            "torch.maximum(ratio * advantages, clipped_ratio * advantages)",
        ),
        Mutation(
            "clip on both sides",
            "torch.minimum(ratio * advantages, clipped_ratio * advantages)",
            "clipped_ratio * advantages",
        ),
        Mutation(
            "no clip", "torch.minimum(ratio * advantages, clipped_ratio * advantages)", "ratio * advantages"
        ),
        Mutation(
            "clip in place of an equal min",
            "torch.minimum(ratio * advantages, clipped_ratio * advantages)",
            "torch.minimum(ratio * advantages, clipped_ratio.detach() * advantages)",
        ),
        # Dual clip
        Mutation(
            "dual clip for positive advantages", "torch.where(advantages < 0,", "torch.where(advantages > 0,"
        ),
        Mutation("dual clip from above", "torch.maximum(surrogate,", "torch.minimum(surrogate,"),
        Mutation(
            "dual clip stops the gradient", "torch.maximum(surrogate,", "torch.maximum(surrogate.detach(),"
        ),
        Mutation("dual clip at c alone", "clip_ratio_c * advantages)", "-clip_ratio_c + 0 * advantages)"),
        Mutation("dual clip of c = 1", "if not clip_ratio_c > 1.0", "if not clip_ratio_c >= 1.0"),
        # Eq. 12, 8, 5
        Mutation(
            "per-micro-batch mean",
            "_masked(x, response_mask).sum() / num_tokens",
            "_masked(x, response_mask).sum() / response_mask.sum()",
        ),
        Mutation(
            "padding in the denominator",
            "_masked(x, response_mask).sum() / num_tokens",
            "_masked(x, response_mask).mean()",
        ),
        Mutation(
            "N forgotten", "_masked(x, response_mask).sum() / num_tokens", "_masked(x, response_mask).sum()"
        ),
        Mutation("mask by product", "x.masked_fill(~response_mask, 0.0)", "x * response_mask"),
        Mutation(
            "mask upside down", "x.masked_fill(~response_mask, 0.0)", "x.masked_fill(response_mask, 0.0)"
        ),
        Mutation(
            "mask forgotten in Eq. 12", "_masked(x, response_mask).sum() / num_tokens", "x.sum() / num_tokens"
        ),
        Mutation(
            "group's tokens forgotten",
            "(_masked(x, response_mask) / group_tokens.clamp(min=1)).sum()",
            "_masked(x, response_mask).sum()",
        ),
        Mutation("number of groups forgotten", ".sum() / num_groups", ".sum()"),
        Mutation("empty group divides by zero", "group_tokens.clamp(min=1)", "group_tokens"),
        Mutation(
            "padding in a response's length",
            "return response_mask.sum(dim=1).clamp(min=1)",
            "return response_mask.shape[1] + 0 * response_mask.sum(dim=1)",
        ),
        Mutation("empty response divides by zero", "sum(dim=1).clamp(min=1)", "sum(dim=1)"),
        Mutation(
            "mean over own rows",
            "/ _lengths(response_mask)).sum() / num_responses",
            "/ _lengths(response_mask)).mean()",
        ),
        Mutation(
            "token mean for sample mean", ".sum(dim=1) / _lengths(response_mask)).sum()", ".sum(dim=1)).sum()"
        ),
        # Eq. 8
        Mutation(
            "logprobs under the mask reach the gradient",
            "importance_ratio(_masked(logprobs, response_mask), ",
            "importance_ratio(logprobs, ",
        ),
        Mutation(
            "old logprobs under the mask reach the gradient",
            "_masked(old_logprobs, response_mask))",
            "old_logprobs)",
        ),
        Mutation("masking stops the gradient", "x.masked_fill(~", "x.detach().masked_fill(~"),
        Mutation(
            "one advantage for all",
            "return per_response.unsqueeze(1)",
            "return per_response[:1].unsqueeze(1)",
        ),
        Mutation("sign of the loss", "return -token_level_mean(", "return token_level_mean("),
        Mutation(
            "epsilons swapped on the way",
            "clipped_surrogate(ratio, advantages, clip_eps_low, clip_eps_high)\n\n\ndef dapo_loss",
            "clipped_surrogate(ratio, advantages, clip_eps_high, clip_eps_low)\n\n\ndef dapo_loss",
        ),
        # Clip fractions
        Mutation("low counts any sign", "low = (advantages < 0) & ", "low = "),
        Mutation("high counts any sign", "return (advantages > 0) & ", "return "),
        Mutation(
            "low counts padding",
            "(ratio < 1.0 - clip_eps_low) & response_mask",
            "(ratio < 1.0 - clip_eps_low)",
        ),
        Mutation(
            "high counts padding",
            "(ratio > 1.0 + clip_eps_high) & response_mask",
            "(ratio > 1.0 + clip_eps_high)",
        ),
        Mutation("low counts its bound", "(ratio < 1.0 - clip_eps_low)", "(ratio <= 1.0 - clip_eps_low)"),
        Mutation("high counts its bound", "(ratio > 1.0 + clip_eps_high)", "(ratio >= 1.0 + clip_eps_high)"),
        # Checks
        Mutation("zero tokens pass", "if not value > 0:", "if value < 0:"),
        Mutation("any mask passes", "if response_mask.dtype != torch.bool:", "if False:"),
        Mutation("shapes may broadcast", "if x.shape != other.shape:", "if x.dim() != other.dim():"),
    ],
    "loss_variants.py": [
        # GSPO and CISPO
        Mutation(
            "sum for mean of log-ratios",
            "(log_ratio.sum(dim=1) / _lengths(response_mask))",
            "(log_ratio.sum(dim=1))",
        ),
        Mutation(
            "a gradient into the old policy of a response",
            "_masked(old_logprobs, response_mask).detach()",
            "_masked(old_logprobs, response_mask)",
        ),
        Mutation(
            "padding in the ratio of a response",
            "log_ratio = _masked(logprobs, response_mask)",
            "log_ratio = logprobs",
        ),
        Mutation(
            "token ratios for the response's",
            "ratio = sequence_ratio(logprobs, old_logprobs, response_mask)",
            "ratio = masked_ratio(logprobs, old_logprobs, response_mask)",
        ),
        Mutation(
            "weight with a gradient", "response_mask).detach()\n    weight", "response_mask)\n    weight"
        ),
        Mutation(
            "weight not clipped",
            "weight = ratio.clamp(min=1.0 - clip_eps_low, max=1.0 + clip_eps_high)",
            "weight = ratio",
        ),
        Mutation("weight without a lower bound", "ratio.clamp(min=1.0 - clip_eps_low,", "ratio.clamp("),
        Mutation("advantage left out", "return weight * advantages *", "return weight *"),
        # Truncated importance weights
        Mutation("weight without a cap", ".detach().clamp(max=cap)", ".detach()"),
        Mutation("weight bounded on both sides", ".clamp(max=cap)", ".clamp(1 / cap, cap)"),
        Mutation(
            "weight upside down",
            "masked_ratio(old_logprobs, sampler_logprobs,",
            "masked_ratio(sampler_logprobs, old_logprobs,",
        ),
        Mutation("a gradient through the weight", ".detach().clamp(max=cap)", ".clamp(max=cap)"),
        Mutation("any cap", '_require_positive("cap", cap)', '_require_positive("cap", 1.0)'),
        # Dr. GRPO, leave-one-out, dual clip
        Mutation(
            "leave-one-out without its factor", "centred * group_size / max(group_size - 1, 1)", "centred"
        ),
        Mutation("leave-one-out of a group of one", "max(group_size - 1, 1)", "(group_size - 1)"),
        Mutation("length of the batch", "/ (num_responses * max_length)", "/ (num_responses * x.shape[1])"),
        Mutation("length alone", "/ (num_responses * max_length)", "/ max_length"),
        Mutation(
            "dual clip counted for all signs",
            "(advantages < 0) & (ratio > clip_ratio_c)",
            "(ratio > clip_ratio_c)",
        ),
        Mutation(
            "dual clip counted at padding", "(ratio > clip_ratio_c) & response_mask", "(ratio > clip_ratio_c)"
        ),
    ],
    "reward.py": [
        # Eq. 7
        Mutation(
            "wrong answers earn nothing", "torch.where(correct, 1.0, -1.0)", "torch.where(correct, 1.0, 0.0)"
        ),
        Mutation("scores pass as answers", "if correct.dtype != torch.bool:", "if False:"),
        # Eq. 13
        Mutation(
            "penalty from the cap",
            "expected_length = max_length - cache_length",
            "expected_length = max_length",
        ),
        Mutation("slope by L_max", "lengths.float()) / cache_length)", "lengths.float()) / max_length)"),
        Mutation("penalty without a floor", ".clamp(-1.0, 0.0)", ".clamp(max=0.0)"),
        Mutation("short responses are paid", ".clamp(-1.0, 0.0)", ".clamp(min=-1.0)"),
        Mutation("off by one length", "- lengths.float())", "- lengths.float() - 1)"),
        Mutation("cache of zero", "if not 0 < cache_length <=", "if not 0 <= cache_length <="),
        Mutation("cache above the cap", "if not 0 < cache_length <= max_length:", "if not 0 < cache_length:"),
        Mutation("cache as long as the cap refused", "0 < cache_length <= max", "0 < cache_length < max"),
        # Overlong filtering
        Mutation("filter upside down", "response_mask & ~truncated", "response_mask & truncated"),
        Mutation("filter unmasks padding", "response_mask & ~truncated", "response_mask ^ truncated"),
        Mutation(
            "filter changes its input",
            "response_mask & ~truncated.unsqueeze(1)",
            "response_mask.logical_and_(~truncated.unsqueeze(1))",
        ),
    ],
    "dynamic_sampling.py": [
        # Eq. 11
        Mutation("all-wrong groups pass", "(num_correct > 0) &", "(num_correct >= 0) &"),
        Mutation("all-right groups pass", "(num_correct < correct", "(num_correct <= correct"),
        Mutation("one right of G does not pass", "(num_correct > 0)", "(num_correct > 1)"),
        Mutation("count over the groups", "correct.sum(dim=-1)", "correct.sum(dim=0)"),
        Mutation("filter on reward", "if correct.dtype != torch.bool:", "if False:"),
        Mutation("the lower rate passes", "(rate > low)", "(rate >= low)"),
        Mutation("the upper rate passes", "(rate < high)", "(rate <= high)"),
        Mutation("rates of rewards", "_require_bool_groups(correct)\n        rate", "rate"),
        Mutation("any bounds", "if not 0 <= low < high <= 1:", "if False:"),
        Mutation("baseline still filters", "return torch.ones(", "return torch.zeros("),
        # Algorithm 1's buffer
        Mutation("surplus kept", "qualified[: self.missing]", "qualified"),
        Mutation("last groups kept", "qualified[: self.missing]", "qualified[::-1][: self.missing]"),
        Mutation("kept groups lost", "self.groups += qualified", "self.groups = qualified"),
        Mutation(
            "newest groups first",
            "self.groups += qualified[: self.missing]",
            "self.groups[:0] = qualified[: self.missing]",
        ),
        Mutation("filter inverted", "strict=True) if kept]", "strict=True) if not kept]"),
        Mutation("rows misaligned", "keep.tolist(), strict", "keep.flip(0).tolist(), strict"),
        Mutation("rounds not counted", "self.rounds += 1", "self.rounds = 1"),
        Mutation(
            "kept counted as generated",
            "self.groups_generated += len(groups)",
            "self.groups_generated += int(keep.sum())",
        ),
        Mutation(
            "surplus not counted",
            "self.groups_qualified += int(keep.sum())",
            "self.groups_qualified += min(int(keep.sum()), self.missing)",
        ),
        Mutation(
            "all-wrong counted as all-right",
            "self.groups_all_correct += int(correct.all",
            "self.groups_all_correct += int((~correct).all",
        ),
        Mutation("any wrong counted as all-wrong", "int((~correct).all(dim=1)", "int((~correct).any(dim=1)"),
        Mutation("full one group early", "return self.missing == 0", "return self.missing <= 1"),
        Mutation(
            "fewer rows than groups pass", "correct.shape[0] != len(groups)", "correct.shape[0] > len(groups)"
        ),
        # D4
        Mutation(
            "a refill is a full round",
            "return min(prompts_a_process, limit_a_process) * multiple_of",
            "return limit_a_process * multiple_of",
        ),
        Mutation("limit ignored", "min(prompts_a_process, limit_a_process)", "prompts_a_process"),
        Mutation(
            "limit exceeded by a multiple",
            "max(max_prompts // multiple_of, 1)",
            "-(-max_prompts // multiple_of)",
        ),
        Mutation("no prompt at all", "max(max_prompts // multiple_of, 1)", "max_prompts // multiple_of"),
        Mutation("acceptance ignored", "missing / acceptance_rate / multiple_of", "missing / multiple_of"),
        Mutation("rounded down", "math.ceil(missing /", "math.floor(missing /"),
        Mutation("processes forgotten", "limit_a_process) * multiple_of", "limit_a_process)"),
        Mutation(
            "rate may reach zero",
            "(self.qualified + 1) / (self.generated + 1)",
            "self.qualified / max(self.generated, 1)",
        ),
        Mutation("rate never forgets", "self.generated /= 2", "self.generated /= 1"),
        Mutation("rate forgets at once", "self.qualified += qualified", "self.qualified = qualified"),
    ],
    "objective.py": [
        Mutation(
            "epsilons crossed",
            '"clip_eps_high": config.clip_eps_high',
            '"clip_eps_high": config.clip_eps_low',
        ),
        Mutation(
            "padding trained",
            "micro.advantages, micro.response_mask, num_tokens",
            "micro.advantages, micro.response_mask | True, num_tokens",
        ),
        Mutation("responses for tokens", "num_tokens=mini.num_tokens", "num_tokens=mini.num_responses"),
        Mutation("own tokens", "num_tokens=mini.num_tokens", "num_tokens=micro.response_mask.sum()"),
        Mutation("dual clip never reached", "if config.dual_clip:", "if False:"),
        Mutation(
            "dual clip of the recipe always", "micro.advantages, config.dual_clip)", "micro.advantages, 10.0)"
        ),
        Mutation("weights never reached", "        if weighted:", "        if False:"),
        Mutation("weights shadowed", "not config.dual_clip and not weighted", "not config.dual_clip"),
        Mutation("another cap", "micro.response_mask, config.importance_cap", "micro.response_mask, 2.0"),
        Mutation("variant upside down", "return -aggregate(", "return aggregate("),
        Mutation(
            "variants never chosen",
            "return Objective(dapo if paper else other",
            "return Objective(dapo",
        ),
        Mutation(
            "one ratio for all variants", "Variant(gspo_surrogate, sequence_ratio)", "Variant(gspo_surrogate)"
        ),
        Mutation("CISPO is DAPO", "Variant(cispo_surrogate)", "Variant(masked_surrogate)"),
        Mutation("clip metrics of one side", "high=float(high)", "high=float(low)"),
        Mutation("old probability clipped", "probs = logprobs.detach()[", "probs = _old(micro)["),
        Mutation("all probabilities", "detach()[stopped]", "detach()[mask]"),
        Mutation("least probability", "float(probs.max())", "float(probs.min())"),
        Mutation("GSPO over tokens", 'config.loss_aggregation != "sample_level"', "False"),
        Mutation(
            "dual clip with any variant", 'config.dual_clip and variant is not VARIANTS["dapo"]', "False"
        ),
        Mutation("dual clip shadowed", "is _by_minibatch and not config.dual_clip", "is _by_minibatch"),
        Mutation("normalization never reached", '"group"): _by_group', '"group"): _by_minibatch'),
        Mutation("aggregation never reached", '"minibatch"): _by_response', '"minibatch"): _by_minibatch'),
        Mutation(
            "groups for responses",
            "micro.response_mask, mini.num_responses)",
            "micro.response_mask, mini.num_groups)",
        ),
        Mutation("own responses", "micro.response_mask, mini.num_responses)", "micro.response_mask, len(x))"),
        Mutation(
            "responses for groups",
            "micro.group_tokens, mini.num_groups)",
            "micro.group_tokens, mini.num_responses)",
        ),
    ],
    "policy/pretrained.py": [
        Mutation("a copy on the CPU first", "load_model(config, device)", "load_model(config)"),
        Mutation("end tokens beyond the tokenizer", "values(), *end_ids) + 1", "values()) + 1"),
        Mutation("a type made up", "if kind not in CONFIG_MAPPING:", "if False:"),
        Mutation("code that comes along", 'and content.get("auto_map"):', "and False:"),
        Mutation(
            "any error of a configuration",
            "except Exception as error:  # of any type",
            "except OSError as error:  # of any type",
        ),
        Mutation("quantized weights", 'getattr(config, "quantization_config", None)', "False"),
        Mutation("JSON of any kind", "if not isinstance(content, dict):", "if False:"),
        Mutation("a tokenizer made up", "- {tokenizer.unk_token_id}:", "| {0}:"),
        Mutation("a special token is text", ", add_special_tokens=False", ""),
        Mutation("negative end tokens", " or item < 0 for", " for"),
        Mutation("true as an id", "type(item) is not int", "not isinstance(item, int)"),
        Mutation(
            "no generation configuration is an empty one",
            " if content is not None else None",
            " if content else special_tokens()",
        ),
        Mutation("rules of the model", "generation_config=own,  # tr", "# tr"),
        Mutation("ids of the file lost", "special_tokens(**content)", "special_tokens()"),
        Mutation("ids of the model lost", "special_tokens(**vars(hf_config))", "special_tokens()"),
        Mutation("no weights", "if first is None:", "if False:"),
        Mutation("index not read", 'if first.suffix == ".json":', "if False:"),
        Mutation("pickles cut short", "and not zipfile.is_zipfile(file)", "and False"),
        Mutation("missing weights at random", 'sorted(info["missing_keys"]) + ', ""),
        Mutation("other shapes at random", ' + sorted(name for name, *_ in info["mismatched_keys"])', ""),
        Mutation("one position more", "needed <= positions:", "needed <= positions + 1:"),
        Mutation("one position fewer", "needed <= positions:", "needed < positions:"),
        Mutation(
            "learned positions exceeded",
            "if rotary and config.exceed_positions:",
            "if config.exceed_positions:",
        ),
        Mutation("positions never exceeded", "if rotary and config.exceed_positions:", "if False:"),
        Mutation("first data set alone", "for pairs in prompts for", "for pairs in prompts[:1] for"),
        Mutation("buffers not exported", "if name in saved}", "if name not in saved}"),
        Mutation("parameters that pass", '.to("cpu", copy=True)', '.to("cpu")'),
        Mutation("every process keeps all", "        if keep:\n", "        if True:\n"),
    ],
    "policy/paths.py": [
        Mutation("any difference passes", "self.difference <= TOLERANCE\n", "True\n"),
        Mutation("packed whatever is asked", "if trial.path.packed and not packing:", "if False:"),
        Mutation("several kinds of input", "    if others:\n", "    if False:\n"),
        Mutation("encoders", "if seen_ahead > TOLERANCE:", "if False:"),
        Mutation("no hint at positions", "{_rope_hint(hf_config, num_positions)}", ""),
        Mutation("random state used up", "with torch.random.fork_rng(devices=[]):", "if True:"),
    ],
    "policy/small_model.py": [
        Mutation("lengths do not matter", "SHORT_POSITIONS if num_positions > original else 4096", "4096"),
        Mutation("a layer of each kind", "keep = max(keep, 1 - min(kinds.values()))", "pass"),
        Mutation(
            "configuration changed in place",
            "    config = copy.deepcopy(hf_config)\n",
            "    config = hf_config\n",
        ),
        Mutation("a copy of any size", "if count > MOST_PARAMETERS:", "if False:"),
    ],
    "policy/batching.py": [
        # What the sampler tells
        Mutation(
            "of another row",
            "[batch.sampler_logprobs[row] for row in rows]",
            "batch.sampler_logprobs[: len(rows)]",
        ),
        Mutation(
            "told in part", "if any(len(batch.response_ids[row])", "if all(len(batch.response_ids[row])"
        ),
        # What is divided by
        Mutation(
            "filtered tokens counted", "batch.lengths[member & ~batch.filtered]", "batch.lengths[member]"
        ),
        Mutation(
            "tokens of the whole batch",
            "batch.lengths[member & ~batch.filtered]",
            "batch.lengths[~batch.filtered]",
        ),
        Mutation(
            "groups counted as responses", "len(batch.group_index[member].unique())", "int(member.sum())"
        ),
        Mutation("filtered tokens in the group", "batch.lengths * ~batch.filtered", "batch.lengths * 1"),
        Mutation(
            "a response's tokens for its group's",
            "group_tokens=group_tokens[batch.group_index[rows]]",
            "group_tokens=lengths",
        ),
        # Masks
        Mutation(
            "one token of padding trained", "< batch.lengths[rows, None]", "<= batch.lengths[rows, None]"
        ),
        Mutation(
            "last token never trained", "< batch.lengths[rows, None]", "< batch.lengths[rows, None] - 1"
        ),
        Mutation(
            "truncated responses trained",
            "overlong_filter(response_mask, batch.filtered[rows])",
            "response_mask",
        ),
        Mutation("only truncated responses trained", "filtered=truncated if", "filtered=~truncated if"),
        Mutation(
            "overlong filtering always",
            "if overlong_filtering else torch.zeros_like(truncated)",
            "if True else truncated",
        ),
        Mutation("empty micro-batch trains", "nothing = torch.zeros(1, 1,", "nothing = torch.ones(1, 1,"),
        # Which rows, where
        Mutation(
            "groups interleaved",
            ".repeat_interleave(len(groups[0].rollouts))",
            ".repeat(len(groups[0].rollouts))",
        ),
        Mutation(
            "mini-batch too large",
            "-(-num_groups // groups_per_update)",
            "max(num_groups // groups_per_update, 1)",
        ),
        Mutation("processes out of step", "[range(0)] * (-len(runs) % multiple_of)", "[]"),
        Mutation(
            "all processes take the same", "planned[process_index::num_processes]", "planned[::num_processes]"
        ),
        Mutation(
            "neighbours on one process",
            "planned[process_index::num_processes]",
            "planned[process_index * (len(planned) // num_processes) :][: len(planned) // num_processes]",
        ),
        Mutation("shortest first", "(-_row_size(batch, row), row)", "(_row_size(batch, row), row)"),
        Mutation("one row over the budget", "cost(start, end + 1) > budget", "cost(start, end) > budget"),
        Mutation(
            "one row under the budget",
            "end == count or cost(start, end + 1) > budget",
            "end == count or cost(start, min(end + 2, count)) > budget",
        ),
        Mutation(
            "prompt not in the budget",
            "return len(batch.response_ids[row]) + len(batch.prompt_ids[row])",
            "return len(batch.response_ids[row])",
        ),
        Mutation("prompt counted for each row", "len(batch.response_ids[row]) if joins else ", ""),
        Mutation(
            "another row's advantage",
            "advantages=batch.advantages[rows]",
            "advantages=batch.advantages[: len(rows)]",
        ),
        Mutation("state of the token itself", "[prompt[-1], *response[:-1]]", "[*response]"),
        Mutation(
            "padded: state of the token itself",
            "len(batch.prompt_ids[row]) - 1 for i",
            "len(batch.prompt_ids[row]) for i",
        ),
        Mutation(
            "response at the prompt's positions",
            "positions = [piece.num_before + i for piece",
            "positions = [i for piece",
        ),
        Mutation(
            "the common beginning not seen",
            "append(batch.response_ids[row], *beginning, prompt)",
            "append(batch.response_ids[row], prompt)",
        ),
        Mutation("a prompt for each row", "i == 0 or groups[i] != groups[i - 1]:", "True:"),
        Mutation("padded on the left", "padded[i, : len(row)]", "padded[i, -len(row) :]"),
    ],
    "policy/logprobs.py": [
        Mutation(
            "padded rows have a share", "temperature, num_tokens or len(weight))", "temperature, len(weight))"
        ),
        Mutation("padded rows in the own head", "output.logits[..., : self.num_tokens]", "output.logits"),
        Mutation("padded rows of a policy", "temperature, self.num_tokens\n", "temperature\n"),
        # Which state predicts which token
        Mutation("label off by one", "micro.response_ids[mask]", "micro.response_ids.roll(1, 1)[mask]"),
        Mutation(
            "state off by one",
            ", micro.predictors[mask]",
            ", micro.predictors.roll(1, 1)[mask]",
        ),
        Mutation(
            "values exchanged",
            "(mask, logprobs), empty.masked_scatter(mask, entropy)",
            "(mask, entropy), empty.masked_scatter(mask, logprobs)",
        ),
        # Values
        Mutation("temperature forgotten", "else logits / temperature", "else logits"),
        Mutation("temperature multiplied", "else logits / temperature", "else logits * temperature"),
        Mutation("bias forgotten", "bias if bias is None else bias[:num_tokens]", "None"),
        Mutation("not normalised", ".squeeze(1) - log_norm[rows]", ".squeeze(1)"),
        Mutation(
            "entropy of log Z − Σ p·z",
            "-log_probs.exp().mul_(log_probs).sum(dim=1)",
            "log_norm[rows] - log_probs.exp().mul_(log_probs + log_norm[rows, None]).sum(dim=1)",
        ),
        Mutation("entropy without its sign", "-log_probs.exp()", "log_probs.exp()"),
        Mutation(
            "a token lost at each chunk", "slice(start, start + size)", "slice(start, start + size - 1)"
        ),
        Mutation("one chunk for all", "elements // weight.shape[0]", "elements"),
        # Gradients
        Mutation(
            "temperature forgotten in the gradient",
            "grad_logprobs[rows, None] / ctx.temperature",
            "grad_logprobs[rows, None]",
        ),
        Mutation("one-hot forgotten", ".scatter_add_(1, targets[rows, None], scale)", ""),
        Mutation("sign of the softmax", "probs.mul_(-scale)", "probs.mul_(scale)"),
        Mutation(
            "weight's gradient of the last chunk",
            "grad_weight[:known] += grad_logits.T @ hidden[rows]",
            "grad_weight = (grad_logits.T @ hidden[rows]).float()",
        ),
        Mutation(
            "float32 weight's gradient of the last chunk",
            "grad_weight[:known].addmm_(grad_logits.T, hidden[rows])",
            "grad_weight = grad_logits.T @ hidden[rows]",
        ),
        Mutation(
            "bias's gradient forgotten", "grad_bias[:known] += grad_logits.sum(dim=0)", "grad_bias += 0"
        ),
        Mutation("own head not scaled", ".float() / temperature", ".float()"),
        Mutation("train mode computes as in training", "super().train(False)", "super().train(mode)"),
    ],
    "policy/packing.py": [
        Mutation(
            "keys of the piece alone", "list(chain(*piece.before, piece.own)) for", "list(piece.own) for"
        ),
        Mutation("pieces as they come", "sorted(pieces, key=lambda piece: piece.own.start)", "list(pieces)"),
        Mutation("the first piece's keys", "max(map(len, keys))", "len(keys[0])"),
        Mutation(
            "no prompt before a response",
            "keys = torch.cat([before, queries], dim=1)",
            "keys = torch.cat([queries[:, :1].expand_as(before), queries], dim=1)",
        ),
        Mutation(
            "another row's place",
            "home[queries[real]] = real.nonzero()[:, 0]",
            "home[queries[real]] = real.nonzero()[:, 0].flip(0)",
        ),
        Mutation(
            "one block for all lengths",
            "not buckets or 2 * len(piece.own) < len(buckets[-1][0].own)",
            "not buckets",
        ),
    ],
    "policy/attention.py": [
        Mutation("window of one more", "else window - 1, 0)", "else window, 0)"),
        Mutation(
            "scale left to the kernel", "        scale=scaling,\n        window_size", "        window_size"
        ),
        Mutation("a kernel that is off", "if not far <= 0.05:", "if far > 5:"),
        Mutation("tried without gradients", "for x in (out, *gradients)]", "for x in (out,)]"),
        Mutation("tried without a window", "for window in (None, 5))", "for window in (None,))"),
        Mutation("fp32 to flash", "    return half and query", "    return query"),
        Mutation("values of another size", " == key.shape[3] == value.shape[3]", ""),
        Mutation(
            "grouped heads to other kernels", "if grouped and q.is_cuda and not (", "if False and not ("
        ),
        Mutation(
            "heads in turn",
            "x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)",
            "x.repeat(1, q.shape[1] // x.shape[1], 1, 1)",
        ),
        Mutation("a CPU asks for one call", "fused = query.is_cuda and flash", "fused = flash"),
        Mutation(
            "a query sees what follows",
            "causal_lower_right(num_queries, num_keys)",
            "torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)",
        ),
        Mutation("window one too wide", "(distance < window)", "(distance <= window)"),
        Mutation("window looks ahead", "(distance >= 0) & ", ""),
        Mutation("window forgotten", "num_keys <= window", "num_keys > 0"),
        Mutation(
            "queries aligned to the first keys",
            "column[num_keys - num_queries :, None]",
            "column[:num_queries, None]",
        ),
        Mutation("results in the order of the blocks", "[packing.home]", "[: len(packing.home)]"),
    ],
    "policy/kv_cache.py": [
        Mutation("kept rows begin too late", "rows.starts[keep] - first", "rows.starts[keep]"),
        Mutation("old rows begin too early", "old.starts + shift_old", "old.starts"),
        Mutation("new rows begin too early", "new.starts + shift_new", "new.starts"),
        Mutation(
            "cache padded on the right",
            "whole[: len(own), :, width - own.shape[2] :] = own",
            "whole[: len(own), :, : own.shape[2]] = own",
        ),
        Mutation(
            "cache keeps its padding",
            "layer.take(keep, first)",
            "layer.take(keep, 0)",
        ),
        Mutation(
            "cache of other rows",
            "layer.take(keep, first)",
            "layer.take(keep.flip(0), first)",
        ),
        Mutation(
            "room kept when rows are taken",
            'the columns before `first`."""\n        self._room = None',
            'the columns before `first`."""',
        ),
        Mutation(
            "room kept when rows join", 'both.\n        """\n        self._room = None', 'both.\n        """'
        ),
        Mutation("cache of those who join kept", "setattr(other, name, None)", "pass"),
        Mutation("room always small", "max(self.SPARE, new // 8)", "self.SPARE"),
        Mutation(
            "columns sliced after the rows are taken",
            "self.keys = self.keys[..., first:, :].index_select(0, keep)",
            "self.keys = self.keys.index_select(0, keep)[..., first:, :]",
        ),
        Mutation(
            "the last token written over",
            "whole[..., old:new, :] = added",
            "whole[..., old - 1 : new - 1, :] = added",
        ),
        Mutation(
            "windows repacked",
            "return all(type(layer) is DynamicLayer",
            "return True or all(type(layer) is DynamicLayer",
        ),
    ],
    "policy/columns.py": [
        Mutation(
            "recorded at temperature 1", "scores if self._temperature == 1.0 else", "scores if True else"
        ),
        Mutation(
            "cap of the oldest row for all",
            "input_ids.shape[1] >= self.last_columns",
            "input_ids.shape[1] >= self.last_columns.max()",
        ),
        Mutation("a full cache stops nothing", "input_ids.shape[1] >= self.full_at or ", ""),
    ],
    "policy/waiting.py": [
        Mutation("no room to grow", "(width + width // 8 + 1)", "width"),
        Mutation(
            "a part of a group stays out", "                if room > 0:\n", "                if False:\n"
        ),
        Mutation("another part", "index=item.index[room:]", "index=item.index[:-room]"),
        Mutation("wider rows not seen", "width = max(width, len(item.tokens))", "width = max(width, 1)"),
        Mutation("the longest put back", "argsort(descending=True, stable=True)", "argsort(stable=True)"),
        Mutation(
            "put back behind the others", "self._items.appendleft(Waiting", "self._items.append(Waiting"
        ),
        Mutation("padding among the tokens", "rows.ids[i][rows.mask[i].bool()]", "rows.ids[i]"),
        Mutation(
            "the response begins anew",
            "rows.ids.shape[1] - int(rows.starts[i])\n",
            "0 * int(rows.starts[i])\n",
        ),
        Mutation("one row alone kept out", "0 if num_rows else 1)", "0)"),
        Mutation("one row alone stops", "self._budget is None or num_rows == 1", "self._budget is None"),
        Mutation("rows in another order", "order[:most].sort().values", "order[:most]"),
        Mutation("put back too early", "< self.last_column(len(rows.index)):", "< 0:"),
        Mutation("all of the free memory", "int(FREE_SHARE * free)", "int(free)"),
        Mutation("keys alone", "return 2 * config.num_hidden_layers", "return config.num_hidden_layers"),
        Mutation("heads of queries", "num_key_value_heads", "num_attention_heads"),
        Mutation("fp32 always", "* model.dtype.itemsize", "* 4"),
        Mutation("cached by torch is lost", "free += torch.cuda", "free += 0 * torch.cuda"),
    ],
    "policy/rollout.py": [
        Mutation("padded rows are sampled", "suppress_tokens=list(unknown) or None", "suppress_tokens=None"),
        Mutation("top-k takes part", "top_k=0,", "top_k=3,"),
        Mutation(
            "recorded after the cut",
            "LogitsProcessorList([recorder])",
            "LogitsProcessorList([TopPLogitsWarper(self.sampling.top_p), recorder])",
        ),
        Mutation(
            "one segment's log-probabilities alone",
            '.setdefault(row, array("f")).extend(',
            '.update({row: array("f")}) or self._logprobs[row].extend(',
        ),
        Mutation(
            "log-probabilities of another row", "in zip(index, torch.stack", "in zip(index[::-1], torch.stack"
        ),
        Mutation(
            "log-probabilities beyond the end",
            'self._logprobs.pop(row, array("f"))[: len(ids)]',
            'self._logprobs.pop(row, array("f"))',
        ),
        Mutation(
            "after the cut by blocks", "return_logprobs=self.sampling.top_p == 1", "return_logprobs=True"
        ),
        Mutation("sampled at temperature 1", "temperature=sampling.temperature", "temperature=1.0"),
        Mutation("greedy", "do_sample=True", "do_sample=False"),
        Mutation("the response without its end token", "return ids[: position + 1]", "return ids[:position]"),
        Mutation(
            "nothing truncated",
            "truncated=ids[-1] not in end_ids",
            "truncated=False",
        ),
        Mutation(
            "padded positions counted",
            "(mask.cumsum(dim=1) - 1).clamp(min=0)",
            "torch.arange(mask.shape[1]).expand_as(mask)",
        ),
        Mutation(
            "padding seen",
            "            attention_mask=mask,\n            position_ids",
            "            attention_mask=torch.ones_like(mask),\n            position_ids",
        ),
        Mutation(
            "prompts exchanged",
            "cache.batch_select_indices(repeat)",
            "cache.batch_select_indices(repeat.flip(0))",
        ),
        Mutation("a token beyond the cap", "responses[i][start : start + cap]", "responses[i][start:]"),
        Mutation(
            "groups in another order", "rollouts[i * size + g] for g", "rollouts[g * len(prompts) + i] for g"
        ),
        Mutation(
            "another problem told of",
            "on_response(prompts[row // size][0], rollouts[row])",
            "on_response(prompts[0][0], rollouts[row])",
        ),
    ],
    "run/files.py": [
        Mutation("written in place", 'partial = file.with_name(file.name + ".tmp")', "partial = file"),
    ],
    "run/manifest.py": [
        Mutation("hashes not compared", 'if found.hexdigest() != entry["sha256"]:', "if False:"),
        Mutation("sizes not compared", 'if size != entry["bytes"]:', "if False:"),
        Mutation(
            "the manifest believed",
            'if hashlib.sha256(content.encode()).hexdigest() != manifest["sha256"]:',
            "if False:",
        ),
        Mutation("hash of nothing", "        self._hash.update(data)\n", ""),
        Mutation("error of writing forgotten", "self.error = self.error or error", "pass"),
    ],
    "run/checkpoint.py": [
        Mutation("former model stays", "            folder.model.rename(former)", "            return"),
        Mutation(
            "former model left over",
            "partial.rename(folder.model)\n        shutil",
            "partial.rename(folder.model)\n        str",
        ),
        Mutation(
            "no prompts beside the weights",
            '"prompt_template": config.prompt_template',
            '"prompt_template": ""',
        ),
        Mutation("broken ones taken", "if not problems:\n            _set", "if True:\n            _set"),
        Mutation("oldest first", "for name in reversed(names)]", "for name in names]"),
        Mutation("newest removed", "folder.checkpoints()[:-keep]", "folder.checkpoints()[keep:]"),
        Mutation("one too many stays", "folder.checkpoints()[:-keep]", "folder.checkpoints()[: -keep - 1]"),
        Mutation("no room needed", "if needed > free:", "if False:"),
        Mutation(
            "start over where none is whole", "    if broken:\n        raise", "    if False:\n        raise"
        ),
        Mutation(
            "half-written ones stay",
            "            shutil.rmtree(partial, ignore_errors=True)\n        message",
            "            pass\n        message",
        ),
        Mutation("always stops", 'if config.on_checkpoint_error == "stop":', "if True:"),
        Mutation("broken ones stay in the way", "            _set_aside(engine, broken)\n", ""),
        Mutation(
            "named before the manifest", "    write_manifest(partial, {STATE_FILE: loop, **entries})\n", ""
        ),
    ],
    "run/folder.py": [
        Mutation("model may be a link", "self.model.is_symlink() or", ""),
        Mutation("no lock", "            self._take_lock()\n", ""),
        Mutation("every change accepted", "if refused and not config.allow_config_change:", "if False:"),
        Mutation("no change accepted", "if refused and not config.allow_config_change:", "if changed:"),
        Mutation(
            "this start's keys kept", "resume=False, allow_config_change=False)", "resume=config.resume)"
        ),
        Mutation(
            "bad updates without end", 'if len(list(folder.glob("step_*"))) < MAX_BAD_UPDATES:', "if True:"
        ),
        Mutation("later rollouts stay", "if _step_of(file) > step:", "if False:"),
        Mutation(
            "one step of responses more",
            "if _step_of(file) <= step - keep:",
            "if _step_of(file) < step - keep:",
        ),
        Mutation(
            "responses go unasked", 'glob("rollouts/step_*") if keep else ()', 'glob("rollouts/step_*")'
        ),
        Mutation("a file for a folder", "if self.path.exists() and not self.path.is_dir():", "if False:"),
        Mutation("inside a model", "if model := model_around(self.path):", "if model := None:"),
        Mutation("config.json is a model", 'if (folder / "config.json").is_file() and any(', "if any("),
        Mutation("permission not asked", "if not os.access(above, os.W_OK | os.X_OK):", "if False:"),
        Mutation("a file above", "        if not above.is_dir():", "        if False:"),
    ],
    "run/preemption.py": [
        Mutation("the second signal unheard", "now - self._first > SAME_S", "False"),
        Mutation("nothing leaves before the loop", "if not self._in_loop or (", "if ("),
        Mutation(
            "the last signal counts",
            "        if not self.received:\n            self._first",
            "        if True:\n            self._first",
        ),
        Mutation("signal for code", "return 128 + number", "return number"),
    ],
    "distributed/watch.py": [
        Mutation("silence unseen", "elif not report.left and silent:", "elif False:"),
        Mutation("everyone behind", "report.entered < ahead", "report.entered <= ahead"),
        Mutation(
            "victims named", "if report.left and not report.left.startswith(CONSEQUENCES):", "if report.left:"
        ),
        Mutation("no end", "elif silent > self.timeout_s:", "elif False:"),
        Mutation("those behind not waited for", "if behind is None or behind > self.timeout_s:", "if True:"),
        Mutation("waiting for ever", "behind is None or behind > self.timeout_s", "behind is None"),
        Mutation("the quickest of those behind", "max(new.silent_s", "min(new.silent_s"),
        Mutation("one that is gone waited for", "old.beats == new.beats or new.left", "new.left"),
        Mutation("one that left waited for", "old.beats == new.beats or new.left", "old.beats == new.beats"),
        Mutation("silence not told", "self._left, silent)", "self._left)"),
        Mutation(
            "tokens are no progress",
            '"""A sign of progress, such as one more token."""\n        self._progress = time.monotonic()',
            '"""A sign of progress, such as one more token."""',
        ),
        Mutation(
            "no last words",
            '                self._report(f"{type(error)',
            '                str(f"{type(error)',
        ),
    ],
    "train.py": [
        Mutation("verification timed as sampling", 'metrics.timed("verify")', 'metrics.timed("rollout")'),
        Mutation(
            "rate of one step ahead",
            "learning_rate(run.config, step)) as",
            "learning_rate(run.config, step + 1)) as",
        ),
        Mutation("resumed from the first step", "range(run.steps_done, run", "range(0, run"),
        Mutation("no model at the end", "    run.export_model()\n", "    pass\n"),
        Mutation("filter ignored", "mixed if config.dynamic_sampling else any_outcome", "mixed"),
        Mutation("filter never on", "mixed if config.dynamic_sampling else any_outcome", "any_outcome"),
        Mutation("rounds without a limit", "buffer.rounds < config.max_rounds", "buffer.rounds < 10**6"),
        Mutation("every process samples all", "engine.share(prompts)", "prompts"),
        Mutation(
            "seed without the step",
            "engine.seed(run.steps_done, buffer.rounds)",
            "engine.seed(0, buffer.rounds)",
        ),
        Mutation(
            "seed without the round",
            "engine.seed(run.steps_done, buffer.rounds)",
            "engine.seed(run.steps_done, 0)",
        ),
        Mutation(
            "groups of this process alone", "groups = engine.gather_in_order(groups)", "groups = list(groups)"
        ),
        Mutation(
            "nothing verified early",
            "on_response=run.scorer.begin",
            "on_response=lambda problem, rollout: None",
        ),
        Mutation("stops unheard while sampling", "on_token=run.stop.on_token", "on_token=lambda: None"),
        Mutation("rate of the round not counted", "run.acceptance.update(qualified, len(groups))", "pass"),
        Mutation(
            "surplus counted twice",
            "run.acceptance.update(qualified, len(groups))",
            "run.acceptance.update(len(groups), len(groups))",
        ),
        Mutation("only the last round recorded", "sampled += groups", "sampled = groups"),
        Mutation(
            "refill as without a filter",
            "run.acceptance.value if run.config.dynamic_sampling else 1.0",
            "1.0",
        ),
        Mutation(
            "round of any size",
            "run.config.prompts_per_round, run.engine.world_size",
            "10**6, run.engine.world_size",
        ),
        Mutation(
            "round not shared evenly", "prompts_per_round, run.engine.world_size", "prompts_per_round, 1"
        ),
        Mutation(
            "overlong filtering ignored",
            "collate(groups, config.overlong_filtering)",
            "collate(groups, False)",
        ),
        Mutation(
            "groups mixed in Eq. 9", "batch.rewards.view(-1, config.group_size)", "batch.rewards.view(1, -1)"
        ),
        Mutation(
            "groups taken for columns",
            "batch.rewards.view(-1, config.group_size)",
            "batch.rewards.view(config.group_size, -1).T",
        ),
        Mutation(
            "pass rates ignored",
            "pass_rate_within(config.min_pass_rate, config.max_pass_rate)",
            "pass_rate_within(0, 1)",
        ),
        Mutation(
            "one update a step",
            "minibatches(batch, run.config.responses_per_update)",
            "minibatches(batch, len(batch))",
        ),
        Mutation("second mini-batch without π_old", "for plan in plans[1:]:", "for plan in plans[2:]:"),
        Mutation(
            "π_old forgotten in the metrics",
            "            metrics.add_old_policy(micro, entropy)\n        loss",
            "        loss",
        ),
        Mutation(
            "old policy counted in the first alone",
            "        metrics.add_old_policy(micro, entropy)\n\n\ndef update(",
            "\n\ndef update(",
        ),
        Mutation(
            "rate of the warm-up's end",
            "run.engine.step(run.learning_rate)",
            "run.engine.step(run.config.learning_rate)",
        ),
        Mutation("warm-up from zero", "(step + 1) / max(config", "step / max(config"),
        Mutation(
            "a warm-up of one step is none", "max(config.warmup_steps, 1)", "max(config.warmup_steps, 2)"
        ),
        Mutation("no warm-up", "* min(1.0, (step + 1) / max(config.warmup_steps, 1))", ""),
        Mutation("warm-up without an end", "min(1.0, (step + 1)", "(1.0 * (step + 1)"),
    ],
    "run/session.py": [
        Mutation(
            "each rank's own date",
            "[self.prompt_date or date.today().isoformat()])[0]",
            "[self.prompt_date or date.today().isoformat()])[self.engine.rank]",
        ),
        Mutation(
            "date of the checkpoint forgotten",
            'self.prompt_date or state.get("prompt_date", "")',
            "self.prompt_date",
        ),
        Mutation("position lost with the date", "self.stream.position = position", "pass"),
        Mutation(
            "evaluation of another day",
            "tasks_of_date(self._held_out, self",
            "(lambda t, *_: t)(self._held_out, self",
        ),
        Mutation("data order of seed 0", "seed=self.config.seed, fingerprint", "seed=0, fingerprint"),
        Mutation("no resume", "        if self.config.resume:\n            self._resume()\n", ""),
        Mutation("old estimates weigh as much", "        self.acceptance.end_step()\n", ""),
        Mutation("all groups marked as trained", "[id(group) in trained for group", "[True for group"),
        Mutation(
            "rollouts of a step before",
            "self._folder.write_rollouts(self.steps_done + 1, rows,",
            "self._folder.write_rollouts(self.steps_done, rows,",
        ),
        Mutation(
            "no end without groups",
            "warning = require_groups(buffer, self.config.on_round_limit)",
            'warning = ""',
        ),
        Mutation("nothing to warn of", "if warning and self.engine.is_main:", "if False:"),
        Mutation("updates not counted", "        self.updates += 1\n", ""),
        Mutation("stops after an update", "        self.stop.may_stop = False\n", ""),
        Mutation("never stops again", "        self.stop.may_stop = True\n", ""),
        Mutation("skips never forgiven", "            self._skipped_in_a_row = 0\n", "            pass\n"),
        Mutation("skips not counted", "self._skipped_in_a_row += 1", "self._skipped_in_a_row += 0"),
        Mutation(
            "nothing kept of a skipped update",
            "        self._folder.write_bad_update(step, self.updates, self.engine.rank, content)\n",
            "",
        ),
        Mutation(
            "one skip more",
            "self._skipped_in_a_row >= self.config.max_skipped_updates",
            "self._skipped_in_a_row > self.config.max_skipped_updates",
        ),
        Mutation("steps not counted", "self.steps_done = step + 1", "self.steps_done = step"),
        Mutation("nothing said at the end", '", "\\n".join(after_training(', '", repr(('),
        Mutation("nothing said after a stop", '"%s", after_stop(self.config,', '"%s", repr('),
        Mutation("tracker forgotten", "        self.engine.track(record, self._rows)\n", ""),
        Mutation(
            "state of the step before",
            "        self._last_finished = self.state_dict()\n        self.stop.may",
            "        self.stop.may",
        ),
        Mutation(
            "last step not saved",
            "(last or self.steps_done % config.checkpoint_every == 0)",
            "(self.steps_done % config.checkpoint_every == 0)",
        ),
        Mutation(
            "checkpoint at every step", "(last or self.steps_done % config.checkpoint_every == 0)", "True"
        ),
        Mutation(
            "position in the data lost", '            self.stream.load_state_dict(state["stream"])\n', ""
        ),
        Mutation(
            "estimate lost", '            self.acceptance = AcceptanceRate(**state["acceptance"])\n', ""
        ),
        Mutation(
            "updates counted anew",
            'self.steps_done, self.updates = state["step"], state["updates"]',
            'self.steps_done = state["step"]',
        ),
        Mutation(
            "train on nothing",
            'if not buffer.groups or on_round_limit == "stop":',
            'if on_round_limit == "stop":',
        ),
        Mutation(
            "stop never chosen", 'if not buffer.groups or on_round_limit == "stop":', "if not buffer.groups:"
        ),
    ],
    "run/metrics.py": [
        Mutation("time-outs among failures", "bool(o.failure) and not o.timed_out", "bool(o.failure)"),
        Mutation("probability of the last one", "self.high_prob += clipping", "self.high_prob = clipping"),
        Mutation("probability by tokens", "high_prob / high if", "high_prob / self.trained_tokens if"),
        Mutation("probability of none", "high_prob_max if high else None", "high_prob_max"),
        Mutation("own largest probability", "[self.ratio_max, self.high_prob_max,", "[self.ratio_max, 0.0,"),
        Mutation("no dual clip", "self.clipped_dual += clipping.dual", "pass"),
        Mutation("KL of the last one", "self.log_ratio_sum += clipping.", "self.log_ratio_sum = clipping."),
        Mutation("KL over sampled tokens", "log_ratio / max(self.trained_tokens", "log_ratio / max(sampled"),
        Mutation("gap with its sign", "float(gap.abs().sum())", "float(gap.sum())"),
        Mutation("gap over all tokens", "gap[1] / gap[0] if gap[0]", "gap[1] / sampled if gap[0]"),
        Mutation(
            "gap at padding", "micro.old_logprobs)[mask].double()", "micro.old_logprobs).flatten().double()"
        ),
        Mutation("largest gap of one side", "float(gap.abs().max())", "float((-gap).max())"),
        Mutation(
            "KL to the sampler upside down",
            "self.gap_sum += float(gap.sum())",
            "self.gap_sum -= float(gap.sum())",
        ),
        Mutation(
            "largest gap for ratio",
            "ratio_max, high_prob_max, gap_max, *times",
            "gap_max, high_prob_max, ratio_max, *times",
        ),
        Mutation("KL for dual clip", "high, dual, log_ratio, sampled", "high, log_ratio, dual, sampled"),
        Mutation(
            "kept for sampled",
            '"reward/accuracy": sum(rollout.correct for rollout in rollouts) / count',
            '"reward/accuracy": buffer.groups_qualified / count',
        ),
        Mutation(
            "lengths of groups",
            '"response/length_mean": sum(lengths) / count',
            '"response/length_mean": sum(lengths) / len(groups)',
        ),
        Mutation(
            "longest for mean", '"response/length_max": max(lengths)', '"response/length_max": min(lengths)'
        ),
        Mutation("truncated not counted", "sum(rollout.truncated for rollout in rollouts) / count", "0.0"),
        Mutation(
            "right for wrong",
            "buffer.groups_all_wrong / buffer.groups_generated",
            "buffer.groups_all_correct / buffer.groups_generated",
        ),
        Mutation(
            "surplus counted as kept",
            '"sampling/groups_kept": len(buffer.groups)',
            '"sampling/groups_kept": buffer.groups_qualified',
        ),
        Mutation(
            "entropy under the mask", "float(entropy.detach()[mask].sum())", "float(entropy.detach().sum())"
        ),
        Mutation(
            "log for probability", "micro.old_logprobs[mask].exp().sum()", "micro.old_logprobs[mask].sum()"
        ),
        Mutation(
            "sides of the clip swapped",
            "self.clipped_low += clipping.low",
            "self.clipped_low += clipping.high",
        ),
        Mutation(
            "last ratio for the largest", "max(self.ratio_max, clipping.ratio_max)", "clipping.ratio_max"
        ),
        Mutation(
            "losses kept for the next update",
            "losses, self.pending_losses = self.pending_losses, []",
            "losses = self.pending_losses",
        ),
        Mutation(
            "skipped updates in the loss",
            "            self.loss += sum(losses)\n        else:\n",
            "            self.loss += sum(losses)\n        else:\n            self.loss += sum(losses)\n",
        ),
        Mutation("skipped updates not counted", "self.skipped_updates += 1", "self.skipped_updates += 0"),
        Mutation(
            "tokens of the last update",
            "self.trained_tokens += num_tokens",
            "self.trained_tokens = num_tokens",
        ),
        Mutation("a sum of losses", "loss / made if made else None", "loss if made else None"),
        Mutation(
            "a sum of norms",
            "sum(self.grad_norms) / made if made else None",
            "sum(self.grad_norms) if made else None",
        ),
        Mutation(
            "entropy by trained tokens",
            '"policy/entropy": entropy / max(sampled, 1)',
            '"policy/entropy": entropy / max(self.trained_tokens, 1)',
        ),
        Mutation(
            "clip share by sampled tokens",
            '"policy/clip_frac_high": high / max(self.trained_tokens, 1)',
            '"policy/clip_frac_high": high / max(sampled, 1)',
        ),
        Mutation(
            "nan in the file",
            "return {key: None if value is None else finite(value) for",
            "return {key: value for",
        ),
        Mutation("time of the last block", "self.timers.get(name, 0.0) + time", "time"),
    ],
    "scoring.py": [
        Mutation("punishment ignored", "if config.soft_overlong_punishment:", "if False:"),
        Mutation("punishment always", "if config.soft_overlong_punishment:", "if True:"),
        Mutation(
            "punished by the prompt",
            "len(rollout.response_ids) for group in groups for",
            "len(group.prompt_ids) for group in groups for",
        ),
        Mutation("reward of the paper always", 'choose(REWARDS, "reward", config.reward)', "dapo_reward"),
        Mutation("our rule always", 'config.verifier == "recipe"', "False"),
        Mutation("boxes always", "boxed=config.boxed_answers", "boxed=True"),
        Mutation("verified twice", "if id(rollout) not in self._begun:", "if True:"),
        Mutation("reward of any size", "or not rewards.isfinite().all()", ""),
        Mutation("everything recorded as agreed", "a.correct != b for", "False for"),
        Mutation(
            "verdicts in another order",
            "group, rollouts=[dataclasses.replace(r, **{name: next(value)}) for r in group.rollouts]",
            "group, rollouts=[dataclasses.replace(r, **{name: next(value)}) for r in group.rollouts[::-1]]",
        ),
        Mutation("own reward passed over", "any(outcome is None for outcome in own)", "True"),
        Mutation("own verdict passed over", "Status.CORRECT if outcome.right else wrong", "wrong"),
        Mutation("failures kept to oneself", "                    **failure,\n", ""),
        Mutation(
            "verdict for answer", '"answer": rollout.verdict.answer', '"answer": rollout.verdict.status'
        ),
    ],
    "config/keys.py": [
        Mutation("indivisible batch", "self.responses_per_update in minis,", "True,"),
        Mutation("a run has no model", 'if not (folder / "model").is_dir():', "if False:"),
        Mutation("a run is no model", 'return str(folder / "model")', "return model"),
        Mutation("a run before a model", ' or (folder / "config.json").is_file():', ":"),
        Mutation("the farthest sizes", "abs(size - self.responses_per_update))[:2]", "size)[:2]"),
        Mutation("group of one", "not (self.dynamic_sampling and self.group_size == 1)", "True"),
        Mutation(
            "cache longer than the cap",
            "0 < self.overlong_cache_length <= self.max_response_length",
            "0 < self.overlong_cache_length",
        ),
        Mutation(
            "round of the recipe as it is",
            "self.max_prompts_per_round or 3 * self.prompts_per_step",
            "3 * self.prompts_per_step",
        ),
    ],
    "config/names.py": [
        Mutation("nested keys passed over", "if not isinstance(value, Mapping) or not value:", "if True:"),
        Mutation("only the first unknown key", "    return [key for key in keys if key] or", "    return"),
        Mutation("nearest spelling for all", "found or _nearest(key, known) for", "_nearest(key, known) for"),
        Mutation("no page", "if any(answers) else", "if False else"),
        Mutation("our key unknown", '        return f"{key!r}: write it', '        f"{key!r}: write it'),
    ],
    "config/reading.py": [
        Mutation("the first files dropped", '        action="extend",\n', ""),
        Mutation("a key twice", "if keys.count(key) > 1:", "if False:"),
        Mutation(
            "octal numbers",
            "        return str(node.value)",
            "        return str(super().construct_yaml_int(node))",
        ),
        Mutation("no as false in a path", '("int", "float", "bool", "timestamp")', '("int", "float")'),
        Mutation("no home", "os.path.expanduser(values[key])", "values[key]"),
        Mutation("no home in a list", "os.path.expanduser(part[0])", "part[0]"),
        Mutation(
            "first file wins", "values |= _read_file(Path(file))", "values = _read_file(Path(file)) | values"
        ),
        Mutation("files win over the command line", "    values |= given\n", "    values = given | values\n"),
        Mutation("unknown keys pass", "leaf for leaf in found if leaf not in known", "leaf for leaf in ()"),
        Mutation("an override taken for a file", "coming_from.override_key(word) and not", "False and not"),
    ],
    "config/changes.py": [
        Mutation(
            "any change goes on",
            "return self.key not in FREE_KEYS and self.key not in INEXACT_KEYS",
            "return False",
        ),
    ],
    "own_reward.py": [
        Mutation("not a number is a reward", "not math.isfinite(reward) or", "False or"),
        Mutation("a bool as reward", "and not isinstance(reward, bool):", "and True:"),
        Mutation("nothing is right", "return Outcome(reward > 0, reward)", "return Outcome(False, reward)"),
        Mutation("an exit ends the worker", "except (Exception, SystemExit) as", "except Exception as"),
        Mutation("each failure is shown", "            self._shown = True\n", ""),
        Mutation("children outlive their worker", "    session = True", "    session = False"),
        Mutation(
            "always in a worker",
            "        if self._in_process:\n            ticket",
            "        if False:\n            ticket",
        ),
        Mutation("a time-out is a failure", "why, timed_out=killed)", "why)"),
        Mutation("no place named", "if frames else text", "if False else text"),
    ],
    "coming_from.py": [
        Mutation("plus of an override", "[+~]*(", "("),
        Mutation("ends with several meanings", "== 1 else None", ">= 1 else None"),
        Mutation("no other beginning", 'key.endswith(f".{row}")', "False"),
        Mutation("no patterns", "fnmatchcase(key, row)", "key == row"),
        Mutation("keys that a command lacks", 'set(ours.split(", ")) <= set(known)', "True"),
    ],
    "data/survey.py": [
        Mutation("rows that fall out one by one", "return re.split(r", "return why or re.split(r"),
        Mutation("references that do not verify written", "if id(problem) not in bad]", "if True]"),
        Mutation(
            "overlap to the letter", "return re.sub(r", "return problem.messages[-1]['content'] or re.sub(r"
        ),
        Mutation("chat data flattened", "if not rest and first", "if True or first"),
        Mutation("special tokens as text", "if is_special:", "if False:"),
    ],
    "data/mixture.py": [
        Mutation("weights that do not fit", "len(weights) != len(sources) or min", "min"),
        Mutation(
            "weights of sources ignored", "    if weights:\n        parts", "    if False:\n        parts"
        ),
        Mutation("the smallest share decides", "max(len(part) / weight for", "min(len(part) / weight for"),
        Mutation("repeats of another source", "if repr(problem.messages) not in seen", "if True"),
        Mutation("a comma in a name", "if Path(text).exists():", "if False:"),
    ],
    "data/problems.py": [
        Mutation(
            "the first unusable row is raised", "            if faults is None:\n", "            if True:\n"
        ),
        Mutation("four words are prose", "[^\\W\\d_]+){4}", "[^\\W\\d_]+){2}"),
        Mutation("the first match", "    return found[-1]\n", "    return found[0]\n"),
        Mutation("fields always", "    if not layout.keep_fields:\n        return {}\n", ""),
        Mutation(
            "fields below lists", "isinstance(value, list) and name.isdigit()", "False and name.isdigit()"
        ),
        Mutation("a column with a dot", "    if path in row:\n        return row[path]\n", ""),
        Mutation(
            "references of a function checked",
            "if check_references and not layout.keep_fields:",
            "if check_references:",
        ),
    ],
    "layout.py": [
        Mutation("always the named columns", "if self.optional and wanted", "if False and wanted"),
        Mutation(
            "never the named columns",
            "not all(has_column(columns, name)",
            "not all(False and has_column(columns, name)",
        ),
    ],
    "data/sources.py": [
        Mutation("short rows of a table", "if len(cells) != len(names) and cells:", "if False:"),
        Mutation(
            "an array by its lines",
            "_json_rows(path) if _is_array(path) else",
            "_jsonl_rows(path) if False else",
        ),
        Mutation("the first configuration", "[config] if config else []", "[]"),
        Mutation(
            "half as double", "types.is_float16(kind) or types.is_float32(kind)", "types.is_float32(kind)"
        ),
        Mutation(
            "single as double", "types.is_float16(kind) or types.is_float32(kind)", "types.is_float16(kind)"
        ),
        Mutation("single as half", "if types.is_float16(kind) else np.float32", "if True else np.float32"),
        Mutation("structs passed over", "if types.is_struct(kind) and value is not None:", "if False:"),
        Mutation("zeros of a decimal", "value.normalize() if", "value if"),
    ],
    "data/prompts.py": [
        Mutation("beginning doubled", "add_special_tokens=False", "add_special_tokens=True"),
        Mutation("response not begun", "generation_prompt: bool = True", "generation_prompt: bool = False"),
        Mutation(
            "date of the clock", "datetime.fromisoformat(date) if date else", "datetime.now() if date else"
        ),
        Mutation(
            "short by the day",
            "encode_prompt(problem, tokenizer, FIXED_DATE)",
            "encode_prompt(problem, tokenizer, date)",
        ),
        Mutation("template left out", "sha256(repr(tokenizer.chat_template).encode())", "sha256()"),
        Mutation("problems left out", 'b"\\0" + repr(problem).encode()', 'b""'),
        Mutation("old checkpoints refused", "known.append(self.items_fingerprint)", "pass"),
        Mutation("half is too many", "if 2 * len(kept) < len(encoded):", "if 2 * len(kept) <= len(encoded):"),
        Mutation("none is enough", "if 2 * len(kept) < len(encoded):", "if len(kept) < 0:"),
        Mutation("not the middle", "lengths[(len(lengths) - 1) // 2]", "lengths[-2]"),
        Mutation("any header accepted", "    if header:", "    if False:"),
        Mutation("the day is not set", "if not prints_date(tokenizer):", "if True:"),
        Mutation(
            "a prompt of the limit is too long",
            "len(ids) <= max_prompt_length",
            "len(ids) < max_prompt_length",
        ),
        Mutation(
            "one order for all epochs",
            'random.Random(f"{self._seed}/{self.epoch}")',
            'random.Random(f"{self._seed}")',
        ),
        Mutation(
            "one order for all seeds",
            'random.Random(f"{self._seed}/{self.epoch}")',
            'random.Random(f"{self.epoch}")',
        ),
        Mutation("order of the file", "random.Random(f", "str(f"),
        Mutation("other data accepted", 'if state["fingerprint"] not in known:', "if False:"),
        Mutation("resumed at the beginning", 'self.position = int(state["position"])', "self.position = 0"),
    ],
}


def source_of(file: str, root: Path = ROOT) -> Path:
    """Where a file of the table lies: the scripts at the top, all else in the package."""
    return root / file if file in SCRIPTS else root / "dapo_ref" / file


class FirstFailure:
    """A pytest plugin that remembers which test, or which file on import, failed first."""

    nodeid: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.nodeid = self.nodeid or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.nodeid = self.nodeid or report.nodeid


def run_tests(copy: Path, files: list[str], result: Connection) -> None:
    """In a process of its own: sends pytest's exit code and the first failure."""
    os.chdir(copy)
    sys.path[0] = str(copy)  # was the folder of this script
    first = FirstFailure()
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutations"]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        code = pytest.main([*options, *files], plugins=[first])
    result.send((int(code), first.nodeid))


def killer_of(file: str, mutation: Mutation, copy: Path) -> str | None:
    """The first test that fails with the mutation in place; None if none does.

    Args:
        file: the mutated file, a key of `MUTATIONS`.
        mutation: what is changed in it.
        copy: a copy of the project; left as it was found.

    Raises:
        RuntimeError: the text does not stand exactly once, or the tests did not run.
    """
    path = source_of(file, copy)
    source = path.read_text()
    if source.count(mutation.old) != 1:
        raise RuntimeError(
            f"{file}: {mutation.name}: found {source.count(mutation.old)} times: {mutation.old}"
        )
    path.write_text(source.replace(mutation.old, mutation.new))
    receiver, sender = multiprocessing.Pipe(duplex=False)
    # Forked, so that torch is imported once and the package anew each time.
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(copy, TESTS[file], sender))
    try:
        process.start()
        sender.close()  # so that a process that dies is seen at once
        in_time = receiver.poll(TIME_LIMIT_S)
        code, nodeid = receiver.recv() if in_time else (pytest.ExitCode.TESTS_FAILED, "the time limit")
    finally:
        process.kill()
        process.join()
        path.write_text(source)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        raise RuntimeError(f"{file}: {mutation.name}: the tests did not run to an end, exit code {code}")
    return nodeid


def main() -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Put one-line faults into a copy; name the test that sees each."
    )
    parser.add_argument("--list", action="store_true", help="print the names and do nothing")
    parser.add_argument("--only", metavar="NAME", help="run the one of this name, or those of this file")
    parser.add_argument("--sample", metavar="N", type=int, help="run N, drawn by the date")
    arguments = parser.parse_args()
    rows = [(file, mutation) for file, mutations in MUTATIONS.items() for mutation in mutations]
    chosen = [(file, mutation) for file, mutation in rows if arguments.only in (None, mutation.name, file)]
    if arguments.sample:
        chosen = [(file, mutation) for file, mutation in chosen if not LAUNCHING & set(TESTS[file])]
        drawn = random.Random(str(date.today())).sample(
            range(len(chosen)), min(arguments.sample, len(chosen))
        )
        chosen = [chosen[i] for i in sorted(drawn)]
    if not chosen:
        parser.error(f"no mutation or file is named {arguments.only!r}; --list shows the names")
    if arguments.list:
        print("\n".join(f"{file}: {mutation.name}" for file, mutation in chosen))
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in conftest.py, before torch is imported
    for module in ("torch", "hypothesis", "transformers", "accelerate", "deepspeed"):
        importlib.import_module(module)
    sys.dont_write_bytecode = True  # a file changed twice within a second would look unchanged
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        left_out = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "runs", "models")
        shutil.copytree(
            ROOT, copy, ignore=shutil.ignore_patterns(*left_out)
        )  # .ninja_log comes along: no new build
        for file, mutation in chosen:
            killer = killer_of(file, mutation, copy)
            print(f"{file}: {mutation.name}: {killer or 'SURVIVED'}", flush=True)
            if killer is None:
                survivors.append(mutation.name)
    print(
        f"{len(chosen)} mutations, {len(survivors)} survived" + "".join(f"\n  {name}" for name in survivors)
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
