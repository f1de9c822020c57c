"""Scripted terminal tasks: a question, the files it is about, and the commands that answer it.

Every builder draws names and numbers from its `random.Random` and returns a `Task`. What a
command prints isn't written here: `make_terminal_conversations` runs it. Commands stay within
POSIX so that their output is the same everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NOUNS = ("apple", "bridge", "candle", "desert", "engine", "forest", "garden", "harbor")
NAMES = ("alice", "bruno", "carla", "david", "elena", "felix", "grace", "henry")
STEMS = ("notes", "items", "report", "sales", "users", "orders", "survey", "stock")
FOLDERS = ("archive", "backup", "images", "output", "results", "sources")
LEVELS = ("INFO", "WARN", "ERROR")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One command of the agent and what it says before it."""

    analysis: str
    """Why this command comes next."""
    command: str
    """A POSIX shell line."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One conversation before its commands have run."""

    kind: str
    """Name of the builder, the same for every task of that shape."""
    question: str
    """What the user asks for."""
    files: dict[str, str]
    """Files that exist at the start: relative path to text."""
    turns: tuple[Turn, ...]
    """Commands in order."""
    answer: Callable[[list[str]], str]
    """The closing sentence from the commands' outputs."""


def count_lines(rng: random.Random) -> Task:
    """Ask for the number of lines of one of two files."""
    name, other = _file_names(rng, "txt", 2)
    files = {name: _word_lines(rng, rng.randint(3, 9)), other: _word_lines(rng, 2)}
    return Task(
        kind="count_lines",
        question=f"How many lines are in {name}?",
        files=files,
        turns=(Turn(analysis=f"wc -l counts the lines of {name}.", command=f"wc -l < {name}"),),
        answer=lambda outputs: f"{name} has {outputs[0].strip()} lines.",
    )


def count_words(rng: random.Random) -> Task:
    """Look at a file, then count its words."""
    (name,) = _file_names(rng, "txt", 1)
    files = {name: _word_lines(rng, rng.randint(2, 4), per_line=3)}
    return Task(
        kind="count_words",
        question=f"How many words are in {name}?",
        files=files,
        turns=(
            Turn(analysis=f"First I look at {name}.", command=f"cat {name}"),
            Turn(analysis=f"wc -w counts the words of {name}.", command=f"wc -w < {name}"),
        ),
        answer=lambda outputs: f"{name} has {outputs[1].strip()} words.",
    )


def sum_column(rng: random.Random) -> Task:
    """Sum the second column of a CSV file with awk."""
    (name,) = _file_names(rng, "csv", 1)
    rows = [f"{noun},{rng.randint(1, 30)}" for noun in rng.sample(NOUNS, rng.randint(3, 5))]
    return Task(
        kind="sum_column",
        question=f"What is the sum of the price column of {name}?",
        files={name: _text(["item,price", *rows])},
        turns=(
            Turn(analysis=f"First I look at {name}.", command=f"cat {name}"),
            Turn(
                analysis="The price is field 2. awk adds it up after the header.",
                command=f"awk -F, 'NR > 1 {{ s += $2 }} END {{ print s }}' {name}",
            ),
        ),
        answer=lambda outputs: f"The sum of the price column is {outputs[1].strip()}.",
    )


def largest_value(rng: random.Random) -> Task:
    """Find the row of a CSV file with the largest number."""
    (name,) = _file_names(rng, "csv", 1)
    values = rng.sample(range(10, 90), 4)
    rows = [f"{who},{value}" for who, value in zip(rng.sample(NAMES, 4), values, strict=True)]
    return Task(
        kind="largest_value",
        question=f"Who has the largest score in {name}?",
        files={name: _text(rows)},
        turns=(
            Turn(
                analysis="The score is field 2. sort orders the rows by it, largest first.",
                command=f"sort -t, -k2,2nr {name}",
            ),
        ),
        answer=lambda outputs: "{} has the largest score, {}.".format(
            *outputs[0].splitlines()[0].split(",")
        ),
    )


