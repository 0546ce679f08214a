"""Revisions to which names on a model hub and elsewhere are pinned, so that a run means the same next year."""

from __future__ import annotations

PINS: dict[str, str] = {}
"""Models: hub id -> commit."""
