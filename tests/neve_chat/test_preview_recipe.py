"""
A preview shows what a recipe would train: the same before and after the data is tokenized.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from neve_chat.preview_rows import Refused
from neve_chat.preview_source import open_source

ROOT = Path(__file__).resolve().parents[2]
_RECIPE = """
from neve import ExecutorStep, executor_main, unhashed
from neve_chat.schemas import ConversationSchema
from steps.mix_datasets import MixDatasetsConfig, MixedDataset, mix_datasets
from steps.tokenize_chat import LossOptions, TokenizeChatConfig, load_template, tokenize_chat
from steps.transform_conversations import TransformConversationsConfig, transform_conversations

ROWS = TransformConversationsConfig(input=f"{FOLDER}/rows.jsonl", schema=ConversationSchema())
CONVERSATIONS = ExecutorStep(name="conversations/toy", fn=transform_conversations, config=ROWS)
TOKENS = ExecutorStep(
    name="tokenized/toy",
    fn=tokenize_chat,
    config=TokenizeChatConfig(
        input=CONVERSATIONS,
        tokenizer=TOKENIZER,
        template=load_template("chatml").text,
        template_name=unhashed("chatml"),
        loss=LossOptions(train_turns="last", train_end_of_turn=False),
        special_text="drop",
        max_tokens=120,
        long_conversations="first_turns",
        max_rejected_fraction=0.9,
    ),
)
MIXTURE = ExecutorStep(
    name="mixtures/toy",
    fn=mix_datasets,
    config=MixDatasetsConfig(
        datasets=(MixedDataset(name="toy", cache=TOKENS, long_conversations="drop"),),
        seq_len=100, batch_size=1, num_train_steps=1, model_config=TOKENIZER,
    ),
)
if __name__ == "__main__":
    executor_main([MIXTURE])
