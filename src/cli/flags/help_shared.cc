#include "src/cli/flags/help_shared.h"

namespace topkv::cli {
namespace {

std::string compared(const std::string& meaning, Repeats repeats) {
  return repeats == Repeats::yes ? meaning + "; repeat to compare" : meaning;
}

}  // namespace

FlagHelp model_flag_help(const std::string& more) {
  return {"-m, --model", "DIR",
          "load this model: a directory, a *.gguf file or a downloaded org/name" + more};
}

FlagHelp device_help() {
  return {"--device",
          "WHERE",
          "compute on cpu, cuda or cuda:N; auto takes a GPU if there is one",
          "auto",
          {"cpu", "cuda", "auto"}};
}

FlagHelp gpu_memory_help() {
  return {"--gpu-mem", "SIZE", "use at most this much GPU memory", "9/10 of free GPU memory"};
}

FlagHelp weights_help(const std::string& meaning, const std::string& otherwise) {
  return {"--weights", "FORMAT", meaning, otherwise, {"stored", "int8", "int4"}};
}

FlagHelp threads_help() { return {"-t, --threads", "N", "use at most N threads", "all cores"}; }

FlagHelp index_help(const std::string& otherwise, Repeats repeats) {
  return {"--kv-index",
          "SPEC",
          compared("find rows with codes, exact, ivf, hnsw, quest, faiss:IVF,SQ8, …", repeats),
          otherwise,
          {"codes", "exact", "ivf", "hnsw", "faiss:IVF,SQ8", "faiss:HNSW32", "quest", "sparq",
           "squeezed", "retroinfer", "lowrank", "h2o", "tova", "none"}};
}

FlagHelp host_search_help() {
  return {"--kv-host-search", "", "search on the host, so that codes take no GPU memory"};
}

FlagHelp dtype_help(Repeats repeats) {
  return {"--kv-dtype",
          "TYPE",
          compared("store rows as bf16, q8, q4, q8/q4 (keys/values), f16 or f32", repeats),
          "bf16",
          {"bf16", "q8", "q4", "q8/q4", "f16", "f32"}};
}

FlagHelp memory_help() {
  return {"--mem", "SIZE", "use at most this much memory for rows, such as 8GiB", "free memory"};
}

FlagHelp length_help(const std::string& otherwise) {
  return {"--length", "N", "rotate keys for texts of N tokens (LongRoPE and dynamic NTK only)",
          otherwise};
}

FlagHelp seed_help() { return {"--seed", "N", "seed random draws with N", "42"}; }

FlagGroup model_help(const std::string& weights) {
  return {
      "model",
      {model_flag_help(), weights_help(weights), device_help(), gpu_memory_help(), threads_help()}};
}

FlagGroup sampling_help(const std::string& predict, const std::string& model_default) {
  return {
      "answer",
      {{"-n, --predict", "N", "generate at most N tokens", predict},
       {"--temp", "X", "set the temperature, 0 to 100; 0 is greedy", model_default + "0"},
       {"--top-k", "N", "draw from the N likeliest tokens; 0 draws from all", model_default + "0"},
       {"--top-p", "X",
        "draw from the fewest tokens with this share of probability, above 0 and up to 1",
        model_default + "1"},
       seed_help()}};
}

FlagGroup answer_help(const std::string& predict) {
  const std::string model_default = "generation_config.json, else ";
  FlagGroup group = sampling_help(predict, model_default);
  group.flags.insert(
      group.flags.end() - 1,  // the seed is the last
      {{"--min-p", "X",
        "draw from tokens with at least this share of the likeliest token's probability, 0 to 1",
        model_default + "0"},
       {"--repetition-penalty", "X",
        "divide the scores of tokens in the prompt or the answer by X (multiply scores below 0), "
        "above 0 and up to 100",
        model_default + "1"},
       {"--frequency-penalty", "X",
        "subtract X from a token's score for each time it was generated, -2 to 2", "0"},
       {"--presence-penalty", "X",
        "subtract X once from the score of each generated token, -2 to 2", "0"},
       {"--stop", "TEXT",
        "end an answer before this text or special token; repeat for several; \\n, \\t, \\r, "
        "\\\\ as in C"}});
  return group;
}

FlagGroup shown_help() {
  return {"results",
          {{"--json", "", "print lines of JSON as tokens come"},
           {"--logprobs", "N",
            "with --json: print log-probabilities, of the N likeliest tokens too, 0 to 20", "none"},
           {"--quiet", "", "print no figures and no progress"}}};
}

FlagGroup retrieval_help(const std::string& k, Repeats repeats) {
  return {
      "retrieval",
      {index_help("codes:k=16,v=8; k=32 below 128 dims a head", repeats),
       {"--kv-tail",
        "SPEC",
        compared("estimate attention to all other rows: none, mean, codes", repeats),
        "the index's own, if any",
        {"none", "mean", "codes", "pages", "sample"}},
       {"--kv-topk", "K",
        compared("retrieve K rows per layer and query head: 64, uniform:512, linear:512 or a list",
                 repeats),
        k},
       {"--kv-mass", "X",
        compared("with a tail: retrieve fewer rows if they hold this share of attention", repeats),
        "none"},
       {"--kv-error", "X",
        compared("with a tail: retrieve more rows if the expected error is above X; the true error "
                 "can be several times as large",
                 repeats),
        "none"},
       {"--kv-select",
        "HOW",
        "choose rows for each query_head, or for a group of heads",
        "query_head",
        {"query_head", "group"}},
       host_search_help(),
       {"--kv-window", "N", "always attend to the last N tokens", "1024"},
       {"--kv-sinks", "N", "always attend to the first N tokens", "4"},
       {"--kv-dense-layers", "N|all", "attend to everything in the first N layers", "0"}}};
}

FlagGroup prefill_help(const std::string& mode) {
  return {"prefill",
          {{"--prefill",
            "HOW",
            "read with dense or window attention; dense time grows with the square of the length",
            mode,
            {"dense", "window"}},
           {"--prefill-window", "N", "let each token attend to the last N in window mode", "1024"},
           {"--chunk", "N", "read N tokens a step", "auto"},
           dtype_help(),
           memory_help()}};
}

}  // namespace topkv::cli
