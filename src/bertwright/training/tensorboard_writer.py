"""Files of a run's numbers for TensorBoard, whose package belongs to the extra "tracking"."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary

from bertwright.base.files import attach_filename, masked_crc32c


class TensorBoardWriter:
    """Writer of a run's numbers for TensorBoard.

    PyTorch's SummaryWriter is not used: it writes in a thread, so a full disk prints a traceback and raises an error
    without a file name at some later write; and if TensorFlow is installed, it loads it, with errors of its own types.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        """Start a file; TensorBoard then ignores the steps from `first_step` on in older files of the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        started = time.time()
        self.path = folder / f"events.out.tfevents.{started:017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.file = self.path.open("xb", buffering=0)
        self._add(Event(wall_time=started, file_version="brain.Event:2"))
        self._add(Event(wall_time=started, step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, values: Mapping[str, float], step: int) -> None:
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))

    def _add(self, event: Event) -> None:
        """Write an event as a record of TensorFlow: its length and its bytes, each followed by a checksum.

        TensorBoard's own writer would load half of TensorFlow's file systems first.
        """
        data = event.SerializeToString()
        parts = (struct.pack("<Q", len(data)), data)
        with attach_filename(self.path):
            self.file.write(b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts))
