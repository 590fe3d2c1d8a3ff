"""The verifier beside others on the same labelled cases: agreement, false verdicts, time.

    python benchmarks/verifier.py [--cases FILE] [--quick] [--json FILE]

Scorers: this project's `judge`, its rewriting of the recipe's rule, and math-verify if it is installed, wired
as trainers wire it (the reference in a box, the response as it is; a bare answer is handed over in a box).
math-verify runs in a process of its own, killed after 20 s, since its own limits do not hold for every input.
"""

import argparse
import importlib.util
import json
import logging
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dapo_ref.verifier import VerifierPool, is_equivalent, judge, recipe_judge  # noqa: E402
from dapo_ref.verifier.decide import read_integer  # noqa: E402

DEFAULT_CASES = [
    ROOT.parent / "shared" / "verifier" / "cases.jsonl",
    ROOT / "tests" / "verifier" / "cases.jsonl",
]
HARD_LIMIT_S = 20.0
Case = dict[str, Any]
Scorer = Callable[[Case], bool]


def load_cases(path: Path) -> list[Case]:
    """Read the cases whose label counts, in one format."""
    cases = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not line:
            continue
        case = json.loads(line)
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
    parser.add_argument("--cases", type=Path, default=next(path for path in DEFAULT_CASES if path.exists()))
    parser.add_argument("--quick", action="store_true", help="every tenth case only")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    arguments = parser.parse_args()
    cases = load_cases(arguments.cases)[:: 10 if arguments.quick else 1]
    scorers: dict[str, Scorer] = {"ours": ours, "recipe": recipe}
    if importlib.util.find_spec("math_verify"):
        scorers["math-verify"] = MathVerify()
    else:
        print("math-verify is not installed here and is left out (pip install math-verify==0.9.0)")
    results = {name: measure(scorer, cases) for name, scorer in scorers.items()}
    print_table(results)
    count = 500 if arguments.quick else 5_000
    rates = {
        "integer verdicts a second": integer_rate(count),
        "pool, symbolic a second": pool_rate(count // 10),
    }
    for name, rate in rates.items():
        print(f"{name:<44}{rate:>14.0f}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"cases": len(cases), "results": results, "rates": rates}, indent=1),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
