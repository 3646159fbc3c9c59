"""The bare engine under the preemption test's load, without a gateway: prints its table.

    KVGATE_REAL_DIR/client/bin/python tests/real/bare_load.py ENGINE_URL [stream|plain|mixed ...]
"""
import sys

from kit.crowd import Crowd, table

url, kinds = sys.argv[1], sys.argv[2:] or ["mixed"]
rows = []
for kind in kinds:
    crowd = Crowd(url, url, kind=kind).run()
    rows.append(crowd.row(f"bare {kind}"))
    print(table(rows), crowd.statuses(), flush=True)
