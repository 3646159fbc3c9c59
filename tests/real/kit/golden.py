"""The committed requests whose token counts a real engine gave."""
import json

from . import settings

PATHS = ("/v1/chat/completions", "/v1/completions")


def rows(family):
    """Those of the two OpenAI routes that the engine answered with 200."""
    with open(settings.TOKENS / f"golden_{family}.jsonl", encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    return [r for r in found if r["request_path"] in PATHS and r["status"] == 200]
