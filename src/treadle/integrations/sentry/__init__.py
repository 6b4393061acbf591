"""Treadle in Sentry (and GlitchTip): one error event for each job that failed for good, with its exception.

sentry_sdk.init(dsn=..., integrations=[TreadleIntegration()])
"""

from treadle.core.extras import needing

with needing(__name__, "sentry_sdk", "sentry-sdk>=2.20", "sentry"):
    from treadle.integrations.sentry.layer import TreadleIntegration

__all__ = ["TreadleIntegration"]