"""


def turns(*texts: str) -> dict[str, list[dict[str, str]]]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)]}


# What becomes of each: two turns, a marker in the data, one turn too many for 120 tokens, a turn
# that never fits, and one that fits into 120 tokens but not into rows of 100.
ROWS = (
    turns("q", "first", "q", "second"),
    turns("see <|im_end|>", "ok"),
    turns("q", "kept", "q", "x" * 200),
    turns("q" * 300, "never"),
    turns("q" * 85, "a"),
)


class Place:
    """
    A folder with the recipe, of which only the conversations are built at first.
    """

    def __init__(self, folder: Path, tokenizer: str) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        values = f"FOLDER, TOKENIZER = {str(folder)!r}, {tokenizer!r}\n"
        (folder / "toy_recipe.py").write_text(values + _RECIPE)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        self.run("toy_recipe", "--only", "conversations/toy")

    def run(self, *words: str, code: int = 0) -> str:
        """
        What a module prints, or writes to stderr where it is refused.
        """
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = os.environ | {"PYTHONPATH": path, "MARIN_PREFIX": str(self.folder / "prefix")}
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.folder, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    def preview(self, *words: str, code: int = 0) -> str:
        return self.run("neve.cli", "preview", *words, code=code)

    def output(self, name: str) -> Path:
        (found,) = (self.folder / "prefix").glob(f"{name}-*")
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: str) -> Place:
    return Place(tmp_path_factory.mktemp("place"), tokenizer_path)


def bodies(shown: str) -> list[str]:
    """
    The conversations alone, without their headers and what was left out.
    """
    parts = re.split(r"^--- (.*) ---\n", shown, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    texts = [body for head, body in pairs if "left out" not in head]
    return [text.partition("\nLeft out here")[0].partition("\nRefused in all")[0] for text in texts]


def test_preview_before_tokenizing_equals_the_cache(place: Place) -> None:
    """
    Loss options, special text, long conversations and the mixture's rule are the recipe's.
    """
    before = place.preview("toy_recipe", "-n", "9")
    by_path = place.preview(
        str(place.output("conversations/toy")), "--recipe", "toy_recipe", "-n", "9"
    )
    page = place.folder / "page.html"
    place.preview("toy_recipe", "-n", "9", "--html", str(page))

    place.run("toy_recipe", "--only", "tokenized/toy")
    after = place.preview("toy_recipe", "-n", "9")

    assert by_path == before
    assert [text.count("⟦") for text in bodies(before)] == [1, 1]
    assert "⟦second⟧<|im_end|>" in bodies(before)[0]
    assert "⟦kept⟧<|im_end|>" in bodies(before)[1]
    assert bodies(after) == bodies(before)
    for shown, row in ((before, 4), (after, 2)):  # the cache has no row for what was refused
        assert f"--- row {row} | left out: longer than seq_len 100 " in shown
    assert "--- row 1 | left out: text of a special token |" in before
    assert "<|im_end|> in messages[0].content" in before
    assert "--- row 3 | left out: too long |" in before
    assert "shortened by first_turns ---" in before
    assert (
        "Left out here: text of a special token 1, too long 1, longer than seq_len 100 1" in before
    )
    assert "longer than seq_len 100 1" in after.splitlines()[-1]
    html = page.read_text()
    assert html.count('class="card refused"') == 3
    assert html.count('class="card conversation"') == 2


def test_stats_of_conversations_count_what_would_be_trained(place: Place) -> None:
    """
    Counts come from the same functions; what is refused stands beside them with its reason.
    """
    shown = place.preview(
        str(place.output("conversations/toy")), "--recipe", "toy_recipe", "--stats"
    )

    assert "conversations      2\n" in shown
    assert re.search(r"rejected: longer than seq_len 100 +1\n", shown)
    assert re.search(r"rejected: text of a special token +1\n", shown)
    assert re.search(r"rejected: too long +1\n", shown)


def test_a_template_to_try_replaces_only_the_recipes_template(place: Place) -> None:
    """
    The other options stay the recipe's.
    """
    shown = place.preview(
        str(place.output("conversations/toy")),
        "--recipe", "toy_recipe", "--template", "plain", "-n", "2",
    )  # fmt: skip

    assert "<|im_start|>" not in shown
    assert "⟦ second⟧" in shown or "⟦second⟧" in shown
    assert "left out: text of a special token" in shown


def test_without_a_recipe_a_marker_in_the_data_is_told(place: Place) -> None:
    """
    By default such a row stops the tokenize step, so the preview doesn't show it as trained.
    """
    shown = place.preview(
        str(place.output("conversations/toy")),
        "--tokenizer", place.tokenizer, "--template", "chatml", "-n", "2",
    )  # fmt: skip

    assert "--- row 1 | left out: stops the tokenize step |" in shown
    assert 'Set special_text to "escape"' in shown


def test_recipe_option_goes_with_a_path(place: Place) -> None:
    """
    A recipe beside a recipe would leave open which one holds.
    """
    said = place.preview("toy_recipe", "--recipe", "toy_recipe", code=2)

    assert "--recipe toy_recipe: must go with a path" in said


def test_rows_of_a_hand_written_file_are_checked_as_a_transform_would(
    tmp_path: Path, tokenizer_path: str
) -> None:
    """
    Whatever a line holds, it is shown or left out with its reason.
    """
    good = turns("q", "ok")
    odd = [["hi"], [None], [{"content": "x"}], [{"role": "user", "content": 5}], []]
    rows = [good, *({"messages": messages} for messages in odd), {**good, "tools": "x"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_source(str(tmp_path / "rows.jsonl"), tokenizer=tokenizer_path, template="chatml")

    shown = list(source.conversations(0, 9))

    assert [each.reason if isinstance(each, Refused) else "" for each in shown] == [
        "", "malformed turn", "malformed turn", "malformed turn", "content is not text",
        "empty conversation", "bad tools",
    ]  # fmt: skip
    assert source.counts().num_rows == 1
    assert source.facts["rejected"]["malformed turn"] == 3
