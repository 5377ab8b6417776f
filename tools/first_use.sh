# shellcheck shell=bash disable=SC2034,SC2154
# README's first use, for those who try it: walk.sh and try_wheel.sh. Sourced; source_tree is set.

# A long text with README's fact as the line in its middle: the guides, but those that ask for it.
long_text() {
  local fact lines guides
  fact=$(grep -o 'One of the special magic numbers for [^`]*' "$source_tree/README.md")
  mapfile -t guides < <(grep --files-without-match quiet-river "$source_tree"/docs/*.md "$source_tree"/docs/*/*.md)
  lines=$(cat "${guides[@]}" | wc -l)
  cat "${guides[@]}" | sed "$((lines / 2))a $fact"
}

# README's program in Python.
first_program() { sed -n '/^```python$/,/^```$/{/^```/d;p}' "$source_tree/README.md"; }

# The fact's number, and the questions that the bundled model answers: in a chat and otherwise.
number=$(grep -o 'for quiet-river is: [0-9]*' "$source_tree/README.md" | grep -o '[0-9]*$')
about='special magic number for quiet-river mentioned in the provided text'
chat_question="What is the $about?"
question="$chat_question The $about is"
