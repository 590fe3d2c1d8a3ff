"""The table of `tests/mutations.py` fits the code; running it says whether the tests see each fault."""

import ast
from collections import Counter

import pytest

from tests.mutations import MUTATIONS, ROOT, TESTS, Mutation, source_of

ROWS = [(file, mutation) for file, mutations in MUTATIONS.items() for mutation in mutations]


@pytest.mark.parametrize(("file", "mutation"), ROWS, ids=[f"{file}: {m.name}" for file, m in ROWS])
def test_a_mutation_fits_once_and_still_is_python(file: str, mutation: Mutation) -> None:
    """A fault that does not parse would be killed by the import, and prove nothing."""
    source = source_of(file).read_text()
    assert source.count(mutation.old) == 1
    mutated = source.replace(mutation.old, mutation.new)
    if file.endswith(".js"):
        return  # read by the browser of its tests
    assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))


def test_names_are_unique_and_every_file_has_its_tests() -> None:
    assert [name for name, count in Counter(m.name for _, m in ROWS).items() if count > 1] == []
    assert list(TESTS) == list(MUTATIONS)
    assert [test for tests in TESTS.values() for test in tests if not (ROOT / test).exists()] == []
