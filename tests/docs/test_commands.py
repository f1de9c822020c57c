"""Runs what the tutorials show: files are written as printed, `sh run` blocks are executed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, dict[str, str], str]]:
    """Returns (language, options, text) of each fenced block of a page."""
    found = []
    for language, options, text in BLOCK.findall((ROOT / "docs" / page).read_text()):
        pairs = dict(option.partition("=")[::2] for option in options.split())
        found.append((language, pairs, text))
    return found


def run_page(page: str, folder: Path, prefix: Path) -> str:
    """Writes a page's files, runs its commands as one shell and returns what they printed."""
    script = ["set -eu"]
    for language, options, text in blocks(page):
        if "file" in options:
            (folder / options["file"]).write_text(text * int(options.get("repeat", "1")))
        elif language == "sh" and "run" in options:
            script.append(text)
    bin_folder = Path(sys.executable).parent
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("WANDB", "HF_", "XLA_", "MARIN_"))
    }
    env |= {
        "PATH": f"{bin_folder}:{env['PATH']}", "MARIN_PREFIX": str(prefix), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    done = subprocess.run(
        ["sh", "-c", "\n".join(script)],
        cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.full
def test_compose_a_recipe_runs_as_shown(tmp_path: Path) -> None:
    """The ten-line recipe trains a user's own ShareGPT file and exports a folder."""
    prefix = tmp_path / "prefix"

    printed = run_page("tutorial/compose_a_recipe.md", tmp_path, prefix)

    assert "Did you mean 'seq_len'" in printed
    assert "exit code 2" in printed
    assert list(prefix.glob("exports/my-chat-*/model.safetensors"))
    assert [path.read_text() for path in prefix.glob("words-*/count.txt")] == ["3\n"]


@pytest.mark.full
def test_see_your_data_runs_as_shown(tmp_path: Path) -> None:
    """Every way to look at tokenized conversations works on a recipe that was only tokenized."""
    printed = run_page("howto/see_your_data.md", tmp_path, tmp_path / "prefix")

    assert "⟦1, 2, 3.<|eot_id|>⟧" in printed
    assert "<|im_start|> (" in printed
    assert "exit code 2" in printed
    assert "tokens per conversation" in printed
    assert (tmp_path / "my_chat.html").read_text().count('class="card conversation"') == 20
    assert not (tmp_path / "prefix" / "checkpoints").exists()


@pytest.mark.full
def test_first_run_runs_as_shown(tmp_path: Path) -> None:
    """The tiny recipe learns: held-out loss ends below both baselines, and the second run starts nothing."""
    printed = run_page("tutorial/first_run.md", tmp_path, tmp_path / "prefix")

    numbers = re.search(r"held-out loss ([\d.]+).*unigram ([\d.]+).*bigram ([\d.]+)", printed)
    assert numbers, printed
    held_out, unigram, bigram = map(float, numbers.groups())
    assert held_out < bigram < unigram
    shutil.rmtree(tmp_path / "prefix")


def test_every_run_block_is_in_a_tested_page() -> None:
    """A tutorial page that no test runs would rot."""
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    running = {page for page in pages if any("run" in options for _, options, _ in blocks(page))}

    assert running == {
        "tutorial/first_run.md", "tutorial/compose_a_recipe.md", "howto/see_your_data.md",
    }  # fmt: skip


if __name__ == "__main__":
    pytest.main([__file__])
