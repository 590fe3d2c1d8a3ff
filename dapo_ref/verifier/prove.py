"""sympy's part of the symbolic stage: the exact expansion of small differences.

Nodes are built one by one from a white list, unevaluated; sympy never sees text.
"""

from contextlib import suppress

import sympy

from dapo_ref.verifier.exact import Evaluator
from dapo_ref.verifier.values import Node, size, symbols
from dapo_ref.verifier.verdict import InexactError, UndefinedError, UnparsableError

MAX_SYMPY_NODES = 60
MAX_SYMPY_POWER = 12


def disproved(left: Node, right: Node) -> bool:
    """Whether sympy's expansion leaves a difference that is a non-zero rational, such as 10^−200.

    Only small polynomial-like differences are tried; anything else is left to the numbers.
    """
    difference = Node("add", (left, Node("neg", (right,))))
    if size(difference) > MAX_SYMPY_NODES:
        return False
    try:
        expanded = sympy.expand(to_sympy(difference))
    except UnparsableError:
        return False
    total = sympy.Add(*sympy.Add.make_args(expanded))  # evaluated: joins what was kept apart so far
    return bool(total.is_Rational) and total != 0


_SYMPY_FUNCTIONS = {
    **{
        "sin": sympy.sin,
        "cos": sympy.cos,
        "tan": sympy.tan,
        "cot": sympy.cot,
        "sec": sympy.sec,
        "csc": sympy.csc,
    },
}


def to_sympy(node: Node) -> sympy.Expr:
    """Build sympy nodes from the white list, unevaluated, with small integer powers only.

    Raises:
        UnparsableError: an operator or a power outside what expansion is allowed to see.
    """
    if not symbols(node):
        with suppress(InexactError, UndefinedError):
            node = Node("num", (Evaluator()(node),))
    if node.op == "num":
        return sympy.Rational(node.args[0].numerator, node.args[0].denominator)
    if node.op == "sym":
        return sympy.Symbol("v_" + str(abs(hash(node.args[0]))), positive=True)
    if node.op == "const" and node.args[0] in ("pi", "e", "i"):
        return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}[node.args[0]]
    if node.op == "add":
        return sympy.Add(*map(to_sympy, node.args), evaluate=False)
    if node.op == "neg":
        return sympy.Mul(sympy.Integer(-1), to_sympy(node.args[0]), evaluate=False)
    if node.op == "mul":
        return sympy.Mul(*map(to_sympy, node.args), evaluate=False)
    if node.op == "div":
        return sympy.Mul(
            to_sympy(node.args[0]), power(to_sympy(node.args[1]), sympy.Integer(-1)), evaluate=False
        )
    if node.op == "pow" and node.args[1].op == "num" and abs(node.args[1].args[0]) <= MAX_SYMPY_POWER:
        return power(to_sympy(node.args[0]), to_sympy(node.args[1]))
    if node.op == "root" and node.args[1].op == "num" and symbols(node.args[0]):
        return power(to_sympy(node.args[0]), 1 / to_sympy(node.args[1]))
    if node.op.removeprefix("fn:") in _SYMPY_FUNCTIONS and node.args[0].op != "deg":
        return _SYMPY_FUNCTIONS[node.op.removeprefix("fn:")](to_sympy(node.args[0]), evaluate=False)
    raise UnparsableError("outside the white list")


def power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    """An unevaluated power."""
    return sympy.Pow(base, exponent, evaluate=False)
