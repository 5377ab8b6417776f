// What --help says of the commands that tell, plan, measure and compare.
#include "src/cli/help_tools.h"

#include "src/cli/help_shared.h"

namespace topkv::cli {

CommandHelp info_help() {
  return {"info",
          "what a model is and how much memory its contexts take; what a context's file has",
          "DIR|FILE.tkv [flags]",
          "Tells a model's shape and the memory that its contexts take, and whether this machine "
          "has it. Checks that the configuration is one that topkv runs and that the weights are "
          "there in full: ends with status 1 where some are missing or damaged. Without any, "
          "config.json says what they will take. Of a context that topkv prefill wrote: whose it "
          "is and what is in it.",
          {{"",
            {model_flag_help("; the same as DIR without it"),
             weights_help("held as stored, or rounded to int8 or int4 while loading"),
             dtype_help(),
             {"--json", "", "print one JSON object"}}}},
          {"topkv info models/needle-14m", "topkv info models/needle-14m --kv-dtype q8 --json"},
          "DIR|FILE.tkv"};
}

CommandHelp plan_help() {
  FlagHelp index = index_help("codes, k by dim, or half of it");
  index.meaning = "settled: codes:k=16,v=8 or exact";
  index.choices = {"codes", "exact"};
  FlagHelp dtype = dtype_help();
  dtype.meaning = "settled: bf16, q8, q8/q4, q4, f16 or f32";
  dtype.otherwise = "what fits";
  return {
      "plan",
      "what of a model and a context fits which memory, and the flags for it",
      "DIR [-c 1M] [--gpu-mem 16GiB] [--mem 64GiB] [flags]",
      "Says how a model and a context of so many tokens fit the memory there is: the most exact "
      "way of holding weights, rows and codes that does, the flags for it, and what the next "
      "better one would need. Reads headers alone, or config.json where there are no weights "
      "yet. Ends with status 1 when nothing fits. The GPU need not be here.",
      {{"",
        {model_flag_help("; the same as DIR without it"),
         {"-c, --ctx", "N", "tokens of the context and of what is generated, together", "1M"},
         {"--gpu-mem", "SIZE",
          "of the GPU, what may be taken: 16GiB (or G) is 16 * 2^30 bytes, 16GB is 16 * 10^9",
          "of the GPU here: 9/10 of what is free"},
         {"--device",
          "WHERE",
          "without --gpu-mem: cpu, cuda, cuda:N or auto: the GPU if one is here",
          "auto",
          {"cpu", "cuda", "auto"}},
         {"--mem", "SIZE", "of the host, what may be taken", "what is free here"},
         weights_help("settled: stored, int8 or int4", "what fits"),
         dtype,
         index,
         host_search_help(),
         {"--prefill",
          "HOW",
          "dense or window: how the text is to be read",
          "dense; window where that takes long and there is no GPU",
          {"dense", "window"}},
         {"--json", "", "one JSON object, with every way there is"}}}},
      {"topkv plan models/needle-14m",
       "topkv plan Qwen2.5-7B-Instruct-1M -c 1M --gpu-mem 16GiB --mem 64GiB"},
      "DIR"};
}

CommandHelp fidelity_help() {
  FlagGroup prefill = prefill_help("window");
  for (FlagHelp& flag : prefill.flags) {
    if (flag.names == "--kv-dtype") flag = dtype_help(Repeats::yes);
  }
  return {
      "fidelity",
      "how near retrieval is to dense attention, over a text of your choice",
      "-m DIR [-c 64K] [flags]",
      "Compares decoding with retrieval with dense attention over the same context, token by "
      "token: the error of every layer's output, and what it does to the next token. Each "
      "--kv-index with each --kv-tail, --kv-topk, --kv-mass and --kv-error is one setting.",
      {model_help(),
       {"task",
        {{"-c, --ctx", "N", "tokens of the context; K = 1024, M = 1024²", "64K"},
         {"--haystack",
          "DIR",
          "generated, noise, needles, or a folder of *.txt and *.md",
          "generated",
          {"generated", "noise", "needles"}},
         {"--questions", "N|LIST", "N facts asked for, spread evenly, or depths as 5,50,95 or 50%",
          "4"},
         seed_help()}},
       retrieval_help("256", Repeats::yes),
       prefill,
       {"results",
        {{"--json", "", "a JSON line per setting"},
         {"--csv", "FILE", "the same, without errors by layer"},
         {"--svg", "FILE", "error and KL against the bytes read per token, as a picture"},
         {"--html", "FILE", "picture, tables and settings as one page for a browser"}}}},
      {"topkv fidelity -m models/needle-14m -c 64K --kv-tail none --kv-tail mean --kv-tail codes",
       "topkv fidelity -m models/needle-14m --kv-index codes --kv-topk 64 --kv-topk 256 --svg "
       "codes.svg"}};
}

CommandHelp perplexity_help() {
  return {
      "perplexity",
      "how well a text is predicted with retrieval and without",
      "-m DIR -f FILE... [-c 4K] [flags]",
      "How well a text is predicted with retrieval beside dense attention. The text is cut into "
      "pieces of equal length; the last tokens of each are fed one by one behind the others, "
      "which a prefill has read, and scored. Each --kv-index with each --kv-tail, --kv-topk, "
      "--kv-mass and --kv-error is one setting; all score the same tokens.",
      {model_help(),
       {"task",
        {{"-f, --file", "FILE", "the text; repeat for several, - is standard input"},
         {"-c, --ctx", "N", "tokens of a piece; K = 1024, M = 1024²", "4K"},
         {"--score", "N", "of these, the last ones, which are scored", "256"}}},
       retrieval_help("256", Repeats::yes),
       prefill_help("dense"),
       {"results",
        {{"--json", "", "a JSON line for dense attention and for each setting"},
         {"-o, --output", "DIR",
          "the same as CSV, and the nats of each token: perplexity.csv, tokens.csv"}}}},
      {"topkv perplexity -m models/needle-14m -f book.txt -c 16K --kv-index exact --kv-index "
       "codes",
       "topkv perplexity -m models/needle-14m -f book.txt --kv-topk 16 --kv-topk 64 -o "
       "out/perplexity"}};
}

CommandHelp eval_help() {
  FlagGroup retrieval = {"retrieval, where a method does not say otherwise", {}};
  for (const FlagHelp& flag : retrieval_help("").flags) {
    for (const char* name :
         {"--kv-select", "--kv-host-search", "--kv-window", "--kv-sinks", "--kv-dense-layers"}) {
      if (flag.names == name) retrieval.flags.push_back(flag);
    }
  }
  return {
      "eval",
      "tasks that compare methods: RULER's and others, with scores and intervals",
      "-m DIR [--tasks LIST] [--methods LIST] [flags]",
      "Compares methods on tasks: each sample's text is prefilled once, then every method "
      "answers it with every budget in a session of its own. docs/reference/eval.md: tasks, "
      "methods, files.",
      {model_help(),
       {"task",
        {{"--tasks",
          "LIST",
          "ruler or some of it (niah_single_1, vt, …), passkey, passkey_steps, repetition, "
          "tables, qa",
          "ruler",
          {"ruler", "passkey", "passkey_steps", "repetition", "tables", "qa"}},
         {"--lengths", "LIST", "tokens of context, question and answer together, as RULER's",
          "4K,16K"},
         {"--methods", "LIST",
          "dense, codes, streaming, or an index such as exact; INDEX+TAIL, "
          "METHOD@window=N,dense=N,…; ';' between them",
          "dense;codes"},
         {"--budgets", "LIST", "rows that each query head retrieves", "64,256"},
         {"--samples", "N", "of each task and length", "20, of qa all questions"},
         seed_help(),
         {"--essays", "DIR", "prose: a folder of *.txt and *.md", "generated sentences"},
         {"-f, --file", "FILE", "qa: the text to ask about; several as a.txt,b.md"},
         {"--questions", "FILE",
          "qa: lines of {\"question\": …, \"answers\": […], \"context_file\": …}"}}},
       retrieval,
       prefill_help("dense"),
       {"results",
        {{"-o, --output", "DIR", "goes on where it stopped, adds to its lists", "by settings"},
         {"--fresh", "", "start over"},
         {"--json", "", "answers as lines of JSON"}}}},
      {"topkv eval -m models/needle-14m --tasks ruler --methods 'dense;exact;codes' --samples 5",
       "topkv eval -m models/needle-14m --tasks qa --lengths 8K --file notes.md --questions "
       "asked.jsonl"}};
}

CommandHelp bench_help() {
  FlagGroup retrieval = retrieval_help("64");
  retrieval.title = "decode: one token at a time, for each index with each k";
  for (FlagHelp& flag : retrieval.flags) {
    if (flag.names == "--kv-index" || flag.names == "--kv-topk")
      flag.meaning += "; repeat to compare";
  }
  retrieval.flags.insert(
      retrieval.flags.end(),
      {{"--sessions", "N", "that are stepped together, a token each; repeat to compare", "1"},
       {"--tokens", "N", "steps timed, from 10", "16"},
       {"--after", "N", "steps before, from 4", "4"},
       {"--profile", "", "where the time went"}});
  return {
      "bench",
      "time attention over generated rows, without a model",
      "decode|prefill --shape SHAPE -c 1M [flags]",
      "Times attention alone, layer by layer, over generated rows: no weights, no other work. "
      "Keys come from clusters that drift along the text, with offsets and heavy hitters; layer "
      "0 attends nearly uniformly, odd layers broadly, others sharply: decode prints how much "
      "the best rows hold.",
      {{"rows",
        {{"--shape",
          "FILE",
          "llama3-8b, qwen2.5-7b-1m, needle-14m, or the path of a config.json",
          "",
          {"llama3-8b", "qwen2.5-7b-1m", "needle-14m"}},
         {"-c, --ctx", "N", "tokens of the context; K = 1024, M = 1024²"},
         {"--layers", "N", "only the first N layers", "all"},
         device_help(),
         gpu_memory_help(),
         threads_help(),
         memory_help(),
         seed_help(),
         {"--json", "", "a JSON line per row, times in seconds"}}},
       retrieval,
       {"prefill: chunk after chunk, in each mode",
        {{"--prefill", "HOW", "dense or window; repeat for both", "both", {"dense", "window"}},
         {"--prefill-window", "N", "last tokens that window mode sees", "1024"},
         {"--chunk", "N", "tokens of a step", "auto"},
         {"--at", "N", "instead of -c: time only the last chunk of a context of N tokens"}}}},
      {"topkv bench decode --shape qwen2.5-7b-1m -c 1M --kv-topk 64 --kv-topk 1024",
       "topkv bench prefill --shape llama3-8b --at 1M --layers 1 --prefill dense"},
      "decode|prefill"};
}

CommandHelp completion_help() {
  return {"completion",
          "what lets a shell complete commands, flags and values",
          "bash|zsh|fish",
          "Prints a script for the shell, to be read by it when it starts. make install puts it "
          "where shells look.",
          {},
          {"source <(topkv completion bash)",
           "topkv completion fish >~/.config/fish/completions/topkv.fish"},
          "bash|zsh|fish"};
}

CommandHelp manual_help() {
  return {"manual", "the manual page",
          "",       "Prints the manual page, for man. make install puts it where man looks.",
          {},       {"topkv manual | man -l -", "topkv manual >topkv.1"}};
}

}  // namespace topkv::cli
