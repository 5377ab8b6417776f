#include "src/cli/help.h"

namespace topkv::cli {

const char* const main_help =
    R"(usage: topkv COMMAND [flags]

Runs language models over contexts of a million tokens: their keys and values stay in host memory,
and each step attends only the rows that an index finds.

  needle     hide facts in a long text and ask for them
  generate   continue a prompt, over files as context if you like
  chat       a conversation over files, for models with a chat template
  prefill    read texts once, into a context that stays in a file
  ask        ask of such a context, as often as you like
  serve      the same over HTTP, for clients of OpenAI's API, many at a time
  verify     check such a file, byte by byte
  info       what a model is and how much memory its contexts take; what a context's file has
  plan       what of a model and a context fits which memory, and the flags for it
  fidelity   how near retrieval is to dense attention, over a text of your choice
  eval       tasks that compare methods: RULER's and others, with scores and intervals
  bench      time attention over generated rows, without a model

  help COMMAND     its flags, as does topkv COMMAND --help
  -h, --help       this text
  --version        print the version

Counts of tokens and sizes are in powers of 1024 (4K = 4096, 8G = 8GiB); KB, MB, GB and TB are
powers of 1000.

examples:
  topkv needle -m models/needle-14m -c 1M
  topkv generate -m models/needle-14m -f notes.txt -p "The meeting was moved to"
)";

const char* const needle_help =
    R"(usage: topkv needle -m DIR [-c 128K,1M] [flags]                       [default] in brackets
Hides facts at several depths of a long text, prefills it once and asks for each in its own session.
  -m, --model DIR        directory, *.gguf, or org/name    -t, --threads N       [all cores]
  --device WHERE         cpu, cuda, cuda:N or auto [auto]  --weights stored|int8|int4 [stored]
  --gpu-mem SIZE         what may be taken of the GPU's memory, at most [9/10 of what is free]
  -c, --ctx LIST         tokens of the context alone; K = Ki = 1024, M = Mi = 1024²: 4096,1M [128K]
  --ruler-length         -c counts the question and 128 tokens of answer too, as RULER does
  --depths N|LIST        N depths spread evenly, or percent: 5,50,95, one as 50% [10]
  --haystack WHAT        generated, noise, needles, or a DIR of *.txt and *.md [generated]
  --needle STYLE         number, word, uuid (as in RULER) or passkey [number]
  --needle-text T --question Q --answer A                  a needle of your own instead
  --separate             a context for each needle; passkey and own needles always have that
  --kv-index SPEC        codes, exact, ivf, hnsw, faiss:IVF,SQ8; repeat to compare [codes, k by dim]
  --kv-tail SPEC         what stands for all other rows: none, mean, codes [what the index has]
  --kv-topk K            rows retrieved per layer: 64, uniform:512, linear:512 or a list [64]
  --kv-mass X, --kv-error X   with a tail: fewer rows with this share, more for this error [none]
  --kv-select HOW        query_head or group chooses rows [query_head]   --kv-host-search
  --kv-window N [1024]   --kv-sinks N [4]   --kv-dense-layers N|all [0]   --kv-dtype TYPE [bf16]
  --prefill HOW          window (time grows with the length) or dense (its square) [window]
  --prefill-window N [1024]   --chunk N [auto]   --mem SIZE   all rows may take, as 8GiB [free]
  -n, --predict N        answer's tokens at most [32; 64 for uuid]
  --temp X [0: greedy]   --top-k N [0: off]   --top-p X [1]   --seed N [42]
  -o, --output DIR       results; goes on where it stopped, adds -c and --kv-index [by settings]
  --kv-recall            also ask beside exact search, and report the share of its rows found
  --profile              time of a step by layer    --fresh   start over    --json   cells as lines
examples:
  topkv needle -m models/needle-14m -c 32K,128K,1M --kv-topk 64
  topkv needle -m models/needle-14m -c 128K --kv-index exact --kv-index hnsw:M=16 -o out/hnsw
)";

const char* const generate_help =
    R"(usage: topkv generate -m DIR -p PROMPT [-f FILE]... [flags]           [default] in brackets
