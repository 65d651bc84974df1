"""The state of a scorer within another scorer."""

from typing import Any

from siftback.errors import StateError
from siftback.scorers.scorer import Scorer


def nested_state(scorer: Scorer) -> dict[str, Any]:
    """A scorer's state, under the name of its class."""
    return {type(scorer).__name__: scorer.state_dict()}


def load_nested(scorer: Scorer, state: dict[str, Any]) -> None:
    """Continues from a state that `nested_state` returned.

    Raises:
        StateError: If it is of another class.
    """
    (kind,), here = state, type(scorer).__name__
    if kind != here:
        raise StateError(
            f"the state was saved with the inner scorer {kind}, and this one has a {here}: "
            "build it with the same one"
        )
    scorer.load_state_dict(state[kind])
