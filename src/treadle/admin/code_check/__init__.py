"""Compares an app's code with what a storage holds, before a deployment; changes nothing, and runs no job."""

from treadle.admin.code_check.compare import Options as Options
from treadle.admin.code_check.compare import check_code as check_code
from treadle.admin.code_check.findings import Finding as Finding
from treadle.admin.code_check.findings import Patch as Patch
from treadle.admin.code_check.findings import Report as Report
