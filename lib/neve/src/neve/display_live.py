"""The live lines of a terminal: one for each running step. The only module that knows rich."""

import time
from typing import IO, Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from neve.display_progress import Meter
from neve.display_text import seconds_text

_MAX_LINES = 12
_BAR_WIDTH = 20


class LiveLines:
    """Draws running steps below all printed text until it is closed."""

    def __init__(self, stream: IO[str]) -> None:
        """Take the terminal; nothing is drawn before the first step."""
        self._console = Console(file=stream, force_terminal=True, highlight=False)
        self._meters: dict[str, Meter] = {}
        self._spinner = Spinner("line")
        self._live: Live | None = None

    def print(self, text: str) -> None:
        """Print text, with its ANSI colors, above the live lines."""
        self._console.print(Text.from_ansi(text), soft_wrap=True)

    def set(self, name: str, meter: Meter) -> None:
        """Show one more running step."""
        self._meters[name] = meter
        if self._live is None:
            # rich must not swallow what others print: redirection stays off.
            self._live = Live(
                console=self._console, get_renderable=self._lines, refresh_per_second=8,
                transient=True, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start()

    def remove(self, name: str) -> None:
        """Take a step's line away; without lines the terminal is free again."""
        self._meters.pop(name, None)
        if not self._meters:
            self.close()

    def close(self) -> None:
        """Take all lines away and give the cursor back."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _lines(self) -> Any:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=2)
        grid.add_column(no_wrap=True, justify="right")
        grid.add_column(width=_BAR_WIDTH)
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=5)
        grid.expand = True
        meters = list(self._meters.items())
        for name, meter in meters[:_MAX_LINES]:
            seconds = int(time.monotonic() - meter.started)
            elapsed = f"{seconds} s" if seconds < 60 else seconds_text(seconds)
            bar = ProgressBar(total=meter.total or 1, completed=meter.done, width=_BAR_WIDTH)
            shown = bar if meter.total else Text("")
            text = meter.text() if meter.done or meter.total else "running"
            grid.add_row(self._spinner, Text(name), Text(elapsed, style="dim"), shown, Text(text))
        if len(meters) > _MAX_LINES:
            grid.add_row("", Text(f"and {len(meters) - _MAX_LINES} more", style="dim"), "", "", "")
        return grid
