"""The verifier beside others on labelled cases, and alone on published references and hostile answers.

    python benchmarks/verifier.py [--cases FILE …] [--data FOLDER] [--quick] [--json FILE]

Scorers: this project's `judge`, its rewriting of the recipe's rule, and math-verify if it is installed, wired
as trainers wire it (the reference in a box, the response as it is; a bare answer is handed over in a box).
math-verify runs in a process of its own, killed after 20 s, since its own limits do not hold for every input.
"""

import argparse
import importlib.util
import json
import logging
import multiprocessing
import os
import re
import resource
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dapo_ref.verifier import VerifierPool, check_reference, is_equivalent, judge, recipe_judge  # noqa: E402
from dapo_ref.verifier.decide import compare, read_integer  # noqa: E402
from tests.support.attacks import CODE, SIZE  # noqa: E402

SHARED = ROOT.parent / "shared"
HARD_LIMIT_S = 20.0
Case = dict[str, Any]
Scorer = Callable[[Case], bool]


def default_cases() -> list[Path]:
    found = [path for name in ("cases", "cases2") if (path := SHARED / "verifier" / f"{name}.jsonl").exists()]
    return found or [ROOT / "tests" / "verifier" / "cases.jsonl"]


def read_jsonl(path: Path) -> list[Any]:
    """The lines that are not empty."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def load_cases(path: Path) -> list[Case]:
    """Read the cases whose label counts, in one format."""
    cases = []
    for case in read_jsonl(path):
        if case.get("contested") or case.get("any_verdict"):
            continue
        case["reference"] = case.get("reference", case.get("gold"))
        if "answer_gen" in case:
            case["answer"] = "".join(text * count for text, count in case["answer_gen"])
        case["kinds"] = case["kind"] if isinstance(case["kind"], list) else [case["kind"]]
        case["integer"] = read_integer(case["reference"]) is not None
        case["marked"] = "response" not in case or case.get("anchor") in (None, "answer_line", "boxed")
        case["adversarial"] = "adversarial" in case["kinds"] or "adversarial" in case.get("scope", [])
        cases.append(case)
    return cases


def ours(case: Case) -> bool:
    if "response" in case:
        return judge(case["response"], case["reference"]).correct
    return is_equivalent(case["answer"], case["reference"])


def recipe(case: Case) -> bool:
    response = case["response"] if "response" in case else f"Answer: {case['answer']}"
    return recipe_judge(response, case["reference"]).correct


def serve_math_verify(pipe: Connection) -> None:
    """Child process: answer (reference, response) with math-verify's verdict and the seconds it took."""
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)  # it logs whole attack inputs
    verify(parse("$1$"), parse("$1$"))
    pipe.send(None)
    while True:
        try:
            reference, response = pipe.recv()
        except EOFError:
            return
        started = time.perf_counter()
        try:
            correct = bool(verify(parse(f"\\boxed{{{reference}}}"), parse(response)))
        except Exception:  # what a trainer sees as a zero reward
            correct = False
        pipe.send((correct, time.perf_counter() - started))


