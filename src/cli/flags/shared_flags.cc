#include "src/cli/flags/shared_flags.h"

#include <oneapi/tbb/info.h>

#include <algorithm>
#include <string>
#include <utility>

#include "topkv/draft_model.h"

namespace topkv::cli {
namespace {

Flag not_in_run(Flag flag) {
  flag.in_config = Flag::InConfig::none;
  return flag;
}

}  // namespace

Flag needing(Flag flag, std::string other, std::vector<std::string> values) {
  flag.needs = std::move(other);
  flag.needed_values = std::move(values);
  return flag;
}

Flag if_given(Flag flag) {
  flag.in_config = Flag::InConfig::if_given;
  return flag;
}

Flag length_flag(const std::string& otherwise) {
  return Flag("--length", value::count(),
              "rotate keys for texts of N tokens (LongRoPE and dynamic NTK only)", "", otherwise);
}

Flag required(Flag flag) {
  flag.required = true;
  return flag;
}

Flag fresh_flag() {
  return not_in_run(Flag("--fresh", {}, "replace earlier results in the folder"));
}

Flag depths_flag(const char* name, const std::string& meaning, const std::string& initial) {
  return Flag(name, value::text("a number of depths, or percent such as 5,50,95", "N|LIST"),
              meaning +
                  " at N evenly spread depths, or at these percentages: 5,50,95 (a single "
                  "one: 50%)",
              initial);
}

Flag profile_flag() {
  return not_in_run(Flag("--profile", {}, "print where the time of a step went, layer by layer"));
}

Flag folder_flag(const std::string& meaning, const std::string& otherwise) {
  return not_in_run(Flag("-o, --output", value::folder(), meaning, "", otherwise));
}

Flag files_flag(const std::string& meaning) {
  return Flag("-f, --file", value::repeated(value::file("a file, or - for standard input")),
              meaning);
}

Flag haystack_flag(const std::string& meaning) {
  return Flag(
      "--haystack",
      value::folder("generated, noise, needles or a directory", {"generated", "noise", "needles"}),
      meaning + " generated, noise or needles text, or a folder of *.txt and *.md", "generated");
}

Flag json_flag(const std::string& meaning) { return not_in_run(Flag("--json", {}, meaning)); }

FlagGroup model_flags(const std::string& weights) {
  return {"model",
          {required(Flag("-m, --model", value::model(),
                         "load this model: a directory, a *.gguf file or a downloaded org/name")),
           if_given(Flag("--weights", value::choice("FORMAT", {"stored", "int8", "int4"}), weights,
                         "stored")),
           Flag("--device", value::device(),
                "compute on cpu, cuda or cuda:N; auto takes a GPU if there is one", "auto"),
           Flag("--gpu-mem", value::bytes(), "use at most this much GPU memory", "",
                "9/10 of free GPU memory"),
           Flag("-t, --threads", value::count(1, oneapi::tbb::info::default_concurrency()),
                "use at most N threads", "", "all cores")}};
}

FlagGroup with_indexer(FlagGroup model, const std::string& meaning) {
  Flag flag("--indexer", value::file("the file of an indexer"), meaning);
  flag.value.endings = {"safetensors"};
  model.flags.insert(model.flags.begin() + 1, if_given(std::move(flag)));
  return model;
}

std::vector<Flag> draft_model_flags(const std::string& meaning) {
  return {Flag("--draft-model", value::model(), meaning, "", "none"),
          Flag("--draft-window", value::count(least_draft_window, most_draft_window),
               "let the draft model read the last N tokens of a text", "",
               std::to_string(DraftModelOptions().window))};
}

std::vector<Flag> draft_flags() {
  std::vector<Flag> flags = draft_model_flags(
      "draft with this smaller model of the same vocabulary where the text has no draft");
  flags.insert(
      flags.begin(),
      Flag("--draft", value::choice("MODE", {"auto", "none", "lookup"}),
           "draft tokens from the text: auto where answers stay as they are, lookup on a GPU, too",
           "auto"));
  return flags;
}

FlagGroup sampling_flags(const std::string& predict, const std::string& otherwise) {
  return {
      "answer",
      {Flag("-n, --predict", value::count(), "generate at most N tokens", predict, otherwise),
       Flag("--temp", value::real(0, 100), "set the temperature, 0 to 100; 0 is greedy", "0"),
       Flag("--top-k", value::count(0), "draw from the N likeliest tokens; 0 draws from all", "0"),
       Flag("--top-p", value::real(0, 1, true),
            "draw from the fewest tokens with this share of probability, above 0 and up to 1", "1"),
       Flag("--seed", value::seed(), "seed random draws with N", "42")}};
}

FlagGroup answer_flags(const std::string& predict) {
  FlagGroup group = sampling_flags(predict);
  std::vector<Flag>& flags = group.flags;
  flags.insert(
      flags.end() - 1,  // the seed is the last
      {Flag(
           "--min-p", value::real(0, 1),
           "draw from tokens with at least this share of the likeliest token's probability, 0 to 1",
           "0"),
       Flag("--repetition-penalty", value::real(0, 100, true),
            "divide the scores of tokens in the prompt or the answer by X (multiply scores below "
            "0), above 0 and up to 100",
            "1")});
  for (auto flag = flags.begin() + 1; flag != flags.end() - 1; ++flag)
    flag->otherwise = "generation_config.json, else " + std::exchange(flag->initial, "");
  flags.insert(
      flags.end() - 1,
      {Flag("--frequency-penalty", value::real(-2, 2),
            "subtract X from a token's score for each time it was generated, -2 to 2", "0"),
       Flag("--presence-penalty", value::real(-2, 2),
            "subtract X once from the score of each generated token, -2 to 2", "0"),
       Flag("--stop", value::repeated(value::prose("a text")),
            "end an answer before this text or special token; repeat for several; \\n, \\t, \\r, "
            "\\\\ as in C"),
       Flag("--json-schema", value::file("a file with a JSON schema"),
            "write JSON that conforms to the schema in FILE", "", "none")});
  const std::vector<Flag> drafts = draft_flags();
  flags.insert(flags.end() - 1, drafts.begin(), drafts.end());
  return group;
}

FlagGroup shown_flags() {
  return {"results",
          {json_flag("print lines of JSON as tokens come"),
           Flag("--logprobs", value::count(0, 20),
                "with --json: print log-probabilities, of the N likeliest tokens too, 0 to 20", "",
                "none"),
           not_in_run(Flag("--cite", {},
                           "print the three lines of the files that the answer attended most")),
           Flag("--quiet", {}, "print no figures and no progress")}};
}

FlagGroup retrieval_flags() {
  return {
      "retrieval",
      {Flag("--kv-index",
            value::text("an index such as exact, ivf or hnsw:M=16", "SPEC",
                        {"codes", "exact", "ivf", "hnsw", "faiss:IVF,SQ8", "faiss:HNSW32", "quest",
                         "sparq", "squeezed", "retroinfer", "lowrank", "h2o", "tova", "none"}),
            "find rows with codes, exact, ivf, hnsw, quest, faiss:IVF,SQ8, …", "",
            "codes:k=32,v=8; k=16 above 256 dims a head"),
       if_given(Flag("--kv-tail",
                     value::text("none, mean, or an index with codes of values, such as codes",
                                 "SPEC", {"none", "mean", "codes", "pages", "sample"}),
                     "estimate attention to all other rows: none, mean, codes", "",
                     "the index's own, if any")),
       Flag("--kv-topk", value::text("rows per layer such as 64 or uniform:512", "K"),
            "retrieve K rows per layer and query head: 64, uniform:512, linear:512 or a list", "128"),
       if_given(Flag("--kv-mass", value::or_word(value::real(0, 0.999999, true), "none"),
                     "with a tail: retrieve fewer rows if they hold this share of attention",
                     "none")),
       if_given(Flag("--kv-error", value::or_word(value::real(0, 100, true), "none"),
                     "with a tail: retrieve more rows if the expected error is above X; the true "
                     "error may be larger",
                     "none")),
       if_given(Flag("--kv-guarantee",
                     value::or_word(value::text("two numbers such as 0.1,0.05", "E,D"), "none"),
                     "sample other rows until a head's error exceeds E with probability D at most; "
                     "without a tail, on a CPU",
                     "none")),
       Flag("--kv-select", value::choice("HOW", {"query_head", "group"}),
            "choose rows for each query_head, or for a group of heads", "query_head"),
       if_given(
           Flag("--kv-host-search", {}, "search on the host, so that codes take no GPU memory")),
       if_given(Flag("--kv-gpu-rows", value::bytes(),
                     "with codes: keep rows in up to this much GPU memory, where they are attended "
                     "sooner",
                     "", "none")),
       Flag("--kv-window", value::count(), "always attend to the last N tokens", "1024"),
       Flag("--kv-sinks", value::count(0), "always attend to the first N tokens", "4"),
       Flag("--kv-dense-layers", value::or_word(value::count(0), "all", "N|all"),
            "attend to everything in the first N layers; recurrent and sliding-window layers count "
            "too",
            "0")}};
}

FlagGroup prefill_flags(const std::string& mode) {
  const auto chooses = [](Flag flag) {
    return needing(std::move(flag), "--prefill", {"sparse", "auto"});
  };
  return {
      "prefill",
      {Flag("--prefill", value::choice("HOW", {"auto", "dense", "sparse", "window"}),
            "read with dense, sparse or window attention; auto is sparse, or dense where that is "
            "quicker",
            mode),
       needing(Flag("--prefill-window", value::count(),
                    "sparse and window: let each token attend to the last N", "1024"),
               "--prefill", {"sparse", "window", "auto"}),
       chooses(Flag("--prefill-keys", value::count(),
                    "sparse: let tokens choose up to N earlier keys", "8192")),
       chooses(Flag("--prefill-least", value::count(0), "sparse: let tokens choose N keys or more",
                    "", "512, or --prefill-keys if that is less")),
       chooses(Flag("--prefill-mass", value::or_word(value::real(0, 1, true), "none"),
                    "sparse: choose no more keys once this share of attention is met, above 0 and "
                    "up to 1; none: always choose --prefill-keys",
                    "0.98")),
       Flag("--chunk", value::or_word(value::count(), "auto"), "read N tokens a step", "auto"),
       Flag("--kv-dtype", value::choice("TYPE", {"bf16", "q8", "q4", "q8/q4", "f16", "f32"}),
            "store rows as bf16, q8, q4, q8/q4 (keys/values), f16 or f32", "bf16"),
       not_in_run(Flag("--mem", value::bytes(),
                       "use at most this much memory for rows, such as 8GiB", "", "free memory"))}};
}

FlagGroup compared(FlagGroup group, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    Flag& flag = *std::ranges::find(group.flags, name, &Flag::names);
    flag.value.repeats = true;
    flag.meaning += "; repeat to compare";
  }
  return group;
}

const Flag& shared_flag(std::string_view name) {
  static const std::vector<FlagGroup> groups = {with_indexer(model_flags()), answer_flags(""),
                                                retrieval_flags(), prefill_flags("auto")};
  return *find_flag(groups, name);
}

}  // namespace topkv::cli
