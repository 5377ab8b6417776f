// The commands that describe, plan, measure and compare, and their flags.
#include <algorithm>

#include "src/cli/flags/shared_flags.h"

namespace topkv::cli {
namespace {

FlagGroup compared_settings() {
  return compared(retrieval_flags(), {"--kv-index", "--kv-tail", "--kv-topk", "--kv-mass",
                                           "--kv-error", "--kv-guarantee"});
}

Flag report_file(const char* name, const char* meaning) {
  return Flag(name, value::file("a file to write"), meaning);
}

// A shared flag that means something else here.
Flag with_meaning(const char* name, const std::string& meaning) {
  Flag flag = shared_flag(name);
  flag.meaning = meaning;
  return flag;
}

// A shared flag without its default.
Flag planned(const char* name, const std::string& meaning, const std::string& otherwise) {
  Flag flag = with_meaning(name, meaning);
  flag.initial.clear();
  flag.otherwise = otherwise;
  return flag;
}

// -m of a command that needs no weights, and takes the model without -m too.
Flag description_flag() {
  return Flag("-m, --model", value::model(FlagValue::Kind::description),
              shared_flag("--model").meaning + "; DIR alone does, too");
}

CommandHelp info_command() {
  Flag description("DIR", value::model(FlagValue::Kind::description));
  description.value.name = "DIR|FILE.tkv";
  description.value.endings.emplace_back("tkv");
  return {"info",
          "describe a model and the memory of its contexts, or a context file",
          "DIR|FILE.tkv [flags]",
          "Prints a model's shape, the memory that its contexts take, and whether this machine has "
          "that memory. Checks that topkv runs the configuration and that the weights are "
          "complete. Ends with status 1 if weights are missing or damaged. If there are no weights "
          "yet, their size comes from config.json. For a file that topkv prefill wrote: prints its "
          "model and its contents.",
          {{"",
            {description_flag(),
             with_meaning("--weights", "count weights as stored, or rounded to int8 or int4"),
             shared_flag("--kv-dtype"), json_flag("print one JSON object")}}},
          {"topkv info models/needle-14m", "topkv info models/needle-14m --kv-dtype q8 --json"},
          {description}};
}

CommandHelp plan_command() {
  Flag index = planned("--kv-index", "plan with this index: codes:k=16,v=8 or exact",
                       "codes with the default k or half of it");
  index.value.expected = "exact, or codes such as codes:k=16,v=8";
  index.value.choices = {"codes", "exact"};
  return {
      "plan",
      "plan how a model and a context fit the memory",
      "DIR [-c 1M] [--gpu-mem 16GiB] [--mem 64GiB] [flags]",
      "Finds the most exact way of holding weights, rows and codes that fits the memory, and "
      "prints its flags. Also prints what the next more exact way needs. Reads headers alone, "
      "or config.json if there are no weights yet. Ends with status 1 if nothing fits. The GPU "
      "need not be in this machine.",
      {{"",
        {description_flag(),
         Flag("-c, --ctx", value::count(),
              "plan for N tokens, of the context and the answer together", "1M"),
         planned("--gpu-mem",
                 "plan for this much GPU memory, which needs a topkv with CUDA; 16GiB (or 16G) "
                 "is 16 * 2^30 bytes, 16GB is 16 * 10^9",
                 "9/10 of the free memory of this machine's GPU"),
         with_meaning(
             "--device",
             "without --gpu-mem: plan for cpu, cuda or cuda:N; auto takes a GPU if one is here"),
         planned("--mem", "plan for this much host memory", "free memory of this machine"),
         planned("--weights", "plan with these weights: stored, int8 or int4", "what fits"),
         planned("--kv-dtype", "plan with these rows: bf16, q8, q8/q4, q4, f16 or f32",
                 "what fits"),
         index, shared_flag("--kv-host-search"),
         Flag("--prefill", value::choice("HOW", {"auto", "dense", "sparse", "window"}),
              "plan for this prefill: dense, sparse or window; auto is sparse, or dense where that "
              "is quicker",
              "auto"),
         shared_flag("--prefill-window"), shared_flag("--prefill-keys"),
         shared_flag("--prefill-mass"),
         with_meaning("--draft-model", "count this draft model, too"),
         shared_flag("--draft-window"), json_flag("print one JSON object, with every way")}}},
      {"topkv plan models/needle-14m",
       "topkv plan Qwen2.5-7B-Instruct-1M -c 1M --gpu-mem 16GiB --mem 64GiB"},
      {Flag("DIR", value::model(FlagValue::Kind::description))}};
}

CommandHelp fidelity_command() {
  return {
      "fidelity",
      "compare retrieval with dense attention over a text",
      "-m DIR [-c 64K] [flags]",
      "Decodes with retrieval and with dense attention over the same context, and compares them "
      "token by token. Reports the error of every layer's output and its effect on the next token. "
      "Each combination of --kv-index, --kv-tail, --kv-topk, --kv-mass, --kv-error and "
      "--kv-guarantee is one setting. Several of --prefill, --prefill-keys or --prefill-mass "
      "compare prefills instead: "
      "what each leaves in the rows, beside a dense prefill.",
      {with_indexer(model_flags()),
       {"task",
        {Flag("-c, --ctx", value::count(), "prefill a context of N tokens (K = 1024, M = 1024²)",
              "64K"),
         haystack_flag("prefill"), depths_flag("--questions", "ask for facts", "4"),
         shared_flag("--seed")}},
       compared_settings(),
       compared(prefill_flags("window"),
                {"--kv-dtype", "--prefill", "--prefill-keys", "--prefill-mass"}),
       {"results",
        {json_flag("print a line of JSON for each setting"),
         report_file("--csv", "write these lines as CSV, without errors by layer"),
         report_file("--svg", "draw error and KL against the bytes read per token"),
         report_file("--html", "write picture, tables and settings as one page")}}},
      {"topkv fidelity -m models/needle-14m -c 64K --kv-tail none --kv-tail mean --kv-tail codes",
       "topkv fidelity -m models/needle-14m --kv-index codes --kv-topk 64 --kv-topk 256 --svg "
       "codes.svg"}};
}

CommandHelp perplexity_command() {
  return {
      "perplexity",
      "measure how well a text is predicted with and without retrieval",
      "-m DIR -f FILE... [-c 4K] [flags]",
      "Measures how well a text is predicted with retrieval and with dense attention. The text is "
      "cut into pieces of equal length. All but the last tokens of a piece are prefilled; the last "
      "tokens are fed one by one and scored. Each combination of --kv-index, --kv-tail, --kv-topk, "
      "--kv-mass, --kv-error and --kv-guarantee is one setting. All settings score the same "
      "tokens.",
      {with_indexer(model_flags()),
       {"task",
        {required(files_flag("score this text; repeat for several, - is standard input")),
         Flag("-c, --ctx", value::count(),
              "cut the text into pieces of N tokens (K = 1024, M = 1024²)", "4K"),
         Flag("--score", value::count(), "score the last N tokens of each piece", "256")}},
       compared_settings(),
       prefill_flags("auto"),
       {"results",
        {json_flag("print a line of JSON for dense attention and for each setting"),
         folder_flag("write perplexity.csv with these lines, and tokens.csv with the nats of each "
                     "token")}}},
      {"topkv perplexity -m models/needle-14m -f book.txt -c 16K --kv-index exact --kv-index "
       "codes",
       "topkv perplexity -m models/needle-14m -f book.txt --kv-topk 16 --kv-topk 64 -o "
       "out/perplexity"}};
}

CommandHelp eval_command() {
  FlagGroup retrieval = retrieval_flags();
  retrieval.title += ", unless a method sets it";
  retrieval.flags.erase(retrieval.flags.begin(),
                        std::ranges::find(retrieval.flags, "--kv-select", &Flag::names));
  return {
      "eval",
      "compare methods on tasks, RULER's and others, with scores and intervals",
      "-m DIR [--tasks LIST] [--methods LIST] [flags]",
      "Compares methods on tasks. The text of each sample is prefilled once. Then every method "
      "answers it with every budget, in a session of its own. Tasks, methods and files: "
      "docs/reference/eval.md.",
      {model_flags(),
       {"task",
        {Flag(
             "--tasks",
             value::text("tasks such as ruler,passkey,tables", "LIST",
                         {"ruler", "passkey", "passkey_steps", "repetition", "tables", "mrcr",
                          "text2json", "html_to_tsv", "multineedle", "qa"}),
             "run these tasks: ruler or some of it (niah_single_1, vt, …), passkey, passkey_steps, "
             "repetition, tables, mrcr, text2json, html_to_tsv, multineedle, qa",
             "ruler"),
         Flag("--lengths", value::text("tokens such as 4096,128K,1M", "LIST"),
              "make samples of these lengths in tokens, with question and answer, as RULER does",
              "4K,16K"),
         Flag("--methods", value::text("methods such as 'dense;exact;codes'", "LIST"),
              "compare these methods, with ';' between them: dense, codes, streaming, an index "
              "such as exact, INDEX+TAIL, METHOD@window=N,dense=N,…",
              "dense;codes"),
         Flag("--budgets", value::text("numbers of rows such as 64,256", "LIST"),
              "retrieve these numbers of rows per query head", "128"),
         Flag("--samples", value::count(1, 1'000'000), "ask N samples of each task and length", "",
              "20; all questions of qa"),
         shared_flag("--seed"),
         Flag("--essays", value::folder("a directory of *.txt and *.md files"),
              "take prose from a folder of *.txt and *.md", "", "generated sentences"),
         Flag("-f, --file", value::repeated(value::file("files of text, with commas between them")),
              "for qa: ask about this text; several as a.txt,b.md"),
         Flag("--questions", value::file("a file of questions in JSON lines"),
              "for qa: read questions, in lines of {\"question\": …, \"answers\": […], "
              "\"context_file\": …}")}},
       retrieval,
       prefill_flags("auto"),
       {"results",
        {folder_flag("write results to DIR; an earlier run there continues, with more in its lists",
                     "a folder for these settings"),
         fresh_flag(), json_flag("print answers as lines of JSON")}}},
      {"topkv eval -m models/needle-14m --tasks ruler --methods 'dense;exact;codes' --samples 5",
       "topkv eval -m models/needle-14m --tasks qa --lengths 8K --file notes.md --questions "
       "asked.jsonl"}};
}

CommandHelp bench_command() {
  FlagGroup retrieval = compared(retrieval_flags(), {"--kv-index", "--kv-topk"});
  retrieval.title = "decode: one token at a time, for each index with each k";
  retrieval.flags.insert(retrieval.flags.end(),
                         {Flag("--sessions", value::repeated(value::count()),
                               "step N sessions together, a token each; repeat to compare", "1"),
                          Flag("--tokens", value::count(10), "time N steps, 10 or more", "16"),
                          Flag("--after", value::count(4), "run N steps first, 4 or more", "4"),
                          Flag("--profile", {}, "print where the time went")});
  return {
      "bench",
      "time attention over generated rows, without a model",
      "decode|prefill --shape SHAPE -c 1M [flags]",
      "Times attention alone, layer by layer, over generated rows: no weights, no other work. "
      "Keys come from clusters that drift along the text, with offsets and heavy hitters. "
      "Layer 0 attends nearly uniformly, odd layers broadly, the others sharply. decode prints "
      "the share of attention that the best rows hold.",
      {{"rows",
        {required(
             Flag("--shape",
                  value::file("llama3-8b, qwen2.5-7b-1m, needle-14m or the path of a config.json",
                              {"llama3-8b", "qwen2.5-7b-1m", "needle-14m"}),
                  "use the shape of llama3-8b, qwen2.5-7b-1m, needle-14m, or of a config.json")),
         Flag("-c, --ctx", value::count(), "time a context of N tokens (K = 1024, M = 1024²)"),
         Flag("--layers", value::count(), "time the first N layers only", "", "all"),
         shared_flag("--device"), shared_flag("--gpu-mem"), shared_flag("--threads"),
         shared_flag("--mem"), shared_flag("--seed"),
         json_flag("print a line of JSON for each row, with times in seconds")}},
       retrieval,
       {"prefill: chunk after chunk, in each mode",
        {Flag("--prefill", value::repeated(value::choice("HOW", {"dense", "sparse", "window"})),
              "time dense, sparse or window attention; repeat to compare", "", "dense and window"),
         shared_flag("--prefill-window"), shared_flag("--prefill-keys"),
         shared_flag("--prefill-least"), shared_flag("--prefill-mass"), shared_flag("--chunk"),
         Flag("--at", value::count(),
              "instead of -c: time only the last chunk of a context of N tokens")}}},
      {"topkv bench decode --shape qwen2.5-7b-1m -c 1M --kv-topk 64 --kv-topk 1024",
       "topkv bench prefill --shape llama3-8b --at 1M --layers 1 --prefill dense"},
      {required(Flag("bench", value::choice("decode|prefill", {"decode", "prefill"})))}};
}

CommandHelp completion_command() {
  return {
      "completion",
      "print a script that completes commands, flags and values",
      "bash|zsh|fish",
      "Prints a script that a shell reads when it starts. make install puts it where shells look.",
      {},
      {"source <(topkv completion bash)",
       "topkv completion fish >~/.config/fish/completions/topkv.fish"},
      {required(Flag("SHELL", value::choice("bash|zsh|fish", {"bash", "zsh", "fish"})))}};
}

CommandHelp manual_command() {
  return {"manual", "print the manual page",
          "",       "Prints the manual page for man. make install puts it where man looks.",
          {},       {"topkv manual | man -l -", "topkv manual >topkv.1"}};
}

}  // namespace

std::vector<CommandHelp> tool_commands() {
  return {info_command(), plan_command(),  fidelity_command(),   perplexity_command(),
          eval_command(), bench_command(), completion_command(), manual_command()};
}

}  // namespace topkv::cli
