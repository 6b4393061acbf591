"""Compares an app's code with what a storage holds, before a deployment; changes nothing, and runs no job."""

from treadle.admin.code_check.compare import Options, check_code
from treadle.admin.code_check.findings import Finding, Report

__all__ = ["Finding", "Options", "Report", "check_code"]
