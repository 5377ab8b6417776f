#!/bin/sh
# The lines of files that an answer attended most: of contexts in files, of files that are read with the
# prompt, and of conversations; and where lines cannot be cited.
# usage: cite.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$(cd "$2" && pwd) work=$3
. "$(dirname "$0")/holds.sh"
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1

# Four files with three facts each, on lines that differ from file to file.
python3 - <<'END'
import random
draw = random.Random(1)
noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
places = {}
keys = iter("quiet-river tall-tower red-apple cold-stone wild-horse old-castle blue-flame dark-forest soft-cloud "
            "sharp-arrow bright-star green-valley".split())
for file in range(4):
    lines = [noise] * 24
    for fact in range(3):
        key, at = next(keys), 2 + 7 * fact + file
        lines[at] = f"One of the special magic numbers for {key} is: {draw.randint(1000000, 9999999)}."
        places[key] = f"part{file}.txt:{at + 1}"
    open(f"part{file}.txt", "w").write("\n".join(lines) + "\n")
open("places", "w").writelines(f"{key} {place}\n" for key, place in places.items())
about = "special magic number for {} mentioned in the provided text"
questions = [f"What is the {about}? The {about} is".format(key, key) for key in places]
open("questions", "w").writelines(question + "\n" for question in questions)
END
files='-f part0.txt -f part1.txt -f part2.txt -f part3.txt'
plain='--device cpu -t 2 --quiet -n 9' flags="--device cpu -t 2 --quiet -n 9 --kv-window 64"
first=$(sed -n 5p questions)

"$topkv" prefill -m "$model" $files -o all.tkv --device cpu --quiet || echo "FAILED: prefill"
for rows in 64 4096; do
  "$topkv" ask all.tkv -m "$model" $flags --kv-topk $rows --cite --json <questions >json 2>log || echo "FAILED: $(cat log)"
  holds "the file and the line of each of twelve facts, with $rows rows" python3 -c '
import json
places = [line.split()[1] for line in open("places")]
answers = [event for event in map(json.loads, open("json")) if event["event"] == "answer"]
assert len(answers) == 12
for place, answer in zip(places, answers):
    cited = answer["citations"]
    assert 1 <= len(cited) <= 3 and all(0 < one["share"] <= 1 for one in cited), cited
    assert [one["share"] for one in cited] == sorted((one["share"] for one in cited), reverse=True)
    file, line = place.split(":")
    assert (cited[0]["file"], cited[0]["line"]) == (file, int(line)), (place, cited)
    assert cited[0]["text"] == open(file).read().split("\n")[int(line) - 1]'
done
"$topkv" ask all.tkv -m "$model" $flags -p "$first" >plain 2>log
"$topkv" ask all.tkv -m "$model" $flags -p "$first" --cite >answer 2>places.1
holds 'the answer is the one without' cmp plain answer
holds 'standard error has a line for each place, in order' grep -q '^\[1\] part1.txt:11  [0-9]* %  One of the special magic numbers for wild-horse' places.1
holds 'three at most' test "$(grep -c '^\[[1-3]\] part[0-3].txt:[0-9]*  ' places.1)" -le 3
holds 'without the flag there is none' test "$(wc -c <log)" -eq 0

"$topkv" generate -m "$model" $files -p "$first" $flags --cite >answer 2>places.1 || echo "FAILED: $(cat places.1)"
holds 'generate cites its files' grep -q '^\[1\] part1.txt:11  ' places.1
"$topkv" generate -m "$model" $files -p "$first" $plain --kv-window 8192 --cite >answer 2>places.1
holds 'lines in a window, too' grep -q '^\[1\] part1.txt:11  ' places.1
"$topkv" generate -m "$model" $files -p "$first" $flags --cite --json >json 2>log
holds 'and in JSON' python3 -c '
import json
one = json.loads(open("json").readlines()[-1])["citations"][0]
assert (one["file"], one["line"]) == ("part1.txt", 11)'

