#!/usr/bin/env bash
# Installs the Debian packages that building topkv needs, those that are missing, and nothing when
# none is. This list is the only one: the Makefile, and through it CI, use it.
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config          # build
  libfaiss-dev libopenblas-dev libhnswlib-dev  # indices
  libhwy-dev libdnnl-dev libtbb-dev         # arithmetic and threads
  nlohmann-json3-dev libpcre2-dev libutf8proc-dev  # checkpoints and tokenizer
  libxxhash-dev                             # checksums of contexts in files
  libcli11-dev libfmt-dev                   # command line
  libcpp-httplib-dev                        # topkv serve
  libgtest-dev ccache                       # tests
  python3-dev python3-venv                  # the Python package
  doxygen                                   # the documentation site
)

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "setup: no apt-get here, so install by hand what these Debian 12 packages hold:" \
    "${packages[*]}; then build with: cmake --preset release && cmake --build --preset release" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: packages are missing, and installing them takes root or sudo. As root, run:" \
      "apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

run() {
  echo "setup: ${as_root[*]:+${as_root[*]} }$*"
  "${as_root[@]}" "$@"
}
install_missing() {
  run env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
    --option DPkg::Lock::Timeout=120 "${missing[@]}"
}

# The package lists may be absent (a fresh container) or old (the first try then fails).
if apt-get install --simulate --no-install-recommends "${missing[@]}" >/dev/null 2>&1; then
  install_missing && exit 0
fi
run apt-get update
install_missing
