"""The exceptions that Siftback raises.

::

    SiftbackError
    ├── ConfigError   an argument out of its range, or arguments that exclude each other
    ├── BatchError    a batch that is empty, malformed or on the wrong device
    ├── LossError     losses that are reduced, of the wrong shape or type, or not finite
    ├── StateError    a saved state of another version or other settings, or a damaged one
    ├── TraceError    a model that SinglePass cannot trace, or whose backward it cannot slice
    ├── GradientError gradients of the single pass that differ from those of the kept losses
    ├── ProcessError  a process of the training that others wait for in vain
    └── ReplicaError  a replica of the model that failed, crashed or did not answer in time

Every message says what was given, what was expected and what to do.
"""


class SiftbackError(Exception):
    """The root of all errors that Siftback raises on purpose."""


class ConfigError(SiftbackError, ValueError):
    """An argument is out of its range, or excludes another one."""


class BatchError(SiftbackError, ValueError):
    """A batch is empty, its parts have mismatched sizes, or it is on the wrong device."""


class LossError(SiftbackError, ValueError):
    """Losses are reduced, of the wrong length or type, or not finite."""


class StateError(SiftbackError, ValueError):
    """A saved state belongs to another version or to an object of another shape."""


class TraceError(SiftbackError, RuntimeError):
    """A model cannot be traced, or its backward graph cannot be restricted to rows."""


class GradientError(SiftbackError, RuntimeError):
    """Gradients of the single pass differ from those of the kept losses."""


class ProcessError(SiftbackError, RuntimeError):
    """A process of the training failed, was killed, or makes another number of steps."""


class ReplicaError(SiftbackError, RuntimeError):
    """A replica of the model failed, crashed or did not answer in time."""
