"""Worker process of a build: it writes the shards that its parent sends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection

from bertwright.tokenstore.shard import ShardSpec, write_shard
from bertwright.vocabulary.text_tokenizer import TextTokenizer

PR_SET_PDEATHSIG = 1  # linux/prctl.h: the signal that a process gets when its parent dies


def worker_main(descriptor: int, parent: int) -> None:
    """Run a worker process: receive a tokenizer, then shards; answer each shard with None or with its error.

    The process ends when the parent closes the connection or dies. On Linux it is killed with its parent, so that it
    cannot write during a resumed build. `parent` is the parent's process id: if the process has another parent by now,
    the parent died before the worker was ready, and shards that still wait in the connection are ignored.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with Connection(descriptor) as connection:
        try:
            tokenizer: TextTokenizer = connection.recv()
            while True:
                shard: ShardSpec = connection.recv()
                if os.getppid() != parent:
                    return
                try:
                    write_shard(shard, tokenizer)
                    connection.send(None)
                except (ValueError, OSError) as error:
                    connection.send(error)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            sys.exit()
