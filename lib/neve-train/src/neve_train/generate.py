"""Asks a model, from the command line: python -m neve_train.generate FOLDER --prompt "Hello"

FOLDER is an exported Hugging Face folder; with --checkpoint the weights come from a native checkpoint
of the same model. Greedy answers, up to any of the ids that end a turn. Exit codes: 0 done, 2 the input
is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from neve import storage
from neve_chat.errors import ChatInputError
from neve_chat.render import ChatRenderer
from neve_chat.templates import tokenizer_template
from neve_chat.tokens import ChatTokenizer

from neve_train.errors import CheckpointError, TrainInputError
from neve_train.program_end import end_program

__all__ = ["end_ids_of", "main"]


def end_ids_of(folder: str) -> list[int]:
    """Returns every id at which an exported folder's model ends a turn, sorted.

    Raises:
        TrainInputError: The folder's generation_config.json has none.
    """
    path = storage.join(folder, "generation_config.json")
    ends = storage.read_json(path).get("eos_token_id") if storage.exists(path) else None
    if ends is None:
        raise TrainInputError(
            f"model {folder}: must hold generation_config.json with eos_token_id, got none. Pass a "
            "folder that export_hf made."
        )
    return sorted([ends] if isinstance(ends, int) else ends)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the answer to each prompt; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m neve_train.generate")
    parser.add_argument("folder", help="exported Hugging Face folder")
    parser.add_argument("--checkpoint", help="native checkpoint with the weights")
    parser.add_argument("--prompt", action="append", required=True, help="user turn; repeatable")
    parser.add_argument("--system", help="system turn before each prompt")
    parser.add_argument("--max-new-tokens", type=int, default=256, help="longest answer")
    options = parser.parse_args(arguments)
    try:
        answers = _answers(options)
    except (TrainInputError, ChatInputError, CheckpointError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for prompt, (text, has_stopped) in zip(options.prompt, answers, strict=True):
        ending = "" if has_stopped else "  (did not stop)"
        sys.stdout.write(f"[user] {prompt}\n[assistant] {text}{ending}\n")
    return 0


def _answers(options: Any) -> list[tuple[str, bool]]:
    folder = options.folder
    end_ids = end_ids_of(folder)
    tokenizer = ChatTokenizer(folder)
    renderer = ChatRenderer(
        tokenizer_template(folder).text, special_tokens=tokenizer.special_tokens
    )
    system = [{"role": "system", "content": options.system}] if options.system else []
    prompts = []
    for prompt in options.prompt:
        messages = [*system, {"role": "user", "content": prompt}]
        text = renderer.render(messages, add_generation_prompt=True).text
        prompts.append(tokenizer.encode([text])[0])

    from neve_train.generation import generate  # heavy: jax and Levanter

    weights = options.checkpoint or folder
    answers = generate(weights, folder, folder, prompts, end_ids, options.max_new_tokens)
    return [
        (
            tokenizer.text([index for index in answer.ids if index not in end_ids]),
            answer.has_stopped,
        )
        for answer in answers
    ]


if __name__ == "__main__":
    end_program(main())
