#!/bin/sh
# Puts the C++ sources of XGrammar, the headers that they include, and their licences into FOLDER, from
# XGrammar's source package on PyPI. One release is pinned, by its SHA-256.
# usage: fetch_xgrammar.sh FOLDER
set -eu

version=0.2.9
sha256=87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90
folder=$1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

package=$("$(dirname "$0")/pypi_source.sh" xgrammar "$version" "$sha256" "$work")

mkdir "$work/unpacked"
top=xgrammar-$version
tar --extract --gzip --file="$package" --directory="$work/unpacked" --strip-components=1 \
  "$top/LICENSE" "$top/NOTICE" "$top/cpp" "$top/include" \
  "$top/3rdparty/dlpack/LICENSE" "$top/3rdparty/dlpack/include" "$top/3rdparty/picojson/picojson.h"
rm -rf "$work/unpacked/cpp/tvm_ffi"
picojson=$work/unpacked/3rdparty/picojson/picojson.h
{ # of all that is compiled; picojson's stands at the beginning of its header
  cat "$work/unpacked/NOTICE" "$work/unpacked/LICENSE"
  printf '\n\npicojson:\n\n'
  sed '/\*\//q' "$picojson"
  printf '\n\ndlpack:\n\n'
  cat "$work/unpacked/3rdparty/dlpack/LICENSE"
} > "$work/licence"
rm -rf "$folder"
mkdir -p "$folder"
mv "$work/unpacked/cpp" "$work/unpacked/include" "$work/unpacked/3rdparty" "$folder/"
mv "$work/licence" "$folder/LICENSE"
