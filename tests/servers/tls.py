"""TLS in front of a server that has none: it decrypts here and passes the bytes on. Not every build of Valkey has TLS.

The certificates in `certificates/` are for 127.0.0.1, signed by `ca.pem` there, made for these tests, and valid for a
hundred years.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

FOLDER = Path(__file__).parent / "certificates"
CA, CLIENT, CLIENT_KEY = (str(FOLDER / name) for name in ("ca.pem", "client.pem", "client.key"))


@contextlib.asynccontextmanager
async def before(port: int, certificates: bool = False) -> AsyncIterator[int]:
    """The port that accepts TLS. `certificates`: clients must show one."""
    words = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    words.load_cert_chain(FOLDER / "server.pem", FOLDER / "server.key")
    if certificates:
        words.load_verify_locations(CA)
        words.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_hand_on(reader, back), _hand_on(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=words)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _hand_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()
