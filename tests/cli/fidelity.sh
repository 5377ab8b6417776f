#!/bin/sh
# Measures fidelity over a small context and writes it to files.
# usage: fidelity.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$2 work=$3
. "$(dirname "$0")/holds.sh"
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
fidelity() {
  "$topkv" fidelity -m "$model" -c 1500 --questions 1 --kv-window 64 "$@" >stdout 2>stderr
}

echo old >a.csv
holds 'settings are compared' fidelity --kv-index exact --kv-index hnsw --kv-topk 8 --kv-topk 64 \
  --kv-tail none --csv a.csv --svg a.svg --html a.html
holds 'the table is printed' grep -q '^exact  *64  *none' stdout
holds 'a file is replaced by a heading and a line per setting' [ "$(wc -l <a.csv)" -eq 5 ]
holds 'it begins with its names' sh -c 'head -n 1 a.csv | grep -q "^setting,index,kv_topk,kv_tail,"'
holds 'specs are quoted' grep -q ',"hnsw:M=16,efc=100,ef=0",64,none,' a.csv
holds 'there is a picture' grep -q '</svg>' a.svg
holds 'of the settings whose bytes are known' [ "$(grep -c '<title>exact, top' a.svg)" -eq 4 ]
holds 'and a note of the others' grep -q 'Not shown.*hnsw:M=16,efc=100,ef=0, tail none, top 8, 64<' a.svg
holds 'there is a page with picture, tables and settings' grep -q '</svg>' a.html
holds 'a row for each setting' [ "$(grep -c '<td>exact</td>' a.html)" -eq 2 ]
holds 'nothing else is left' [ "$(ls)" = "$(printf 'a.csv\na.html\na.svg\nstderr\nstdout')" ]

cp a.svg kept.svg
fidelity --kv-index hnsw --kv-tail none --json --csv b.csv --svg a.svg
holds 'a picture of nothing is an error' [ $? -eq 1 ]
holds 'that names the file and says why' grep -q '^topkv: error: a.svg: not written: .*bytes' stderr
holds 'the old one stays' cmp a.svg kept.svg
holds 'what was measured is printed' grep -q '^{"setting":"hnsw:M=16,efc=100,ef=0, top 128, tail none"' stdout
holds 'and written' [ "$(wc -l <b.csv)" -eq 2 ]

holds 'the mean is a tail' fidelity --kv-index exact --kv-index codes --kv-tail mean --json
holds 'that is named in each setting' [ "$(grep -c '"kv_tail":"mean"' stdout)" -eq 2 ]

holds 'rules are settings' fidelity --kv-index exact --kv-tail codes --kv-topk 32 --kv-mass none --kv-mass 0.50 \
  --kv-error none --kv-error 0.001 --json
holds 'each with each' [ "$(wc -l <stdout)" -eq 4 ]
holds 'that say so' grep -q '"setting":"exact, top 32, tail codes:k=16,v=8, mass 0.5, error 0.001"' stdout
holds 'and what they took' grep -q '"went_dense":0\.[0-9]*[1-9]' stdout
holds 'the table has them' fidelity --kv-tail codes --kv-topk 32 --kv-mass none --kv-mass 0.5
holds 'with their columns' grep -q 'rule.*more *dense' stdout

holds 'guarantees are settings' fidelity --kv-index exact --kv-topk 32 --kv-guarantee none --kv-guarantee 0.2,0.1 \
  --kv-guarantee 0.001,0.1 --json --csv g.csv
holds 'that say so' grep -q '"setting":"exact, top 32, tail none, guarantee 0.2,0.1"' stdout
holds 'and what they took' grep -q '"kv_guarantee":"0.001,0.1".*"went_dense":0\.[0-9]*[1-9]' stdout
holds 'in a table, too' [ "$(wc -l <g.csv)" -eq 4 ]
rm g.csv

holds 'prefills are compared' fidelity --prefill dense --prefill window --prefill sparse --prefill-window 64 \
  --prefill-keys 128 --prefill-keys 4096 --prefill-least 64 --prefill-mass none --csv p.csv
holds 'with a row for each' [ "$(wc -l <p.csv)" -eq 5 ]
holds 'in the table too' grep -q '^sparse 64 + 128 keys ' stdout
holds 'and as JSON' fidelity --prefill dense --prefill sparse --prefill-keys 4096 --json
holds 'all keys are dense' grep -q '"setting":"sparse 1024 + 512 to 4096 keys, mass 0.98".*"keys_share":1.0,.*"text_kl":0.0,' stdout
holds 'ways that become the same are measured once' fidelity --prefill auto --prefill sparse --prefill-keys 4096 --json
holds 'in a line beside the dense one' [ "$(wc -l <stdout)" -eq 2 ]
holds 'which is said' grep -q '^auto 1024 + 512 to 4096 keys, mass 0.98: reads this text as dense, which is measured once$' stderr
fidelity --prefill dense --prefill sparse --svg a.svg
holds 'no picture is drawn of them' [ $? -eq 2 ]
holds 'which is said' grep -q -- '--svg: draws one prefill' stderr
fidelity --prefill sparse --prefill sparse
holds 'each is named once' [ $? -eq 2 ]

cp b.csv kept.csv
"$topkv" fidelity -m "$model" -c 64 --csv b.csv >stdout 2>stderr
holds 'a run that fails' [ $? -eq 2 ]
holds 'keeps an old file' cmp b.csv kept.csv

end
