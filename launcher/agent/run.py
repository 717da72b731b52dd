"""One run of the agent, from its configuration to its exit code: signals, the console, the log, and the live status."""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractContextManager, closing, nullcontext, suppress

from elastic.errors import ElasticError
from launcher.agent import node_id
from launcher.agent.agent import Agent
from launcher.agent.startup_notes import log_startup_notes
from launcher.agent.store_connection import JoinInterrupted, StoreConnector, resolve
from launcher.config.config import Config
from launcher.logs import file_names
from launcher.logs.console import Console
from launcher.logs.json_format import JsonFormatter
from launcher.logs.logger import AgentLog, Verbosity
from launcher.logs.stdio import StdioRedirect
from launcher.logs.writer_client import LogWriterClient
from launcher.logs.writer_process import CLOSE_LIMIT_S, HURRY_LIMIT_S
from launcher.system import frozen_imports
from launcher.system.priority import raise_priority
from launcher.system.signals import SignalQueue
from launcher.terminal.tty import wanted
from launcher.workers.node_output import NodeOutput


def run(config: Config, disk: LogWriterClient, outputs: StdioRedirect) -> int:
    """Run one node until the job, or this node's part in it, has ended; return the exit code. Its logs go to `disk`."""
    raise_priority()
    return asyncio.run(_run(config, disk, outputs))


async def _run(config: Config, disk: LogWriterClient, outputs: StdioRedirect) -> int:
    """Run the agent; the second signal ends it immediately, in any state."""
    signals = SignalQueue()
    consoles = outputs.console(1), outputs.console(2)
    work = asyncio.create_task(_work(config, disk, consoles, signals), name="agent")
    forced = asyncio.create_task(signals.second.wait(), name="second signal")
    await asyncio.wait({work, forced}, return_when=asyncio.FIRST_COMPLETED)
    forced.cancel()
    if not work.done():
        work.cancel()
        with suppress(asyncio.CancelledError, ElasticError):
            await work
        outputs.process.hurry()
        return 128 + signals.first.result()
    return work.result()


async def _work(config: Config, disk: LogWriterClient, consoles: tuple[Console, Console], signals: SignalQueue) -> int:
    console = consoles[1]
    level = Verbosity.VERBOSE if config.verbose else Verbosity.QUIET if config.quiet else Verbosity.NORMAL
    lines = JsonFormatter(config.job_id) if config.log_format == "json" else None
    agent_log = AgentLog("-", console, level=level, lines=lines)
    connecting = StoreConnector(config, signals.first)
    try:
        host = await connecting.until(lambda: resolve(config), agent_log)
        node = node_id.new_node_id(host)
        if lines is not None:
            lines.node = node
        agent_log = AgentLog(node, console, level=level, lines=lines)
        agent_log.keep(disk.appending(file_names.LAUNCHER_LOG))
        disk.open(lambda text, quietly: (agent_log.debug if quietly else agent_log.warning)(text))
        try:
            log_startup_notes(agent_log, config, host, os.environ, (disk.warning,))
            out = NodeOutput(agent_log, consoles, disk, lines, live=wanted(config, os.environ, consoles))
            agent = Agent(config, node, host, out, signals)
            with _status_block(console, agent) if out.live else nullcontext():
                return await agent.run(connecting)
        except (ElasticError, JoinInterrupted) as error:
            agent_log.file_only(str(error))  # The log file gets the reason too.
            raise
        finally:
            agent_log.close()
            limit_s = HURRY_LIMIT_S if signals.second.is_set() else CLOSE_LIMIT_S
            if lost := await disk.close(limit_s):
                agent_log.warning(lost)
    except JoinInterrupted as interrupted:
        agent_log.info(str(interrupted))
        return interrupted.exit_code
    finally:
        for console in consoles:
            console.close()


def _status_block(console: Console, agent: Agent) -> AbstractContextManager[object]:
    """Show the status block below the output until the context ends. Only this imports rich."""
    with frozen_imports.frozen_imports():
        from launcher.terminal.status_block import StatusBlock
    return closing(StatusBlock(console, 2, agent.block))
