"""
Memory and scratch space of the chat data path don't grow with the data.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from tests.steps.resource_peaks import run_and_sample

_NUM_ROWS = 20_000
_CHILD = """
import importlib.util, json, os, sys
from pathlib import Path
from neve_chat.schemas import ConversationSchema
from neve_chat.templates import load_template
from steps.tokenize_chat import TokenizeChatConfig, tokenize_chat
from steps.transform_conversations import TransformConversationsConfig, transform_conversations
from tests.steps.resource_peaks import peak_memory_bytes
module, folder = sys.argv[1:]
spec = importlib.util.spec_from_file_location("tiny_tokenizer", module)
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
tokenizer = tiny.build_tokenizer(Path(folder) / "tokenizer")
transform_conversations(
    TransformConversationsConfig(input=f"{folder}/in.jsonl", schema=ConversationSchema()),
    f"{folder}/rows"
)
results = tokenize_chat(
    TokenizeChatConfig(
        input=f"{folder}/rows", tokenizer=str(tokenizer), template=load_template("chatml").text,
        validation_fraction=0.02,
    ),
    f"{folder}/cache",
)
left = [path for path in Path(os.environ["TMPDIR"]).rglob("*") if path.is_file()]
scratch = sum(path.stat().st_size for path in left)
print(json.dumps({"peak": peak_memory_bytes(), "scratch": scratch, "results": results}))
"""


@pytest.mark.full
def test_twenty_thousand_conversations_fit_in_two_gigabytes(tmp_path: Path) -> None:
    """
    Transform and tokenization of 20,000 conversations stay below 2 GB of memory and 5 GB of disk,
    input, outputs and scratch together, and leave no scratch behind.
    """
    words = ["the", "ok", "abc", "ls -la", "error:", "\n"]
    draw = random.Random(0)
    with (tmp_path / "in.jsonl").open("w") as file:
        for _ in range(_NUM_ROWS):
            texts = [" ".join(draw.choices(words, k=40)) for _ in range(4)]
            roles = ("user", "assistant", "user", "assistant")
            pairs = zip(roles, texts, strict=True)
            turns = [{"role": role, "content": content} for role, content in pairs]
            file.write(json.dumps({"messages": turns}) + "\n")
    (tmp_path / "scratch").mkdir()
    module = Path(__file__).parent.parent / "neve_chat" / "tiny_tokenizer.py"

    done, peak_disk = run_and_sample(
        [sys.executable, "-c", _CHILD, str(module), str(tmp_path)],
        [tmp_path],
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path / "scratch"), "PYTHONPATH": "."},
        cwd=Path(__file__).parents[2],
    )

    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["results"]["train"]["rows"] + facts["results"]["validation"]["rows"] == _NUM_ROWS
    assert facts["peak"] < 2e9
    assert facts["scratch"] == 0
    assert peak_disk < 5e9
    print(f"peak memory {facts['peak'] / 1e6:.0f} MB, peak disk {peak_disk / 1e6:.0f} MB")
