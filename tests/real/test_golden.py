"""The golden requests through the gateway to the live engine: its count is the engine's."""
from kit import golden, wire
from kit.gateway import Gateway


def test_every_golden_request_is_counted_as_the_engine_counts(engine, show):
    rows = golden.rows("llama3")
    assert len(rows) == 37
    wrong, ours_in_all = [], 0
    with Gateway(engine.url, "golden") as gate:
        before = gate.page()
        for row in rows:
            was = gate.page()
            a = wire.ask(gate.url, row["request_path"], row["request_body"])
            assert (a.status, a.ended) == (200, "complete"), (row["name"], a)
            engine_says = a.json()["usage"]["prompt_tokens"]

            def compared():
                return gate.page().total("kvgate_count_compared_total") \
                    > was.total("kvgate_count_compared_total")
            wire.wait_for(compared, 2, f"{row['name']}: the counts were not compared")
            now = gate.page()
            ours = int(now.total("kvgate_prompt_tokens_sum") - was.total("kvgate_prompt_tokens_sum"))
            ours_in_all += ours
            if not ours == engine_says == row["prompt_tokens"]:
                wrong.append((row["name"], ours, engine_says, row["prompt_tokens"]))
        after = gate.page()
    assert not wrong, "name, ours, the engine's, recorded"
    assert after.total("kvgate_count_compared_total") - before.total("kvgate_count_compared_total") == 37
    assert after.total("kvgate_count_drift_tokens_total") == 0
    show("Golden requests through kvgate to the live engine",
         f"37 of 37 counted exactly, {ours_in_all} prompt tokens, drift 0")
