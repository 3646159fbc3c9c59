"""How long the machine stood still: threads that should beat ten times a second, and the gaps between their beats.

A test machine may be stopped for seconds, or give its processors to others; one processor of several may stand
still while the others go on, so each has a thread of its own.  What a test times is then not the gateway's doing.
"""
import os
import threading
import time

EVERY = 0.1
GAP = 0.5                   # seconds between two beats from which on it is told

_gaps = []                  # (from, to), by time.monotonic


def _beat(processor):
    os.sched_setaffinity(0, {processor})        # of this thread alone
    last = time.monotonic()
    while True:
        time.sleep(EVERY)
        now = time.monotonic()
        if now - last > GAP:
            _gaps.append((last + EVERY, now))
        last = now


for _processor in os.sched_getaffinity(0):
    threading.Thread(target=_beat, args=(_processor,), daemon=True).start()


def stood_still(start, end):
    """Seconds of this span, by time.monotonic, in which one of the processors stood still; counted twice where two did."""
    return sum(max(0.0, min(end, b) - max(start, a)) for a, b in list(_gaps))
