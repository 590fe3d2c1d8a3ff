"""The rule-based verifier of Eq. 7: is the answer of a response equivalent to the reference?

`judge` decides one response in this process; `VerifierPool` sends what needs the symbolic stage to
processes that can be killed. `recipe_judge` is the rule of the published runs, kept apart for comparison.
Neither torch nor sympy is imported here: sympy comes with the symbolic stage, when a case first needs it.
"""

from dapo_ref.verifier.decide import check_reference, judge, verify
from dapo_ref.verifier.equal import is_equivalent
from dapo_ref.verifier.extract import extract_answer
from dapo_ref.verifier.pool import Ticket, VerifierPool
from dapo_ref.verifier.recipe import recipe_judge
from dapo_ref.verifier.verdict import Status, Verdict

__all__ = [
    "Status",
    "Ticket",
    "Verdict",
    "VerifierPool",
    "check_reference",
    "extract_answer",
    "is_equivalent",
    "judge",
    "recipe_judge",
    "verify",
]
