import dataclasses
import io
import sys

import pytest
from neve.display import Display, plan_lines
from neve.display_progress import Meter
from neve.display_text import age_text, bytes_text, count_text, key_results, rate_text, seconds_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The fields of a planned step that the display reads."""

    name: str
    action: str = "run"
    why: str = "never ran"
    deps: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        return f"fp-{self.name}"

    @property
    def output_path(self) -> str:
        return f"/data/out/{self.name}-00000000"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """A plan of such rows."""

    rows: list[Row]
    prefix: str = "/data/out"


def test_plan_table_has_totals_and_whole_paths() -> None:
    """The plan names each step once with its action, reason and whole path."""
    rows = [Row(name="a", action="hit", why="complete"), Row(name="long/b", deps=("fp-a",))]

    lines = plan_lines(rows, "/data/out", color=False, width=None)

    assert lines == [
        "Plan for /data/out: 2 steps, 1 complete, 1 to run.",
        "step    action  why        output path",
        "a       hit     complete   /data/out/a-00000000",
        "long/b  run     never ran  /data/out/long/b-00000000",
    ]


def test_narrow_terminal_gets_relative_paths() -> None:
    """A terminal too narrow for whole paths shows them below the prefix."""
    lines = plan_lines([Row(name="a")], "/data/out", color=False, width=40)

    assert lines[-1].endswith("  a-00000000")


def test_plain_run_is_quiet_and_ends_with_the_requested_outputs() -> None:
    """Without a terminal: a line on start and finish, rare progress, then counts and sinks."""
    stream = io.StringIO()
    display = Display(stream, progress_seconds=3600)
    a, b = Row(name="a"), Row(name="b", deps=("fp-a",))

    display.plan(Rows(rows=[a, b]))
    for row in (a, b):
        display.started(row)
        for done in range(100):
            event = {"event": "progress", "done": done, "total": 100, "unit": "rows", "facts": {}}
            display.progress(row, event)
        display.message(row, "\x1b[32mgreen\x1b[0m")
        display.finished(row, {"seconds": 1.5, "results": {"rows": 1234}})
    display.summary({"seconds": 3.0})

    assert stream.getvalue().splitlines()[4:] == [
        "started   a", "green", "finished  a  1.50 s  rows=1,234",
        "started   b", "green", "finished  b  1.50 s  rows=1,234",
        "Done: 0 hit, 2 ran, 0 failed in 3.00 s.",
        "  /data/out/b-00000000",
    ]  # fmt: skip


def test_plain_run_never_loads_rich() -> None:
    """The import cost of rich is only paid on a terminal."""
    import subprocess

    code = "import sys, neve.display, neve.cli; sys.exit('rich' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_terminal_prints_messages_above_live_lines() -> None:
    """On a terminal messages keep their place and the lines are gone at the end."""
    stream = io.StringIO()
    display = Display(stream, is_terminal=True, width=100)
    row = Row(name="a")

    display.plan(Rows(rows=[row]))
    display.started(row)
    display.progress(row, {"done": 5, "total": 10, "unit": "steps", "facts": {"loss": 2.5}})
    display.message(row, "hello")
    display.finished(row, {"seconds": 1.0, "results": {}})
    display.summary({"seconds": 1.0})

    assert "hello" in stream.getvalue()
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is shown again


def test_failure_summary_has_reason_lines_log_and_retry() -> None:
    """The summary of a failed run says which step, why, the last lines, the log and what to do."""
    stream = io.StringIO()
    display = Display(stream)
    row = Row(name="a")
    failure = {"name": "a", "why": "ValueError: no", "tail": ["l1", "l2"], "log_path": "/x/log.txt"}

    display.plan(Rows(rows=[row]))
    display.started(row)
    display.failed(row, failure)
    display.summary({"seconds": 1.0, "failures": [failure]})

    text = stream.getvalue()
    for part in ("Step a failed: ValueError: no", "    l2", "log: /x/log.txt", "To retry: "):
        assert part in text


def test_meter_gives_rate_and_remaining_time() -> None:
    """100 of 300 rows in 10 seconds is 10 rows/s with 20 seconds left."""
    meter = Meter(started=0.0)
    meter.add({"done": 0, "total": 300, "unit": "rows"}, now=0.0)
    meter.add({"done": 100, "total": 300, "unit": "rows", "facts": {"loss": 2.31234}}, now=10.0)

    assert meter.text() == "100/300 rows, 33%, 10 rows/s, 20.0 s left, loss=2.312"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (seconds_text(0.123), "0.12 s"), (seconds_text(65), "1 min 05 s"),
        (seconds_text(7260), "2 h 01 min"), (count_text(12345), "12.3k"),
        (count_text(999_999), "1M"), (bytes_text(1536), "1.5 KiB"),
        (rate_text(0.05, "steps"), "20.0 s/step"), (age_text(None), "?"),
        (key_results({"a": 1, "b": {"c": 0.5}, "d": [1]}), "a=1 b.c=0.5"),
    ],
)  # fmt: skip
def test_texts_are_short_and_exact(shown: str, expected: str) -> None:
    """Numbers appear in the form people expect."""
    assert shown == expected