Continues a prompt. Files become a frozen context before it, of which each step retrieves rows;
the tokens are those of files and prompt as one text: end a file's last line before a question.
  -m, --model DIR        directory, *.gguf, or org/name    -t, --threads N       [all cores]
  --device WHERE         cpu, cuda, cuda:N or auto [auto]  --weights stored|int8|int4 [stored]
  --gpu-mem SIZE         what may be taken of the GPU's memory, at most [9/10 of what is free]
  -p, --prompt TEXT      what to continue; with --chat what to ask
  -f, --file FILE        text of the context; repeat for several, - is standard input
  --chat                 files and prompt are a message in its chat template, --system TEXT first
  -n, --predict N        tokens to generate at most [128]                        --seed N [42]
  --temp X --top-k N --top-p X   sampling; --temp 0 is greedy [by generation_config.json, else 0]
  --min-p X --repetition-penalty X --frequency-penalty X --presence-penalty X   likewise
  --stop TEXT            ends an answer; repeatable  -N, --samples N  answers, --seed and on [1]
  --length N             tokens that LongRoPE, dynamic NTK turn keys for [all the model can]
  --kv-index SPEC        codes, exact, ivf, hnsw, faiss:IVF1024,SQ8 [codes, k by dim]
  --kv-tail SPEC         what stands for all other rows: none, mean, codes [what the index has]
  --kv-topk K            rows retrieved per layer: 64, uniform:512, linear:512 or a list [64]
  --kv-mass X, --kv-error X   with a tail: fewer rows with this share, more for this error [none]
  --kv-select HOW        query_head or group chooses rows [query_head]   --kv-host-search
  --kv-window N [1024]   --kv-sinks N [4]   --kv-dense-layers N|all [0]   --kv-dtype TYPE [bf16]
  --prefill HOW          dense, or window: time grows with the length, not its square [dense]
  --prefill-window N [1024]   --chunk N [auto]   --mem SIZE   all rows may take, as 8GiB [free]
  --profile              where the time of a step went, layer by layer
  --json   lines of JSON as tokens come   --logprobs N   in them [none]   --quiet   no figures
examples:
  topkv generate -m models/needle-14m -p "Once upon a time" -n 40
  cat book.txt | topkv generate -m models/needle-14m -f - -p "The hero's name is" --prefill window
)";

const char* const chat_help =
    R"(usage: topkv chat -m DIR [-f FILE]... [flags]                          [default] in brackets
A conversation in the model's chat template: each line of standard input is a question, answers go
to standard output. Files are read once, before the first question. Ctrl-C ends an answer, and at
the prompt the program, as the end of input (Ctrl-D) does.
  -m, --model DIR        directory, *.gguf, or org/name    -t, --threads N       [all cores]
  --device WHERE         cpu, cuda, cuda:N or auto [auto]  --weights stored|int8|int4 [stored]
  --gpu-mem SIZE         what may be taken of the GPU's memory, at most [9/10 of what is free]
  -f, --file FILE        text to talk about; repeat for several
  --system TEXT          a system message before all
  -n, --predict N        tokens of an answer at most [1024]
  --room N               tokens of questions and answers together at most, beside the files [64K]
  --temp X [0: greedy]   --top-k N [0: off]   --top-p X [1]   --seed N [42]
  --min-p X --repetition-penalty X --frequency-penalty X --presence-penalty X   likewise
  --stop TEXT            an answer ends before this text; repeat for several
  --kv-index SPEC        codes, exact, ivf, hnsw, faiss:IVF1024,SQ8 [codes, k by dim]
  --kv-tail SPEC         what stands for all other rows: none, mean, codes [what the index has]
  --kv-topk K            rows retrieved per layer: 64, uniform:512, linear:512 or a list [64]
  --kv-mass X, --kv-error X   with a tail: fewer rows with this share, more for this error [none]
  --kv-select HOW        query_head or group chooses rows [query_head]   --kv-host-search
  --kv-window N [1024]   --kv-sinks N [4]   --kv-dense-layers N|all [0]   --kv-dtype TYPE [bf16]
  --prefill HOW          dense, or window: time grows with the length, not its square [dense]
  --prefill-window N [1024]   --chunk N [auto]   --mem SIZE   all rows may take, as 8GiB [free]
  --json   lines of JSON as tokens come   --logprobs N   in them [none]   --quiet   no figures
