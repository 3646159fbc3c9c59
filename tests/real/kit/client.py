"""The real openai client, with a record of each attempt that it makes."""
import time

import openai

from . import prompts, settings


class OpenAI:
    def __init__(self, base, max_retries, headers=None):
        self.attempts = []              # {"at", "status", "told"}
        hooks = {"request": [self._asks], "response": [self._answered]}
        self.client = openai.OpenAI(
            base_url=base + "/v1", api_key="none", max_retries=max_retries, timeout=600,
            default_headers=headers, http_client=openai.DefaultHttpxClient(event_hooks=hooks))
        self.result = self.error = None

    def _asks(self, request):
        self.attempts.append({"at": time.monotonic(), "status": None, "told": None})

    def _answered(self, response):
        fine, coarse = response.headers.get("retry-after-ms"), response.headers.get("retry-after")
        told = float(fine) / 1000 if fine else float(coarse) if coarse else None
        self.attempts[-1] |= {"status": response.status_code, "told": told,
                              "answered": time.monotonic()}

    def complete(self, output, prompt=20, **more):
        """A plain completion; keeps the result, or the library's error."""
        try:
            self.result = self.client.completions.create(
                model=settings.MODEL, prompt=prompts.ids(prompt), max_tokens=output, temperature=0,
                extra_body={"ignore_eos": True}, **more)
        except openai.OpenAIError as error:
            self.error = error
        return self.result

    def told(self):
        return [a["told"] for a in self.attempts if a["told"] is not None]

    def check_waits(self, status):
        """Each refusal but the last attempt was of this status, and was waited out as told."""
        *refused, last = self.attempts
        assert refused, "there was one attempt only"
        assert last["status"] == 200, self.attempts
        for a, b in zip(refused, self.attempts[1:]):
            assert a["status"] == status and a["told"] is not None, self.attempts
            waited = b["at"] - a["answered"]
            assert a["told"] - 0.05 <= waited <= a["told"] + 1, (waited, a["told"])
