. .tune/env.sh
for h in noise needles generated; do
 X="--kv-index codes --kv-index exact --kv-index quest:page=16 --kv-index sparq:r=16 --kv-index retroinfer --kv-index lowrank:r=16 --kv-index faiss:IVF,SQ8 --kv-index h2o --kv-index none"
 (timeout 440 $T needle -m models/needle-14m --device cuda --gpu-mem 20GiB -t 5 -c 1M --haystack $h $X --kv-topk 64 --prefill window -o /tmp/n_$h > /tmp/n_$h.log 2>&1; echo $h $? $SECONDS >> $OUT/done.log) &
done
wait; cat $OUT/done.log; for h in noise needles generated; do cp /tmp/n_$h/cells.jsonl $OUT/n_$h.jsonl; cp /tmp/n_$h/*.svg $OUT/n_$h.svg 2>/dev/null; tail -25 /tmp/n_$h.log; done; cat /tmp/n_*.log > $OUT/logs.txt
