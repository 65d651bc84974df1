"""The random number generators that a loader's order depends on."""

import copy
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from siftback.errors import StateError
from siftback.state import anything, generator_state, list_of, raise_damaged

_KINDS = (torch.Generator, np.random.Generator, random.Random)


class Generators:
    """The generators that some objects hold as attributes, and PyTorch's global one.

    Finds generators of ``torch``, ``numpy.random.default_rng`` and ``random.Random`` in a loader,
    its sampler and batch sampler, and in the samplers nested in those.

    Args:
        owners: Objects that may hold generators.

    >>> sampler = torch.utils.data.RandomSampler(range(9), generator=torch.Generator())
    >>> generators = Generators([sampler])
    >>> states, order = generators.states(), list(sampler)
    >>> generators.put_back(states)
    >>> list(sampler) == order
    True
    """

    def __init__(self, owners: Iterable[Any]) -> None:
        self._found: list[Any] = []
        seen: list[Any] = []
        waiting = list(owners)
        while waiting:
            owner = waiting.pop(0)
            if owner is None or any(owner is known for known in seen):
                continue
            seen.append(owner)
            for value in getattr(owner, "__dict__", {}).values():
                if isinstance(value, _KINDS) and not any(value is known for known in self._found):
                    self._found.append(value)
            waiting += [getattr(owner, name, None) for name in ("batch_sampler", "sampler")]

    def __len__(self) -> int:
        return len(self._found)

    def states(self) -> list[Any]:
        """The state of each, that of PyTorch's global generator last."""
        return [*(_state(known) for known in self._found), torch.get_rng_state()]

    def check(self, name: str, states: Any) -> None:
        """Checks that states are those of as many generators of the same kinds.

        Raises:
            StateError: If they are not.
        """
        list_of(anything)(name, states)
        before, count = len(states) - 1, len(self)
        if before != count:
            raise StateError(
                f"the state was saved with {before} generators in the wrapped loader and its "
                f"sampler, and here are {count}: wrap the same kind of loader"
            )
        for index, (generator, state) in enumerate(zip(self._found, states, strict=False)):
            if isinstance(generator, torch.Generator):
                generator_state(f"{name}[{index}]", state)
            try:
                _put_back(copy.deepcopy(generator), state)
            except Exception:  # whatever each kind raises
                raise_damaged(
                    f"{name}[{index}]", state, f"the state of a {type(generator).__name__}"
                )
        generator_state(f"{name}[-1]", states[-1])

    def put_back(self, states: list[Any]) -> None:
        """Restores the state of each, including the global generator."""
        self.put_back_own(states)
        torch.set_rng_state(states[-1])

    def put_back_own(self, states: list[Any]) -> None:
        """Restores the state of each except the global one."""
        for generator, state in zip(self._found, states[:-1], strict=True):
            _put_back(generator, state)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return copy.deepcopy(generator.bit_generator.state)
    return generator.getstate()


def _put_back(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        version, numbers, gauss = state
        generator.setstate((version, tuple(numbers), gauss))
