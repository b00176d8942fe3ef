"""What a worker does with a step besides compiling it, by name; the answers are JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hloscope.rewrite.describe import describe
from hloscope.rewrite.verify import verify

TASKS: dict[str, Callable[..., dict[str, Any]]] = {"describe": describe, "verify": verify}
