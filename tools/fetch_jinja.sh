#!/bin/sh
# Puts llama.cpp's Jinja engine (common/jinja, and what it includes) and its licence into FOLDER,
# from the source package of llama-cpp-python on PyPI. One release is pinned, by its SHA-256.
# usage: fetch_jinja.sh FOLDER
set -eu

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
folder=$1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python=python3
if ! python3 -m pip --version >/dev/null 2>&1; then  # Debian's python3 has pip in environments alone
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
fi
"$python" -m pip download --quiet --disable-pip-version-check --no-deps \
  --no-binary=llama-cpp-python --dest "$work" "llama-cpp-python==$version"
package=$(echo "$work"/llama_cpp_python-*.tar.gz)
echo "$sha256  $package" | sha256sum --check --quiet -

mkdir "$work/unpacked"
tar --extract --gzip --file="$package" --directory="$work/unpacked" --strip-components=3 \
  --wildcards '*/vendor/llama.cpp/LICENSE' '*/vendor/llama.cpp/common/jinja/*' \
  '*/vendor/llama.cpp/common/unicode.*'
rm -rf "$folder"
mkdir -p "$folder"
mv "$work/unpacked/LICENSE" "$work/unpacked/common/jinja" "$work/unpacked"/common/unicode.* "$folder/"
