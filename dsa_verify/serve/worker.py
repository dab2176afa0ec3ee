"""The one thread that drives the engine, and the way to it from the event loop: nobody else touches the engine."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from dsa_verify.engine import Engine, Event, Evicted, Finished, GenerationRequest
from dsa_verify.errors import EngineError

Result = TypeVar("Result")
_Listener = Callable[[Event | EngineError], None]


@dataclass(frozen=True)
class _Task:
    """Something to do between two steps."""

    function: Callable[[Engine], Any]
    future: Future

    def do(self, engine: Engine) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.function(engine))
        except Exception as error:
            self.future.set_exception(error)


class Worker:
    """Runs an engine in a thread. `failure` is why it is of no use any more, None while all is well."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._listeners: dict[int, _Listener] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failure: str | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Aborts every request after the step under way, and waits for the thread."""
        self._inbox.put(None)
        self._thread.join()

    def call(self, function: Callable[[Engine], Result]) -> "Future[Result]":
        """Has the thread call `function` with the engine, in the order of calls. Raises `EngineError` once it ended."""
        task = _Task(function, Future())
        with self._lock:
            if self.failure is not None:
                raise EngineError(self.failure)
            self._inbox.put(task)
        return task.future

    @asynccontextmanager
    async def events(self, request: GenerationRequest) -> AsyncIterator[AsyncIterator[Event]]:
        """What happens to a request, up to its `Finished`; leaving the context before that aborts it.

        Raises `RequestError` for a request that can never be served, `EngineError` when the engine fails.
        """
        loop, told = asyncio.get_running_loop(), asyncio.Queue[Event | EngineError]()

        def listen(event: Event | EngineError) -> None:
            with suppress(RuntimeError):  # the loop may be closed already
                loop.call_soon_threadsafe(told.put_nowait, event)

        submitted = self.call(lambda engine: self._submit(engine, request, listen))
        try:
            # Shielded, so that the number is known to the abort even if the client leaves just now.
            await asyncio.shield(asyncio.wrap_future(submitted))
            yield _until_finished(told)
        finally:
            with suppress(EngineError):
                self.call(lambda engine: self._abort(engine, submitted))

    def _submit(self, engine: Engine, request: GenerationRequest, listen: _Listener) -> int:
        number = engine.submit(request)
        self._listeners[number] = listen
        return number

    def _abort(self, engine: Engine, submitted: "Future[int]") -> None:
        if submitted.exception() is None:
            self._listeners.pop(submitted.result(), None)
            engine.abort(submitted.result())

    def _run(self) -> None:
        try:
            while self._take():
                if self._engine.busy:
                    self._deliver(self._engine.step())
        except Exception as error:
            self._end(f"the engine failed: {type(error).__name__}: {error}")
            return
        for number in list(self._listeners):
            self._engine.abort(number)
        self._deliver(self._engine.step())
        self._end("the server is shutting down")

    def _take(self) -> bool:
        """Does what was asked since the last step, and waits when there is nothing else to do; False to end."""
        wait = not self._engine.busy
        while True:
            try:
                task = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            if task is None:
                return False
            task.do(self._engine)
            wait = False

    def _deliver(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Evicted):
                continue
            listen = self._listeners.get(event.request)
            if isinstance(event, Finished):
                self._listeners.pop(event.request, None)
            if listen is not None:
                listen(event)

    def _end(self, why: str) -> None:
        with self._lock:
            self.failure = why
        for listen in self._listeners.values():
            listen(EngineError(why))
        with suppress(queue.Empty):
            while True:
                task = self._inbox.get_nowait()
                if task is not None and task.future.set_running_or_notify_cancel():
                    task.future.set_exception(EngineError(why))


async def _until_finished(told: "asyncio.Queue[Event | EngineError]") -> AsyncIterator[Event]:
    while True:
        event = await told.get()
        if isinstance(event, EngineError):
            raise event
        yield event
        if isinstance(event, Finished):
            return
