// What --help says of the commands that tell, plan, measure and compare.
#include "src/cli/flags/help_tools.h"

#include "src/cli/flags/help_shared.h"

namespace topkv::cli {

CommandHelp info_help() {
  return {"info",
          "describe a model and the memory of its contexts, or a context file",
          "DIR|FILE.tkv [flags]",
          "Prints a model's shape, the memory that its contexts take, and whether this machine has "
          "that memory. Checks that topkv runs the configuration and that the weights are "
          "complete. Ends with status 1 if weights are missing or damaged. If there are no weights "
          "yet, their size comes from config.json. For a file that topkv prefill wrote: prints its "
          "model and its contents.",
          {{"",
            {model_flag_help("; DIR alone does, too"),
             weights_help("count weights as stored, or rounded to int8 or int4"),
             dtype_help(),
             {"--json", "", "print one JSON object"}}}},
          {"topkv info models/needle-14m", "topkv info models/needle-14m --kv-dtype q8 --json"},
          "DIR|FILE.tkv"};
}

CommandHelp plan_help() {
  FlagHelp index = index_help("codes with the default k or half of it");
  index.meaning = "plan with this index: codes:k=16,v=8 or exact";
  index.choices = {"codes", "exact"};
  FlagHelp dtype = dtype_help();
  dtype.meaning = "plan with these rows: bf16, q8, q8/q4, q4, f16 or f32";
  dtype.otherwise = "what fits";
  return {"plan",
          "plan how a model and a context fit the memory",
          "DIR [-c 1M] [--gpu-mem 16GiB] [--mem 64GiB] [flags]",
          "Finds the most exact way of holding weights, rows and codes that fits the memory, and "
          "prints its flags. Also prints what the next more exact way needs. Reads headers alone, "
          "or config.json if there are no weights yet. Ends with status 1 if nothing fits. The GPU "
          "need not be in this machine.",
          {{"",
            {model_flag_help("; DIR alone does, too"),
             {"-c, --ctx", "N", "plan for N tokens, of the context and the answer together", "1M"},
             {"--gpu-mem", "SIZE",
              "plan for this much GPU memory: 16GiB (or 16G) is 16 * 2^30 bytes, 16GB is 16 * 10^9",
              "9/10 of the free memory of this machine's GPU"},
             {"--device",
              "WHERE",
              "without --gpu-mem: plan for cpu, cuda or cuda:N; auto takes a GPU if one is here",
              "auto",
              {"cpu", "cuda", "auto"}},
             {"--mem", "SIZE", "plan for this much host memory", "free memory of this machine"},
             weights_help("plan with these weights: stored, int8 or int4", "what fits"),
             dtype,
             index,
             host_search_help(),
             {"--prefill",
              "HOW",
              "plan for this prefill, dense or window",
              "dense; window if dense takes long and there is no GPU",
              {"dense", "window"}},
             {"--json", "", "print one JSON object, with every way"}}}},
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
      "compare retrieval with dense attention over a text",
      "-m DIR [-c 64K] [flags]",
      "Decodes with retrieval and with dense attention over the same context, and compares them "
      "token by token. Reports the error of every layer's output and its effect on the next token. "
      "Each combination of --kv-index, --kv-tail, --kv-topk, --kv-mass and --kv-error is one "
      "setting.",
      {model_help(),
       {"task",
        {{"-c, --ctx", "N", "prefill a context of N tokens (K = 1024, M = 1024²)", "64K"},
         {"--haystack",
          "DIR",
          "prefill generated, noise or needles text, or a folder of *.txt and *.md",
          "generated",
          {"generated", "noise", "needles"}},
         {"--questions", "N|LIST",
          "ask for facts at N evenly spread depths, or at these percentages: 5,50,95 (a single "
          "one: 50%)",
          "4"},
         seed_help()}},
       retrieval_help("256", Repeats::yes),
       prefill,
       {"results",
        {{"--json", "", "print a line of JSON for each setting"},
         {"--csv", "FILE", "write these lines as CSV, without errors by layer"},
         {"--svg", "FILE", "draw error and KL against the bytes read per token"},
         {"--html", "FILE", "write picture, tables and settings as one page"}}}},
      {"topkv fidelity -m models/needle-14m -c 64K --kv-tail none --kv-tail mean --kv-tail codes",
       "topkv fidelity -m models/needle-14m --kv-index codes --kv-topk 64 --kv-topk 256 --svg "
       "codes.svg"}};
}

CommandHelp perplexity_help() {
  return {
      "perplexity",
      "measure how well a text is predicted with and without retrieval",
      "-m DIR -f FILE... [-c 4K] [flags]",
      "Measures how well a text is predicted with retrieval and with dense attention. The text is "
      "cut into pieces of equal length. All but the last tokens of a piece are prefilled; the last "
      "tokens are fed one by one and scored. Each combination of --kv-index, --kv-tail, --kv-topk, "
      "--kv-mass and --kv-error is one setting. All settings score the same tokens.",
      {model_help(),
       {"task",
        {{"-f, --file", "FILE", "score this text; repeat for several, - is standard input"},
         {"-c, --ctx", "N", "cut the text into pieces of N tokens (K = 1024, M = 1024²)", "4K"},
         {"--score", "N", "score the last N tokens of each piece", "256"}}},
       retrieval_help("256", Repeats::yes),
       prefill_help("dense"),
       {"results",
        {{"--json", "", "print a line of JSON for dense attention and for each setting"},
         {"-o, --output", "DIR",
          "write perplexity.csv with these lines, and tokens.csv with the nats of each token"}}}},
      {"topkv perplexity -m models/needle-14m -f book.txt -c 16K --kv-index exact --kv-index "
       "codes",
       "topkv perplexity -m models/needle-14m -f book.txt --kv-topk 16 --kv-topk 64 -o "
       "out/perplexity"}};
}

CommandHelp eval_help() {
  FlagGroup retrieval = {"retrieval, unless a method sets it", {}};
  for (const FlagHelp& flag : retrieval_help("").flags) {
    for (const char* name :
         {"--kv-select", "--kv-host-search", "--kv-window", "--kv-sinks", "--kv-dense-layers"}) {
      if (flag.names == name) retrieval.flags.push_back(flag);
    }
  }
  return {
      "eval",
      "compare methods on tasks, RULER's and others, with scores and intervals",
      "-m DIR [--tasks LIST] [--methods LIST] [flags]",
      "Compares methods on tasks. The text of each sample is prefilled once. Then every method "
      "answers it with every budget, in a session of its own. Tasks, methods and files: "
      "docs/reference/eval.md.",
      {model_help(),
       {"task",
        {{"--tasks",
          "LIST",
          "run these tasks: ruler or some of it (niah_single_1, vt, …), passkey, passkey_steps, "
          "repetition, tables, qa",
          "ruler",
          {"ruler", "passkey", "passkey_steps", "repetition", "tables", "qa"}},
         {"--lengths", "LIST",
          "make samples of these lengths in tokens, with question and answer, as RULER does",
          "4K,16K"},
         {"--methods", "LIST",
          "compare these methods, with ';' between them: dense, codes, streaming, an index such as "
          "exact, INDEX+TAIL, METHOD@window=N,dense=N,…",
          "dense;codes"},
         {"--budgets", "LIST", "retrieve these numbers of rows per query head", "64,256"},
         {"--samples", "N", "ask N samples of each task and length", "20; all questions of qa"},
         seed_help(),
         {"--essays", "DIR", "take prose from a folder of *.txt and *.md", "generated sentences"},
         {"-f, --file", "FILE", "for qa: ask about this text; several as a.txt,b.md"},
         {"--questions", "FILE",
          "for qa: read questions, in lines of {\"question\": …, \"answers\": […], "
          "\"context_file\": …}"}}},
       retrieval,
       prefill_help("dense"),
       {"results",
        {{"-o, --output", "DIR",
          "write results to DIR; an earlier run there continues, with more in its lists",
          "a folder for these settings"},
         {"--fresh", "", "replace earlier results in the folder"},
         {"--json", "", "print answers as lines of JSON"}}}},
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
      {{"--sessions", "N", "step N sessions together, a token each; repeat to compare", "1"},
       {"--tokens", "N", "time N steps, 10 or more", "16"},
       {"--after", "N", "run N steps first, 4 or more", "4"},
       {"--profile", "", "print where the time went"}});
  return {
      "bench",
      "time attention over generated rows, without a model",
      "decode|prefill --shape SHAPE -c 1M [flags]",
      "Times attention alone, layer by layer, over generated rows: no weights, no other work. "
      "Keys come from clusters that drift along the text, with offsets and heavy hitters. "
      "Layer 0 attends nearly uniformly, odd layers broadly, the others sharply. decode prints "
      "the share of attention that the best rows hold.",
      {{"rows",
        {{"--shape",
          "FILE",
          "use the shape of llama3-8b, qwen2.5-7b-1m, needle-14m, or of a config.json",
          "",
          {"llama3-8b", "qwen2.5-7b-1m", "needle-14m"}},
         {"-c, --ctx", "N", "time a context of N tokens (K = 1024, M = 1024²)"},
         {"--layers", "N", "time the first N layers only", "all"},
         device_help(),
         gpu_memory_help(),
         threads_help(),
         memory_help(),
         seed_help(),
         {"--json", "", "print a line of JSON for each row, with times in seconds"}}},
       retrieval,
       {"prefill: chunk after chunk, in each mode",
        {{"--prefill",
          "HOW",
          "time dense or window attention; repeat for both",
          "both",
          {"dense", "window"}},
         {"--prefill-window", "N", "let each token attend to the last N in window mode", "1024"},
         {"--chunk", "N", "read N tokens a step", "auto"},
         {"--at", "N", "instead of -c: time only the last chunk of a context of N tokens"}}}},
      {"topkv bench decode --shape qwen2.5-7b-1m -c 1M --kv-topk 64 --kv-topk 1024",
       "topkv bench prefill --shape llama3-8b --at 1M --layers 1 --prefill dense"},
      "decode|prefill"};
}

CommandHelp completion_help() {
  return {
      "completion",
      "print a script that completes commands, flags and values",
      "bash|zsh|fish",
      "Prints a script that a shell reads when it starts. make install puts it where shells look.",
      {},
      {"source <(topkv completion bash)",
       "topkv completion fish >~/.config/fish/completions/topkv.fish"},
      "bash|zsh|fish"};
}

CommandHelp manual_help() {
  return {"manual", "print the manual page",
          "",       "Prints the manual page for man. make install puts it where man looks.",
          {},       {"topkv manual | man -l -", "topkv manual >topkv.1"}};
}

}  // namespace topkv::cli
