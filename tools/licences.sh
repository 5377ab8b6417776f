# Licences of what is packed into archives and wheels. Sourced by bundle.sh and wheel.sh, which have
# a function die.

# FILE: the Debian package that owns it, or nothing.
package_of() {
  local file
  for file in "$1" "${1#/usr}"; do # /lib and /usr/lib are one folder; dpkg knows one of the names
    dpkg-query --search "$file" 2>/dev/null | sed -n '1s/:.*//p' && return
  done
  return 0
}

# PACKAGE FOLDER
copy_licence() {
  cp -L "/usr/share/doc/$1/copyright" "$2/$1" ||
    die "no licence of the package $1 in /usr/share/doc/$1/copyright"
}

# FOLDER: licences of what is compiled into every build; then, once all licences are there, the
# texts that Debian keeps once, which those files refer to.
complete_licences() {
  local package
  for package in libfaiss-dev libhnswlib-dev nlohmann-json3-dev libcli11-dev libxxhash-dev; do
    copy_licence "$package" "$1"
  done
  grep -Eohr '/usr/share/common-licenses/[A-Za-z]+(-[0-9]+(\.[0-9]+)*)?' "$1" | sort --unique |
    while read -r text; do
      if [[ -f $text ]]; then cp -L "$text" "$1/"; fi
    done
}
