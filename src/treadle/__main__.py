"""`python -m treadle`, the CLI for systems on which the `treadle` script is not on the path."""

from __future__ import annotations

import sys

from treadle.cli import main

if __name__ == "__main__":
    sys.exit(main())
