# For scripts that count what does not hold: `holds` before, `end` last.
failures=0

# holds WHAT COMMAND...: the command succeeds
holds() {
  what=$1
  shift
  "$@" >/dev/null || {
    failures=$((failures + 1))
    echo "FAILED: $what"
  }
}

end() {
  [ "$failures" -eq 0 ] && echo "all as it should be"
  [ "$failures" -eq 0 ]
}
