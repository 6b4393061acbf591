"""`python -m treadle`, the CLI for systems on which the `treadle` script is not on the path."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # Python has put the current directory first, where a module of the user may have the name of one of Python's.
        here, ours = sys.path.pop(0), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        if here == ours and ours not in sys.path:  # worker processes must find Treadle, too
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), ours)))
    from treadle.cli import main

    sys.exit(main())
