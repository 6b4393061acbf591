"""A queue on Amazon SQS, or on a server with its protocol.

In SQS delays end at 15 minutes and leases at 12 hours, a pop returns at most ten messages, and every delivery counts as
an attempt, even after a release.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import boto3  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from treadle.core.clock import monotonic
from treadle.core.errors import BadOption
from treadle.ports.contract import Pulled

BATCH: Final = 10
AT_ONCE: Final = 16  # concurrent requests; the driver waits in threads
MAX_DELAY: Final = 900.0  # s
MAX_LEASE: Final = 43_200.0  # s
GONE: Final = ("ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue", "InvalidAddress")
SIZES: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class SqsQueue:
    """A queue on SQS; see `sqs_queue`."""

    max_delay, max_lease, max_batch = MAX_DELAY, MAX_LEASE, BATCH

    def __init__(self, url: str, *, dead: str, wait: float = 0.0, **client: Any) -> None:
        for name, address in (("url", url), ("dead", dead)):
            if not re.match(r"https?://", address):
                raise BadOption(name, f"expected the URL of a queue, found {address!r}")
        if url.endswith(".fifo"):
            raise BadOption(
                "url",
                "expected a standard queue, found a FIFO queue, which has no delays and delivers one message of a "
                "group at a time; the storage keeps the order of jobs",
            )
        if not 0 <= wait <= 20:
            raise BadOption("wait", f"expected 0 to 20 s, found {wait!r}")
        self._url, self._dead, self._wait, self._options = url, dead, wait, client
        self._leases: dict[str, tuple[float, str]] = {}  # handle -> (until when it is certainly leased, body)
        self._sqs: Any = None
        self._threads: ThreadPoolExecutor | None = None

    async def push(self, body: str, *, delay: float = 0.0, dedupe_key: str | None = None) -> None:
        """As `Queue.push`. Standard queues have no deduplication, so `dedupe_key` is ignored."""
        seconds = min(math.ceil(delay), int(MAX_DELAY))
        await self._call("send_message", MessageBody=body, DelaySeconds=seconds)

    async def pop(self, limit: int, lease: float) -> list[Pulled]:
        since = monotonic()
        answer = await self._call(
            "receive_message",
            MaxNumberOfMessages=min(limit, BATCH),
            VisibilityTimeout=_seconds(lease),
            WaitTimeSeconds=int(self._wait),
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        leased: list[Pulled] = []
        for message in answer.get("Messages", ()):
            handle = message["ReceiptHandle"]
            self._leases[handle] = since + min(lease, MAX_LEASE), message["Body"]
            count = int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1))
            leased.append(Pulled(message["Body"], handle, count))
        if len(self._leases) > 10_000:  # leases of readers that died
            now = monotonic()
            self._leases = {handle: held for handle, held in self._leases.items() if held[0] > now}
        return leased

    async def extend(self, handle: str, lease: float) -> bool:
        return await self._change(handle, lease, keep=True)

    async def ack(self, handle: str) -> bool:
        if not self._is_ours(handle):
            return False
        try:
            await self._call("delete_message", ReceiptHandle=handle)
        except ClientError as error:
            return _gone(error)
        self._leases.pop(handle, None)
        return True

    async def release(self, handle: str, delay: float = 0.0) -> bool:
        return await self._change(handle, min(delay, MAX_LEASE), keep=False)

    async def dead_letter(self, handle: str, reason: str) -> bool:
        """Send the message to the dead-letter queue, then delete it here: after a crash in between it is in both."""
        if handle not in self._leases or not self._is_ours(handle):
            return False
        attributes = {"reason": {"DataType": "String", "StringValue": reason[:1000] or "none"}}
        body = self._leases[handle][1]
        await self._call("send_message", url=self._dead, MessageBody=body, MessageAttributes=attributes)
        return await self.ack(handle)

    async def size(self) -> int:
        answer = await self._call("get_queue_attributes", AttributeNames=list(SIZES))
        return sum(int(answer["Attributes"].get(name, 0)) for name in SIZES)

    async def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        sqs, self._sqs = self._sqs, None
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown)
        if sqs is not None:
            sqs.close()

    async def _change(self, handle: str, seconds: float, keep: bool) -> bool:
        if not self._is_ours(handle):
            return False
        now = monotonic()
        try:
            await self._call("change_message_visibility", ReceiptHandle=handle, VisibilityTimeout=_seconds(seconds))
        except ClientError as error:
            return _gone(error)
        held = self._leases.pop(handle, None)
        if keep and held is not None:
            self._leases[handle] = now + min(seconds, MAX_LEASE), held[1]
        return True

    def _is_ours(self, handle: str) -> bool:
        """Whether the lease is valid by this process's clock. SQS accepts the old handle of a message that another
        reader has leased, and reports success, so its responses do not suffice."""
        held = self._leases.get(handle)
        if held is not None and held[0] > monotonic():
            return True
        self._leases.pop(handle, None)
        return False

    async def _call(self, request: str, *, url: str | None = None, **fields: Any) -> Any:
        if self._sqs is None or self._threads is None:
            self._threads = ThreadPoolExecutor(AT_ONCE, "treadle-sqs")
            config = Config(max_pool_connections=AT_ONCE, read_timeout=self._wait + 30, connect_timeout=10)
            self._sqs = boto3.client("sqs", **{"config": config, **self._options})
        call = functools.partial(getattr(self._sqs, request), QueueUrl=url or self._url, **fields)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def sqs_queue(url: str, *, dead: str, wait: float = 0.0, **client: Any) -> SqsQueue:
    """A standard queue on SQS. Needs `treadle[sqs]`.

    url     of the queue
    dead    URL of the queue for dead letters
    wait    s for which a pop waits for a message, 0 to 20; AWS charges each pop, whatever it waits
    client  arguments of `boto3.client`: region_name=, endpoint_url=, aws_access_key_id= ...; default: the AWS
            configuration

    Raises BadOption.
    """
    return SqsQueue(url, dead=dead, wait=wait, **client)


def _seconds(seconds: float) -> int:
    return max(0, min(math.ceil(seconds), int(MAX_LEASE)))


def _gone(error: ClientError) -> bool:
    """False if the error means that the lease is gone; raises any other error."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code.rpartition(".")[2] not in GONE:
        raise error
    return False
