"""The rule-based verifier of Eq. 7: is the answer of a response equivalent to the reference?

`judge` decides one response; `VerifierPool` many. What sympy has to decide is sent to processes that can be
killed. `recipe_judge` is the rule of the published runs, kept apart for comparison. Neither torch nor sympy
is imported here.
"""

from dapo_ref.verifier.decide import check_reference
from dapo_ref.verifier.extract import extract_answer
from dapo_ref.verifier.pool import Ticket, VerifierPool, is_equivalent, judge, verify
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
