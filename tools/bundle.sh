#!/usr/bin/env bash
# Packs a build into one archive that runs on other Linux machines, with every shared library that
# a bare system may lack. The libraries are exact copies: the command finds them through its
# DT_RPATH, which its libraries inherit (cmake/Install.cmake).
#
# usage: bundle.sh [--without-cuda-libraries] [--uncompressed] [BUILD_TREE [OUTPUT_FOLDER]]
#   --without-cuda-libraries  leave cuBLAS out, for machines that have CUDA's libraries
#   --uncompressed            a plain .tar, for tests
# Prints the path of the archive. Equal builds give equal archives (of one compressor).
set -euo pipefail
source_tree=$(cd "$(dirname "$0")/.." && pwd)

die() {
  echo "bundle: error: $*" >&2
  exit 1
}
# shellcheck source=tools/licences.sh
source "$source_tree/tools/licences.sh"

cuda_libraries=yes
compress=yes
while [[ ${1-} == --* ]]; do
  case $1 in
    --without-cuda-libraries) cuda_libraries=no ;;
    --uncompressed) compress=no ;;
    *) die "unknown flag $1; known are --without-cuda-libraries and --uncompressed" ;;
  esac
  shift
done
build=${1:-$source_tree/build/release}
output=${2:-$source_tree/out}
built=$build/src/cli/topkv
[[ -x $built ]] || die "$built is missing; build it first (make build)"

version=$("$built" --version)
version=${version#topkv }
name=topkv-$version-linux-$(uname -m)
mkdir -p "$output"
work=$(mktemp -d "$output/.bundle.XXXXXX")
trap 'rm -rf "$work"' EXIT
top=$work/$name

cmake --install "$build" --prefix "$top" >/dev/null
[[ -d $top/lib ]] || die "the build's libraries go to another folder than lib; configure it with" \
  "-D CMAKE_INSTALL_LIBDIR=lib"
mkdir -p "$top/models" "$top/licences"
cp -R "$source_tree/models/needle-14m" "$top/models/"
cp "$source_tree/LICENSE" "$top/"

# Part of every system that can run the program: glibc, and NVIDIA's driver where there is one.
of_the_system='^(linux-vdso|ld-linux.*|libc|libm|libpthread|libdl|librt|libresolv|libcuda|libnvidia-.*)\.so'
of_cuda='^libcublas(Lt)?\.so'

copy_cuda_licence() { # FILE: a library of a CUDA toolkit that no package owns (cudart is linked in)
  local root licence
  root=$(dirname "$(dirname "$1")")
  licence=$(find "$root/" -maxdepth 5 \( -name EULA.txt -o -path '*cublas*' -name License.txt \) |
    sort | head -n 1)
  [[ -n $licence ]] || die "$1: no EULA.txt or License.txt of NVIDIA's under $root"
  cp "$licence" "$top/licences/nvidia-cuda"
}

# The build tree's own program, for it knows where the libraries lie on this machine. Each is
# copied under the name that it is asked for by, behind all links (Debian's alternatives of BLAS).
while read -r soname arrow file _; do
  [[ $soname =~ $of_the_system || $soname == /* ]] && continue
  [[ $arrow == '=>' && -e $file ]] || die "$built needs $soname, which is not found"
  file=$(realpath "$file")
  if [[ ! $soname =~ $of_cuda || $cuda_libraries == yes ]]; then
    cp "$file" "$top/lib/$soname"
  fi
  package=$(package_of "$file")
  if [[ -n $package ]]; then
    copy_licence "$package" "$top/licences"
  elif [[ $soname =~ $of_cuda ]]; then
    copy_cuda_licence "$file"
  else
    die "$file belongs to no Debian package, so its licence is not known; build against Debian's"
  fi
done < <(ldd "$built")

for licence in "$top"/share/doc/topkv/LICENSE.*; do # of what is compiled in and no package's
  cp "$licence" "$top/licences/${licence##*/LICENSE.}"
done
complete_licences "$top/licences"

glibc=$(find "$top/bin" "$top/lib" -type f \( -name topkv -o -name '*.so*' \) -exec objdump -T {} + |
  grep -oE 'GLIBC_[0-9]+(\.[0-9]+)+' | sort --unique --version-sort | tail -n 1)
cat >"$top/README" <<TEXT
topkv $version for Linux on $(uname -m)

    bin/topkv needle -m models/needle-14m -c 128K
    bin/topkv --help

Runs from any folder, without installation, on systems with glibc ${glibc#GLIBC_} or later. A GPU is
used where there is an NVIDIA driver and this build has the CUDA device; CUDA itself need not be
installed, unless this archive was made without its libraries (no libcublas in lib/): then they
must be where the loader looks, which LD_LIBRARY_PATH tells.
cuDNN is not in it. Where the loader finds libcudnn.so.9 and libcudart.so.13 (lib/ will do), long
prefills on a GPU are faster.

    bin/        the command
    lib/        what it needs beside glibc, as packaged by Debian or NVIDIA, unchanged; and libtopkv
    include/    headers of libtopkv; find_package(topkv) with CMAKE_PREFIX_PATH at this folder.
                Programs that link it need the development packages that topkv is built with
    models/     a small model to try it with
    LICENSE     topkv's licence; licences/ holds those of the libraries, by package
TEXT

epoch=${SOURCE_DATE_EPOCH:-$(git -C "$source_tree" log -1 --format=%ct 2>/dev/null || echo 0)}
tar --create --directory="$work" --sort=name --owner=0 --group=0 --numeric-owner \
  --mode='u=rwX,go=rX' --mtime="@$epoch" --format=gnu --file="$work/$name.tar" "$name"
archive=$output/$name.tar
if [[ $compress == yes ]]; then
  compressor=gzip
  ! command -v pigz >/dev/null || compressor=pigz
  "$compressor" --no-name "$work/$name.tar"
  archive=$archive.gz
fi
mv "$work/$(basename "$archive")" "$archive"
echo "$archive"
