"""Which compiled train step belongs to a training: a digest of all that the program depends on.

A program of another training would train something else without a word; one too many compiled costs
minutes. So all that might bear on it is in the key: code, packages, environment, devices, config.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from levanter.trainer import TrainerConfig
from neve import storage

from neve_train import devices
from neve_train.config import TrainSftConfig

__all__ = ["form_of", "program_key"]

_TRACED = ("neve_train", "levanter", "haliax", "equinox", "optax", "jmp")
"""Packages whose files decide what is traced; each may be edited where it is installed."""

_ENVIRON = re.compile(
    "(?!.*(TOKEN|KEY|SECRET|PASSWORD)$)"  # secrets reach no hash
    "(JAX|XLA|LIBTPU|TPU|TF|CUDA|NVIDIA|ROCM|TRITON|CUTE|LEVANTER|HALIAX|EQX|DEEPEP)_.*"
)
_NO_MATTER = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",  # which of the same kind; the mesh tells kinds and number
        "JAX_COMPILATION_CACHE_DIR",
        "JAX_COORDINATOR_ADDRESS",  # processes are in the mesh, too
        "JAX_COORDINATOR_BIND_ADDRESS",
        "JAX_LOCAL_DEVICE_IDS",
        "JAX_NUM_PROCESSES",
        "JAX_PROCESS_ID",
        "NVIDIA_VISIBLE_DEVICES",
        "jax_compilation_cache_dir",
        "jax_log_compiles",
    }
)
_PATHS = ("model", "tokenizer", "plan", "caches", "initial_checkpoint", "execution")
"""Fields of the config whose content the other parts of the key cover, or that don't bear on it."""


def program_key(
    config: TrainSftConfig,
    plan: Mapping[str, Any],
    model_config: Any,
    trainer_config: TrainerConfig,
    num_microbatches: int,
) -> str:
    """Returns the digest of everything that a training's train step is compiled from.

    All but the forms of state and batch, which form_of describes once they are there.

    Args:
        config: The training's.
        plan: plan.json, of which the number of train steps and the packing bear on the program.
        model_config: What read_model_config gives.
        trainer_config: Precision, mesh, and how axes map to it.
        num_microbatches: Parts of a train step.
    """
    values = {
        name: value for name, value in dataclasses.asdict(config).items() if name not in _PATHS
    }
    trainer = {
        field.name: getattr(trainer_config, field.name)
        for field in dataclasses.fields(trainer_config)
        if field.name != "id"
    }
    model = storage.read_bytes(storage.join(str(config.model), "config.json"))
    facts = {
        "config": values,
        "plan": {name: plan[name] for name in ("num_train_steps", "packing")},
        "model": [hashlib.sha256(model).hexdigest(), type(model_config).__name__, model_config],
        "trainer": trainer,
        "num_microbatches": num_microbatches,
        "mesh": _mesh_facts(trainer_config.device_mesh),
        "platform": devices.platform(),
        "jax": {name: value for name, value in jax.config.values.items() if name not in _NO_MATTER},
        "environ": {
            name: value
            for name, value in os.environ.items()
            if _ENVIRON.fullmatch(name) and name not in _NO_MATTER
        },
        "python": [sys.version, sys.flags.optimize],
        "packages": sorted({path.name for path in _installed()}),
        "sources": _sources_digest(),
    }
    text = json.dumps(facts, sort_keys=True, default=_described)
    return hashlib.sha256(text.encode()).hexdigest()


def form_of(state: Any, batch: Any) -> str:
    """Returns the digest of what the program takes: trees with their fixed parts, and arrays' forms.

    Args:
        state: TrainerState on the mesh.
        batch: First batch.
    """
    arrays, rest = eqx.partition((state, batch), eqx.is_array)
    facts = {
        "tree": _described(jax.tree.structure((state, batch))),
        "arrays": [
            (jax.tree_util.keystr(path), str(leaf.aval), leaf.weak_type, str(leaf.sharding))
            for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
        ],
        "rest": jax.tree.leaves(rest),
    }
    text = json.dumps(facts, sort_keys=True, default=_described)
    return hashlib.sha256(text.encode()).hexdigest()


def _described(value: Any) -> str:
    """Returns a text that is the same in every process; functions count by name."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _mesh_facts(mesh: jax.sharding.Mesh) -> list[Any]:
    parts = [
        (device.id, device.device_kind, device.process_index, device.client.platform_version)
        for device in mesh.devices.flat
    ]
    return [mesh, mesh.devices.shape, parts, jax.process_index(), jax.process_count()]


def _installed() -> Iterator[Path]:
    """Yields the folders that name packages and their versions."""
    for entry in sys.path:
        yield from Path(entry or ".").glob("*-info")


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for name in _TRACED:
        module = importlib.import_module(name)
        for folder in map(Path, module.__path__):
            for path in sorted(folder.rglob("*")):  # kernels' C++ and CUDA, too
                if path.suffix == ".pyc" or not path.is_file():
                    continue
                content = path.read_bytes()
                digest.update(f"{name}/{path.relative_to(folder)} {len(content)}\n".encode())
                digest.update(content)
    return digest.hexdigest()
