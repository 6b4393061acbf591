"""The checks of a storage and its contents, for `treadle doctor` and for the server. Needs no web framework.

One module for each storage, and one for the checks that all of them share.
"""

from treadle.server.doctor.common import Check
from treadle.server.doctor.examine import examine, of_contents

__all__ = ["Check", "examine", "of_contents"]
