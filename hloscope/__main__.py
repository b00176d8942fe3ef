"""The command, also as `python -m hloscope` where its script is not on the PATH."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line. Ctrl-C ends it alike while it is still being imported."""
    try:
        from hloscope.cli.main import main as command
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return command()


if __name__ == "__main__":
    sys.exit(main())
