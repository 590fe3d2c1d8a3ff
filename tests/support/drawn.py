"""What the property tests of the verifier draw their cases from."""

from hypothesis import settings
from hypothesis import strategies as st

from dapo_ref.verifier import judge

INTEGERS = st.integers(2, 999)
SMALL = st.integers(2, 9)
NAMES = st.sampled_from("abknpxyz")
PROPER = st.tuples(st.integers(1, 8), st.integers(1, 9)).map(lambda pair: (pair[0], sum(pair)))  # p < q
few = settings(max_examples=25, deadline=None)


def accepts(answer: str, reference: str) -> bool:
    return judge(f"Answer: {answer}", reference).correct
