"""Supervises several nodes on this host: an embedded etcd, K agents as child processes, and no process left behind.

It also runs on a host that runs etcd for others (`launcher.local.etcd_addresses`); for a list of hosts K is 1.

The supervisor holds no policy: the agents are ordinary agents. Each has a separate session, so that Ctrl-C in a
terminal reaches only the supervisor, which passes it on once. If the supervisor is killed, the kernel kills the agents
and etcd, and each agent's fork server then kills its workers: without the supervisor's etcd there is no job left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from elastic._text import counted
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.core.model import FinalStatus
from elastic.core.view_reader import decode
from elastic.errors import DocumentError, StoreError
from elastic.store.protocol import Store
from launcher.config import store_access
from launcher.config.config import Config
from launcher.local import etcd_addresses
from launcher.local.commands import extra_variable, joiner_line, node_argv, node_environments, status_line
from launcher.logs.stdio import StdioRedirect
from launcher.system.child_exit import wait_for_exit
from launcher.system.signals import SignalQueue
from launcher.terminal.tty import may_draw, wipe

CODES_BY_WEIGHT: Final = (1, 2, 3, 4)
"""Exit codes of nodes by precedence, if the job has not ended well."""


def run(config: Config, outputs: StdioRedirect) -> int:
    """Run `config.local_nodes` nodes on this host until the last has ended; return the job's exit code.

    Without a server it starts an etcd, which it stops once no node is registered, including those of other
    terminals. The first SIGINT, SIGTERM or SIGHUP makes every node leave gracefully; the second kills all processes.
    """

    async def supervise() -> int:
        return await _LocalSupervisor(config, outputs).run()

    return asyncio.run(supervise())


def exit_code(codes: Sequence[int], *, ended: bool) -> int:
    """Combine the exit codes of all nodes (minus n: killed by signal n).

    A failed job is 1. Otherwise one node that exited with 0 is enough if the job has `ended`, completed or stopped: the
    other nodes were drained or killed. If the job has not ended, that node was drained, and the other codes count.
    """
    if 1 in codes:
        return 1
    if not any(codes) or (ended and 0 in codes):
        return 0
    others = (128 - code if code < 0 else code for code in codes)
    return next(filter(codes.__contains__, CODES_BY_WEIGHT), max(others))


class _LocalSupervisor:
    """The main process of --local-nodes."""

    def __init__(self, config: Config, outputs: StdioRedirect) -> None:
        self._config = config
        self._outputs = outputs
        self._say = outputs.write_line
        self._children: list[subprocess.Popen[bytes]] = []
        self._signals = SignalQueue()
        self._passing_on = asyncio.create_task(self._pass_signals_on())
        self._draws = config.local_nodes == 1 and may_draw(config, os.environ) and os.isatty(2)
        """Whether the node may show its status on the terminal of this process."""

    async def run(self) -> int:
        """Start etcd and the nodes, and wait for their end."""
        if self._draws:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self._stopped)
        if self._config.servers and not self._config.serves:
            return await self._run_nodes(",".join(self._config.endpoints))
        from launcher.local.etcd_supervisor import LocalEtcd, keep_running

        config = self._config
        tending: asyncio.Task[None] | None = None
        etcd = LocalEtcd(config)
        try:
            server = await etcd.start()
            if old_release := etcd.old_release():
                self._say(f"warning: {old_release}")
            tending = asyncio.create_task(keep_running(etcd.etcd, self._say))
            nodes = asyncio.create_task(self._run_nodes(server, everywhere=etcd.everywhere))
            await asyncio.wait({tending, nodes}, return_when=asyncio.FIRST_COMPLETED)
            if tending.done():
                self._send(signal.SIGTERM)
            code = await nodes
            if tending.done():
                await tending
            if not self._signals.second.is_set():
                await self._wait_for_members(server)
            if self._signals.first.done() and not config.quiet:
                self._say("the etcd of this job ends with this process, and the job with it")
            return code
        finally:
            if tending is not None:
                tending.cancel()
                await asyncio.gather(tending, return_exceptions=True)
            await etcd.stop()

    async def _pass_signals_on(self) -> None:
        """Forward signals to the nodes: the first unchanged, the second as SIGKILL."""
        self._send(await self._signals.first)
        await self._signals.second.wait()
        self._outputs.process.hurry()
        self._send(signal.SIGKILL)

    def _stopped(self) -> None:
        """Erase the status of the node on Ctrl-Z, which stops this process only: the node continues in background."""
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGTSTP)
        wipe(2)
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, self._stopped)

    def _send(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.returncode is None:  # Not reaped yet, so the PID is still this child's.
                child.send_signal(number)

    async def _run_nodes(self, server: str, *, everywhere: bool = False) -> int:
        if self._signals.first.done():
            return 128 + self._signals.first.result()
        environments = node_environments(self._config, os.environ)
        if self._config.serves and not self._config.login.secret and not etcd_addresses.is_local_only(self._config):
            self._say(f"warning: {etcd_addresses.no_secret_warning(etcd_addresses.served_endpoint(self._config))}")
        if not self._config.quiet:
            self._introduce(server, environments, everywhere=everywhere)
        self._start(server, environments)
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(wait_for_exit(child.pid))
        codes = [child.wait() for child in self._children]
        if self._draws and min(codes) < 0:  # A killed node could not erase its block.
            wipe(2)
        doubtful = 0 in codes and 1 not in codes and any(codes)
        ended = doubtful and await self._has_ended(server)
        killed = self._signals.second.is_set()
        return 128 + self._signals.first.result() if killed else exit_code(codes, ended=ended)

    async def _has_ended(self, server: str) -> bool:
        """Return whether the job has completed or was stopped, according to etcd."""
        keys = JobKeys(self._config.job_id, self._config.key_prefix)
        store = replace(self._config.store_access, endpoints=tuple(server.split(","))).open()
        try:
            entries = (await store.list(KeyRange.key(keys.verdict))).entries
            return any(decode(keys, entry.key, entry.value).status is not FinalStatus.FAILED for entry in entries)
        except (StoreError, DocumentError):
            return False
        finally:
            await store.close()

    def _start(self, server: str, environments: Sequence[Mapping[str, str]]) -> None:
        # -P: a directory named "launcher" in the working directory is not ours.
        agent = (sys.executable, "-P", "-m", "launcher", *node_argv(self._config, server))
        from elastic.store.embedded import guarded  # Its processes die with this one.

        for environment in environments:
            self._children.append(
                subprocess.Popen(
                    guarded(list(agent)),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=self._outputs.child_fd(1),
                    stderr=self._outputs.child_fd(2),
                    start_new_session=True,
                )
            )

    def _introduce(self, server: str, environments: Sequence[Mapping[str, str]], *, everywhere: bool) -> None:
        config = self._config
        if config.local_nodes > 1 and config.gpu_ids and not environments[0]["CUDA_VISIBLE_DEVICES"]:
            self._say(
                f"{len(config.gpu_ids)} GPUs are not enough for {config.local_nodes} nodes with {config.slots} workers "
                "each: the workers run on the CPU; use fewer nodes or a smaller --nproc-per-node"
            )
        one_machine = config.roles is not None and not config.roles.separate
        if config.serves:
            self._say(etcd_addresses.serving_notice(etcd_addresses.served_endpoint(config), config.job_id))
        if everywhere:
            self._say(etcd_addresses.open_listener_warning(etcd_addresses.served_endpoint(config)))
        same = f", with the same {extra_variable(config)}" if extra_variable(config) else ""
        if config.servers or config.ips or (one_machine and not config.serve):
            return
        secret = config.print_secret or os.isatty(2)
        where = "on another host" if config.serve else "in another terminal of this host"
        reached = etcd_addresses.served_endpoint(config) or server
        if not one_machine:
            command = joiner_line(config, reached, os.environ, secret=secret)
            self._outputs.write_line(f"to add a node, run {where}{same}:", command)
        command = status_line(config, reached, secret=secret)
        self._outputs.write_line(f"to see the status of the job, run{same}:", command)
        if config.login.made and not secret:
            self._say(store_access.WITHOUT_SECRET)

    async def _wait_for_members(self, server: str) -> None:
        """Wait until no node is registered, because etcd ends with this process. A signal ends the wait."""
        store = replace(self._config.store_access, endpoints=(server,)).open()
        try:
            waiting = asyncio.create_task(_wait_until_empty(store, self._config, self._say))
            first, second = self._signals.first, self._signals.second
            stopped = asyncio.create_task(second.wait()) if first.done() else first
            await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            with suppress(asyncio.CancelledError, StoreError):
                await waiting
        finally:
            await store.close()


async def _wait_until_empty(store: Store, config: Config, say: Callable[[str], None]) -> None:
    """Return when no member is registered under the job."""
    members = KeyRange.prefix(JobKeys(config.job_id, config.key_prefix).members)
    listing = await store.list(members, keys_only=True)
    left = {entry.key for entry in listing.entries}
    if left and not config.quiet:
        where = ("another host", "other hosts") if config.serves else ("another terminal", "other terminals")
        who = counted(len(left), f"node of {where[0]} is", f"nodes of {where[1]} are")
        say(f"{who} still registered; etcd keeps running until they have left (Ctrl-C stops it now)")
    if not left:
        return
    async for batch in store.watch([members], listing.revision + 1):
        for change in batch.changes:
            (left.discard if change.deleted else left.add)(change.entry.key)
        if not left:
            return
