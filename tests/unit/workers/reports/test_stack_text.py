"""The stacks in what a process wrote."""

from __future__ import annotations

from launcher.workers.reports.stacks import stacks_in

SAID = b"""step 7
Thread 0x00007f20269d2b80 [queue feeder] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  <no Python frame>
step 8 of another thread
Current thread 0x00007f20269d2b81 (most recent call first):
  File "/home/me/a folder/train.py", line 6 in inner
  File "/home/me/a folder/train.py", line 8 in <module>
  ...
step 9
  File "a line of the script's own"
"""


def test_stacks_are_taken_out_of_what_else_was_written() -> None:
    assert stacks_in(SAID).splitlines() == [
        "Thread 0x00007f20269d2b80 [queue feeder] (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 320 in wait',
        "  <no Python frame>",
        "",
        "Current thread 0x00007f20269d2b81 (most recent call first):",
        '  File "/home/me/a folder/train.py", line 6 in inner',
        '  File "/home/me/a folder/train.py", line 8 in <module>',
        "  ...",
    ]


def test_where_there_are_none_there_is_nothing() -> None:
    assert stacks_in(b"") == ""
    assert stacks_in(b'step 7\n  File "x.py", line 3 in f\n\xff\n') == ""
