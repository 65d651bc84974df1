"""Methods from the papers that gained nothing over simpler ones here, kept for comparison."""

from siftback.contrib.downsampled import Downsampled
from siftback.contrib.ewma import Ewma
from siftback.contrib.gaussian_process import GaussianProcess
from siftback.contrib.ies import IES
from siftback.contrib.int8 import Int8
from siftback.contrib.pipelined import Pipelined
from siftback.contrib.proxy import Proxy
from siftback.errors import ReplicaError

__all__ = [
    "IES",
    "Downsampled",
    "Ewma",
    "GaussianProcess",
    "Int8",
    "Pipelined",
    "Proxy",
    "ReplicaError",
]
