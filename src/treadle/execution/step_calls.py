"""`current().step` and `current().sync.step`: the typed calls of a step, with and without options."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, Self, TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace

from treadle.durable import PLAIN, Durable, StepOptions, step_options
from treadle.policy import judge
from treadle.policy.retry import Retry

P = ParamSpec("P")
T = TypeVar("T")


class WithOptions(Struct, frozen=True):
    """The options of a step, which `current().step` and `current().sync.step` share."""

    _options: StepOptions = PLAIN

    def options(
        self,
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        on_error: judge.OnError | None = None,
        limits: Sequence[str] | Mapping[str, int] = (),
        cost: int = 1,
    ) -> Self:
        """The same with options: `await current().step.options(retry=Retry(attempts=3))("charge", charge, order)`.

        retry     when the step is tried again after an error. Between two tries the job is deferred: it uses no slot,
                  and no attempt is counted. When they are used up, or the error is final (Abort, or by `on_error`), the
                  error is stored, and each run raises it. Fields that are not set have the defaults of `Retry`
        timeout   seconds that one try may take; then an async function is cancelled, and the try raises TimeoutError. A
                  plain function cannot be interrupted: `current().cancelled` is true in it after that time, and its try
                  has failed as soon as it returns, whatever it returns
        on_error  decides about an error, such as `Retry.only(ConnectionError)`; needs `retry`
        limits    limits, as in `@app.task(limits=...)`, that each try obeys: it waits for them without a slot, and runs
                  in a job of its own over the history of this one, which waits for it. Names, or {name: cost}
        cost      slots and starts that one try takes of each of these limits, unless they have costs of their own
        Raises BadOption.
        """
        return replace(self, _options=step_options(retry, timeout, on_error, limits, cost))


class Step(WithOptions, frozen=True, kw_only=True):
    """`current().step`: runs a function once in the life of a job. Its result is stored when the call returns, and
    later runs receive the stored value. If the worker dies before that, the function runs again.

    An async function is awaited, a plain one runs in a thread. The value returned is decoded from its stored form, by
    the function's return annotation. The second step of the same name is "name#2". If the function raises, so does the
    step. If the code around it catches the error and continues, the error is stored, and later runs raise it again in
    the place of the step. Raises BadStep, StepMismatch, StepFailed, TooLarge and BadResult.
    """

    _durably: Callable[[str], Durable]

    @overload
    def __call__(
        self, name: str, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    def __call__(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        return self._durably(name).step(name, function, args, kwargs, self._options)


class SynchronousStep(WithOptions, frozen=True, kw_only=True):
    """`current().sync.step`: as `Step`; the function runs in the caller's thread."""

    _durable: Durable

    def __call__(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._durable.step_here(name, function, args, kwargs, self._options)
        return result
