"""transformers: one apply_chat_template call over a list of conversations; nothing is written."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.tokenize_peers.clock import Entrant, Row, run_entrant


def make_entrant(job: dict[str, Any]) -> Entrant:
    """Returns the batch call; parsing the file is part of nobody's time here but its own."""
    tokenizer = AutoTokenizer.from_pretrained(job["tokenizer"])
    parsed: dict[str, list[Any]] = {}
    for [file] in (job["small"], job["large"]):
        with Path(file).open("rb") as lines:
            parsed[file] = [json.loads(line)["messages"] for line in lines]

    def run(files: list[str], out: str) -> Callable[[], Iterable[Row]]:
        made = tokenizer.apply_chat_template(
            parsed[files[0]],
            chat_template=job["template"],
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        return lambda: zip(made["input_ids"], made["assistant_masks"], strict=True)

    return run


if __name__ == "__main__":
    run_entrant(make_entrant, "transformers", "tokenizers")
