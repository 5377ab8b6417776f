#!/bin/sh
# Puts the headers of cuDNN's front end into FOLDER/include, from its Python wheel on PyPI. The
# headers are the same in the wheels of all platforms; one is pinned, by its SHA-256.
# usage: fetch_cudnn_frontend.sh FOLDER
set -eu

version=1.32.0
sha256=c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0
folder=$1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --implementation cp --python-version 3.11 --abi cp311 --platform manylinux_2_27_x86_64 \
  --dest "$work" "nvidia-cudnn-frontend==$version"
wheel=$(echo "$work"/*.whl)
echo "$sha256  $wheel" | sha256sum --check --quiet -

python3 - "$wheel" "$work/unpacked" <<'PYTHON'
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    headers = [name for name in wheel.namelist() if name.startswith("include/")]
    wheel.extractall(sys.argv[2], headers)
PYTHON
mkdir -p "$folder"
rm -rf "$folder/include"
mv "$work/unpacked/include" "$folder/include"
