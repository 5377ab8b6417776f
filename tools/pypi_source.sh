#!/bin/sh
# Downloads the source package of a release from PyPI into FOLDER, checks its SHA-256, and prints its path.
# usage: pypi_source.sh PACKAGE VERSION SHA256 FOLDER
set -eu

name=$1 version=$2 sha256=$3 folder=$4

python=python3
if ! python3 -m pip --version >/dev/null 2>&1; then  # Debian's python3 has pip in environments alone
  python3 -m venv "$folder/venv"
  python=$folder/venv/bin/python
fi
"$python" -m pip download --quiet --disable-pip-version-check --no-deps \
  --no-binary="$name" --dest "$folder" "$name==$version" >&2
package=$(echo "$folder"/*.tar.gz)
echo "$sha256  $package" | sha256sum --check --quiet - >&2
echo "$package"
