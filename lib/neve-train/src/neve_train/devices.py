"""Devices, mesh and compiled programs: what every program of this room sets up first."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import haliax as hax
import jax
import jmp
import numpy as np
from levanter.distributed import DistributedConfig
from levanter.tracker import NoopConfig
from levanter.trainer import TrainerConfig
from levanter.utils.mesh import MeshConfig

from neve_train.accelerators import memory_variables

__all__ = [
    "CacheCounts",
    "CacheLookup",
    "base_trainer_config",
    "cache_counts",
    "cache_lookups",
    "everywhere",
    "initialize",
    "on_mesh",
    "platform",
    "policy",
    "replicated",
    "without_cache",
]


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

    # Not vocab: Levanter's fused loss would take the softmax over each shard of it alone.
    compute: dict[str, Any] = {"batch": ("replica_dcn", "data", "expert")}
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


@dataclass(frozen=True, kw_only=True)
class CacheCounts:
    """How often the persistent cache of compiled programs was asked, in this process."""

    hits: int
    """Programs that were read from it."""
    misses: int
    """Programs that were compiled."""


class _CacheCounter:
    """Counts jax's own events, from the first call of initialize on."""

    def __init__(self) -> None:
        self.requests = 0
        self.hits = 0

    def __call__(self, event: str, **_facts: Any) -> None:
        if event == "/jax/compilation_cache/compile_requests_use_cache":
            self.requests += 1
        elif event == "/jax/compilation_cache/cache_hits":
            self.hits += 1


@dataclass(frozen=True, kw_only=True)
class CacheLookup:
    """One program that was looked for in the persistent cache."""

    program: str
    """Its name, such as jit_train_step."""
    key: str
    """Under which it is there, or was put there."""
    is_hit: bool
    """It was read; if not, it was compiled."""


class _CacheLookups(logging.Filter):
    """Notes each lookup; jax tells it in its log alone."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[CacheLookup] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Notes a lookup, and lets through what a logger that isn't asked for more lets through."""
        text = str(record.msg).lower()
        is_hit = "cache hit for" in text
        if (is_hit or "cache miss for" in text) and isinstance(record.args, tuple):
            program, key = map(str, record.args)
            self.found.append(CacheLookup(program=program, key=key, is_hit=is_hit))
        return record.levelno >= logging.WARNING


_counter: _CacheCounter | None = None
_lookups = _CacheLookups()


def cache_counts() -> CacheCounts:
    """Returns the counts since initialize was first called."""
    counter = _counter or _CacheCounter()
    return CacheCounts(hits=counter.hits, misses=counter.requests - counter.hits)


def cache_lookups(name: str) -> list[CacheLookup]:
    """Returns the lookups of that function's programs since initialize was first called."""
    return [lookup for lookup in _lookups.found if name in lookup.program]


def initialize(compilation_cache_dir: str | None = None) -> str:
    """Sets jax's options once for this process: Levanter's, a persistent cache, a GPU's memory.

    Args:
        compilation_cache_dir: Folder for all versions and platforms; each has a folder of its own
            in it. None: JAX_COMPILATION_CACHE_DIR as it is, or below the user's cache folder.

    Returns:
        The folder that holds the compiled programs.
    """
    global _counter
    from levanter.trainer import DEFAULT_JAX_CONFIG

    os.environ.update(memory_variables())  # before anything below asks for the devices
    for name, value in DEFAULT_JAX_CONFIG.items():
        jax.config.update(name, value)
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if compilation_cache_dir or not folder:
        folder = f"{compilation_cache_dir or _user_cache()}/{jax.__version__}-{platform()}"
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if _counter is None:
        _counter = _CacheCounter()
        jax.monitoring.register_event_listener(_counter)
        logger = logging.getLogger("jax._src.compiler")
        logger.setLevel(logging.DEBUG)
        logger.addFilter(_lookups)
    logging.getLogger("levanter").setLevel(logging.WARNING)
    return folder


def platform() -> str:
    """Returns jax's platform; of a CPU also what it can do, which its compiled programs rely on."""
    platform = jax.default_backend()
    if platform != "cpu":
        return platform
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"cpu-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def everywhere(is_true: bool) -> bool:
    """Returns whether it is true in every process; all must call it together."""
    if jax.process_count() == 1:
        return is_true
    from jax.experimental import multihost_utils

    return bool(np.all(multihost_utils.process_allgather(np.array(is_true))))


@contextmanager
def without_cache() -> Iterator[None]:
    """Lets jax neither read nor write compiled programs; no other thread may compile meanwhile."""
    from jax.experimental.compilation_cache import compilation_cache

    was_enabled = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it looks once whether it is enabled
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", was_enabled)
        compilation_cache.reset_cache()


@contextmanager
def on_mesh(config: TrainerConfig) -> Iterator[jax.sharding.Mesh]:
    """Sets mesh and parameter axes, as Levanter's Trainer does."""
    mesh = config.device_mesh
    with hax.partitioning.set_mesh(mesh), hax.axis_mapping(config.parameter_axis_mapping):
        yield mesh


def replicated(array: jax.Array, config: TrainerConfig) -> jax.Array:
    """Returns the array whole on every device of the mesh, inside a program."""
    whole = jax.sharding.PartitionSpec(*[None] * array.ndim)
    if config.use_explicit_mesh_axes:
        return jax.sharding.reshard(array, whole)
    return jax.lax.with_sharding_constraint(array, whole)


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
