"""Step: greedy answers to a few prompts before and after training, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neve_train.errors import TrainInputError

__all__ = ["GenerateSamplesConfig", "generate_samples"]


@dataclass(frozen=True, kw_only=True)
class GenerateSamplesConfig:
    """Two models, and what they are asked."""

    before: Any
    """Base model's weights, a Hugging Face folder or a native checkpoint: a path or a step."""
    after: Any
    """Hugging Face folder of the trained model, with tokenizer: a path or a step."""
    conversations: Any
    """Output of transform_conversations: the prompts are the turns before the first answer."""
    template_text: str
    """Chat template of the training; empty: the one in the folder of the trained model."""
    num_samples: int = 4
    """Prompts, 1 or more."""
    max_new_tokens: int = 256
    """Longest answer, tokens, 1 or more."""
    max_prompt_tokens: int = 2048
    """Longer prompts are passed over, tokens, 1 or more."""
    eos_token_ids: tuple[int, ...] = ()
    """Further ids that end an answer; those of the export are included."""

    def __post_init__(self) -> None:
        """Checks the counts."""
        for name in ("num_samples", "max_new_tokens", "max_prompt_tokens"):
            if getattr(self, name) < 1:
                raise TrainInputError(
                    f"samples: {name} must be 1 or more, got {getattr(self, name)}. Raise it."
                )


def generate_samples(config: GenerateSamplesConfig, output_path: str) -> dict[str, Any]:
    """The output holds samples.json and samples.txt.

    Returns:
        num_prompts, num_stopped (answers of the trained model that ended their turn themselves),
        num_stopped_before.

    Raises:
        TrainInputError: There is no prompt, or a prompt doesn't fit the model.
    """
    from neve import progress, storage
    from neve_chat.render import ChatRenderer
    from neve_chat.templates import tokenizer_template
    from neve_chat.tokens import ChatTokenizer
    from neve_chat.transform import iter_conversations
    from neve_train.generate import end_ids_of
    from neve_train.generation import generate  # heavy: jax and Levanter

    after = str(config.after)
    tokenizer = ChatTokenizer(after)
    template = config.template_text or tokenizer_template(after).text
    renderer = ChatRenderer(template, special_tokens=tokenizer.special_tokens)
    room = config.max_new_tokens
    limit = storage.read_json(storage.join(after, "config.json"))["max_position_embeddings"] - room
    prompts: list[list[int]] = []
    asked: list[dict[str, Any]] = []
    for row in iter_conversations(str(config.conversations)):
        messages = _before_first_answer(row)
        if not messages:
            continue
        text = renderer.render(messages, tools=row.get("tools"), add_generation_prompt=True).text
        ids = tokenizer.encode([text])[0]
        if ids in prompts or not 0 < len(ids) <= min(limit, config.max_prompt_tokens):
            continue
        prompts.append(ids)
        asked.append({"id": row.get("id"), "messages": messages})
        if len(prompts) == config.num_samples:
            break
    if not prompts:
        raise TrainInputError(
            f"samples: {config.conversations} must hold a prompt of at most "
            f"{min(limit, config.max_prompt_tokens)} tokens, got none. Lower max_new_tokens."
        )
    end_ids = sorted({*end_ids_of(after), *config.eos_token_ids})
    for name, path in (("before", str(config.before)), ("after", after)):
        answers = generate(
            path,
            after,
            after,
            prompts,
            end_ids,
            config.max_new_tokens,
            on_progress=lambda done, total, name=name: progress.report(
                done, total, "tokens", model=name
            ),
        )
        for sample, answer in zip(asked, answers, strict=True):
            sample[name] = tokenizer.text(answer.ids)
            sample[f"has_stopped_{name}"] = answer.has_stopped
    storage.write_json(storage.join(output_path, "samples.json"), asked)
    text = "\n".join(_text(number, sample) for number, sample in enumerate(asked, 1))
    storage.write_bytes(storage.join(output_path, "samples.txt"), text.encode())
    progress.message(text)
    return {
        "num_prompts": len(asked),
        "num_stopped": sum(sample["has_stopped_after"] for sample in asked),
        "num_stopped_before": sum(sample["has_stopped_before"] for sample in asked),
    }


def _before_first_answer(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages up to the first assistant turn; none if there is no such turn."""
    messages = row["messages"]
    roles = [message["role"] for message in messages]
    return messages[: roles.index("assistant")] if "assistant" in roles else []


def _text(number: int, sample: dict[str, Any]) -> str:
    lines = [f"=== sample {number} ==="]
    for message in sample["messages"]:
        lines.append(f"[{message['role']}] {message.get('content')}")
    for name in ("before", "after"):
        ending = "" if sample[f"has_stopped_{name}"] else "  (did not stop)"
        lines.append(f"[{name} training] {sample[name]}{ending}")
    return "\n".join(lines) + "\n"
