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
from levanter.distributed import DistributedConfig
from levanter.tracker import NoopConfig
from levanter.trainer import TrainerConfig
from levanter.utils.mesh import MeshConfig

from neve_train.accelerators import memory_variables

__all__ = [
    "CacheCounts",
    "base_trainer_config",
    "cache_counts",
    "cache_key",
    "initialize",
    "on_mesh",
    "policy",
    "replicated",
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


class _CacheKeys(logging.Filter):
    """Notes under which key each program was looked for; jax tells it in its log alone."""

    def __init__(self) -> None:
        super().__init__()
        self.by_program: dict[str, str] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Notes a key, and lets through what a logger that isn't asked for more lets through."""
        if "with key" in str(record.msg) and isinstance(record.args, tuple):
            program, key = record.args
            self.by_program[str(program)] = str(key)
        return record.levelno >= logging.WARNING


_counter: _CacheCounter | None = None
_keys = _CacheKeys()


def cache_counts() -> CacheCounts:
    """Returns the counts since initialize was first called."""
    counter = _counter or _CacheCounter()
    return CacheCounts(hits=counter.hits, misses=counter.requests - counter.hits)


def cache_key(name: str) -> str:
    """Returns the key of the newest program of that function in the cache; empty if there is none."""
    return next((key for program, key in reversed(_keys.by_program.items()) if name in program), "")


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
        folder = f"{compilation_cache_dir or _user_cache()}/{jax.__version__}-{_platform()}"
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if _counter is None:
        _counter = _CacheCounter()
        jax.monitoring.register_event_listener(_counter)
        logger = logging.getLogger("jax._src.compiler")
        logger.setLevel(logging.DEBUG)
        logger.addFilter(_keys)
    logging.getLogger("levanter").setLevel(logging.WARNING)
    return folder


def _platform() -> str:
    """Returns jax's platform; a CPU with what it can do, which its compiled programs rely on."""
    platform = jax.default_backend()
    if platform != "cpu":
        return platform
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"cpu-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"


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
