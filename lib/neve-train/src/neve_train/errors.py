"""Errors of the training room.

NeveTrainError
  TrainInputError (ValueError)     the user's config, model, data or mesh is wrong
  CheckpointError (RuntimeError)   checkpoints exist and none can be read
"""

__all__ = ["CheckpointError", "NeveTrainError", "TrainInputError"]


class NeveTrainError(Exception):
    """Base of every error that neve_train raises."""


class TrainInputError(NeveTrainError, ValueError):
    """What the user gave is wrong: the message is the whole report, no traceback is needed."""

    exit_code = 2


class CheckpointError(NeveTrainError, RuntimeError):
    """Training was saved before, and no saved state can be read; nothing was overwritten."""