examples:
  topkv chat -m Qwen2.5-7B-Instruct-1M -f book.txt
  printf 'Who is the hero?\nWhy?\n' | topkv chat -m Qwen2.5-7B-Instruct-1M -f book.txt
)";

const char* const prefill_help =
    R"(usage: topkv prefill -m DIR -f FILE... -o FILE.tkv [flags]             [default] in brackets
Reads texts once and writes their context to a file, for topkv ask: rows, indices and codes. The
file is seen when it is whole; what had its name stays until then.
  -m, --model DIR        directory, *.gguf, or org/name    -t, --threads N       [all cores]
  --device WHERE         cpu, cuda, cuda:N or auto: the GPU if there is one [auto]
  --gpu-mem SIZE         what may be taken of the GPU's memory, at most [9/10 of what is free]
  --weights FORMAT       held as stored, or rounded to int8 or int4 while loading [stored]
  -f, --file FILE        text of the context; repeat for several, - is standard input
  -o, --output FILE      the file to write
  --chat                 the texts are the beginning of a message in the model's chat template
  --system TEXT          with --chat: a system message before it
  --length N             tokens that LongRoPE, dynamic NTK turn keys for [all the model can]
  --kv-index SPEC        codes, exact, ivf, hnsw, but no faiss; repeat for several [codes, k by dim]
  --kv-tail SPEC         a tail that the index has not: mean, or a spec of codes
  --kv-dtype TYPE        of the rows: bf16, q8, q4, q8/q4 (keys/values), f16 or f32 [bf16]
  --prefill HOW          dense, or window: time grows with the length, not its square [dense]
  --prefill-window N [1024]   --chunk N [auto]   --mem SIZE   all rows may take, as 8GiB [free]
examples:
  topkv prefill -m Qwen2.5-7B-Instruct-1M -f book.txt -o book.tkv --chat
  topkv prefill -m models/needle-14m -f notes.txt -o notes.tkv --prefill window
)";

const char* const ask_help =
    R"(usage: topkv ask FILE.tkv -m DIR [-p PROMPT]... [flags]                [default] in brackets
Asks of a context that topkv prefill wrote, with the model that it was read by: each prompt by
itself, several of them in joint steps, answers in order to standard output. Without -p each line of
standard input is a prompt.
  -m, --model DIR        directory, *.gguf, or org/name    -t, --threads N       [all cores]
  --device WHERE         cpu, cuda, cuda:N or auto: the GPU if there is one [auto]
  --gpu-mem SIZE         what may be taken of the GPU's memory, at most [9/10 of what is free]
  --weights FORMAT       as the context was read with [stored]
  -p, --prompt TEXT      what to continue, or to ask where the context is in a chat template
  --mmap                 rows stay in the file: for contexts larger than the memory
  --mem SIZE             what rows may take of the memory, at most [what is free]
  --length N             as the context was read with
  -n, --predict N        tokens of an answer at most [128]                        --seed N [42]
  --temp X --top-k N --top-p X   sampling; --temp 0 is greedy [by generation_config.json, else 0]
  --min-p X --repetition-penalty X --frequency-penalty X --presence-penalty X   likewise
  --stop TEXT            an answer ends before this text; repeat for several
  --kv-index SPEC        of the file, or another, which is built first [the file's]
  --kv-tail SPEC         what stands for all other rows: none, mean, codes [what the index has]
  --kv-topk K            rows retrieved per layer: 64, uniform:512, linear:512 or a list [64]
  --kv-mass X, --kv-error X   with a tail: fewer rows with this share, more for this error [none]
  --kv-select HOW        query_head or group chooses rows [query_head]   --kv-host-search
  --kv-window N [1024]   --kv-sinks N [4]   --kv-dense-layers N|all [0]
  --json   lines of JSON as tokens come   --logprobs N   in them [none]   --quiet   no figures
examples:
  topkv ask book.tkv -m Qwen2.5-7B-Instruct-1M -p "Who is the hero?" -p "Where does it end?"
  topkv ask notes.tkv -m models/needle-14m <prompts.txt
)";

