"""The names of the package, each with its module. Type checkers read this file, and so does `__init__.py`."""

from treadle.worker.probes.listener import Address as Address
from treadle.worker.probes.listener import Page as Page
from treadle.worker.probes.listener import PageListener as PageListener
from treadle.worker.probes.listener import PageRequest as PageRequest
from treadle.worker.probes.listener import Reply as Reply
from treadle.worker.probes.listener import text_reply as text_reply
from treadle.worker.probes.notify import Notifier as Notifier
from treadle.worker.probes.reporter import HealthReporter as HealthReporter
from treadle.worker.probes.reporter import Probes as Probes
from treadle.worker.probes.reporter import Verdict as Verdict
from treadle.worker.probes.reporter import first_problem as first_problem
