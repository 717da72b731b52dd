"""The port for monitors of a real agent that has no file descriptor left, or whose port strangers crowd."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import aiohttp

from tests.process.crowd import crowd
from tests.process.happenings import LIMIT_S
from tests.process.jobs import Job, story
from tests.process.nodes import Node
from tests.store.servers import free_ports

GREEDY = """
import os, runpy, sys, threading

def take(signs):
    open(signs + "/take").close()  # A pipe: somebody opens its other end when it is time.
    try:
        while True:
            os.dup(0)
    except OSError as error:
        open_in = os.open  # Nothing can be opened any more.
        os.rename(signs + "/free", signs + "/taken")

threading.Thread(target=take, args=(sys.argv.pop(1),), daemon=True).start()
sys.argv[0] = "elastic-launch"
runpy.run_module("launcher", run_name="__main__")
"""
