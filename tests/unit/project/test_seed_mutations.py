"""Tests that docs/development/requirements.md names fail when the feature of their row is taken out.

A copy of the tree is changed in one place, the row's test is run there and must fail, and the place is put back. Before
any change all of these tests pass in the copy.
"""

from __future__ import annotations

import pytest

from tests.support.seed_mutations import FAILED, MUTATIONS, VALUES, Mutation, Tree, whole
from tests.support.seed_rows import by_id


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return whole(tmp_path_factory.mktemp("tree"), VALUES)


@pytest.mark.parametrize("mutation", VALUES, ids=lambda mutation: mutation.row)
def test_without_its_feature_the_test_of_a_row_fails(tree: Tree, mutation: Mutation) -> None:
    with tree.without(mutation):
        code, said = tree.run([mutation.test])
    assert code == FAILED, said


def test_every_test_with_teeth_is_named_for_its_row() -> None:
    for mutation in MUTATIONS:
        assert f"`{mutation.test}`" in by_id()[mutation.row].shown, mutation.row
    assert len({mutation.row for mutation in MUTATIONS}) >= 12


def test_a_place_that_is_not_in_the_file_any_more_is_named(tree: Tree) -> None:
    gone = Mutation("A4", "launcher/config/readers.py", "what nobody ever wrote", "", "")
    said = r"launcher/config/readers\.py has 'what nobody ever wrote' 0 times.* row A4 out"
    with pytest.raises(AssertionError, match=said), tree.without(gone):
        pass
