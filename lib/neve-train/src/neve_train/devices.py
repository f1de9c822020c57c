"""Devices, mesh and compiled programs: what every program of this room sets up first."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import haliax as hax
import jax
import jmp
from levanter.distributed import DistributedConfig
from levanter.tracker import NoopConfig
from levanter.trainer import TrainerConfig
from levanter.utils.mesh import MeshConfig

__all__ = ["base_trainer_config", "initialize", "on_mesh"]


def base_trainer_config(
    axes: Mapping[str, int], *, explicit_axes: bool = True, **fields: Any
) -> TrainerConfig:
    """Returns a TrainerConfig on a mesh with these axis sizes.

    Args:
        axes: Sizes of all axes, as check_mesh gives them.
        explicit_axes: requires_explicit_mesh_axes of the model's config; Snowball's is true.
        **fields: Further fields of TrainerConfig.
    """
    from levanter.callbacks.watch import WatchConfig

    compute = {"batch": ("replica_dcn", "data", "expert"), "vocab": "model"}
    if axes.get("context", 1) > 1:
        compute["position"] = "context"
    mesh = MeshConfig(
        axes={"replica": 1, **axes},
        compute_mapping=compute,
        param_mapping={"embed": "data", "vocab": "model"},
    )
    return TrainerConfig(
        mesh=mesh,
        use_explicit_mesh_axes=explicit_axes,
        tracker=NoopConfig(),
        watch=WatchConfig(watch_targets=[]),
        log_jaxprs=False,
        log_xla_hlo=False,
        require_accelerator=False,
        distributed=DistributedConfig(initialize_jax_distributed=False),
        **fields,
    )


def initialize(compilation_cache_dir: str | None = None) -> None:
    """Sets jax's options once for this process: those of Levanter and a persistent cache."""
    from levanter.trainer import DEFAULT_JAX_CONFIG

    for name, value in DEFAULT_JAX_CONFIG.items():
        jax.config.update(name, value)
    folder = compilation_cache_dir or os.environ.get("JAX_COMPILATION_CACHE_DIR") or _user_cache()
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    logging.getLogger("levanter").setLevel(logging.WARNING)


@contextmanager
def on_mesh(config: TrainerConfig) -> Iterator[jax.sharding.Mesh]:
    """Sets mesh and parameter axes, as Levanter's Trainer does."""
    mesh = config.device_mesh
    with hax.partitioning.set_mesh(mesh), hax.axis_mapping(config.parameter_axis_mapping):
        yield mesh


def policy(text: str) -> jmp.Policy:
    """Returns a jmp policy.

    Raises:
        TrainInputError: The text isn't one.
    """
    from neve_train.errors import TrainInputError

    try:
        return jmp.get_policy(text)
    except (ValueError, KeyError, AttributeError) as error:
        raise TrainInputError(
            f"training: precision must be a jmp policy such as p=f32,c=bfloat16, got {text!r}. "
            "Change it."
        ) from error


def _user_cache() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(base) / "neve" / "jax")
