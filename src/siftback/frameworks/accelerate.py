"""Selection in a loop that Accelerate runs on one process or several.

`prepare` takes the place of ``accelerator.prepare`` for the training data; model, optimizer and
scheduler are prepared as always.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from siftback.installation import naming_extra

with naming_extra("accelerate", "Accelerate", "accelerate"):
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderAdapter, DataLoaderStateMixin
    from accelerate.state import GradientState
    from accelerate.utils import DistributedType, send_to_device

from siftback.batches.order import is_plain, is_trackable, sampler_of, with_attributes
from siftback.epochs.loader_order import gives_all, ranks_of
from siftback.epochs.sampler import SelectiveSampler
from siftback.errors import BatchError, ConfigError, SiftbackError
from siftback.frameworks.step_selection import rank_seed
from siftback.loader.face import SelectiveLoader
from siftback.losses.per_example import Losses, LossFn, resolve_losses
from siftback.processes.distributed import own_state, rank_and_world, states_of_ranks
from siftback.rules.rule import EpochRule
from siftback.state import check_digest, seal

__all__ = ["AcceleratedLoader", "prepare"]

# Whose models a process cannot run alone, as a scoring pass does.
_SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


class AcceleratedLoader(DataLoaderStateMixin):
    """A `SelectiveLoader` whose batches Accelerate accumulates, places and saves; see `prepare`.

    It has the methods and attributes of the `SelectiveLoader`: ``loss``, ``steps``,
    ``epoch``, ``stats`` and so on. It has no ``dataset``, so that
    ``accelerate.skip_first_batches``, which would leave the selection out, refuses it.

    Args:
        accelerator: The accelerator.
        loader: The selection, of this process's share of the examples.

    Attributes:
        end_of_dataloader: Whether the batch in training is the last one of its epoch.
        remainder: 0, as no example is repeated to fill a batch.
    """

    def __init__(self, accelerator: Accelerator, loader: SelectiveLoader) -> None:
        self.gradient_state = GradientState()
        self._accelerator, self._loader = accelerator, loader
        self._drop_last = True  # so that Accelerate counts no examples that were repeated
        self._position = 0  # batches of the current epoch
        self._is_resumed = False
        self._is_last = False  # the batch that was given last

    def __iter__(self) -> Iterator[Any]:
        """One epoch of batches on the accelerator's device; continues that of a loaded state.

        Raises:
            BatchError: If an epoch ends before the batch that was known to be its last.
            ConfigError: If it is not known which batch is the last one.
        """
        self._position, total = (self._position if self._is_resumed else 0), 0
        epoch, batches = self._loader.epoch, iter(self._loader)
        self._is_resumed = self._is_last = False
        self.begin()
        self.remainder = 0
        try:
            for batch in batches:
                total = total or self._count()
                self._position += 1
                self.end_of_dataloader = self._is_last = self._position == total
                accelerator = self._accelerator
                if accelerator.device_placement:
                    non_blocking = accelerator.non_blocking
                    batch = send_to_device(batch, accelerator.device, non_blocking=non_blocking)
                yield batch
            if self._position != total > 0:
                raise BatchError(
                    f"epoch {epoch} gave {self._position} batches where {total} were expected, so "
                    "that its last gradients were not stepped: leave out of the data set what the "
                    "collate function leaves out, or have that give every example"
                )
        finally:
            if self._is_last:  # the epoch is over, even if the loop was left with its last batch
                with suppress(SiftbackError):  # of losses that an interrupted step did not record
                    next(batches, None)
            self.end()

    def __len__(self) -> int:
        return len(self._loader)

    def __bool__(self) -> bool:
        return True  # not by its length, which may be unknown

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "dataset"):
            raise AttributeError(
                f"an AcceleratedLoader has no {name}: it goes on within an epoch by "
                "accelerator.load_state(), without skip_first_batches()"
            )
        return getattr(self._loader, name)

    def set_epoch(self, epoch: int) -> None:
        """See `SelectiveLoader.set_epoch`."""
        if epoch != self._loader.epoch:
            self._position, self._is_resumed = 0, False
        self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The states of all processes, which must all call it: ``accelerator.save_state`` does.

        Save it where gradients were just stepped: what is accumulated is not part of it.
        """
        # An epoch whose last batch was given has no more of them.
        position = 0 if self._is_last else self._position
        state = seal({"loader": self._loader.state_dict(), "position": position})
        return {"ranks": states_of_ranks(state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where another loader, prepared with the same arguments, was stopped.

        Raises:
            StateError: If it was of another number of processes, or of other arguments.
        """
        state = own_state(state["ranks"])
        check_digest(self, state)
        self._loader.load_state_dict(state["loader"])
        self._position, self._is_resumed, self._is_last = state["position"], True, False

    def _count(self) -> int:
        """Returns the batches of an epoch that was begun."""
        try:
            return len(self._loader)
        except TypeError as error:
            if self._accelerator.gradient_accumulation_steps == 1:
                return 0  # each batch is a step, the last one too
            raise ConfigError(
                "Accelerate steps the gradients that are left at the end of an epoch, and "
                f"which batch is its last one is not known: {error}"
            ) from error


def prepare(
    accelerator: Accelerator,
    loader: "DataLoader[Any]",
    model: nn.Module | None = None,
    loss_fn: LossFn | None = None,
    *,
    losses: Losses | None = None,
    memory: EpochRule | None = None,
    seed: int = 0,
    **settings: Any,
) -> AcceleratedLoader:
    """Wraps a ``DataLoader`` in a `SelectiveLoader` for a loop of Accelerate.

    Give it the ``DataLoader`` itself, in place of ``accelerator.prepare(loader)``::

        loader = prepare(accelerator, loader, memory=Memory(), epochs=20)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
        for epoch in range(loader.epoch, 20):
            for x, y in loader:
                with accelerator.accumulate(model):
                    losses = F.cross_entropy(model(x), y, reduction="none")
                    accelerator.backward(loader.loss(losses))
                    optimizer.step(); schedule.step(); optimizer.zero_grad()

    - Each of n examples is given to one process: all have ``n // processes``, and make equally
      many steps. None is repeated to fill a batch, whatever ``even_batches`` says.
    - An epoch has the batches of the wrapped loader with ``memory``, and exact numbers of them
      without: the last one is known as such, and ``accelerator.accumulate`` steps what is left.
    - It is registered with ``accelerator.save_state`` and ``load_state``, which every process
      calls; the state is right within an epoch, for every process.
    - Scoring passes are made by the model without its wrapper for several processes, under
      ``accelerator.autocast()``.
    - A scheduler that Accelerate prepares takes one step for each process, unless
      ``split_batches``: give it ``loader.total_steps * accelerator.num_processes``.

    Args:
        accelerator: The accelerator.
        loader: A ``DataLoader`` that was not prepared. In several processes it is one over a
            map-style data set, shuffled or in order, or with a sampler that shares the examples
            already; in one, it may be ``Indexed(loader, index_of=fn)``.
        model: As for `SelectiveLoader`, prepared or not.
        loss_fn: As for `SelectiveLoader`.
        losses: As for `SelectiveLoader`.
        memory: As for `SelectiveLoader`.
        seed: As for `SelectiveLoader`; the same in every process.
        settings: The other arguments of `SelectiveLoader`. Without ``memory``, ``exact`` is True:
            every process keeps equally many, and the steps of an epoch are known.

    Raises:
        ConfigError: If an argument does not go with Accelerate or with several processes, or
            as `SelectiveLoader`.

    >>> from siftback import Memory
    >>> accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    >>> data = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.randint(4, (96,)))
    >>> loader = DataLoader(data, batch_size=32, shuffle=True)
    >>> loader = prepare(accelerator, loader, memory=Memory(keep=0.5), epochs=4)
    >>> model = nn.Linear(8, 4)
    >>> model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> stepped = 0
    >>> for _ in range(4):
    ...     for x, y in loader:
    ...         with accelerator.accumulate(model):
    ...             losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    ...             accelerator.backward(loader.loss(losses))
    ...             optimizer.step()
    ...             optimizer.zero_grad()
    ...         stepped += accelerator.sync_gradients
    >>> loader.total_steps, stepped, loader.stats.unread
    (12, 8, 288)
    """
    check_loader(accelerator, loader)
    world = accelerator.num_processes
    if accelerator.split_batches and world > 1:
        loader = split_batches(loader, world)
    if not memory or memory.needs_passes:
        if accelerator.distributed_type in _SHARDED:
            raise ConfigError(
                f"{accelerator.distributed_type.value} shards the model, and a scoring pass needs "
                "it whole: choose with memory=Memory(), which makes none"
            )
        if not settings.setdefault("exact", True):
            raise ConfigError(
                "exact=False leaves the steps of an epoch to chance, and Accelerate needs to know "
                "its last batch, in every process the same: leave exact= out"
            )
    if model is not None:
        model = accelerator.unwrap_model(model)
        if loss_fn is not None or losses is not None:
            inner, loss_fn = resolve_losses(loss_fn, losses), None

            def losses(model: nn.Module, batch: Any) -> torch.Tensor:
                with accelerator.autocast():
                    return inner(model, batch)

    selection_seed = seed
    if world > 1:
        loader = share_examples(accelerator, loader, memory, seed)
        if not memory:  # which has one order and one draw for all
            selection_seed = rank_seed(seed, accelerator.process_index)
    selective = SelectiveLoader(
        loader, model, loss_fn, losses=losses, memory=memory, seed=selection_seed, **settings
    )
    prepared = AcceleratedLoader(accelerator, selective)
    accelerator.register_for_checkpointing(prepared)
    return prepared


def check_loader(accelerator: Accelerator, loader: Any) -> None:
    """Checks that a loader can be shared as this module does.

    Raises:
        ConfigError: If it cannot.
    """
    # By its type, as a prepared loader says that it is a DataLoader.
    if issubclass(type(loader), DataLoaderAdapter):
        raise ConfigError(
            "the loader was prepared by Accelerate, which shares its examples among processes: "
            "give siftback's prepare() the DataLoader itself, and not accelerator.prepare()"
        )
    processes, world = accelerator.num_processes, rank_and_world()[1]
    if not (isinstance(loader, DataLoader) or (processes == 1 and is_trackable(loader))):
        raise ConfigError(
            f"the loader is a {type(loader).__name__}: give prepare() the DataLoader, and the "
            "arguments of the SelectiveLoader"
        )
    if accelerator.dispatch_batches:
        raise ConfigError(
            "dispatch_batches=True has one process read for all, and here each reads its own "
            "share: leave it out of the DataLoaderConfiguration"
        )
    if processes != world:  # as on a machine without an accelerator, without cpu=True
        raise ConfigError(
            f"Accelerate trains in {processes} process{'' if processes == 1 else 'es'} here, and "
            f"torch.distributed has {world}, of which each would train a model of its own: on the "
            "CPU give Accelerator(cpu=True)"
        )
    parallelism = getattr(accelerator, "parallelism_config", None)
    if parallelism and parallelism.non_data_parallel_size > 1:
        raise ConfigError(
            "tensor, context and sequence parallelism give several processes the same examples, "
            "and here each has its own: train with data parallelism alone"
        )


def share_examples(
    accelerator: Accelerator, loader: "DataLoader[Any]", memory: EpochRule | None, seed: int
) -> "DataLoader[Any]":
    """Returns a loader of this process's share of the examples."""
    world, sampler = accelerator.num_processes, sampler_of(loader)
    knows = isinstance(sampler, DistributedSampler | SelectiveSampler)
    if knows or memory:  # `SelectiveLoader` replaces or refuses any other sampler
        _, among = ranks_of(loader)
        if among != world:
            raise ConfigError(
                f"the {type(loader).__name__} shares its examples among {among} processes, and "
                f"here are {world}: make its sampler after the Accelerator, or give it a map-style "
                "data set and shuffle=True"
            )
        return loader
    plain = is_trackable(loader) and is_plain(loader.batch_sampler)
    if not plain or not gives_all(sampler, loader.dataset):
        raise ConfigError(
            f"a {type(sampler).__name__} over a {type(loader.dataset).__name__} gives each of "
            f"{world} processes examples that others have too: give the DataLoader shuffle=True "
            "or sampler=SelectiveSampler(dataset)"
        )
    shared = SelectiveSampler(
        cast(Any, loader.dataset), shuffle=not isinstance(sampler, SequentialSampler), seed=seed
    )
    return replace_batches(loader, shared, cast(int, loader.batch_size))


def split_batches(loader: "DataLoader[Any]", world: int) -> "DataLoader[Any]":
    """Returns a loader of this process's part of each batch, whose size is that of all together."""
    size = loader.batch_size
    if size is None or not is_plain(loader.batch_sampler):
        raise ConfigError(
            "split_batches=True splits batches of a known size, and the DataLoader has a batch "
            "sampler of its own: give it batch_size= in place of that"
        )
    if size % world:
        raise ConfigError(
            f"split_batches=True splits batches of {size} among {world} processes: give a batch "
            "size that is a multiple of their number"
        )
    return replace_batches(loader, loader.sampler, size // world)


def replace_batches(loader: "DataLoader[Any]", sampler: Any, size: int) -> "DataLoader[Any]":
    """Returns the same loader with other batches; workers, collating and all else as they are."""
    batches = BatchSampler(sampler, size, loader.drop_last)
    replaced = with_attributes(loader, batch_sampler=batches, sampler=sampler, batch_size=size)
    return cast("DataLoader[Any]", replaced)
