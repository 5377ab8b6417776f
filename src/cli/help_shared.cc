#include "src/cli/help_shared.h"

namespace topkv::cli {
namespace {

std::string compared(const std::string& meaning, Repeats repeats) {
  return repeats == Repeats::yes ? meaning + "; repeat to compare" : meaning;
}

}  // namespace

FlagHelp model_flag_help(const std::string& more) {
  return {"-m, --model", "DIR", "a model's directory, *.gguf, or org/name" + more};
}

FlagHelp device_help() {
  return {"--device",
          "WHERE",
          "cpu, cuda, cuda:N or auto: the GPU if there is one",
          "auto",
          {"cpu", "cuda", "auto"}};
}

FlagHelp gpu_memory_help() {
  return {"--gpu-mem", "SIZE", "what may be taken of the GPU's memory, at most",
          "9/10 of what is free"};
}

FlagHelp weights_help(const std::string& meaning, const std::string& otherwise) {
  return {"--weights", "FORMAT", meaning, otherwise, {"stored", "int8", "int4"}};
}

FlagHelp threads_help() { return {"-t, --threads", "N", "threads at most", "all cores"}; }

FlagHelp index_help(const std::string& otherwise, Repeats repeats) {
  return {"--kv-index",
          "SPEC",
          compared("who finds rows: codes, exact, ivf, hnsw, quest, faiss:IVF,SQ8, …", repeats),
          otherwise,
          {"codes", "exact", "ivf", "hnsw", "faiss:IVF,SQ8", "faiss:HNSW32", "quest", "sparq",
           "squeezed", "retroinfer", "lowrank", "h2o", "tova", "none"}};
}

FlagHelp host_search_help() {
  return {"--kv-host-search", "", "the host finds rows, and codes take none of the GPU"};
}

FlagHelp dtype_help(Repeats repeats) {
  return {"--kv-dtype",
          "TYPE",
          compared("of the rows: bf16, q8, q4, q8/q4 (keys/values), f16 or f32", repeats),
          "bf16",
          {"bf16", "q8", "q4", "q8/q4", "f16", "f32"}};
}

FlagHelp memory_help() {
  return {"--mem", "SIZE", "what rows may take of the memory, such as 8GiB", "what is free"};
}

FlagHelp length_help(const std::string& otherwise) {
  return {"--length", "N", "tokens that LongRoPE and dynamic NTK turn keys for", otherwise};
}

FlagHelp seed_help() { return {"--seed", "N", "of what is drawn", "42"}; }

FlagGroup model_help(const std::string& weights) {
  return {
      "model",
      {model_flag_help(), weights_help(weights), device_help(), gpu_memory_help(), threads_help()}};
}

FlagGroup sampling_help(const std::string& predict, const std::string& sampling) {
  return {"answer",
          {{"-n, --predict", "N", "tokens to generate at most", predict},
           {"--temp", "X", "temperature, 0 to 100; 0 is greedy", sampling},
           {"--top-k", "N", "of the N likeliest tokens; 0: of all"},
           {"--top-p", "X", "of the likeliest that hold this share, above 0 and up to 1"},
           seed_help()}};
}

FlagGroup answer_help(const std::string& predict, const std::string& sampling) {
  FlagGroup group = sampling_help(predict, sampling);
  group.flags.insert(
      group.flags.end() - 1,  // the seed is the last
      {{"--min-p", "X", "of tokens with this share of the likeliest's probability, 0 to 1"},
       {"--repetition-penalty", "X",
        "divides scores of tokens that were there, prompt and all: above 0, up to 100; 1 is none"},
       {"--frequency-penalty", "X", "taken off for each time that a token was generated, -2 to 2",
        "0"},
       {"--presence-penalty", "X", "taken off once it was generated, -2 to 2", "0"},
       {"--stop", "TEXT",
        "an answer ends before this text, or special token; repeat for several; \\n, \\t, \\r, "
        "\\\\ as "
        "in C"}});
  return group;
}

FlagGroup shown_help() {
  return {"results",
          {{"--json", "", "lines of JSON as tokens come"},
           {"--logprobs", "N", "in them, of the N likeliest tokens at each place", "none"},
           {"--quiet", "", "no figures and no progress"}}};
}

FlagGroup retrieval_help(const std::string& k, Repeats repeats) {
  return {
      "retrieval",
      {index_help("codes, k by dim", repeats),
       {"--kv-tail",
        "SPEC",
        compared("what stands for all other rows: none, mean, codes", repeats),
        "what the index has",
        {"none", "mean", "codes", "pages", "sample"}},
       {"--kv-topk", "K",
        compared("rows retrieved per layer: 64, uniform:512, linear:512 or a list", repeats), k},
       {"--kv-mass", "X",
        compared("with a tail: fewer rows where they hold this share of attention", repeats),
        "none"},
       {"--kv-error", "X",
        compared("with a tail: more rows where the expected error is above X; the true error can "
                 "be several times as large",
                 repeats),
        "none"},
       {"--kv-select",
        "HOW",
        "query_head or group chooses rows",
        "query_head",
        {"query_head", "group"}},
       host_search_help(),
       {"--kv-window", "N", "last tokens, always attended", "1024"},
       {"--kv-sinks", "N", "first tokens, always attended", "4"},
       {"--kv-dense-layers", "N|all", "first layers that attend everything", "0"}}};
}

FlagGroup prefill_help(const std::string& mode) {
  return {"prefill",
          {{"--prefill",
            "HOW",
            "dense, or window: time grows with the length, not its square",
            mode,
            {"dense", "window"}},
           {"--prefill-window", "N", "last tokens that window mode sees", "1024"},
           {"--chunk", "N", "tokens of a step", "auto"},
           dtype_help(),
           memory_help()}};
}

}  // namespace topkv::cli
