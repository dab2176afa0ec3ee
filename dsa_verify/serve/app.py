"""The routes: completions and chat, streamed or whole, and what a gate asks a server about itself."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dsa_verify.engine import Admitted, Finished, Token
from dsa_verify.errors import EngineError, RequestError
from dsa_verify.serve.model import ServedModel, describe
from dsa_verify.serve.protocol import Answering, Asked, Piece, Reader, Refusal, error_object
from dsa_verify.serve.text import Writer
from dsa_verify.serve.worker import Worker

GONE = 499
"""Status of a response that nobody reads: the client went away, and its request was aborted."""


def create_app(served: ServedModel, worker: Worker) -> Starlette:
    """The ASGI application; `worker` drives `served.engine`."""
    routes = _Routes(served, worker)
    return Starlette(
        routes=[
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/health", routes.health),
            Route("/server_info", routes.server_info),
            Route("/flush_cache", routes.flush_cache, methods=["GET", "POST"]),
        ],
        exception_handlers={RequestError: _refused, EngineError: _failed},
    )


async def _refused(request: Request, error: Exception) -> Response:
    param, status, code = None, 400, None
    if isinstance(error, Refusal):
        param, status, code = error.param, error.status, error.code
    return JSONResponse(error_object(str(error), status, param, code), status)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse(error_object(str(error), 503), 503)


class _Routes:
    """Handlers over one served model."""

    def __init__(self, served: ServedModel, worker: Worker) -> None:
        self.served, self.worker = served, worker

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, chat=False)

    async def chat(self, request: Request) -> Response:
        if self.served.settings.model is not None:
            raise Refusal("chat templates of checkpoints are not applied; write the prompt for /v1/completions")
        return await self._answer(request, chat=True)

    async def models(self, request: Request) -> Response:
        model = {"id": self.served.name, "object": "model", "owned_by": "dsa-verify"}
        return JSONResponse({"object": "list", "data": [{**model, "max_model_len": self.served.context_length}]})

    async def health(self, request: Request) -> Response:
        if self.worker.failure is not None:
            raise EngineError(self.worker.failure)
        return JSONResponse({"status": "ok"})

    async def server_info(self, request: Request) -> Response:
        return JSONResponse(await asyncio.wrap_future(self.worker.call(lambda engine: describe(self.served))))

    async def flush_cache(self, request: Request) -> Response:
        """Gives up every cached page that no running request maps."""
        flushed = self.worker.call(lambda engine: engine.scheduler.cache.evict(engine.scheduler.cache.evictable))
        return JSONResponse({"flushed_pages": await asyncio.wrap_future(flushed)})

    async def _answer(self, request: Request, chat: bool) -> Response:
        served = self.served
        reader = Reader(
            served.name, served.context_length, served.runner.vocab_size, served.stop, served.tokenizer, chat
        )
        try:
            asked = reader.read(await request.body())
        except ClientDisconnect:
            return Response(status_code=GONE)
        answering = Answering.new(uuid.uuid4().hex, served.name, chat)
        if asked.stream:
            return StreamingResponse(self._stream(asked, answering), media_type="text/event-stream")
        answer = asyncio.ensure_future(self._whole(asked, answering))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            return JSONResponse(answer.result()) if answer.done() else Response(status_code=GONE)
        finally:
            for task in (answer, gone):
                task.cancel()
            await asyncio.wait({answer, gone})  # until the cancelled answer has told the engine

    async def _whole(self, asked: Asked, answering: Answering) -> dict:
        pieces = [piece async for piece in _pieces(self.worker, asked)]
        return answering.whole("".join(piece.text for piece in pieces), pieces[-1])

    async def _stream(self, asked: Asked, answering: Answering) -> AsyncIterator[str]:
        try:
            async with aclosing(_pieces(self.worker, asked)) as pieces:
                async for piece in pieces:
                    yield _event(answering.chunk(piece))
                    if piece.finish is not None and asked.stream_usage:
                        yield _event(answering.usage(piece))
        except (RequestError, EngineError) as error:
            # The status is sent; what is left is to say so in the stream, without the end that a reader waits for.
            yield _event(error_object(str(error), 503))
            return
        yield "data: [DONE]\n\n"


def _event(body: dict) -> str:
    return f"data: {json.dumps(body)}\n\n"


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _pieces(worker: Worker, asked: Asked) -> AsyncGenerator[Piece]:
    """The answer in pieces; the last one has `finish`. Closing the iterator aborts the request."""
    writer = Writer(asked.tokenizer, asked.stops)
    prompt, cached = len(asked.request.prompt), None

    def piece(text: str, finish: str | None) -> Piece:
        return Piece(text, finish, prompt, len(writer.tokens), cached or 0)

    async with worker.events(asked.request) as events:
        async for event in events:
            match event:
                case Admitted() if cached is None:  # a preempted request is admitted again, and finds its own pages
                    cached = event.hit_tokens
                case Token():
                    text = writer.add(event.token)
                    if writer.stopped:
                        yield piece(text, "stop")
                        return
                    if text:
                        yield piece(text, None)
                case Finished():
                    yield piece(writer.rest(), event.reason)
