"""Errors of the training room.

NeveTrainError
  TrainInputError (ValueError)     the user's config, model, data or mesh is wrong
  CheckpointError (RuntimeError)   checkpoints exist and none can be read, or one can't be written
  DivergedError (RuntimeError)     loss or gradient is no finite number
  PreemptedError (RuntimeError)    told to stop: saved, and to be run again
"""

__all__ = [
    "CheckpointError",
    "DivergedError",
    "NeveTrainError",
    "PreemptedError",
    "TrainInputError",
]


class NeveTrainError(Exception):
    """Base of every error that neve_train raises."""


class TrainInputError(NeveTrainError, ValueError):
    """What the user gave is wrong: the message is the whole report, no traceback is needed."""

    exit_code = 2


class CheckpointError(NeveTrainError, RuntimeError):
    """No saved state of a training can be read, or its state can't be saved; nothing was overwritten."""


class DivergedError(NeveTrainError, RuntimeError):
    """Loss or gradient is no finite number; the rows of the train step are kept in a file."""


class PreemptedError(NeveTrainError, RuntimeError):
    """Training was told to stop, has saved its state, and goes on when it is run again."""

    exit_code = 75
