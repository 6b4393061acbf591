"""A server whose messages are not English: its SQLSTATE distinguishes a refusal from an outage."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from tests.servers.refusing import Refusing
from treadle.errors import NotADatabase, StorageDenied, StorageError, StorageUnavailable
from treadle.outbox.address import read
from treadle.outbox.drivers import Database
from treadle.storage.postgres import PostgresStorage, refused
from treadle.storage.postgres.errors import OLD_PLAN, ServerError, refusal, translated
from treadle_testkit.shows import shows

WRONG_PASSWORD = "Passwort-Authentifizierung für Benutzer »me« fehlgeschlagen"
REFUSALS = [
    ("28P01", "SCHWERWIEGEND", WRONG_PASSWORD, StorageDenied, "check the password"),
    ("28000", "FATAL", "le rôle « me » n'existe pas", StorageDenied, "check the role"),
    ("28000", "КРИТИЧЕСКАЯ ОШИБКА", "в pg_hba нет записи", StorageDenied, "check the role"),
    ("3D000", "致命错误", '数据库 "shop" 不存在', NotADatabase, "create the database"),
    ("42501", "SCHWERWIEGEND", "keine Berechtigung für Datenbank »shop«", StorageDenied, "lacks a right"),
    ("53300", "SCHWERWIEGEND", "tut mir leid, schon zu viele Verbindungen", StorageUnavailable, "smaller pools"),
    ("57P03", "SCHWERWIEGEND", "das Datenbanksystem startet", StorageUnavailable, "startet"),
]


@shows(
    "PostgreSQL: a wrong password, role or database is distinguished from an outage in every language of its messages"
)
@pytest.mark.parametrize(
    ("code", "severity", "message", "kind", "advice"), REFUSALS, ids=[each[0] for each in REFUSALS]
)
async def test_a_refusal_is_recognised_by_its_code(
    code: str, severity: str, message: str, kind: type[StorageError], advice: str
) -> None:
    with Refusing(code, severity, message) as server:
        with pytest.raises(StorageError, match=advice) as caught:
            await PostgresStorage(server.url()).open()
        assert type(caught.value) is kind
        assert message in str(caught.value)
        with pytest.raises(StorageError) as caught:
            await asyncio.to_thread(Database(read(server.url())).run_here, ("SELECT 1", ()))
        assert type(caught.value) is kind


async def test_a_wrong_or_missing_password_is_refused() -> None:
    with Refusing("28P01", "SCHWERWIEGEND", WRONG_PASSWORD, asks=True) as server:
        for password in ("wrong-one", ""):  # without one, it is libpq that gives up
            with pytest.raises(StorageDenied, match="check the password") as caught:
                await PostgresStorage(server.url(password)).open()
            assert "wrong-one" not in str(caught.value)


@pytest.mark.parametrize("message", ['password authentication failed for user "me"', 'database "shop" does not exist'])
async def test_a_pooler_without_codes_is_read(message: str) -> None:
    """Older PgBouncers report each refusal as 08P01, in English."""
    with Refusing("08P01", "FATAL", message) as server, pytest.raises(StorageError) as caught:
        await PostgresStorage(server.url()).open()
    assert not isinstance(caught.value, StorageUnavailable)


async def test_without_access_to_libpq_english_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "_verbosity", lambda: None)
    with Refusing("28P01", "FATAL", 'password authentication failed for user "me"') as server:
        with pytest.raises(StorageDenied, match="check the password"):
            await PostgresStorage(server.url()).open()
        assert server.refused == 1


async def test_no_second_connection_is_tried_if_no_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "_second_try", lambda conninfo: pytest.fail("tried again"))
    with pytest.raises(StorageUnavailable):
        await PostgresStorage("postgresql://me@127.0.0.1:1/shop").open()


@pytest.mark.parametrize("message", ["der zwischengespeicherte Plan darf den Ergebnistyp nicht ändern", "x"])
def test_a_prepared_statement_that_a_migration_made_invalid(message: str) -> None:
    """The server's code for it, 0A000, stands for other errors as well."""

    class FromTheServer(psycopg.errors.FeatureNotSupported):
        def __init__(self, routine: str) -> None:
            super().__init__(message)
            self.routine = routine

        @property
        def diag(self) -> Any:
            fields = {"sqlstate": "0A000", "message_primary": message, "source_function": self.routine, "context": None}
            return type("Diag", (), fields)

    assert type(translated(FromTheServer("RevalidateCachedQuery"), "there")) is StorageUnavailable
    assert type(translated(FromTheServer("transformStmt"), "there")) is StorageError
    assert ServerError(OLD_PLAN, message).stale
    assert not ServerError("0A000", message).stale
    assert type(refusal(OLD_PLAN, message, "there")) is StorageUnavailable
