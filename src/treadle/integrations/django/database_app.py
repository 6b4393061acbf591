"""`DatabaseApp`: the App whose jobs a Django database (or another storage) has, and the Django tasks that it knows.

Django makes a backend object for each thread, so the App lives here, one for each place. The test runner gives a
database another name; the App then follows it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from django.conf import settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from msgspec.structs import replace

from treadle.app import App
from treadle.app.storage_choice import StorageChoice
from treadle.core import clock
from treadle.core.errors import BadOption, BadTask, StorageError
from treadle.integrations.django import bridge, database, known_tasks, options
from treadle.integrations.django.compat import InvalidTask, InvalidTaskBackend
from treadle.integrations.django.joining import joined
from treadle.integrations.django.known_tasks import Known, Raised, constants_of
from treadle.integrations.django.signals import Endings
from treadle.outbox import Outbox
from treadle.storage import Bound, MemoryStorage, StorageProxy, make_tables_in_memory, within_memory
from treadle.storage.contract import Capabilities
from treadle.tasks.task import AnyTask

BACKEND = "treadle.integrations.django.TreadleBackend"

_stores: dict[tuple[str, ...], DatabaseApp] = {}
_making = threading.Lock()


class DatabaseApp:
    """The App of one place.

    database  the alias in DATABASES; None: the jobs are elsewhere
    outbox    the alias of the database with the outbox; None: there is none
    tasks     the Django tasks by their path, such as "shop.tasks.send"
    """

    def __init__(self, backend: options.BackendOptions) -> None:
        self.options = backend
        self.database = backend.database if backend.url is None else None
        self.outbox = backend.database if backend.url is not None and backend.commit == "outbox" else None
        self.tasks: dict[str, Known] = {}
        self.memory: InMemoryDatabase | None = None
        self.raised = Raised()
        self._lock = threading.RLock()
        self._app: App | None = None
        self._kept_open: KeptOpen | None = None
        self._seen: tuple[Any, ...] | None = None

    @property
    def app(self) -> App:
        """The App. Raises ImproperlyConfigured if its database cannot store jobs, and BadUrl."""
        if self._app is not None and self._app._core.in_test:
            return self._app  # it has the storage of the test, and follows the database later
        own = self.database or self.outbox
        seen = None if own is None else database.fingerprint(own)
        if self._app is None or seen != self._seen:
            with self._lock:
                if self._app is None:
                    self._app = self._made()
                elif seen != self._seen:
                    self._follow(self._app)
                self._seen = seen
        return self._app

    @property
    def has_app(self) -> bool:
        """Whether the App was made."""
        return self._app is not None

    @property
    def url(self) -> str:
        """The storage URL, with its password."""
        return self.options.url or database.url_of(self.options.database, self.options.schema)

    @property
    def backends(self) -> dict[str, options.BackendOptions]:
        """The Treadle backends of TASKS whose jobs are here, by alias."""
        return {alias: backend for alias, backend in treadle_aliases().items() if backend.place == self.options.place}

    @property
    def modules(self) -> list[str]:
        """OPTIONS["modules"] of all backends whose jobs are here."""
        backends = self.backends.values() or [self.options]
        return list(dict.fromkeys(name for backend in backends for name in backend.modules))

    @property
    def migrates(self) -> bool:
        """Whether `manage.py migrate` makes the tables: no backend whose jobs are here says otherwise."""
        return all(backend.migrate for backend in self.backends.values() or [self.options])

    def _made(self) -> App:
        url = self.url
        if url.startswith(database.MEMORY):
            self.memory = InMemoryDatabase()
            app = App(storage=self.memory, **self.options.texts)
        else:
            app = App(url, outbox=self._outbox(), **self.options.texts)
        app._core.joined = lambda: joined(app, next(iter(self.backends.values()), self.options))
        Endings(app, self).listen()
        return app

    def _outbox(self) -> Outbox | None:
        return None if self.outbox is None else Outbox(database.outbox_url(self.outbox))

    def _follow(self, app: App) -> None:
        """The database has got another name, because the test runner has made or removed it."""
        app.sync.close()
        url = self.url
        self.memory = InMemoryDatabase() if url.startswith(database.MEMORY) else None
        wrap = app._core.choice.wrap
        if self.memory is None:
            app._core.use(StorageChoice(url=url, outbox=self._outbox(), wrap=wrap))
        else:
            app._core.use(StorageChoice(storage=self.memory, wrap=wrap))

    def opened(self) -> AbstractContextManager[App]:
        """The App, open for some calls of `app.sync`. Raises StorageError."""
        app = self.app
        with self._lock:
            if self._kept_open is None:
                self._kept_open = KeptOpen(app)
        return self._kept_open.view()

    # --- tasks

    def register(self, task: Any, constants: dict[str, Any]) -> Known:
        """Make jobs of this Django task run here. Its options count for all its jobs, also for those that are stored.
        Raises InvalidTask."""
        path = task.module_path
        known = self.tasks.get(path)
        if known is not None and known.task.func is task.func:
            return known
        with self._lock:
            app = self.app
            if path in app.tasks and known is None:
                raise InvalidTask(f"{path} is a task of the Treadle app already; decorate it once.")
            defaults = {"queue": task.queue_name, "priority": task.priority, **constants}
            declared = self._declared(app, path, bridge.bridged(task, self), defaults)
            self.tasks[path] = Known(task, constants, declared)
        return self.tasks[path]

    def learn(self, path: str) -> Known | None:
        """The task of that path, after importing its module if the module belongs to an installed app or to
        OPTIONS["modules"]; None if there is no such task."""
        task = known_tasks.find_task(path, self.modules)
        return None if task is None else self.register(task, constants_of(task))

    def _declared(self, app: App, path: str, function: Any, constants: dict[str, Any]) -> AnyTask:
        if path in app.tasks:  # the function was redefined: the server reloads, or a notebook cell ran again
            app._core.declared.pop(path, None)
        try:
            decorate: Any = app.task(name=path, **constants)
            return decorate(function)
        except (BadOption, BadTask) as error:
            raise InvalidTask(f"{path}: {error}") from error


def store_for(backend: options.BackendOptions) -> DatabaseApp:
    """The store of that place. Raises InvalidTaskBackend if a backend with the same place stores texts otherwise."""
    with _making:
        store = _stores.setdefault(backend.place, DatabaseApp(backend))
    if store.options.texts_summary != backend.texts_summary:
        raise InvalidTaskBackend(
            "Two backends in TASKS have their jobs in one place, and differ in 'blobs', 'offload', 'keys' or 'redact'; "
            "give them the same OPTIONS."
        )
    return store


def follow(connection: Any, **kwargs: Any) -> None:
    """Receiver of `connection_created`: the test runner has made a database, or a copy of it for its process."""
    for store in list(_stores.values()):
        if store.has_app and connection.alias in (store.database, store.outbox):
            store.app  # noqa: B018 - follows it


def store_of(alias: str) -> DatabaseApp:
    """The store of an alias in TASKS. Raises ImproperlyConfigured if it is not a Treadle backend."""
    backends = treadle_aliases()
    if alias not in backends:
        names = ", ".join(backends) or "none"
        raise ImproperlyConfigured(f"TASKS[{alias!r}] is no Treadle backend (Treadle backends: {names})")
    return store_for(backends[alias])


def treadle_aliases() -> dict[str, options.BackendOptions]:
    """The aliases of TASKS with a Treadle backend, in their order."""
    from django.utils.module_loading import import_string

    backends = {}
    for alias, params in (getattr(settings, "TASKS", None) or {}).items():
        name = params.get("BACKEND", "")
        if name == BACKEND or _is_ours(import_string, name):
            backends[alias] = options.read(alias, params.get("OPTIONS", {}))
    return backends


def places() -> int:
    """The number of storages that the Treadle backends in TASKS use. 0: a backend is wrong, which the checks report."""
    try:
        return len({backend.place for backend in treadle_aliases().values()})
    except ImproperlyConfigured:
        return 0


def _is_ours(import_string: Any, name: str) -> bool:
    """Whether the name is a backend class derived from ours."""
    try:
        backend = import_string(name)
    except ImportError:
        return False
    ours = "treadle.integrations.django.backend TreadleBackend"
    return any(f"{base.__module__} {base.__qualname__}" == ours for base in getattr(backend, "__mro__", ()))


def first_alias() -> str:
    """The alias "default" if it is a Treadle backend, otherwise the first one that is. Raises ImproperlyConfigured."""
    backends = treadle_aliases()
    if not backends:
        raise ImproperlyConfigured(
            f'no backend of TASKS is Treadle\'s: expected TASKS = {{"default": {{"BACKEND": "{BACKEND}"}}}}'
        )
    return "default" if "default" in backends else next(iter(backends))


def stores() -> list[DatabaseApp]:
    """The stores of all Treadle backends in TASKS."""
    return list({id(store): store for store in map(store_for, treadle_aliases().values())}.values())


def connection_of(store: DatabaseApp) -> Any:
    """This thread's connection to the database with the jobs, or with the outbox."""
    return connections[store.database or store.outbox]


