"""Run the commands that README.md promises, just as they stand there.

    python3 tests/real/readme.py [README.md]

A code block is run where the line before it is one of
    <!-- ci: ends in 90 s -->    each command must exit 0 within 90 seconds
    <!-- ci: runs 20 s -->       each command must still run after 20 seconds; then it
                                 gets SIGINT, and must exit 0 (or by it) within 30 seconds
Lines of the block that are blank or start with `#` are left out.
"""
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

_MARK = re.compile(r"<!-- *ci: (ends in|runs) (\d+) ?s *-->\s*\n```\w*\n(.*?)\n```", re.S)


def run(command, how, seconds):
    """None if it did as promised, else what was wrong."""
    # A group of its own, so that what `cargo run` starts gets the signal too.
    child = subprocess.Popen(["bash", "-c", command], stdin=subprocess.DEVNULL,
                             start_new_session=True)
    try:
        code = child.wait(seconds)
        if how == "runs":
            return f"ended with {code} before {seconds} s"
        return f"exit {code}" if code else None
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGINT)
        try:
            code = child.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return "did not end within 30 s of SIGINT"
        if how == "ends in":
            return f"not done after {seconds} s"
        return None if code in (0, -signal.SIGINT, 128 + signal.SIGINT) else f"exit {code} on SIGINT"


def main():
    readme = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    found = [(how, int(seconds), line.strip())
             for how, seconds, block in _MARK.findall(readme.read_text(encoding="utf-8"))
             for line in block.splitlines() if line.strip() and not line.strip().startswith("#")]
    if not found:
        sys.exit(f"{readme} has no code block with a `ci:` mark before it")
    bad = 0
    for how, seconds, command in found:
        began = time.monotonic()
        wrong = run(command, how, seconds)
        bad += wrong is not None
        print(f"{'FAILED' if wrong else 'ok'}: {command}  ({time.monotonic() - began:.0f} s)"
              f"{'  ' + wrong if wrong else ''}", flush=True)
    print(f"README: {len(found) - bad} passed, {bad} failed")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