class MathVerify:
    """math-verify behind a process that can be killed; `last_seconds` leaves the pipe out of the time."""

    def __init__(self) -> None:
        self.process: multiprocessing.process.BaseProcess | None = None
        self.last_seconds = 0.0
        self.killed = 0

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve_math_verify, args=(theirs,), daemon=True)
        self.process.start()
        self.pipe.recv()

    def __call__(self, case: Case) -> bool:
        if self.process is None:
            self.start()
        response = case["response"] if "response" in case else f"\\boxed{{{case['answer']}}}"
        self.pipe.send((case["reference"], response.encode("utf-8", "replace").decode()))
        if self.pipe.poll(HARD_LIMIT_S):
            correct, self.last_seconds = self.pipe.recv()
            return correct
        assert self.process is not None
        self.process.kill()
        self.process = None
        self.killed += 1
        self.last_seconds = HARD_LIMIT_S
        return False


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum in milliseconds, and cases a second."""
    ordered = sorted(seconds)
    return {
        "median_ms": 1e3 * ordered[len(ordered) // 2],
        "p99_ms": 1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "max_ms": 1e3 * ordered[-1],
        "per_second": len(ordered) / sum(ordered),
    }


def measure(scorer: Scorer, cases: list[Case]) -> dict[str, Any]:
    """Run one scorer over the cases once, after a warm-up on one symbolic case."""
    scorer({"answer": "\\sin(2x) + \\sqrt{8}", "reference": "2\\sin x\\cos x + 2\\sqrt{2}"})
    groups: dict[str, list[bool]] = defaultdict(list)
    false_positives, false_negatives = [], []
    seconds, plain_seconds = [], []
    for case in cases:
        started = time.perf_counter()
        correct = scorer(case)
        took = getattr(scorer, "last_seconds", time.perf_counter() - started)
        seconds.append(took)
        if not case["adversarial"]:
            plain_seconds.append(took)
        agrees = correct == case["expected"]
        marked_integer = ["integer references, marked or bare"] * (case["integer"] and case["marked"])
        for name in ["all", *case["kinds"], *case.get("scope", []), *marked_integer]:
            groups[name].append(agrees)
        if not agrees:
            (false_positives if correct else false_negatives).append(case["id"])
    return {
        "agreement": {name: [sum(group), len(group)] for name, group in groups.items()},
        "false_positives": false_positives,
        "false_negatives": false_negatives,
        "all": quantiles(seconds),
        "without adversarial": quantiles(plain_seconds),
    }


def read_references(folder: Path) -> list[str]:
    """The different references of all data sets in a folder."""
    return sorted({str(row["answer"]) for path in folder.glob("*.jsonl") for row in read_jsonl(path)})


def wrong_answers(reference: str) -> Iterator[tuple[str, str]]:
    """Wrong answers made from a reference, each with how it was made."""
    value = read_integer(reference)
    if value is None:
        yield "other sign", reference[1:] if reference.startswith("-") else f"-({reference})"
        yield "one more", f"{reference}+1"
        yield "doubled", f"2({reference})"
        yield "reciprocal", f"\\frac{{1}}{{{reference}}}"
        for match in re.finditer(r"\d+", reference):
            number = int(match[0]) + 1
            yield "a number in it changed", f"{reference[: match.start()]}{number}{reference[match.end() :]}"
        return
    v = value
    made = {  # with the value, so that 1/1 for 1 is left out; None: no single rational value
        "one more": (f"{v + 1}", v + 1),
        "one less": (f"{v - 1}", v - 1),
        "other sign": (f"{-v}", -v),
        "tenfold": (f"{v}0", 10 * v),
        "half": (f"{v}/2", Fraction(v, 2)),
        "reciprocal": (f"\\frac{{1}}{{{v}}}", Fraction(1, v) if v else None),
        "a half more": (f"{v}.5", None),
        "squared": (f"({v})^2", v * v),
        "as a decimal": (f"0.{abs(v)}", None if v else 0),
        "ratio": (f"{v}:1", None),
    }
    yield from ((name, text) for name, (text, other) in made.items() if other != v)
    for name, form in {
        **{"root": "\\sqrt{{{}}}", "times x": "{}x", "times i": "{}i", "times pi": "{}\\pi"},
        **{"a square is": "x^2 = {}", "minus x is": "-x = {}", "not": "not {}", "at least": "at least {}"},
        **{"hundredths": "{} hundredths", "two factorials": "{}!!", "degrees in a sum": "{}^\\circ + 1"},
    }.items():
        if v not in (0, 1) or name not in ("root", "times x", "times i", "times pi", "minus x is"):
            yield name, form.format(v)
    yield "two values", f"{v}, {v + 1}"
    yield "one or the other", f"{v} or {v + 1}"
    yield "both signs", f"\\pm {v or 1}"


def measure_references(references: list[str], math_verify: Scorer | None) -> dict[str, Any]:
    """References against themselves, and against wrong answers made from them; math-verify on every 40th."""
    refused = [reference for reference in references if check_reference(reference)]
    accepted: Counter[str] = Counter()
    theirs: Counter[str] = Counter()
    examples: dict[str, str] = {}
    started = time.perf_counter()
    pairs = [(r, *wrong) for r in references for wrong in wrong_answers(r)]
    for reference, name, answer in pairs:
        if judge(f"Answer: {answer}", reference).correct:
            accepted[name] += 1
            examples.setdefault(name, f"{answer} for {reference}")
    seconds = time.perf_counter() - started
    shared = pairs[::40] if math_verify else []
    for reference, name, answer in shared:
        assert math_verify is not None
        theirs[name] += math_verify({"answer": answer, "reference": reference})
    return {
        "references": len(references),
        "refused by themselves": refused,
        "wrong answers": len(pairs),
        "accepted": dict(accepted),
        "examples": examples,
        "per_second": len(pairs) / seconds,
        "math-verify, wrong answers": len(shared),
        "math-verify, accepted": {name: n for name, n in theirs.items() if n},
    }


def measure_attacks() -> dict[str, Any]:
    """Hostile answers in four forms against three references, in an empty folder: time, memory, files."""
    before, home = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, os.getcwd()
    statuses: Counter[str] = Counter()
    slowest = (0.0, "")
    attacks = [*SIZE.items(), *((code[:40], code) for code in CODE)]
    with tempfile.TemporaryDirectory() as folder, VerifierPool(workers=1) as pool:
        os.chdir(folder)
        pool.judge_many([("Answer: \\sqrt{12}", "2\\sqrt{3}")])
        for name, attack in attacks:
            for reference in ("7", "\\sqrt{2} + x", "(1, 2)"):
                for response in (f"Answer: {attack}", f"\\boxed{{{attack}}}", f"so **{attack}**", attack):
                    started = time.perf_counter()
                    statuses[pool.result(pool.submit(response, reference)).status.value] += 1
                    slowest = max(slowest, (time.perf_counter() - started, name))
        files = os.listdir(folder)
        os.chdir(home)
        lost = pool.counts["killed"], pool.counts["died"]
    return {
        "attacks": len(attacks),
        "verdicts": dict(statuses),
        "slowest_s": slowest[0],
        "slowest": slowest[1],
        "memory_growth_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "files written": len(files),
        "workers killed, died": lost,
    }


def integer_rate(count: int) -> float:
    """Verdicts a second on integer answers at the end of a response of some 3,000 characters."""
    body = "Let us count the cases one by one. " * 80
    pairs = [(f"{body}\n\nAnswer: {form}", str(k)) for k in range(count) for form in (k, f"${k}$")]
    started = time.perf_counter()
    correct = sum(judge(response, reference).correct for response, reference in pairs)
    assert correct == len(pairs)
    return len(pairs) / (time.perf_counter() - started)


def pool_rate(count: int) -> float:
    """Symbolic verdicts a second through one worker, its start not counted."""
    pairs = [(f"Answer: {k}\\sqrt{{2}}", f"\\sqrt{{{2 * k * k}}}") for k in range(2, count + 2)]
    with VerifierPool(workers=1) as pool:
        pool.judge_many([("Answer: \\sqrt{12}", "2\\sqrt{3}")])
        started = time.perf_counter()
        assert all(pool.verify_many(pairs))
        return count / (time.perf_counter() - started)


def start_seconds(count: int) -> dict[str, float]:
    """Seconds until a fresh worker and until a fork of a warm process have answered: a fork server's gain."""
    case = ("Answer: \\sqrt{12}", "2\\sqrt{3}")
    fresh, forked = [], []
    for _ in range(count):
        started = time.perf_counter()
        with VerifierPool(workers=1) as pool:
            pool.judge_many([case])
            fresh.append(time.perf_counter() - started)
    compare("\\sqrt{12}", "2\\sqrt{3}", symbolic=True)  # now this process is a warm one
    for _ in range(count):
        started = time.perf_counter()
        child = os.fork()
        if child == 0:
            compare("\\sqrt{12}", "2\\sqrt{3}", symbolic=True)
            os._exit(0)
        os.waitpid(child, 0)
        forked.append(time.perf_counter() - started)
    return {"fresh worker, s": sorted(fresh)[count // 2], "fork of a warm one, s": sorted(forked)[count // 2]}


def print_table(results: dict[str, dict[str, Any]]) -> None:
    names = list(results)
    groups = list(dict.fromkeys(group for result in results.values() for group in result["agreement"]))
    print(f"{'agreement':<38}{'cases':>6}" + "".join(f"{name:>14}" for name in names))
    for group in groups:
        total = next(r["agreement"][group][1] for r in results.values())
        shares = (100 * r["agreement"][group][0] / total for r in results.values())
        print(f"{group:<38}{total:>6}" + "".join(f"{share:>13.1f}%" for share in shares))
    for key in ("false_positives", "false_negatives"):
        print(f"{key.replace('_', ' '):<44}" + "".join(f"{len(r[key]):>14}" for r in results.values()))
    for part in ("all", "without adversarial"):
        for key in ("median_ms", "p99_ms", "max_ms", "per_second"):
            label = f"{key.replace('_', ' ')}, {part}"
            print(f"{label:<44}" + "".join(f"{r[part][key]:>14.3f}" for r in results.values()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=Path, nargs="+", default=default_cases())
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="data sets with references")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    arguments = parser.parse_args()
    step = 10 if arguments.quick else 1
    scorers: dict[str, Scorer] = {"ours": ours, "recipe": recipe}
    if importlib.util.find_spec("math_verify"):
        scorers["math-verify"] = MathVerify()
    else:
        print("math-verify is not installed here and is left out (pip install math-verify==0.9.0)")
    report: dict[str, Any] = {}
    for path in arguments.cases:
        cases = load_cases(path)[::step]
        print(f"\n{path.name}: {len(cases)} cases")
        report[path.name] = {name: measure(scorer, cases) for name, scorer in scorers.items()}
        print_table(report[path.name])
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "rates": lambda: {"integers": integer_rate(5_000 // step), "symbolic": pool_rate(500 // step)},
        "references": lambda: measure_references(
            read_references(arguments.data)[::step], scorers.get("math-verify")
        ),
        "attacks": measure_attacks,
        "start of a worker": lambda: start_seconds(5),  # last: it loads sympy into this process
    }
    for name, part in parts.items():
        report[name] = part()
        print(f"\n{name}")
        for key, value in report[name].items():
            print(f"    {key}: {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
