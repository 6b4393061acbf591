"""Reports, started by beat."""

from celery import shared_task
from celery.utils.log import get_task_logger

from shop.journal import record

logger = get_task_logger(__name__)


@shared_task
def nightly():
    record("nightly")


@shared_task
def monthly():
    record("monthly")


@shared_task(soft_time_limit=300)
def export(path):
    logger.info("exporting %s", path)
    record("export", path)
