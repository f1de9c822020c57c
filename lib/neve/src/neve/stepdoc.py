"""step.json: all that is needed to run a step again, without pickle and without absolute paths."""

from typing import Any

from neve import storage
from neve.codec import Decoder, Encoder
from neve.errors import InputError
from neve.identity import Graph, Identity
from neve.records import FORMAT
from neve.secrets import secret_values
from neve.step import ExecutorStep


def make_step_document(graph: Graph, identity: Identity, code: dict[str, Any]) -> dict[str, Any]:
    """Return the step.json of a step; references are relative to the prefix.

    Raises:
        InputError: A config value holds a secret of the environment.
    """
    step = identity.step

    def locate(dep: ExecutorStep) -> dict[str, Any]:
        other = graph.of(dep)
        foreign = getattr(dep, "path", None)
        return {
            "fingerprint": other.fingerprint,
            "name": other.step.name,
            "path": foreign if foreign is not None else other.relative_path,
        }

    encoder = Encoder(identity=False, locate=locate)
    config = encoder.encode(step.config, f"step {step.name!r}: config")
    _refuse_secrets(config, step.name)
    deps = {
        where.partition(": ")[2]: {key: node[key] for key in ("name", "fingerprint", "path")}
        for where, _, node in encoder.refs
    }
    return {
        "format": FORMAT,
        "name": step.name,
        "fingerprint": identity.fingerprint,
        "relative_path": identity.relative_path,
        "adopted_path": getattr(step, "path", None),
        "fn": identity.fn_name,
        "version": step.version,
        "config": config,
        "encoded": identity.encoded,
        "deps": deps,
        "after": [graph.of(other).relative_path for other in step.after],
        "unhashed": identity.unhashed,
        "outputs": list(step.outputs),
        "resumable": step.resumable,
        "resources": {
            "accelerator": step.resources.accelerator,
            "cpu": step.resources.cpu,
            "memory": step.resources.memory,
        },
        "code": code,
    }


def _refuse_secrets(config: Any, name: str) -> None:
    secrets = {value: variable for variable, value in secret_values().items() if len(value) >= 8}
    if not secrets:
        return
    todo = [config]
    while todo:
        tree = todo.pop()
        if isinstance(tree, dict):
            todo.extend(tree.values())
        elif isinstance(tree, list):
            todo.extend(tree)
        elif isinstance(tree, str):
            for value, variable in secrets.items():
                if value in tree:
                    raise InputError(
                        f"step {name!r}: a config must not hold a secret, got the value of "
                        f"${variable}. Read the variable inside the step function."
                    )


def decode_config(document: dict[str, Any], home: str) -> Any:
    """Return the config of a step.json with every reference as an absolute path.

    Args:
        document: The parsed step.json.
        home: Path whose .neve/ holds it; the prefix follows from it.
    """
    prefix = prefix_of(document, home)

    def resolve(node: dict[str, Any]) -> str:
        path = node["path"]
        base = path if "://" in path or path.startswith("/") else storage.join(prefix, path)
        return storage.join(base, node["part"])

    target = document.get("adopted_path") or home
    return Decoder(resolve, lambda part: storage.join(target, part)).decode(document["config"])


def prefix_of(document: dict[str, Any], home: str) -> str:
    """Return the prefix of a step from the place of its step.json."""
    relative = document["relative_path"]
    if not home.rstrip("/").endswith(f"/{relative}"):
        raise InputError(
            f"output path {home}: must end in {relative}, got another name. Move it back."
        )
    return home.rstrip("/")[: -len(relative) - 1] or "/"
