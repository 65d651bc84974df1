"""The loader that a trainer of Lightning gets: see `siftback.frameworks.lightning`."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from siftback.errors import ConfigError
from siftback.loader.face import SelectiveLoader

try:
    from lightning.pytorch import LightningDataModule
except ImportError as error:
    raise ImportError("siftback.frameworks.lightning: pip install siftback[lightning]") from error


class TrainLoader:
    """Iterates a loader at the trainer's epoch.

    Its state is part of the data module's: of a loader, Lightning saves that of one process, and
    loads none between epochs.

    Args:
        module: The `SelectiveDataModule`.
        loader: The loader.
    """

    def __init__(self, module: Any, loader: SelectiveLoader) -> None:
        self.loss = module.loss
        self._module, self._loader = module, loader

    def __iter__(self) -> Iterator[Any]:
        # With the first batch, not before: Lightning asks for iterators before it knows the epoch.
        self._loader.set_epoch(self._module.trainer.current_epoch)
        yield from self._loader

    def __len__(self) -> int:
        return self._loader.steps(self._module.trainer.current_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Nothing, see above."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes nothing up."""


def as_datamodule(loader: Any, val_dataloaders: Any) -> Any:
    """A data module as it is, or one of a loader."""
    if isinstance(loader, LightningDataModule) and val_dataloaders is None:
        return loader
    if not isinstance(loader, DataLoader | SelectiveLoader):
        raise ConfigError(
            f"SelectiveDataModule({type(loader).__name__}): give a LightningDataModule, which "
            "makes its validation dataloaders itself, or a DataLoader or SelectiveLoader"
        )
    datamodule = LightningDataModule()
    datamodule.train_dataloader = lambda: loader
    if val_dataloaders is not None:
        datamodule.val_dataloader = lambda: val_dataloaders
    return datamodule