def sort_file(rng: random.Random) -> Task:
    """Write the sorted lines of a file to another and show them."""
    name, target = _file_names(rng, "txt", 2)
    return Task(
        kind="sort_file",
        question=f"Sort the lines of {name} into {target}.",
        files={name: _text(rng.sample(NOUNS, 4))},
        turns=(
            Turn(analysis=f"sort writes the lines to {target}.", command=f"sort {name} > {target}"),
            Turn(analysis=f"I check {target}.", command=f"cat {target}"),
        ),
        answer=lambda outputs: (
            f"{target} holds the sorted lines, from {outputs[1].split()[0]} "
            f"to {outputs[1].split()[-1]}."
        ),
    )


def count_unique(rng: random.Random) -> Task:
    """Count how often each line occurs."""
    (name,) = _file_names(rng, "txt", 1)
    words = rng.sample(NOUNS, 3)
    lines = [*words, *rng.choices(words, k=rng.randint(2, 4))]
    rng.shuffle(lines)
    return Task(
        kind="count_unique",
        question=f"How many different lines does {name} have?",
        files={name: _text(lines)},
        turns=(
            Turn(analysis="sort -u keeps each line once.", command=f"sort -u {name}"),
            Turn(analysis="wc -l counts them.", command=f"sort -u {name} | wc -l"),
        ),
        answer=lambda outputs: f"{name} has {outputs[1].strip()} different lines.",
    )


def grep_errors(rng: random.Random) -> Task:
    """Show and count the log lines of one level."""
    (name,) = _file_names(rng, "log", 1)
    level = rng.choice(LEVELS)
    lines = [f"{rng.choice(LEVELS)} {noun}" for noun in rng.sample(NOUNS, 4)]
    lines.insert(rng.randint(0, 4), f"{level} {rng.choice(NOUNS)} again")
    return Task(
        kind="grep_errors",
        question=f"How many {level} lines are in {name}?",
        files={name: _text(lines)},
        turns=(
            Turn(analysis=f"grep shows the {level} lines.", command=f"grep {level} {name}"),
            Turn(analysis="grep -c counts them.", command=f"grep -c {level} {name}"),
        ),
        answer=lambda outputs: f"{name} has {outputs[1].strip()} {level} lines.",
    )


def find_files(rng: random.Random) -> Task:
    """List the files with one ending below a folder."""
    folder, other = rng.sample(FOLDERS, 2)
    suffix, noise = rng.sample(("txt", "csv", "log"), 2)
    stems = rng.sample(STEMS, 4)
    files = {
        f"{folder}/{stems[0]}.{suffix}": "x\n",
        f"{other}/{stems[1]}.{suffix}": "x\n",
        f"{other}/{stems[2]}.{noise}": "x\n",
    }
    if rng.random() < 0.5:
        files[f"{folder}/{stems[3]}.{suffix}"] = "x\n"
    return Task(
        kind="find_files",
        question=f"List all {suffix} files below this folder.",
        files=files,
        turns=(
            Turn(
                analysis=f"find lists the {suffix} files and sort orders them.",
                command=f"find . -name '*.{suffix}' | sort",
            ),
        ),
        answer=lambda outputs: (
            f"There are {len(outputs[0].split())} {suffix} files: {', '.join(outputs[0].split())}."
        ),
    )


def rename_file(rng: random.Random) -> Task:
    """Rename a file and show the folder."""
    name, target = _file_names(rng, rng.choice(("txt", "csv")), 2)
    return Task(
        kind="rename_file",
        question=f"Rename {name} to {target}.",
        files={name: _word_lines(rng, 1)},
        turns=(
            Turn(analysis=f"mv renames {name}.", command=f"mv {name} {target}"),
            Turn(analysis="I check the folder.", command="ls"),
        ),
        answer=lambda outputs: f"{name} is now {target}.",
    )


