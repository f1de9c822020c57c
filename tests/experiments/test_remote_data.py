"""Remote conversations as a recipe's source: planned by their listing, imported by the engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from neve import storage

ROOT = Path(__file__).parents[2]
_RECIPE = """
from neve import ExecutorStep, executor_main
from neve_chat.schemas import ConversationSchema
from experiments.sft.sources import RemoteData
from steps.transform_conversations import TransformConversationsConfig, transform_conversations

raw = RemoteData(url={url!r}).step("chats")
config = TransformConversationsConfig(input=raw, schema=ConversationSchema())
steps = [ExecutorStep(name="conversations/chats", fn=transform_conversations, config=config)]
if __name__ == "__main__":
    executor_main(steps)
"""


@pytest.mark.full
def test_remote_data_is_imported_once_and_again_when_it_changes(
    s3_bucket: str, tmp_path: Path
) -> None:
    """A second run does nothing, a changed object is another step, and no secret is recorded."""
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    row = json.dumps({"messages": turns}).encode() + b"\n"
    storage.write_bytes(f"{s3_bucket}/in/a.jsonl", row)
    (tmp_path / "recipe.py").write_text(_RECIPE.format(url=f"{s3_bucket}/in"))
    env = {**os.environ, "MARIN_PREFIX": str(tmp_path / "p"), "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def run() -> str:
        words = [sys.executable, "-m", "recipe"]
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run()
    again = run()
    storage.write_bytes(f"{s3_bucket}/in/a.jsonl", row * 2)
    run()

    assert "1 hit, 0 ran" in again
    rows = {
        json.loads(path.read_text())["rows_out"]
        for path in (tmp_path / "p/conversations").glob("*/summary.json")
    }
    assert rows == {1, 2}
    for path in (tmp_path / "p").rglob("*"):
        assert not path.is_file() or b"secret-of-tests" not in path.read_bytes()
