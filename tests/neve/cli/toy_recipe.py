"""A tiny recipe for tests of the command line: numbers -> total."""

import dataclasses
import os
import sys
import time
from typing import Any

from neve import ExecutorStep, unhashed
from neve.progress import message, report


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitsConfig:
    """A nested config."""

    seq_len: int = 128
    """Tokens, 1 or more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumbersConfig:
    """Numbers to write."""

    count: int
    """How many, 0 or more."""
    limits: LimitsConfig = LimitsConfig()
    """Nested values."""
    log_level: Any = None
    """Not hashed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TotalConfig:
    """Numbers to add up."""

    input: Any
    """File of numbers."""
    scale: float
    """Factor; a negative one fails."""


def write_numbers(config: NumbersConfig, output_path: str) -> dict[str, Any]:
    """Write the numbers, and say what a secret is."""
    print("the token is", os.environ.get("TOY_TOKEN"))
    report(config.count, config.count, "rows")
    message("\x1b[31mred message\x1b[0m")
    with open(os.path.join(output_path, "numbers.txt"), "w") as file:
        file.write("\n".join(map(str, range(config.count))))
    return {"rows": config.count}


def add_up(config: TotalConfig, output_path: str) -> dict[str, Any]:
    """Add the numbers up."""
    with open(config.input) as file:
        numbers = [int(line) for line in file]
    if config.scale < 0:
        raise ValueError("scale is negative")
    time.sleep(float(os.environ.get("TOY_SECONDS", "0")))
    with open(os.path.join(output_path, "total.txt"), "w") as file:
        file.write(str(sum(numbers) * config.scale))
    return {"total": sum(numbers) * config.scale}


def build(count: int = 3, scale: float = 1.0, seq_len: int = 128) -> list[ExecutorStep]:
    """Return the steps."""
    numbers = ExecutorStep(
        name="toy/numbers",
        fn=write_numbers,
        config=NumbersConfig(
            count=count, limits=LimitsConfig(seq_len=seq_len), log_level=unhashed("info")
        ),
        outputs=("numbers.txt",),
    )
    total = ExecutorStep(
        name="toy/total", fn=add_up, config=TotalConfig(input=numbers / "numbers.txt", scale=scale)
    )
    return [total]


if __name__ == "__main__":
    from neve import parse_options, run_steps

    options, rest = parse_options(sys.argv[1:])
    values = dict(word.split("=") for word in rest)
    steps = build(int(values.get("count", 3)), float(values.get("scale", 1)))
    sys.exit(run_steps(steps, options))
