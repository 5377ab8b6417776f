. .tune/env.sh
timeout 200 $T needle -m models/needle-14m --device cuda -t 16 -c 1M --haystack needles --kv-index codes --kv-index exact --kv-index quest:page=16 --kv-topk 64 --prefill dense -o /tmp/nd > /tmp/nd.log 2>&1; tail -30 /tmp/nd.log
for d in cpu cuda; do timeout 60 $T eval -m models/needle-14m --device $d -t 8 --tasks niah_single_1,niah_multivalue --lengths 4K --methods 'h2o;tova;quest;sparq:r=16;squeezed:c=5,s=90' --budgets 512 --samples 2 -o /tmp/c_$d > /tmp/c_$d.log 2>&1; done
python3 - <<'P'
import json
a,b=[{(r['task'],r['sample'],r['method']):r for r in map(json.loads,open(f'/tmp/c_{d}/samples.jsonl'))} for d in('cpu','cuda')]
for k in a: print(k, a[k]['score'], b[k]['score'], a[k]['rows_per_head'], b[k]['rows_per_head'], a[k]['answer'][:40]==b[k]['answer'][:40])
P
cp /tmp/nd/cells.jsonl $OUT/nd.jsonl; cp /tmp/nd.log $OUT/