# --- a database in memory
#
# The storage of a SQLite database in memory, as Django's test runner makes it: only Django's connection can reach it.
#
# Jobs are stored by Django's connection, in tables of that database. Treadle cannot open a connection of its own.


class InMemoryDatabase(StorageProxy):
    """Stores jobs within transactions on a SQLite database in memory. It cannot be opened."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage(clock.wall))

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.storage.capabilities, transactions=True)

    def within(self, given: Any) -> Bound:
        return within_memory(given, clock.wall)

    async def open(self, look: bool = False) -> None:
        raise StorageError(
            "the jobs are in a SQLite database in memory, which only Django's connection can reach: run them with "
            f"run_due() or app.sync.testing(){database.FOR_TESTS}"
        )

    def make_tables(self, connection: Any) -> None:
        """Make Treadle's tables there, unless they are there. `connection` is Django's, outside of a transaction."""
        connection.ensure_connection()
        make_tables_in_memory(connection.connection, clock.wall())


log = logging.getLogger("treadle")


# --- an app between page views
#
# Keeps an App open between the page views of a web process: opening a storage makes a pool, tens of ms on PostgreSQL.
#
# A pause without views closes it, so an idle web process has no connection besides Django's.


PAUSE: Final = 60.0  # s without a view


def in_tests() -> bool:
    """Whether Django's test runner has prepared this process. It could not remove a database with open connections."""
    return hasattr(mail, "outbox")


class KeptOpen:
    """Keeps one App open, in one process."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._begin()
        app._core.when_forked.append(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._held = False  # one `open` of a view before, which is undone after a pause
        self._timer: threading.Timer | None = None

    @contextmanager
    def view(self) -> Iterator[App]:
        """The App, open. Raises StorageError."""
        core, sync = self._app._core, self._app.sync
        sync.call(core.open())
        try:
            yield self._app
        finally:
            if in_tests() or not self._keep():
                sync.call(core.release())

    def _keep(self) -> bool:
        """Begin the pause anew. Returns whether the caller's `open` is the one that is kept."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(PAUSE, self.close)
            self._timer.daemon = True
            self._timer.start()
            self._held, held = True, self._held
            return not held

    def close(self) -> None:
        """Close the App, unless a view uses it or a call without a view has opened it."""
        with self._lock:
            self._held, held = False, self._held
        if held:
            try:
                self._app.sync.call(self._app._core.release())
            except Exception:  # the next view opens it again
                log.warning("the jobs' storage could not be closed", exc_info=True)
