"""Stories that docs/development/requirements.md names fail when the feature of their row is taken out.

A copy of the tree is changed in one place, and put back after each. Before any change all of these stories pass in the
copy. `tests/unit/project/test_seed_mutations.py` shows the same of the other tests.
"""

from __future__ import annotations

import pytest

from tests.support.seed_mutations import FAILED, STORIES, Mutation, Tree, whole


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return whole(tmp_path_factory.mktemp("tree"), STORIES)


@pytest.mark.timeout(600)  # The first has all of them pass before.
@pytest.mark.parametrize("mutation", STORIES, ids=lambda mutation: mutation.row)
def test_without_its_feature_the_story_of_a_row_fails(tree: Tree, mutation: Mutation) -> None:
    with tree.without(mutation):
        code, said = tree.run([mutation.test])
    assert code == FAILED, said
