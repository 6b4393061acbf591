"""The versions of a task: functions of one name, of which a job with a history keeps to the one that it began with.

A job without recorded steps has nothing to keep to: it takes the newest version that reads its arguments.
"""

from __future__ import annotations

import hashlib
import sys
from functools import lru_cache
from pathlib import Path

from treadle.core.errors import UnknownVersion
from treadle.core.model import BEGUN_WITH, Record
from treadle.core.own_checkpoints import own_checkpoints
from treadle.policy import cleanups
from treadle.policy.retry import read_policy
from treadle.serialization import reads
from treadle.serialization.call_schema import version_of
from treadle.tasks.core import TaskCore


def version_begun(record: Record) -> int | None:
    """The version with which this job has recorded steps or registered undos; None: it has done neither. A job whose
    steps are older than the versions of its task has begun with version 1."""
    own = own_checkpoints(record.checkpoints)
    version, stored = own.get(BEGUN_WITH, "1"), own.get(cleanups.STORED)
    has_undos = stored is not None and (cleanups.is_cleanup(record.job) or stored == str(record.reopenings))
    has_begun = has_undos or cleanups.has_steps(record.checkpoints)
    return int(version) if has_begun and version.isdecimal() else None


def fitting(task: TaskCore, record: Record) -> TaskCore | None:
    """The version of the task that runs this job; None: this code does not have it."""
    version = version_begun(record)
    if version is not None:
        return task.versions.get(version)
    if len(task.versions) == 1:
        return task
    later = record.job.retry is not None and bool(read_policy(record.job.retry).pass_result)
    newest_first = [task.versions[number] for number in sorted(task.versions, reverse=True)]
    return next((one for one in newest_first if reads(one.signature, record.job.payload, later)), task)


def unknown_version(task: TaskCore, record: Record) -> UnknownVersion:
    """The error of a job that began with a version which this code does not have."""
    return UnknownVersion(record.id, task.name, version_begun(record) or 1, tuple(sorted(task.versions)))


def code_of(task: TaskCore) -> str:
    """The identity of a task's code for other workers: of the signatures of its versions, then, after a dot, of the
    numbers and the source files of these."""
    cores = [task.versions[number] for number in sorted(task.versions)]
    signatures = [version_of(core.signature) for core in cores]
    sources = [f"{core.version} {_source(core.function.__module__)}" for core in cores]
    return f"{signatures[0] if len(cores) == 1 else _digest(signatures)}.{_digest(sources)}"


def _digest(texts: list[str]) -> str:
    return hashlib.blake2b("\n".join(texts).encode("utf-8", "replace"), digest_size=4).hexdigest()


@lru_cache(256)
def _source(module: str) -> str:
    """A digest of the source file of a module; "" if it has none."""
    path = getattr(sys.modules.get(module), "__file__", None)
    try:
        return "" if path is None else hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()
    except OSError:  # a zip file, or a module that was removed since
        return ""