const char* const serve_help =
    R"(usage: topkv serve -m DIR [FILE.tkv]... [--port N] [flags]            [default] in brackets
Answers over HTTP as OpenAI's API does, requests over one context in joint steps: "context": "book"
in a request is book.tkv. Ctrl-C ends it when running answers are whole, or after 10 s; a second one
ends it at once. docs/server.md: endpoints, fields, limits.
  -m, --model DIR        directory, *.gguf, or org/name    -t, --threads N       [all cores]
  --device WHERE         cpu, cuda, cuda:N or auto [auto]  --gpu-mem SIZE  of the GPU [9/10 of free]
  --weights FORMAT       as the contexts were read with [stored]
  --host ADDRESS         where it listens [127.0.0.1]      --port N        0 is any [8080]
  --api-key KEY          clients must have it; better in the environment, TOPKV_API_KEY [none]
  --max-queue N          answers that wait; more are refused with status 429 [64]
  --max-batch N          answers that are stepped together [16]
  --room N               tokens of a prompt and its answer, beside the context, at most [16K]
  --mmap                 rows of FILEs stay in them        --length N      as they were read with
  --kv-index SPEC        of all contexts [a FILE's own; for texts of clients codes, k by dim]
  --kv-tail SPEC         what stands for all other rows: none, mean, codes [what the index has]
  --kv-topk K            rows retrieved per layer: 64, uniform:512, linear:512 or a list [64]
  --kv-mass X, --kv-error X   with a tail: fewer rows with this share, more for this error [none]
  --kv-select HOW        query_head or group chooses rows [query_head]   --kv-host-search
  --kv-window N [1024]   --kv-sinks N [4]   --kv-dense-layers N|all [0]
for texts that clients have it read:
  --prefill HOW          dense, or window: time grows with the length, not its square [dense]
  --prefill-window N [1024]   --chunk N [auto]   --kv-dtype TYPE [bf16]   --mem SIZE [free]
examples:
  topkv serve -m models/needle-14m notes.tkv
  topkv serve -m Qwen/Qwen2.5-7B-Instruct-1M book.tkv laws.tkv --port 8000 --max-batch 8
)";

const char* const verify_help =
    R"(usage: topkv verify FILE.tkv [flags]
Reads all of a context's file and checks it: every checksum, that rows are finite, that indices are
of these rows. Ends with status 1, and names the first part that is damaged.
  -t, --threads N        [all cores]
  --json                 print one JSON object
examples:
  topkv verify book.tkv
  topkv verify book.tkv && cp book.tkv backup/
)";

const char* const info_help =
    R"(usage: topkv info DIR|FILE.tkv [flags]
Tells a model's shape and the memory that its contexts take, and whether this machine has it. Checks
that the configuration is one that topkv runs and that the weights are there in full: ends with
status 1 where some are missing or damaged. Without any, config.json says what they will take.
Of a context that topkv prefill wrote: whose it is and what is in it.
  -m, --model DIR        directory, *.gguf, or org/name; the same as DIR without it
  --weights FORMAT       held as stored, or rounded to int8 or int4 while loading [stored]
  --kv-dtype TYPE        of the rows: bf16, q8, q4, q8/q4 (keys/values), f16 or f32 [bf16]
  --json                 print one JSON object
examples:
  topkv info models/needle-14m
  topkv info models/needle-14m --kv-dtype q8 --json
)";

const char* const fidelity_help =
    R"(usage: topkv fidelity -m DIR [-c 64K] [flags]                       [default] in brackets
