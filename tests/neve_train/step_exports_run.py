"""A program of the tests of folders made while training goes on: python step_exports_run.py FOLDER made."""

import dataclasses
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from tests.neve_train.results import tell
from tests.neve_train.toy_run import train_config


def made(folder: Path) -> Any:
    """Exports every third of 8 train steps: told to stop at the third and resumed, then with one in the way."""
    from neve_chat.templates import load_template
    from neve_train.errors import PreemptedError, TrainInputError
    from neve_train.export import export
    from neve_train.training import Callbacks, train

    result: dict[str, Any] = {}
    config = train_config(folder, export_every_train_steps=3)
    try:
        train(config, str(folder / "unnoted"))
    except TrainInputError as error:
        result["unnoted"] = str(error)
    template, noted = load_template("marin").text, folder / "noted-cache"
    shutil.copytree(folder / "cache", noted)
    (noted / "stats.json").write_text(json.dumps({"template": template}))
    config = dataclasses.replace(config, caches=(str(noted),))
    output_path = folder / "exported"
    messages: list[str] = []

    def tell(step: int, **values: float) -> None:
        if step == 3 and "loss" in values:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        train(config, str(output_path), Callbacks(on_metrics=tell))
    except PreemptedError:
        result["when_stopped"] = (output_path / "exports").exists()
    half = output_path / "exports" / "step-4"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_text("half")
    result["results"] = train(config, str(output_path), Callbacks(on_message=messages.append))
    result["messages"] = messages
    result["folders"] = sorted(path.name for path in (output_path / "exports").iterdir())
    result["marks"] = [
        json.loads((output_path / "exports" / name / "export.json").read_text())
        for name in result["folders"]
    ]
    result["differences"] = []
    for name in result["folders"]:
        step = folder / "by-hand" / name
        checkpoint = str(output_path / "checkpoints" / name)
        export(checkpoint, str(folder / "base"), str(folder / "tokenizer"), template, str(step))
        result["differences"] += [
            path.name
            for path in step.iterdir()
            if path.read_bytes() != (output_path / "exports" / name / path.name).read_bytes()
        ]
    blocked = folder / "blocked"
    (blocked / "exports").mkdir(parents=True)
    (blocked / "exports" / "step-5").write_text("in the way")
    said: list[str] = []
    result["blocked"] = train(config, str(blocked), Callbacks(on_message=said.append))
    result["said"] = said
    return result


if __name__ == "__main__":
    tell(made(Path(sys.argv[1])))
