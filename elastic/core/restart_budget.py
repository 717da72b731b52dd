"""What a job has used up of its restarts, as the newest documents say it (pure)."""

from __future__ import annotations

from elastic.core.model import Budget
from elastic.core.view import StoreView


def budget_of(view: StoreView) -> Budget:
    """What the present run of the job has used up, as its newest documents say it."""
    if view.generation is None or (view.spec is not None and view.spec.value.run != view.generation.value.run):
        return Budget()
    generation, go = view.generation.value, view.go.value if view.go is not None else None
    if go is not None and go.g == generation.g and not generation.rev:
        return go.budget  # Revisions have been paid for since the go.
    return generation.budget