mkdir plainly && ln -s "$model"/* plainly/ && rm plainly/chat_template.jinja
printf '%s' '{% for m in messages %}{{ m.content }}{% if m.role != "user" %}{{ "\n" }}{% endif %}{% endfor %}' >plainly/chat_template.jinja
{ sed -n 5p questions; sed -n 12p questions; } | "$topkv" chat -m plainly $files $flags --cite >answer 2>places.1 || echo "FAILED: $(cat places.1)"
holds 'each question of a conversation has places of its own' test "$(grep '^\[1\]' places.1 | sed 's/  .*//' | tr '\n' ' ')" = '[1] part1.txt:11 [1] part3.txt:20 '
"$topkv" generate -m plainly --chat $files -p "$first" $flags --cite >answer 2>places.1 || echo "FAILED: $(cat places.1)"
holds 'generate cites in a chat template, too' grep -q '^\[1\] part1.txt:11  ' places.1
"$topkv" prefill -m plainly --chat $files -o chat.tkv --device cpu --quiet
"$topkv" ask chat.tkv -m plainly $flags -p "$first" --cite >answer 2>places.1
holds 'a context in a chat template names its files' grep -q '^\[1\] part1.txt:11  ' places.1

# The last word of a text is read with the question.
head -c -1 part3.txt >part4.txt && printf '\nOne of the special magic numbers for last-word is: 7654321. Here we go' >>part4.txt
last='What is the special magic number for last-word mentioned in the provided text? The special magic number for last-word mentioned in the provided text is'
"$topkv" generate -m "$model" -f part0.txt -f part4.txt -p "$last" $flags --cite --json >json 2>log || echo "FAILED: $(cat log)"
"$topkv" prefill -m "$model" -f part0.txt -f part4.txt -o last.tkv --device cpu --quiet
"$topkv" ask last.tkv -m "$model" -p "$last" $flags --cite --json >>json 2>log || echo "FAILED: $(cat log)"
holds 'a last line is cited as it is' python3 -c '
import json
answers = [event for event in map(json.loads, open("json")) if "citations" in event]
assert len(answers) == 2
for answer in answers:
    texts = [one["text"] for one in answer["citations"] if one["line"] == 25]
    assert texts == ["One of the special magic numbers for last-word is: 7654321. Here we go"], answer["citations"]'

# refused PATTERN COMMAND...
refused() {
  pattern=$1
  shift
  "$@" >out 2>log </dev/null
  status=$?
  holds "ends with an error: $pattern" test "$status" -ne 0
  holds "says $pattern, not $(cat log)" grep -q "^topkv: error: .*$pattern" log
}
refused '--cite: there are no files to cite' "$topkv" generate -m "$model" -p x --cite
refused '--cite: there are no files to cite' "$topkv" chat -m "$model" --cite
python3 -c 'open("latin.txt", "wb").write(("caf\u00e9\n" * 3 + "one\n").encode("latin-1"))'
refused '--cite: the tokenizer or the chat template changes the text' "$topkv" generate -m "$model" -f latin.txt -f part0.txt -p x --cite --device cpu
refused '--cite: the tokenizer or the chat template changes the text' "$topkv" chat -m plainly -f part0.txt -f latin.txt --cite --device cpu
"$topkv" prefill -m "$model" -f latin.txt -o latin.tkv --device cpu --quiet 2>log
holds 'prefill warns of such a text' grep -q 'warning: the tokenizer or the chat template changes the text' log
refused 'latin.tkv: does not name the files of its text' "$topkv" ask latin.tkv -m "$model" -p x --cite --device cpu
refused '--cite: cites one answer' "$topkv" generate -m "$model" $files -p x --cite -N 2
refused '--cite: .*leave --kv-mass out' "$topkv" ask all.tkv -m "$model" -p x --cite --kv-mass 0.9 --device cpu
end
