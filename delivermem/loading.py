"""Loading through transformers without what a saved notebook can't hold."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def plainly() -> Iterator[None]:
    """No progress bars, and not the one warning that every SigLIP folder sets off, which is about the end tokens of
    transformers' own default configuration. All other warnings stand."""
    from transformers.utils import logging as bars

    def wanted(record: logging.LogRecord) -> bool:
        return "(between 0 and 31999), got 4940" not in record.getMessage()

    shown, source = bars.is_progress_bar_enabled(), logging.getLogger("transformers.configuration_utils")
    bars.disable_progress_bar()
    source.addFilter(wanted)
    try:
        yield
    finally:
        source.removeFilter(wanted)
        if shown:
            bars.enable_progress_bar()
