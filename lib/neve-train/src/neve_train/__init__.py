"""The boundary to Levanter: configs, training, resume, export and generation.

Importing this package, its `config`, `errors` and `mesh` is light: no jax. The other modules import it.
"""

from neve_train.errors import CheckpointError, NeveTrainError, TrainInputError

__all__ = ["CheckpointError", "NeveTrainError", "TrainInputError"]