def make_folders(rng: random.Random) -> Task:
    """Make a folder, move a file into it and show the tree."""
    (name,) = _file_names(rng, rng.choice(("txt", "log")), 1)
    folder = rng.choice(FOLDERS)
    return Task(
        kind="make_folders",
        question=f"Move {name} into a new folder {folder}.",
        files={name: _word_lines(rng, 1)},
        turns=(
            Turn(analysis=f"mkdir makes {folder}.", command=f"mkdir {folder}"),
            Turn(analysis=f"mv moves {name} into it.", command=f"mv {name} {folder}/"),
            Turn(analysis="I check the folder.", command=f"ls {folder}"),
        ),
        answer=lambda outputs: f"{name} is now in {folder}.",
    )


def extract_field(rng: random.Random) -> Task:
    """Cut one field out of a colon-separated file."""
    (name,) = _file_names(rng, "txt", 1)
    people = rng.sample(NAMES, 3)
    rows = [f"{who}:{rng.choice(NOUNS)}:{rng.randint(1, 30)}" for who in people]
    field, what = rng.choice(((1, "names"), (3, "numbers")))
    return Task(
        kind="extract_field",
        question=f"Show the {what}, field {field} of {name}.",
        files={name: _text(rows)},
        turns=(
            Turn(analysis=f"First I look at {name}.", command=f"cat {name}"),
            Turn(
                analysis=f"cut takes field {field}, split at each colon.",
                command=f"cut -d: -f{field} {name}",
            ),
        ),
        answer=lambda outputs: f"The {what} are {', '.join(outputs[1].split())}.",
    )


def replace_word(rng: random.Random) -> Task:
    """Replace one word of a file with sed."""
    (name,) = _file_names(rng, "txt", 1)
    words = rng.sample(NOUNS, 4)
    old, new = words[rng.randint(0, 2)], words[3]
    return Task(
        kind="replace_word",
        question=f"Replace {old} with {new} in {name} and show the result.",
        files={name: _text(words[:3])},
        turns=(
            Turn(
                analysis=f"sed replaces {old} with {new}.", command=f"sed 's/{old}/{new}/' {name}"
            ),
        ),
        answer=lambda outputs: f"The lines are now {', '.join(outputs[0].split())}.",
    )


def first_line(rng: random.Random) -> Task:
    """Show the first or the last line of a file."""
    (name,) = _file_names(rng, "txt", 1)
    where, tool = rng.choice((("first", "head"), ("last", "tail")))
    return Task(
        kind="first_line",
        question=f"What is the {where} line of {name}?",
        files={name: _text(rng.sample(NOUNS, rng.randint(3, 5)))},
        turns=(
            Turn(analysis=f"{tool} -n 1 shows the {where} line.", command=f"{tool} -n 1 {name}"),
        ),
        answer=lambda outputs: f"The {where} line of {name} is {outputs[0].strip()}.",
    )


def check_sum(rng: random.Random) -> Task:
    """Compare two files by their checksums."""
    name, other = _file_names(rng, "txt", 2)
    text = _word_lines(rng, 2)
    same = rng.random() < 0.5
    files = {name: text, other: text if same else _word_lines(rng, 3)}
    verdict = "the same" if same else "different"
    return Task(
        kind="check_sum",
        question=f"Are {name} and {other} the same?",
        files=files,
        turns=(
            Turn(
                analysis="cksum shows a checksum and a size for each.",
                command=f"cksum {name} {other}",
            ),
        ),
        answer=lambda outputs: f"The checksums are {verdict}, so the files are {verdict}.",
    )


BUILDERS: tuple[Callable[[random.Random], Task], ...] = (
    count_lines,
    count_words,
    sum_column,
    largest_value,
    sort_file,
    count_unique,
    grep_errors,
    find_files,
    rename_file,
    make_folders,
    extract_field,
    replace_word,
    first_line,
    check_sum,
)


def _file_names(rng: random.Random, suffix: str, count: int) -> list[str]:
    return [f"{stem}.{suffix}" for stem in rng.sample(STEMS, count)]


def _word_lines(rng: random.Random, count: int, *, per_line: int = 1) -> str:
    return _text([" ".join(rng.choices(NOUNS, k=per_line)) for _ in range(count)])


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
