"""Every path, port, configuration key and JSON name that the tests rely on, in one place.

What comes from the environment:
  KVGATE_REAL_DIR      big files: vLLM, models, logs (default: .real in the repository)
  KVGATE_BIN           the gateway's binary (default: target/release/kvgate)
  KVGATE_TOKENS_DIR    the golden requests and tokenizers (default: tests/data/tokens)
  KVGATE_VLLM_DIR      vLLM's virtual environment (default: KVGATE_REAL_DIR/vllm)
  KVGATE_MODELS_DIR    the models' folder (default: KVGATE_REAL_DIR/models)
  KVGATE_ENGINE_PORT   port of the engine (default 8191)
  KVGATE_ENGINE_RUN    run folder of an engine that was started before the tests
                       (by `.ci/run`, or by hand): it is used as the first engine
  KVGATE_ENGINE_KEEP   1: the engine is left running at the end
  KVGATE_REAL_FULL     1: streams and plain requests in separate runs, and more of each
"""
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
REPO = HERE.parent.parent


def _path(name, default):
    return Path(os.environ.get(name) or default)


REAL = _path("KVGATE_REAL_DIR", REPO / ".real")
BIN = _path("KVGATE_BIN", REPO / "target/release/kvgate")
TOKENS = _path("KVGATE_TOKENS_DIR", REPO / "tests/data/tokens")
VLLM = _path("KVGATE_VLLM_DIR", REAL / "vllm")
CHAT = REAL / "chat"                # virtual environment with transformers and Jinja2
TEMPLATES = REAL / "templates"      # chat templates out of packages
MODELS = _path("KVGATE_MODELS_DIR", REAL / "models")
LOGS = _path("KVGATE_LOGS_DIR", REAL / "logs")
ENGINE_PORT = int(os.environ.get("KVGATE_ENGINE_PORT", "8191"))
ENGINE_RUN = os.environ.get("KVGATE_ENGINE_RUN")
KEEP = os.environ.get("KVGATE_ENGINE_KEEP") == "1"
FULL = os.environ.get("KVGATE_REAL_FULL") == "1"

SLOW = MODELS / "slow-llama3"
MODEL = "tiny"                      # the name that the engine serves

# The engine's sizes, as serve.sh sets them by default.
MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 4
BLOCK = 32
POOL_TOKENS = 79 * BLOCK            # one of the 80 blocks is vLLM's null block
IDLE_CLOSE_SECONDS = 5              # uvicorn's keep-alive time-out
CRASH_AT = 1500                     # the crash plugin's prompt length


class Config:
    """Pieces of the gateway's TOML; the keys are named here and nowhere else."""

    @staticmethod
    def max_prompt(tokens):
        return f"[admit.length]\nmax_prompt_tokens = {tokens}\n"

    CAPACITY_OFF = '[admit.mode]\ncapacity = "off"\n'

    @staticmethod
    def max_body(size):
        return f"[proxy]\nmax_body_bytes = {size}\n"

    @staticmethod
    def requests_per_minute(number):
        return f"[admit.rates]\nrequests_per_minute = {number}\n"




def patience(seconds):
    """The header that says how long a request may wait in the queue."""
    return {"x-kvgate-max-wait": str(seconds)}


COUNT_API = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}  # `count --api`

# Names in the admin port's JSON; the first one present is taken.
REPORT_IN_FLIGHT = ("in_flight",)
RECOVERED = ("recovered",)


def client_part(request_id):
    """The client's id (one without a `-`) in the engine's, which has the gateway's appended."""
    return request_id.split("-", 1)[0]
