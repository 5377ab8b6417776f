. .tune/env.sh
B="niah_single_1 niah_single_2 niah_single_3 niah_multikey_1 niah_multikey_2 niah_multikey_3 niah_multivalue niah_multiquery vt cwe fwe passkey passkey_steps"
for t in $B; do
 (timeout 95 $T eval -m models/needle-14m --device cuda --gpu-mem 4GiB -t 2 --tasks $t --lengths 32K --methods 'retroinfer;exact+retroinfer;exact@schedule=rising' --budgets 64,256 --samples 2 -o /tmp/a/$t > /tmp/a_$t.log 2>&1; timeout 45 $T eval -m models/needle-14m --device cuda --gpu-mem 4GiB -t 2 --tasks $t --lengths 32K --methods 'squeezed:c=5,s=90;squeezed:c=5,s=70;quest' --budgets 3277 --samples 1 -o /tmp/b/$t > /tmp/b_$t.log 2>&1; echo $t $SECONDS >> $OUT/done.log) &
done
wait; cat $OUT/done.log; cat /tmp/a/*/samples.jsonl > $OUT/a.jsonl; cat /tmp/b/*/samples.jsonl > $OUT/b.jsonl; wc -l $OUT/*.jsonl
