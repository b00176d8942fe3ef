"""The command, also as `python -m hloscope` where its script is not on the PATH."""

from __future__ import annotations

import gc
import sys

# What is imported stays: to look through it for garbage takes a tenth of the start.
_OBJECTS = 500_000


def main() -> int:
    """Run the command line. Ctrl-C ends it alike while it is still being imported."""
    gc.set_threshold(_OBJECTS)
    try:
        from hloscope.cli.main import main as command
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return command()


if __name__ == "__main__":
    sys.exit(main())
