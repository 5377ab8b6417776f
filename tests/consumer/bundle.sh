#!/usr/bin/env bash
# Makes a bundle of a build, unpacks it, moves it, and runs it with an empty environment; then
# checks that nothing in it needs a library of this machine that another may lack.
# usage: bundle.sh SOURCE_TREE BUILD_TREE WORK_DIRECTORY
set -euo pipefail
source_tree=$1 build=$2 work=$3
rm -rf "$work" && mkdir -p "$work/unpacked"

fail() {
  echo "FAILED: $*"
  exit 1
}

archive=$(bash "$source_tree/tools/bundle.sh" --uncompressed "$build" "$work")
tar --extract --file="$archive" --directory="$work/unpacked"
mapfile -t tops < <(ls -A "$work/unpacked")
[[ ${#tops[@]} -eq 1 ]] || fail "the archive has not one top folder but: ${tops[*]}"
there=$work/moved
mv "$work/unpacked/${tops[0]}" "$there"
cd "$there"

for file in README LICENSE bin/topkv include/topkv/session.h lib/cmake/topkv/topkvConfig.cmake \
  models/needle-14m/model.safetensors licences/libfaiss-dev; do
  [[ -s $file ]] || fail "the bundle lacks $file"
done

# Without PATH, HOME or LD_LIBRARY_PATH, from a folder of its own.
mkdir run && cd run
env -i ../bin/topkv needle -m ../models/needle-14m -c 4K --depths 3 -o results >stdout ||
  fail "needle exits with status $?"
grep -q '^score .* of 3 found' stdout || fail "needle prints no score"
cd ..

# glibc's own libraries and those of NVIDIA's driver may be the system's; nothing else.
allowed='^(linux-vdso|ld-linux.*|libc|libm|libpthread|libdl|librt|libresolv|libcuda|libnvidia-.*)\.so'
listed=$(env -i /usr/bin/ldd bin/topkv)
while read -r name _ file _; do
  [[ $name == /* || $name =~ $allowed || $file == "$there/"* ]] ||
    fail "bin/topkv takes $name from ${file:-nowhere}"
done <<<"$listed"

checked=0
while IFS= read -r file; do
  for needed in $(readelf --dynamic "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    [[ $needed =~ $allowed || -f lib/$needed ]] || fail "$file needs $needed, which is not in lib/"
  done
  checked=$((checked + 1))
done < <(find bin lib -type f \( -name topkv -o -name '*.so*' \))
[[ $checked -gt 10 ]] || fail "only $checked programs and libraries found in the bundle"
echo "the bundle runs by itself; $checked programs and libraries checked"
