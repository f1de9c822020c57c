"""A program of the tests of weight decay: python decay_run.py FOLDER all prints one JSON line.

FOLDER holds what toy_run.make_inputs writes.
"""

import json
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from levanter.utils.jax_utils import leaf_key_paths
from neve_train import devices
from neve_train.config import OptimizerConfig
from neve_train.errors import TrainInputError
from neve_train.families import read_model_config
from neve_train.optimizer import adam

from tests.neve_train.dense_models import COMMON, CONFIGS, mesh_of, vocab_of
from tests.neve_train.results import tell

ASKED = ("router_bias", "rms_attn")


def shrunk(path: str, **fields: Any) -> dict[str, bool]:
    """Returns by name whether one update without gradients makes a tensor of ones smaller."""
    config = read_model_config(path)
    optimizer = adam(OptimizerConfig(weight_decay=0.1, **fields), 8).build(8)
    with devices.on_mesh(mesh_of(config)):
        shapes = eqx.filter_eval_shape(config.build, vocab_of(config), key=jax.random.PRNGKey(0))
        arrays = eqx.filter(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
        ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), arrays)
        zeros = jax.tree.map(jnp.zeros_like, ones)
        updates, _ = optimizer.update(zeros, optimizer.init(ones), ones)
    paths = leaf_key_paths(ones, is_leaf=lambda node: isinstance(node, NamedArray))
    values = jax.tree.leaves(updates, is_leaf=lambda node: isinstance(node, NamedArray))
    found = {}
    for name, value in zip(jax.tree.leaves(paths), values, strict=True):
        array = np.asarray(value.array if isinstance(value, NamedArray) else value)
        assert (array == array.flat[0]).all(), name
        found[name] = bool(array.flat[0] < 0)
    return found


def everything(folder: Path) -> Any:
    """Asks of Snowball and of families with norms, biases and tied or separate heads."""
    results = {"snowball": shrunk(str(folder / "base"))}
    results["asked"] = shrunk(str(folder / "base"), decay_also=ASKED)
    for family in ("qwen2", "qwen3"):
        path = folder / "decay" / family
        path.mkdir(parents=True)
        values = {"model_type": family, **COMMON, **CONFIGS[family]}
        (path / "config.json").write_text(json.dumps(values))
        results[family] = shrunk(str(path))
    refusal = ""
    try:
        shrunk(str(folder / "base"), decay_also=("router.bias",))
    except TrainInputError as error:
        refusal = str(error)
    return {"shrunk": results, "refusal": refusal}


if __name__ == "__main__":
    result = everything(Path(sys.argv[1]))
    tell(result)