Compares decoding with retrieval with dense attention over the same context, token by token: the
error of every layer's output, and what it does to the next token. Each --kv-index with each
--kv-tail, --kv-topk, --kv-mass and --kv-error is one setting.
  -m, --model DIR        directory, *.gguf, or org/name    -t, --threads N       [all cores]
  --device WHERE         cpu, cuda, cuda:N or auto [auto]  --weights stored|int8|int4 [stored]
  --gpu-mem SIZE         what may be taken of the GPU's memory, at most [9/10 of what is free]
  -c, --ctx N            tokens of the context; K = Ki = 1024, M = Mi = 1024² [64K]
  --haystack WHAT        generated, noise, needles, or a DIR of *.txt and *.md [generated]
  --questions N|LIST     N facts asked for, spread evenly, or depths as 5,50,95 or 50% [4]
  --kv-index SPEC        codes, exact, ivf, hnsw, faiss:IVF,SQ8; repeat to compare [codes, k by dim]
  --kv-tail SPEC         what stands for all other rows: none, mean, codes; repeat to compare
                         [what the index has]
  --kv-topk K            rows retrieved per layer; repeat to compare [256]
  --kv-mass X            with a tail: fewer than K rows where they hold this share of attention;
                         repeat to compare [none]
  --kv-error X           with a tail: more rows, up to all, where the expected error is above X;
                         repeat to compare [none]
  --kv-select HOW        query_head or group chooses rows [query_head]   --kv-host-search
  --kv-dtype TYPE        of the rows: bf16, q8, q4, q8/q4, f16, f32; repeat to compare [bf16]
  --kv-window N [1024]   --kv-sinks N [4]   --kv-dense-layers N|all [0]   --seed N [42]
  --prefill HOW          window (time grows with the length) or dense (its square) [window]
  --prefill-window N [1024]   --chunk N [auto]   --mem SIZE   all rows may take, as 8GiB [free]
  --json                 a JSON line per setting   --csv FILE   the same, without errors by layer
  --svg FILE             error and KL against the bytes read per token, as a picture
examples:
  topkv fidelity -m models/needle-14m -c 64K --kv-tail none --kv-tail mean --kv-tail codes
  topkv fidelity -m models/needle-14m --kv-index codes --kv-topk 64 --kv-topk 256 --svg codes.svg
)";

const char* const eval_help =
    R"(usage: topkv eval -m DIR [--tasks LIST] [--methods LIST] [flags]    [default] in brackets
Compares methods on tasks: each sample's text is prefilled once, then every method answers it with
every budget in a session of its own. docs/eval.md: tasks, methods, files.
  -m, --model DIR        directory, *.gguf, or org/name    -t, --threads N       [all cores]
  --device WHERE         cpu, cuda, cuda:N or auto [auto]  --weights stored|int8|int4 [stored]
  --gpu-mem SIZE         what may be taken of the GPU's memory, at most [9/10 of what is free]
  --tasks LIST           ruler or some of it (niah_single_1, vt, …), passkey, passkey_steps,
                         repetition, tables, qa [ruler]
  --lengths LIST         tokens of context, question and answer together, as RULER's [4K,16K]
  --methods LIST         dense, codes, streaming, or an index such as exact; INDEX+TAIL,
                         METHOD@window=N,dense=N,…; ';' between them [dense;codes]
  --budgets LIST         rows that each query head retrieves [64,256]
  --samples N            of each task and length [20, of qa all questions]      --seed N [42]
  --essays DIR           prose: a DIR of *.txt and *.md [generated sentences]
  -f, --file FILES       qa: the text to ask about, a.txt,b.md
  --questions FILE       qa: lines of {"question": …, "answers": […], "context_file": …}
  --kv-window N [1024]   --kv-sinks N [4]   --kv-dense-layers N|all [0]   --kv-dtype TYPE [bf16]
  --kv-select HOW        query_head or group chooses rows [query_head]   --kv-host-search
  --prefill HOW          dense, or window: time grows with the length, not its square [dense]
  --prefill-window N [1024]   --chunk N [auto]   --mem SIZE   all rows may take, as 8GiB [free]
  -o, --output DIR       results; goes on where it stopped, adds to its lists [by settings]
  --fresh                start over    --json   answers as lines
examples:
  topkv eval -m models/needle-14m --tasks ruler --methods 'dense;exact;codes' --samples 5
  topkv eval -m models/needle-14m --tasks qa --lengths 8K --file notes.md --questions asked.jsonl
)";

