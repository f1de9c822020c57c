"""A program of the tests of meshes: python mesh_run.py FOLDER MESH trains the toy on a mesh, such as data=2.

FOLDER holds what toy_run.make_inputs writes. Prints one JSON line.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from tests.neve_train.results import tell
from tests.neve_train.toy_run import train_config


def trained(folder: Path, mesh: str) -> Any:
    """Trains packed rows in float32, with room for every assignment; returns loss.jsonl."""
    from neve_train.training import train

    sizes = {name: int(size) for name, size in (part.split("=") for part in mesh.split(","))}
    config = train_config(folder, plan="plan-packed", mesh=tuple(sizes.items()))
    config = dataclasses.replace(
        config, precision="p=f32,c=f32", capacity_factor=float(sizes.get("expert", 1))
    )
    output_path = folder / f"mesh-{mesh}"
    train(config, str(output_path))
    rows = (output_path / "loss.jsonl").read_text().splitlines()
    return [json.loads(row) for row in rows]


if __name__ == "__main__":
    result = trained(Path(sys.argv[1]), sys.argv[2])
    tell(result)
