"""Treadle in Sentry (and GlitchTip): one error event for each job that failed for good, with its exception.

sentry_sdk.init(dsn=..., integrations=[TreadleIntegration()])
"""

from treadle.integrations import needs

with needs("sentry-sdk>=2.20"):
    from treadle.integrations.sentry.integration import TreadleIntegration

__all__ = ["TreadleIntegration"]
