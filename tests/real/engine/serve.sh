#!/usr/bin/env bash
# Start a real vLLM (CPU) with a deliberately small KV cache, and wait until it
# is healthy.
#
#   serve.sh VENV_DIR MODEL_DIR PORT [-- extra `vllm serve` arguments]
#
# It listens on 127.0.0.1 only.  Settings from the environment, with their defaults:
#   RUN_DIR=./vllm-run.PORT  folder for server.log, server.pid, server.exit (its
#                            exit status, once it has ended), and `healthy`
#   MAX_MODEL_LEN=2048       longest prompt + output, in tokens
#   MAX_NUM_SEQS=4           how many requests run at once
#   BLOCK_SIZE=32            tokens per KV block; the CPU engine takes multiples of 32
#   NUM_BLOCKS=80            KV blocks in all (80 * 32 = 2560 tokens: one
#                            full-length request and a quarter)
#   START_TIMEOUT=600        seconds to wait for /health
#   CRASH_...                see crash_plugin/, which is always on the path and does
#                            nothing without them
#
# Prints one line and returns 0 once GET /health answers 200; returns 1 (and
# leaves the log) if the server ends before, or the time is up.
# Stop the server with:  kill "$(cat RUN_DIR/server.pid)"
set -euo pipefail

if [ $# -lt 3 ]; then sed -n '2,22p' "$0" | sed 's/^# \{0,1\}//'; exit 2; fi
venv=$1; model=$2; port=$3; shift 3
if [ "${1:-}" = "--" ]; then shift; fi

here=$(cd "$(dirname "$0")" && pwd)
run_dir=${RUN_DIR:-./vllm-run.$port}
mkdir -p "$run_dir"
run_dir=$(cd "$run_dir" && pwd)

# Nothing may be looked up or reported outside this machine.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
# The host's memory for the KV cache, in GiB, of which --num-gpu-blocks-override
# takes only a part.
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
export VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-$run_dir/cache}
export PYTHONPATH=$here/crash_plugin

# setsid: away from the caller's terminal, so that a Ctrl-C there does not end it.
# The small shell around it writes the server's exit status to server.exit.
rm -f "$run_dir/server.pid" "$run_dir/server.exit" "$run_dir/healthy"
setsid bash -c '"$@" & p=$!; echo "$p" >"$0/server.pid"; wait "$p"; echo "$?" >"$0/server.exit"' \
    "$run_dir" "$venv/bin/vllm" serve "$model" \
    --host 127.0.0.1 --port "$port" \
    --served-model-name tiny \
    --max-model-len "${MAX_MODEL_LEN:-2048}" \
    --max-num-seqs "${MAX_NUM_SEQS:-4}" \
    --block-size "${BLOCK_SIZE:-32}" \
    --num-gpu-blocks-override "${NUM_BLOCKS:-80}" \
    --enforce-eager \
    --enable-prompt-tokens-details \
    --enable-auto-tool-choice --tool-call-parser llama3_json \
    "$@" >"$run_dir/server.log" 2>&1 </dev/null &
until [ -s "$run_dir/server.pid" ]; do sleep 0.1; done
pid=$(cat "$run_dir/server.pid")

healthy() {  # no curl needed
    python3 - "$port" <<'PY'
import sys, urllib.request
try:
    ok = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/health", timeout=2).status == 200
except Exception:
    ok = False
sys.exit(not ok)
PY
}

start=$(date +%s)
until healthy; do
    if ! kill -0 "$pid" 2>/dev/null; then
        echo "vLLM ended before it was healthy; the end of $run_dir/server.log:" >&2
        tail -n 30 "$run_dir/server.log" >&2
        exit 1
    fi
    if [ $(( $(date +%s) - start )) -ge "${START_TIMEOUT:-600}" ]; then
        echo "vLLM was not healthy in time; see $run_dir/server.log" >&2
        kill "$pid" 2>/dev/null || true
        exit 1
    fi
    sleep 1
done
touch "$run_dir/healthy"
echo "vLLM is healthy on 127.0.0.1:$port after $(( $(date +%s) - start )) s, pid $pid"
