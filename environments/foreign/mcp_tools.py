"""Tools of an MCP server: `use = "mcp:http://localhost:8000/mcp"`, or `"mcp:python server.py"`, started for each episode.

A turn without a call is the answer. Pictures that a tool answers are shown. Source: mcp 2.3, mcp/client.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from mmrl.answers.calls import Call, CallError, Form, parse_call
from mmrl.core.samples import Observation, Prompt, Turn
from mmrl.data.tools.foreign import Foreign, mistake, show

__all__ = ["McpTools"]


@dataclass(frozen=True)
class McpTools:
    """Opens a session of its own per episode."""

    place: str
    """An address, or the words of a command that serves on its standard input and output."""
    form: Form = "tags"
    """How the model writes calls."""
    role: Literal["user", "tool"] = "user"
    """Who answers, as the chat template has it."""
    tools: tuple[str, ...] = ()
    """The tools that may be called; empty: all."""
    repeats: bool = True
    """False: the same calls may be answered otherwise."""

    async def open(self, prompt: Prompt, seed: int, /) -> "McpWorld":
        world = McpWorld(self)
        # a session's tasks must end in the task that began them
        world.task = asyncio.ensure_future(world.serve())
        await asyncio.wait({world.task, world.ready}, return_when=asyncio.FIRST_COMPLETED)
        if world.task.done():
            await world.task
        return world

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Foreign]:
        """A session that is greeted; ValueError where the package is missing."""
        try:
            from mcp import ClientSession, StdioServerParameters  # type: ignore[import-not-found] - an optional package
            from mcp.client.stdio import stdio_client  # type: ignore[import-not-found] - an optional package
            from mcp.client.streamable_http import streamable_http_client  # type: ignore[import-not-found] - an optional package
        except ImportError:
            raise ValueError(f"mcp:{self.place} needs the package mcp, from 2.0 on: pip install mcp") from None
        async with AsyncExitStack() as stack:
            if "://" in self.place:
                streams = await stack.enter_async_context(streamable_http_client(self.place))
            else:
                command, *words = shlex.split(self.place)
                streams = await stack.enter_async_context(stdio_client(StdioServerParameters(command=command, args=words)))
            session: Foreign = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
            await session.initialize()
            yield session


@dataclass
class McpWorld:
    """One session, in a task that lives as long as it."""

    settings: McpTools
    asked: "asyncio.Queue[tuple[Call, asyncio.Future[Foreign]] | None]" = field(default_factory=lambda: asyncio.Queue())
    ready: "asyncio.Future[list[str]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    task: "asyncio.Future[None] | None" = None

    async def serve(self) -> None:
        async with self.settings.connection() as session:
            known = [tool.name for tool in (await session.list_tools()).tools]
            self.ready.set_result([name for name in known if name in self.settings.tools or not self.settings.tools])
            while (job := await self.asked.get()) is not None:
                call, answer = job
                try:
                    found = await session.call_tool(call.name, dict(call.arguments))
                except Exception as error:  # noqa: BLE001 - whoever asked hears it
                    if not answer.done():
                        answer.set_exception(error)
                    continue
                if not answer.done():
                    answer.set_result(found)

    async def step(self, turn: Turn, /) -> Observation | None:
        tools = self.ready.result()
        try:
            call = parse_call(turn.text, self.settings.form)
            if call is None:
                return None
            if call.name not in tools:
                raise CallError(f"the tools are {', '.join(tools) or 'none'}")
        except CallError as error:
            return mistake(error)
        answer: asyncio.Future[Foreign] = asyncio.get_running_loop().create_future()
        await self.asked.put((call, answer))
        assert self.task is not None
        await asyncio.wait({answer, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            raise ConnectionError("the MCP server hung up")
        return self.read(answer.result())

    def read(self, result: Foreign) -> Observation:
        parts: list[Foreign] = []
        for one in result.content:
            if one.type == "image":
                address = f"data:{one.mime_type};base64,{one.data}"
                parts.append({"type": "image_url", "image_url": address})
            elif one.type == "text":
                parts.append({"type": "text", "text": one.text})
            else:
                parts.append({"type": "text", "text": f"({one.type})"})
        text, pictures = show(parts) if parts else ("", ())
        if result.is_error:
            return mistake(text.removesuffix("."))
        return Observation(text, pictures, self.settings.role, facts={"tool": 1.0})

    async def close(self) -> None:
        await self.asked.put(None)
        if self.task is not None:
            await self.task
