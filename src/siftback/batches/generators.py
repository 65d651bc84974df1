"""The random number generators that a loader's order depends on."""

import copy
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from siftback.errors import StateError
from siftback.state import anything, generator_state, list_of, raise_damaged

_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class Generators:
    """The generators that some objects hold as attributes, and PyTorch's global one.

    Finds generators of ``torch``, ``numpy.random.default_rng``, ``numpy.random.RandomState`` and
    ``random.Random`` in a loader, its sampler and batch sampler, and in the samplers nested in
    those.

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
        owners, seen, generators = list(owners), set[int](), dict[int, Any]()
        for owner in owners:  # which grows, as owners are found within others
            if id(owner) not in seen:
                seen.add(id(owner))
                values = getattr(owner, "__dict__", {}).values()
                generators |= {id(value): value for value in values if isinstance(value, _KINDS)}
                owners += [getattr(owner, name, None) for name in ("batch_sampler", "sampler")]
        self._generators = list(generators.values())

    def states(self) -> list[Any]:
        """The state of each, that of PyTorch's global generator last."""
        return [*(_state(known) for known in self._generators), torch.get_rng_state()]

    def check(self, name: str, states: Any) -> None:
        """Checks that states are those of as many generators of the same kinds.

        Raises:
            StateError: If they are not.
        """
        list_of(anything)(name, states)
        before, count = len(states) - 1, len(self._generators)
        if before != count:
            raise StateError(
                f"the state was saved with {before} generators in the wrapped loader and its "
                f"sampler, and here are {count}: wrap the same kind of loader"
            )
        for index, generator in enumerate(self._generators):
            try:
                _put_back(copy.deepcopy(generator), states[index])
            except Exception:  # whatever each kind raises
                kind = type(generator).__name__
                raise_damaged(f"{name}[{index}]", states[index], f"the state of a {kind}")
        generator_state(f"{name}[-1]", states[-1])

    def put_back(self, states: list[Any]) -> None:
        """Restores the state of each, including the global generator."""
        self.put_back_own(states)
        torch.set_rng_state(states[-1])

    def put_back_own(self, states: list[Any]) -> None:
        """Restores the state of each except the global one."""
        for generator, state in zip(self._generators, states[:-1], strict=True):
            _put_back(generator, state)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    is_legacy = isinstance(generator, np.random.RandomState)
    state = generator.get_state(legacy=False) if is_legacy else generator.bit_generator.state
    # Without arrays, which torch.load reads from no file by default.
    return tree_map(lambda leaf: leaf.tolist() if isinstance(leaf, np.ndarray) else leaf, state)


def _put_back(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator | np.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        version, numbers, gauss = state
        generator.setstate((version, tuple(numbers), gauss))
