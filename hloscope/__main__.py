"""`python -m hloscope`: the command, for where its script is not on the PATH."""

from __future__ import annotations

import sys

from hloscope.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
