#!/bin/sh
# Conversations with the tool: several turns over files, templates that rewrite earlier ones, Ctrl-C,
# and what is refused. With copies of the bundled model that have other chat templates, and its own.
# usage: chat.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$(cd "$2" && pwd) work=$3
. "$(dirname "$0")/holds.sh"
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1

# with_template NAME TEMPLATE: a copy of the model
with_template() {
  mkdir "$1" && ln -s "$model"/* "$1/" && rm "$1/chat_template.jinja" && printf '%s' "$2" >"$1/chat_template.jinja"
}
turns='{% for m in messages %}{{ m.content }}{% if m.role != "user" %}{{ "\n" }}{% endif %}{% endfor %}'
with_template plain "$turns"
with_template counts "{{ messages|length }} $turns"
with_template forgets '{% for m in messages %}{{ m.content.split(".")[0] ~ ".\n" if m.role == "assistant" else m.content }}{% endfor %}'
with_template moves '{% set system = messages[0].content %}{% for m in messages[1:] %}{{ system ~ "\n" if loop.last }}{{ m.content }}{{ "\n" if m.role != "user" }}{% endfor %}'
with_template refuses '{{ raise_exception("no system role") if messages[0].role == "system" }}'"$turns"

noise='The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.'
{
  for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "$noise"; done
  echo 'One of the special magic numbers for quiet-river is: 7281934.'
  for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "$noise"; done
  echo 'One of the special magic numbers for tall-tower is: 5520017.'
} >notes.txt
ask() {
  echo "What is the special magic number for $1 mentioned in the provided text? The special magic number for $1 mentioned in the provided text is"
}
first=$(ask quiet-river) second=$(ask tall-tower)
flags='--device cpu -t 1 --kv-window 64'
short='-n 9' longer='-n 12'

printf '%s\n%s\n\n%s\n' "$first" "$second" "$first" |
  "$topkv" chat -m plain -f notes.txt $flags $short >answers 2>log || echo "FAILED: $(cat log)"
holds 'an answer for each question that is not blank' test "$(wc -l <answers)" -eq 3
holds 'the first is found' test "$(sed -n 1p answers)" = ' 7281934.'
holds 'the second is found' test "$(sed -n 2p answers)" = ' 5520017.'
holds 'the third is found' test "$(sed -n 3p answers)" = ' 7281934.'
holds 'the files are read once' test "$(grep -c '^context' log)" -eq 1
holds 'nothing else is on standard output' test "$(wc -c <answers)" -eq 30

cp -r plain warm && rm -f warm/generation_config.json && echo '{"do_sample": true, "temperature": 8.0}' >warm/generation_config.json
for heat in '' '--temp 8' '--temp 0'; do
  echo "$first" | "$topkv" chat -m warm -f notes.txt $flags $short $heat 2>log || echo "FAILED: $(cat log)"
done >answers
holds "sampling is what generation_config.json says" test "$(sed -n 1p answers)" = "$(sed -n 2p answers)"
holds "and a flag's is the flag's" test "$(sed -n 3p answers)" = ' 7281934.'
holds "which differ" test "$(sed -n 1p answers)" != "$(sed -n 3p answers)"

printf '%s\n%s\n' 'What is the special magic number for quiet-river mentioned in the provided text?' \
  'What is the special magic number for tall-tower mentioned in the provided text?' |
  "$topkv" chat -m "$model" -f notes.txt $flags $short >answers 2>log || echo "FAILED: $(cat log)"
holds "the bundled model's template asks as it was trained to be asked" test \
  "$(cat answers)" = "$(printf ' 7281934.\n 5520017.')"
holds 'and what was said stays as it is' test "$(sed -n 's/^.\([0-9]*\) tokens read.*/\1/p' log | tail -n 1)" -lt 45

# as_one BEFORE TEXT: what is asked in turns, as one text to continue
as_one() {
  { printf '%s' "$1"; cat notes.txt; } >whole.txt
  "$topkv" generate -m plain -f whole.txt -p "$2" $flags $short 2>/dev/null
}
holds 'turns equal one long text' test \
  "$(as_one '' "$first 7281934.
$second")" = ' 5520017.'
printf '%s\n%s\n' "$first" "$second" | "$topkv" chat -m plain -f notes.txt $flags $longer >answers 2>log
long=$(sed -n 1,2p answers)
"$topkv" generate --chat -m plain -f notes.txt -p "$first" $flags $longer >alone 2>/dev/null
holds 'generate --chat is the first turn' test "$(cat alone)" = "$long"
"$topkv" generate -m plain -f notes.txt -p "$first$long
$second" $flags $longer >alone 2>/dev/null
holds 'turns with odd answers equal one long text' test "$(cat alone)" = "$(sed -n '3,$p' answers)"

# A template that keeps a part of earlier answers: the rest is forgotten, and read anew.
printf '%s\n%s\n' "$first" "$second" | "$topkv" chat -m forgets -f notes.txt $flags $longer >answers 2>log
"$topkv" generate -m plain -f notes.txt -p "$first 7281934.
$second" $flags $longer >alone 2>/dev/null
holds 'a rewritten answer is forgotten' test "$(cat alone)" = "$(sed -n '3,$p' answers)"
holds 'without reading the files again' test "$(grep -c '^context' log)" -eq 1

# Templates that rewrite what is before the files, or move the system message.
printf '%s\n%s\n' "$first" "$second" | "$topkv" chat -m counts -f notes.txt $flags $short >answers 2>log
holds 'rewritten files are read again' test "$(grep -c '^context' log)" -ge 1
holds 'which is said' grep -q 'warning: the chat template changes the text of the files' log
holds 'and the answer is that of one text' test "$(sed -n 2p answers)" = "$(as_one '3 ' "$first$(sed -n 1p answers)
$second")"
printf '%s\n%s\n%s\n' "$first" "$second" "$first" |
  "$topkv" chat -m moves --system 'Be brief.' -f notes.txt $flags $short >answers 2>log
holds 'a system message that moves has the files read twice' test "$(grep -c '^context' log)" -eq 2
holds 'and answers three times' test "$(wc -l <answers)" -eq 3

# Answers of several parts, and what a template would lose.
with_template thinks "{# </think> #}$turns{% if thinks is not defined %}<think>{% endif %}"
printf 'a\nb\n' | "$topkv" chat -m thinks $flags -n 4 --json >answers 2>log || echo "FAILED: $(cat log)"
holds 'thinking that has not ended is no content' test "$(grep -c '"event":"answer".*"text":"",' answers)" -eq 2
holds 'and has its own events' grep -q '"event":"reasoning"' answers
echo a | "$topkv" generate --chat -m thinks -p a $flags -n 4 >answers 2>log
holds 'it is not on standard output' test "$(cat answers)" = ''
echo a | "$topkv" chat -m thinks $flags -n 4 --template-arg thinks=false >answers 2>log
holds 'a variable of the template changes that' test "$(wc -c <answers)" -gt 1
with_template users '{% for m in messages %}{{ m.content if m.role == "user" }}{% endfor %}'
echo a | "$topkv" chat -m users --system 'Be brief.' $flags $short >answers 2>log
holds 'a lost message is an error' test $? -eq 2
holds 'that names it' grep -q 'leaves out message 0 .*"system"' log
"$topkv" generate --chat -m users --system 'Be brief.' -p a $flags $short >answers 2>log
holds 'of generate, too' test $? -eq 2

# Without files, and what is at the edges.
printf 'a\nb' | "$topkv" chat -m plain $flags $short >answers 2>log
holds 'no files are no context' test "$(grep -c '^context' log)" -eq 0
holds 'a last line without its end is a question' test "$(grep -c ' answered' log)" -eq 2
"$topkv" chat -m plain </dev/null >answers 2>log
holds 'no questions are no answers' test "$? $(cat answers)" = '0 '
printf 'a\nb\nc\n' | "$topkv" chat -m plain --device cpu -n 100 --room 100 >answers 2>log
holds 'what does not fit is not asked, which the status tells' test $? -eq 1
holds 'with the flag that allows more' grep -q 'warning: .* a larger --room' log
{ echo a; yes word | head -n 300 | tr '\n' ' '; echo; echo b; } |
  "$topkv" chat -m plain --device cpu -n 5 --room 100 >answers 2>log
holds 'a question that is too long ends with its status' test $? -eq 1
holds 'and the next one is asked' test "$(grep -c ' answered' log)" -eq 2

refuses() { # STATUS PATTERN ARGUMENTS...
  status=$1 pattern=$2
  shift 2
  echo a | "$topkv" "$@" >answers 2>log
  got=$?
  holds "$* ends with $status, not $got" test "$got" -eq "$status"
  holds "$* says $pattern, not $(cat log)" grep -q "^topkv: error: .*$pattern" log
  holds "$* prints nothing" test ! -s answers
}
with_template none '' && rm none/chat_template.jinja
refuses 1 'no chat template here' chat -m none
refuses 1 'no chat template here' generate --chat -m none -p a
refuses 2 'add --chat' generate -m plain -p a --system b
refuses 2 'refuses this conversation: no system role' chat -m refuses --system b --device cpu
refuses 2 "'-' is standard input" chat -m plain -f -
refuses 1 'nowhere.txt' chat -m plain -f nowhere.txt
refuses 2 '--kv-index: given twice' chat -m plain --kv-index exact --kv-index codes
refuses 2 '--room' chat -m plain --room 1
refuses 1 '0 tokens of the files and 2,000,000,000 of --room: .* wanted, .* available; give a smaller --room, or free memory' chat -m plain --device cpu --room 2000000000
refuses 1 'give a smaller --room, or raise --mem' chat -m plain --device cpu --room 100K --mem 64MiB
with_template broken '{% for m in messages %}'
refuses 1 'broken/chat_template.jinja: the chat template' chat -m broken
with_template endless '{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}'
refuses 1 'the chat template, line 1: it ' chat -m endless --device cpu

# Ctrl-C: ends an answer that has no end of its own, twice; at the prompt it ends the program.
until_holds() { # COMMAND...
  tries=0
  until "$@"; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || return 1
    sleep 0.1
  done
}
answering() { [ -n "$(sed -n "$1p" answers)" ]; }
said_interrupted() { [ "$(grep -c interrupted log)" -eq "$1" ]; }
ended() { ! kill -INT "$chat" 2>/dev/null; }
mkfifo questions
env --default-signal=INT "$topkv" chat -m plain --device cpu -t 1 -n 100K --room 200K \
  <questions >answers 2>log &
chat=$!
exec 3>questions
for turn in 1 2; do
  echo a >&3
  holds "answer $turn begins" until_holds answering "$turn"
  kill -INT "$chat"
  holds "Ctrl-C ends answer $turn" until_holds said_interrupted "$turn"
done
holds 'Ctrl-C at the prompt ends the program' until_holds ended
wait "$chat"
holds 'as shells have it' test $? -eq 130
exec 3>&-
end
