. .tune/env.sh
M32='dense;exact;exact+mean;exact+sample;codes;quest;sparq:r=16;sparq:r=16,v=1;squeezed:c=5;retroinfer;lowrank:r=16;h2o;tova;streaming'
for t in niah_single_1 niah_single_2 niah_single_3 niah_multikey_1 niah_multikey_2 niah_multikey_3 niah_multivalue niah_multiquery vt cwe fwe passkey passkey_steps repetition tables_hop; do
 (timeout 440 $T eval -m models/needle-14m --device cuda --gpu-mem 4GiB -t 2 --tasks $t --lengths 32K --methods "$M32" --budgets 64,256 --samples 2 -o /tmp/e32/$t > /tmp/e32_$t.log 2>&1; echo $t $? $SECONDS >> $OUT/done.log) &
done
wait; cat $OUT/done.log; cat /tmp/e32/*/samples.jsonl > $OUT/samples.jsonl; cat /tmp/e32_*.log > $OUT/logs.txt; wc -l $OUT/samples.jsonl
