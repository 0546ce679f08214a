"""The store's timestamps: read once by a rule of our own, and written as a prompt states them. No locale is consulted."""

from __future__ import annotations

import re
import warnings
from datetime import datetime

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_TIME = re.compile(
    r"\s*(\d{4})[/-](\d{1,2})[/-](\d{1,2})(?:\s*\(([^)]*)\))?(?:[\sT]*(?<!\d)(\d{1,2}):(\d{2})(?::\d{2})?)?\s*"
)


def parse_time(text: str) -> datetime:
    """Read `2024/05/11 (Sat) 19:33`; the weekday and the clock are optional, and no locale is consulted.

    A weekday that contradicts the date is a warning (the date wins); anything unreadable is a ValueError.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"time {text!r} is not of the form 'YYYY/MM/DD (Ddd) HH:MM'")
    year, month, day, weekday, hour, minute = match.groups()
    try:
        time = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0))
    except ValueError as error:
        raise ValueError(f"time {text!r} is no point in time: {error}") from None
    if weekday in WEEKDAYS and weekday != WEEKDAYS[time.weekday()]:
        warnings.warn(f"time {text!r}: that day is a {WEEKDAYS[time.weekday()]}", stacklevel=2)
    return time


def format_time(time: datetime) -> str:
    """The store's timestamp as a prompt states it: `2024/05/11 (Sat) 19:33`."""
    return f"{time:%Y/%m/%d} ({WEEKDAYS[time.weekday()]}) {time:%H:%M}"
