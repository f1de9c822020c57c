"""How a training runs: axes of its mesh, and who is told its metrics. Nothing here bears identity."""

import dataclasses
import math
from dataclasses import dataclass

from neve import InputError

from steps.train_sft import TRACKERS


@dataclass(frozen=True, kw_only=True)
class MeshSpec:
    """Named axes of the device mesh; one of them may be -1 and takes the devices that are left."""

    data: int = 1
    """Parts of the batch, with the weights sharded over them, 1 or more, or -1."""

    model: int = 1
    """Parts of each weight matrix (tensor parallel), 1 or more, or -1."""

    context: int = 1
    """Parts of each sequence, 1 or more, or -1."""

    expert: int = -1
    """Parts of the experts, which also split the batch, 1 or more, or -1."""

    def sizes(self, num_devices: int) -> dict[str, int]:
        """Returns the axis sizes on `num_devices` devices.

        Raises:
            InputError: The axes don't multiply to the number of devices.
        """
        axes = dataclasses.asdict(self)
        fixed = math.prod(size for size in axes.values() if size != -1)
        if num_devices % fixed or (-1 not in axes.values() and fixed != num_devices):
            raise InputError(
                f"mesh: the axes must multiply to the {num_devices} devices of the accelerator, got "
                f"{' x '.join(f'{name} {size}' for name, size in axes.items())}. "
                "Change spec.mesh or the accelerator's count."
            )
        return {name: num_devices // fixed if size == -1 else size for name, size in axes.items()}

    def __post_init__(self) -> None:
        """Checks that at most one axis is -1 and none is 0."""
        axes = dataclasses.asdict(self)
        bad = [size for size in axes.values() if size != -1 and size < 1]
        if bad or list(axes.values()).count(-1) > 1:
            raise InputError(
                f"mesh: every axis must be 1 or more and at most one -1, got {axes}. "
                "-1 takes the devices that are left."
            )


@dataclass(frozen=True, kw_only=True)
class TrackerSpec:
    """Where metrics go besides loss.jsonl and metrics.jsonl."""

    kinds: tuple[str, ...] = ("wandb",)
    """Of wandb, tensorboard and trackio. The environment switches W&B on (WANDB_MODE, WANDB_API_KEY)."""

    project: str = "neve-sft"
    """Project of Weights & Biases and trackio."""

    tags: tuple[str, ...] = ()
    """Weights & Biases tags."""

    def __post_init__(self) -> None:
        """Checks the kinds."""
        unknown = [kind for kind in self.kinds if kind not in TRACKERS]
        if unknown:
            raise InputError(
                f"tracker: kinds must be among {', '.join(TRACKERS)}, got {', '.join(unknown)}. "
                "Remove them."
            )
