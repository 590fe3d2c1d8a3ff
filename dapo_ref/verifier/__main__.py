"""How a verdict comes about: `python -m dapo_ref.verifier "response" "reference"`.

The response may be a bare answer. Prints extraction, tree, sympy objects, stage and verdict.
"""

import sys

from dapo_ref.verifier import algebra, extract_answer, judge, sets
from dapo_ref.verifier.decide import decide
from dapo_ref.verifier.names import is_expression
from dapo_ref.verifier.tree import LEAVES, Node
from dapo_ref.verifier.verdict import TooBigError, UndefinedError, UnparsableError


def shown(node: Node) -> str:
    """A tree on one line: op(args), with numbers and names as they are."""
    if node.op in LEAVES:
        return f"{node.op}:{' '.join(map(str, node.args))}"[:200]
    return f"{node.op}({', '.join(shown(x) if isinstance(x, Node) else str(x) for x in node.args)})"


def as_sympy(node: Node) -> str:
    """The sympy objects below a tree; a structure that sympy has no object for is taken apart."""
    try:
        return str((algebra.build if is_expression(node) else sets.to_set)(node))[:500]
    except (TooBigError, UndefinedError, UnparsableError):
        parts = [as_sympy(part) for part in node.args if isinstance(part, Node)]
        return f"{node.op}({', '.join(parts)})" if parts else "—"


def main() -> None:
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    response, reference = sys.argv[1:]
    extracted = extract_answer(response)
    answer = response if extracted is None else extracted
    print("extraction:", repr(extracted), "" if extracted is not None else "(taken as a bare answer)")
    decision = decide(answer, reference, symbolic=True)
    for name, tree in zip(("answer", "reference"), decision.trees, strict=False):
        print(f"{name}, tree: ", shown(tree))
        print(f"{name}, sympy:", as_sympy(tree))
    print("stage:", decision.stage)
    print("verdict:", judge(response, reference) if extracted is not None else decision.status.value)


if __name__ == "__main__":
    main()