const char* const plan_help =
    R"(usage: topkv plan DIR [-c 1M] [--gpu-mem 16GiB] [--mem 64GiB] [flags]  [default] in brackets
Says how a model and a context of so many tokens fit the memory there is: the most exact way of
holding weights, rows and codes that does, the flags for it, and what the next better one would
need. Reads headers alone, or config.json where there are no weights yet. Ends with status 1 when
nothing fits. The GPU need not be here.
  -m, --model DIR        directory, *.gguf, or org/name; the same as DIR without it
  -c, --ctx N            tokens of the context and of what is generated, together [1M]
  --gpu-mem SIZE         of the GPU, what may be taken: 16GiB (or G) is 16 * 2^30 bytes, 16GB is
                         16 * 10^9 [of the GPU here: 9/10 of what is free]
  --device WHERE         without --gpu-mem: cpu, cuda, cuda:N or auto: the GPU if one is here [auto]
  --mem SIZE             of the host, what may be taken [what is free here]
  --weights FORMAT       settled: stored, int8 or int4 [what fits]
  --kv-dtype TYPE        settled: bf16, q8, q8/q4, q4, f16 or f32 [what fits]
  --kv-index SPEC        settled: codes:k=16,v=8 or exact [codes, k by dim, or half of it]
  --kv-host-search       the host searches, and codes take none of the GPU
  --prefill HOW          dense or window: what the prefill's buffers are for [dense]
  --json                 one JSON object, with every way there is
examples:
  topkv plan models/needle-14m
  topkv plan Qwen2.5-7B-Instruct-1M -c 1M --gpu-mem 16GiB --mem 64GiB
)";

const char* const bench_help =
    R"(usage: topkv bench decode|prefill --shape SHAPE -c 1M [flags]          [default] in brackets
Times attention alone, layer by layer, over generated rows: no weights, no other work. Keys come
from clusters that drift along the text, with offsets and heavy hitters; layer 0 attends nearly
uniformly, odd layers broadly, others sharply: decode prints how much the best rows hold.
  --shape SHAPE          llama3-8b, qwen2.5-7b-1m, needle-14m, or the path of a config.json
  -c, --ctx N            tokens of the context; K = Ki = 1024, M = Mi = 1024²
  --layers N             only the first N layers [all]     -t, --threads N       [all cores]
  --device WHERE         cpu, cuda, cuda:N or auto: the GPU if there is one [auto]
  --gpu-mem SIZE         what may be taken of the GPU's memory, at most [9/10 of what is free]
  --mem SIZE             rows may take, such as 100GiB [what is free]
  --seed N [42]          --json   a JSON line per row, times in seconds
decode: one token at a time, for each index with each k
  --kv-index SPEC        codes, exact, ivf, hnsw, faiss:IVF,SQ8; repeat to compare [codes, k by dim]
  --kv-tail SPEC         what stands for all other rows: none, mean, codes [what the index has]
  --kv-topk K            rows retrieved per layer; repeat to compare several [64]
  --kv-mass X            with a tail: fewer rows where they hold this share of attention [none]
  --kv-error X           with a tail: more rows where X is exceeded by the expected error [none]
  --kv-select HOW        query_head or group chooses rows [query_head]   --kv-host-search
  --kv-window N [1024]   --kv-sinks N [4]   --kv-dense-layers N|all [0]
  --sessions N           that are stepped together, a token each; repeat to compare several [1]
  --tokens N             steps timed, from 10 [16]  --after N  steps before, from 4 [4]  --profile
prefill: chunk after chunk, in each mode
  --prefill HOW          dense or window; repeat for both [both]
  --prefill-window N [1024]   --chunk N [auto]
  --at N                 instead of -c: time only the last chunk of a context of N tokens
examples:
  topkv bench decode --shape qwen2.5-7b-1m -c 1M --kv-topk 64 --kv-topk 1024
  topkv bench prefill --shape llama3-8b --at 1M --layers 1 --prefill dense
)";

}  // namespace topkv::cli
