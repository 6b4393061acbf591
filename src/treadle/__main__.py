"""`python -m treadle`, for where no `treadle` script is on the path."""

from __future__ import annotations

import sys

from treadle.cli import main

if __name__ == "__main__":
    sys.exit(main())
