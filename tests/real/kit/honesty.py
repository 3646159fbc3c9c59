"""Was the Retry-After right?  What each refused client was told, against what came of it.

A client comes back exactly when it was told.  From a refusal to the moment it is
let in (it was queued, or went on at once) is `real`.  A promise is made at the pace of that
moment: `at pace` is what the engine generated in that time, in seconds of that pace, so that a
machine with other work meanwhile is not held against it.  Right within a factor of two:

  too early   real and at pace > 2 x told: it came back and was turned away again, or then still
              waited longer than it had been told.  Not held against a refusal that
              told the most that may be told (60 s, less the jitter).
  too late    the engine had had room for it, with nobody queued, for a whole second
              before half of the told time was over.
"""
import statistics

SLACK = 1.0                 # seconds that are never held against it
MOST = 45                   # told at least this: the cap of 60, jittered


def waits(crowd, out):
    """One row for each refusal; `out` is the engine's seconds for one request alone."""
    rows = []
    for c in crowd.clients:
        let_in = _let_in(c, crowd, out)
        for asked, a in c.refusals:
            at = a.t_end - crowd.start
            rows.append({"client": c.number, "refused": at, "after": a.t_end - a.t_sent,
                         "told": a.told, "real": let_in - at if let_in else None,
                         "pace": _at_pace(crowd, at, let_in) if let_in else None,
                         "room": _room(crowd, at, at + a.told)})
    return rows


def _at_pace(crowd, start, end):
    """The engine's work from `start` to `end`, in seconds at its pace at `start`."""
    pace = crowd.pace(start)
    return (crowd.made(end) - crowd.made(start)) / pace if pace else end - start


def _let_in(c, crowd, out):
    """When its work began: its first token, or for a plain answer its end less `out`."""
    a = c.last
    if a.status != 200:
        return None
    began = a.t_first if c.stream else a.t_end - out
    return max(c.tries[-1][0], began - crowd.start)


def _room(crowd, start, end):
    """When in this span the engine, with room for a third request and no queue, first had
    stood so for a second."""
    since = None
    for t, running, waiting, kv, _, ours in crowd.samples:
        idle = running <= 2 and waiting == 0 and ours == 0 and start <= t <= end
        since = (since if since is not None else t) if idle else None
        if since is not None and t - since >= 1:
            return since - start
    return None


def verdict(row):
    real, told = row["real"], row["told"]
    if real is None:
        return "never served"
    if min(real, row["pace"]) > 2 * told + SLACK and told < MOST:
        return "too early"
    if row["room"] is not None and row["room"] < told / 2 - SLACK:
        return "too late"
    return "right"


def summary(rows):
    """Rows of the table: by how often the client had been refused before."""
    nth, groups = {}, {}
    for r in sorted(rows, key=lambda r: r["refused"]):
        nth[r["client"]] = nth.get(r["client"], 0) + 1
        groups.setdefault(nth[r["client"]], []).append(r)
    table = []
    for n, group in sorted(groups.items()):
        ratios = sorted(r["real"] / r["told"] for r in group if r["real"] is not None)
        seen = [verdict(r) for r in group]
        table.append({
            "refusal": f"no. {n}", "clients": len(group),
            "refused after": f"{max(r['after'] for r in group):.3f} s",
            "told": _span([r["told"] for r in group]),
            "real": _span([r["real"] for r in group if r["real"] is not None]),
            "real/told p50": f"{statistics.median(ratios):.2f}" if ratios else "-",
            "max": f"{ratios[-1]:.2f}" if ratios else "-",
            **{k: seen.count(k) for k in ("right", "too early", "too late")}})
    return table


def _span(values):
    return f"{min(values):.1f}..{max(values):.1f} s" if values else "-"
