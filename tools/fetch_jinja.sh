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

package=$("$(dirname "$0")/pypi_source.sh" llama-cpp-python "$version" "$sha256" "$work")

mkdir "$work/unpacked"
tar --extract --gzip --file="$package" --directory="$work/unpacked" --strip-components=3 \
  --wildcards '*/vendor/llama.cpp/LICENSE' '*/vendor/llama.cpp/common/jinja/*' \
  '*/vendor/llama.cpp/common/unicode.*'
rm -rf "$folder"
mkdir -p "$folder"
mv "$work/unpacked/LICENSE" "$work/unpacked/common/jinja" "$work/unpacked"/common/unicode.* "$folder/"
