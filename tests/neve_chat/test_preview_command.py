"""
`neve preview` as a user runs it: on a recipe, on what its steps left, and on conversations.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from neve.cli import main

ROOT = Path(__file__).resolve().parents[2]
_RECIPE = """
from neve import ExecutorStep, executor_main
from neve_chat.schemas import ConversationSchema
from steps.tokenize_chat import TokenizeChatConfig, load_template, tokenize_chat
from steps.transform_conversations import TransformConversationsConfig, transform_conversations


def build(options):
    steps = []
    for name in ("alpha", "beta"):
        rows = TransformConversationsConfig(input=f"{FOLDER}/{name}.jsonl", schema=ConversationSchema())
        conversations = ExecutorStep(
            name=f"conversations/{name}", fn=transform_conversations, config=rows
        )
        tokens = TokenizeChatConfig(
            input=conversations, tokenizer=TOKENIZER, template=load_template("chatml").text
        )
        steps.append(ExecutorStep(name=f"tokenized/{name}", fn=tokenize_chat, config=tokens))
    return steps


if __name__ == "__main__":
    executor_main(build)
"""


@dataclass(frozen=True)
class Workplace:
    """
    A folder with a recipe, and the prefix where its data set alpha is built.
    """

    folder: Path
    prefix: Path
    tokenizer: str

    def run(self, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """
        Run a module with arguments in the folder.
        """
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env=self.environment() | extra,
            capture_output=True,
            text=True,
            check=False,
        )

    def environment(self) -> dict[str, str]:
        """
        This process's environment with the prefix and the checkout.
        """
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        return env | {"PYTHONPATH": path, "MARIN_PREFIX": str(self.prefix)}

    def preview(self, *words: str) -> str:
        """
        What `neve preview` prints; it must succeed.
        """
        done = self.run("neve.cli", "preview", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def output(self, name: str) -> Path:
        """
        The output path of a built step.
        """
        (found,) = self.prefix.glob(f"{name}-*")
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: str) -> Workplace:
    """
    Two data sets, of which the first one is tokenized by the real executor; read only.
    """
    folder = tmp_path_factory.mktemp("place")
    values = f"FOLDER, TOKENIZER = {str(folder)!r}, {tokenizer_path!r}\n"
    (folder / "toy_recipe.py").write_text(values + _RECIPE)
    for name in ("alpha", "beta"):
        rows = [
            {
                "messages": [
                    {"role": "user", "content": f"{name} {index}"},
                    {"role": "assistant", "content": f"the {index}\x1b[31m" + "abc " * index},
                ]
            }
            for index in range(20)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = Workplace(folder, folder / "prefix", tokenizer_path)
    done = made.run("toy_recipe", "--only", "tokenized/alpha")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def refusal(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """
    Runs `neve preview` in this process, which is faster, and returns the line it refuses with.
    """
    monkeypatch.chdir(place.folder)
    monkeypatch.syspath_prepend(str(place.folder))
    for name, value in place.environment().items():
        monkeypatch.setenv(name, value)

    def refuse(*words: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(["preview", *words])
        out, err = capsys.readouterr()
        assert (stop.value.code, out) == (2, "")
        assert err.startswith("Error: ")
        return err

    return refuse


def test_preview_of_a_recipe_shows_its_data_set(place: Workplace) -> None:
    """
    The first conversations, decoded from the cache, with counts, id and place of the first.
    """
    shown = place.preview("toy_recipe", "--source", "alpha", "-n", "2")

    head, first = shown.splitlines()[:2]
    assert head.startswith("--- row 0 of 20 | ")
    assert " | from alpha.jsonl" in head
    assert first == "<|im_start|>user"
    assert "⟦the 0\\x1b[31m" in shown
    assert shown.count("--- row ") == 2
    assert "\x1b" not in shown


def test_preview_of_a_recipe_says_how_to_build_what_is_missing(
    place: Workplace, refusal: Callable[..., str]
) -> None:
    """
    A data set that isn't tokenized is refused with the command that builds it; nothing is built.
    """
    before = sorted(path.name for path in place.prefix.rglob("*"))

    said = refusal("toy_recipe")

    assert "data set beta: must be tokenized" in said
    assert "Run: python -m toy_recipe --only tokenized/beta" in said
    assert sorted(path.name for path in place.prefix.rglob("*")) == before


def test_preview_names_the_data_sets_there_are(refusal: Callable[..., str]) -> None:
    """
    An unknown --source lists the recipe's.
    """
    assert "It has alpha, beta." in refusal("toy_recipe", "--source", "gamma")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing-here",), "must be an output under"),
        (("no.such.module",), "must be importable"),
        (("gone.jsonl",), "must exist"),
        (("tokenized/alpha", "--split", "validation"), "It has train."),
        (("tokenized/alpha", "--row", "20"), "row 20: must be one of 0 to 19"),
        (("tokenized/alpha", "--row", "1", "--start", "1"), "--row 1: must stand alone"),
        (("tokenized/alpha", "--source", "alpha"), "must go with a recipe"),
        (("tokenized/alpha", "--sourec", "alpha"), "option --sourec: must be one of neve preview"),
        (("conversations/alpha",), "need a tokenizer and a template"),
        (("toy_recipe", "--sourec", "alpha"), "--sourec"),
        ((".",), "must hold a token cache"),
    ],
)
def test_preview_refuses_with_a_sentence(
    words: tuple[str, ...], message: str, refusal: Callable[..., str]
) -> None:
    """
    Wrong targets and options end with exit code 2, a sentence and no traceback.
    """
    assert message in refusal(*words)


def test_preview_of_an_output_by_the_beginning_of_its_name(place: Workplace) -> None:
    """
    What other commands call an OUTPUT can be given here; --row shows one row.
    """
    shown = place.preview("tokenized/al", "--row", "3", "--ids")

    head, columns, first = shown.splitlines()[:3]
    assert head.startswith("--- row 3 of 20 | ")
    assert columns.split() == ["index", "id", "*", "text"]
    assert first.split() == ["0", "3", "'<|im_start|>'"]


def test_preview_of_a_lone_cache_needs_no_step(place: Workplace, tmp_path: Path) -> None:
    """
    A cache without record and statistics, as Levanter itself writes it, is shown and counted.
    """
    lone = tmp_path / "cache" / "train"
    shutil.copytree(place.output("tokenized/alpha") / "train", lone)

    shown = place.preview(str(tmp_path / "cache"), "-n", "1")
    counted = place.preview(str(lone), "--stats")

    recorded = place.preview("tokenized/alpha", "--stats")
    assert "⟦the 0" in shown
    # The same numbers, but for the name, the paths and the template, which only the step knew.
    numbers = [line for line in recorded.splitlines() if "tokens" in line or "█" in line]
    assert (
        numbers[1:]
        == [line for line in counted.splitlines() if "tokens" in line or "█" in line][1:]
    )


def test_preview_refuses_another_tokenizer(
    place: Workplace, refusal: Callable[..., str], tmp_path: Path
) -> None:
    """
    Ids decoded by another tokenizer would be nonsense that looks like text.
    """
    other = tmp_path / "other"
    shutil.copytree(place.tokenizer, other)
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace("<|im_end|>", "<|im_fin|>"))

    said = refusal("tokenized/alpha", "--tokenizer", str(other))

    assert "must be the one that made" in said


def test_preview_of_conversations_equals_that_of_their_cache(place: Workplace) -> None:
    """
    Rendering on the fly shows what the tokenize step stored, and streams to any row.
    """
    words = ("--tokenizer", place.tokenizer, "--template", "chatml", "--row", "7")

    direct = place.preview("conversations/alpha", *words).splitlines()
    stored = place.preview("tokenized/alpha", "--row", "7").splitlines()

    assert direct[1:] == stored[1:]
    assert "from alpha.jsonl" in direct[0]


def test_preview_stats_are_those_of_the_step(place: Workplace) -> None:
    """
    Counts, share of trained tokens and a bar for each length class.
    """
    stats = json.loads((place.output("tokenized/alpha") / "stats.json").read_text())["train"]

    shown = place.preview("toy_recipe", "--source", "alpha", "--stats")

    assert f"trained tokens     {stats['trained_tokens']:,} (" in shown
    assert shown.count("█ ") == sum(1 for count in stats["length_histogram"].values() if count)


def test_preview_writes_a_page(place: Workplace, tmp_path: Path) -> None:
    """
    --html leaves a file with the conversations and the statistics of the step.
    """
    file = tmp_path / "page.html"

    said = place.preview("tokenized/alpha", "-n", "2", "--html", str(file))

    html = file.read_text()
    assert said.startswith(f"{file}: ")
    assert html.count('class="card conversation"') == 2
    assert "Tokens per conversation" in html


@pytest.mark.parametrize(("no_color", "is_colored"), [("", True), ("1", False)])
def test_preview_colors_only_terminals_that_want_it(
    no_color: str, is_colored: bool, place: Workplace
) -> None:
    """
    On a terminal trained text is in color unless NO_COLOR is set; the marks are always there.
    """
    ours, theirs = pty.openpty()
    words = ["neve.cli", "preview", "tokenized/alpha", "--row", "1"]
    done = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=place.folder,
        env=place.environment() | {"NO_COLOR": no_color},
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        shown += data
    os.close(ours)
    _, errors = done.communicate()

    assert done.returncode == 0, errors
    assert "⟦" in shown.decode()
    assert (b"\x1b[30;42mthe 1" in shown) == is_colored
