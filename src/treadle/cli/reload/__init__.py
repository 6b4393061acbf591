"""`--reload`: starts a command's processes again when a source file has changed. For development."""

from __future__ import annotations

from treadle.cli.reload.options import GRACE as GRACE
from treadle.cli.reload.options import again as again
from treadle.cli.reload.options import check as check
from treadle.cli.reload.options import reloading as reloading
from treadle.cli.reload.options import rerun as rerun
from treadle.cli.reload.options import supervise as supervise
from treadle.cli.reload.options import watching as watching
