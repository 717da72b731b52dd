"""Stories that docs/seeds.md names fail when the feature of their row is taken out.

Each has a copy of its own, in which it passes before. `tests/unit/project/test_seed_mutations.py` shows the same of the
other tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.seed_mutations import FAILED, PASSED, STORIES, Mutation, Tree


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", STORIES, ids=lambda mutation: mutation.row)
def test_without_its_feature_the_story_of_a_row_fails(tmp_path: Path, mutation: Mutation) -> None:
    tree = Tree(tmp_path / "tree")
    code, said = tree.run([mutation.test])
    assert code == PASSED, said
    with tree.without(mutation):
        code, said = tree.run([mutation.test])
    assert code == FAILED, said
