"""Plain-text progress of long work, fit for a log and for a notebook."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """A line every so many seconds, with an estimate of the time left; `what` names what is counted."""

    def __init__(self, say: Callable[[str], None], what: str = "answers", every: float = 10.0):
        self.say, self.what, self.every, self.started = say, what, every, time.monotonic()
        self.last = self.started

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.started) / 60

    def tick(self, done: int, total: int, aside: str = "") -> None:
        """Say how far it is, where the last line is old enough. aside: what else there is to say, in brackets."""
        now = time.monotonic()
        if now - self.last >= self.every and done:
            self.last = now
            left = (now - self.started) / done * (total - done) / 60
            more = f" ({aside})" if aside else ""
            self.say(f"{done} of {total} {self.what}{more}, about {left:.1f} min left")
