// What --help says of the commands that run a model for what it answers.
#include "src/cli/help_models.h"

#include "src/cli/help_shared.h"

namespace topkv::cli {
namespace {

const std::string by_generation_config = "by generation_config.json, else off";

FlagHelp files(const std::string& meaning) { return {"-f, --file", "FILE", meaning}; }

FlagHelp chat_message(const std::string& what) {
  return {"--chat", "", what + " in the model's chat template"};
}

FlagHelp system_message(const std::string& condition) {
  return {"--system", "TEXT", condition + "a system message before all"};
}

FlagHelp template_variable(const std::string& condition) {
  return {"--template-arg", "NAME=JSON",
          condition +
              "sets a variable of the chat template, such as enable_thinking=false; repeat "
              "for several"};
}

FlagGroup with_samples(FlagGroup answer) {
  answer.flags.insert(answer.flags.begin() + 1,
                      {"-N, --samples", "N", "answers, with this seed and the next ones", "1"});
  return answer;
}

FlagGroup with_profile(FlagGroup shown) {
  shown.flags.push_back({"--profile", "", "where the time of a step went, layer by layer"});
  return shown;
}

}  // namespace

CommandHelp needle_help() {
  return {
      "needle",
      "hide facts in a long text and ask for them",
      "-m DIR [-c 128K,1M] [flags]",
      "Hides facts at several depths of a long text, prefills it once and asks for each in its own "
      "session.",
      {model_help(),
       {"task",
        {{"-c, --ctx", "LIST", "tokens of the context alone; K = 1024, M = 1024²: 4096,1M", "128K"},
         {"--ruler-length", "",
          "-c counts the question and 128 tokens of answer too, as RULER does"},
         {"--depths", "N|LIST", "N depths spread evenly, or percent: 5,50,95, one as 50%", "10"},
         {"--haystack",
          "DIR",
          "generated, noise, needles, or a folder of *.txt and *.md",
          "generated",
          {"generated", "noise", "needles"}},
         {"--needle",
          "STYLE",
          "number, word, uuid (as in RULER) or passkey",
          "number",
          {"number", "word", "uuid", "passkey"}},
         {"--needle-text", "TEXT", "a needle of your own, with --question and --answer"},
         {"--question", "TEXT", "that asks for it"},
         {"--answer", "TEXT", "that is expected"},
         {"--separate", "",
          "a context for each needle; passkey and own needles always have that"}}},
       retrieval_help("64"),
       prefill_help("window"),
       sampling_help("32; 64 for uuid", "0"),
       {"results",
        {{"-o, --output", "DIR", "goes on where it stopped, adds -c and --kv-index", "by settings"},
         {"--fresh", "", "start over"},
         {"--kv-recall", "",
          "also ask beside exact search, and report the share of its rows found"},
         {"--profile", "", "time of a step by layer"},
         {"--json", "", "cells as lines of JSON"}}}},
      {"topkv needle -m models/needle-14m -c 32K,128K,1M --kv-topk 64",
       "topkv needle -m models/needle-14m -c 128K --kv-index exact --kv-index hnsw:M=16 -o "
       "out/hnsw"}};
}

CommandHelp generate_help() {
  return {
      "generate",
      "continue a prompt, over files as context if you like",
      "-m DIR [-p PROMPT] [-f FILE]... [flags]",
      "Continues a prompt, or the text of files. Files become a frozen context before the prompt, of "
      "which each step retrieves rows. The tokens are those of files and prompt as one text: end a "
      "file's last line before a question.",
      {model_help(),
       {"text",
        {{"-p, --prompt", "TEXT", "what to continue; with --chat what to ask", "the files alone"},
         files("text of the context; repeat for several, - is standard input"),
         chat_message("files and prompt are a message"),
         system_message("with --chat: "),
         template_variable("with --chat: "),
         length_help("all the model can")}},
       with_samples(answer_help("128", by_generation_config)),
       retrieval_help("64"),
       prefill_help("dense"),
       with_profile(shown_help())},
      {"topkv generate -m models/needle-14m -p \"Once upon a time\" -n 40",
       "cat book.txt | topkv generate -m models/needle-14m -f - -p \"The hero's name is\" "
       "--prefill "
       "window"}};
}

CommandHelp chat_help() {
  return {
      "chat",
      "a conversation over files, for models with a chat template",
      "-m DIR [-f FILE]... [flags]",
      "A conversation in the model's chat template: each line of standard input is a question, "
      "answers go to standard output. Files are read once, before the first question. Ctrl-C ends "
      "an answer, and at the prompt the program, as the end of input (Ctrl-D) does.",
      {model_help(),
       {"text",
        {files("text to talk about; repeat for several"),
         system_message(""),
         template_variable(""),
         {"--room", "N", "tokens of questions and answers together, beside the files", "64K"}}},
       answer_help("1024", by_generation_config),
       retrieval_help("64"),
       prefill_help("dense"),
       shown_help()},
      {"topkv chat -m Qwen2.5-7B-Instruct-1M -f book.txt",
       "printf 'Who is the hero?\\nWhy?\\n' | topkv chat -m Qwen2.5-7B-Instruct-1M -f book.txt"}};
}

CommandHelp prefill_command_help() {
  return {"prefill",
          "read texts once, into a context that stays in a file",
          "-m DIR -f FILE... -o FILE.tkv [flags]",
          "Reads texts once and writes their context to a file, for topkv ask: rows, indices and "
          "codes. The file is seen when it is whole; what had its name stays until then.",
          {model_help(),
           {"text",
            {files("text of the context; repeat for several, - is standard input"),
             chat_message("the texts are the beginning of a message"),
             system_message("with --chat: "), length_help("all the model can")}},
           {"file",
            {{"-o, --output", "FILE", "the file to write"},
             {"--kv-index",
              "SPEC",
              "codes, exact, ivf, hnsw, faiss:IVF,SQ8, …; repeat for several",
              "codes, k by dim",
              {"codes", "exact", "ivf", "hnsw", "faiss:IVF,SQ8", "faiss:HNSW32"}},
             {"--kv-tail",
              "SPEC",
              "a tail that the index has not: mean, or a spec of codes",
              "",
              {"mean", "codes"}}}},
           prefill_help("dense"),
           {"results", {{"--quiet", "", "no figures and no progress"}}}},
          {"topkv prefill -m Qwen2.5-7B-Instruct-1M -f book.txt -o book.tkv --chat",
           "topkv prefill -m models/needle-14m -f notes.txt -o notes.tkv --prefill window"}};
}

CommandHelp ask_help() {
  FlagGroup retrieval = retrieval_help("64");
  retrieval.flags.front() = index_help("the file's");
  retrieval.flags.front().meaning = "one of the file, or another, which is built first";
  return {
      "ask",
      "ask of such a context, as often as you like",
      "FILE.tkv -m DIR [-p PROMPT]... [flags]",
      "Asks of a context that topkv prefill wrote, with the model that it was read by: each prompt "
      "by itself, several of them in joint steps, answers in order to standard output. Without -p "
      "each line of standard input is a prompt.",
      {model_help("as the context was read with"),
       {"text",
        {{"-p, --prompt", "TEXT",
          "what to continue, or to ask where the context is in a chat template; repeat for "
          "several"},
         template_variable("of a context in a chat template: "),
         {"--mmap", "", "rows stay in the file: for contexts larger than the memory"},
         memory_help(),
         length_help("as the context was read with")}},
       answer_help("128", by_generation_config),
       retrieval,
       shown_help()},
      {"topkv ask book.tkv -m Qwen2.5-7B-Instruct-1M -p \"Who is the hero?\" -p \"Where does it "
       "end?\"",
       "topkv ask notes.tkv -m models/needle-14m <prompts.txt"},
      "FILE.tkv"};
}

CommandHelp serve_help() {
  FlagGroup retrieval = retrieval_help("64");
  retrieval.flags.front() = index_help("a FILE's own; for texts of clients codes, k by dim");
  retrieval.flags.front().meaning = "of all contexts";
  FlagGroup prefill = prefill_help("dense");
  prefill.title = "texts that clients have it read";
  return {
      "serve",
      "the same over HTTP, for clients of OpenAI's API, many at a time",
      "-m DIR [FILE.tkv]... [--port N] [flags]",
      "Answers over HTTP as OpenAI's API does, requests over one context in joint steps: "
      "\"context\": "
      "\"book\" in a request is book.tkv, and so is \"model\": \"MODEL:book\". Ctrl-C ends it when "
      "running answers are whole, or after "
      "10 "
      "s; a second one ends it at once. docs/server.md: endpoints, fields, limits.",
      {model_help("as the contexts were read with"),
       {"server",
        {{"--host", "ADDRESS", "where it listens", "127.0.0.1"},
         {"--port", "N", "0 is any", "8080"},
         {"--api-key", "KEY", "clients must have it; better in the environment, TOPKV_API_KEY",
          "none"},
         {"--alias", "NAME", "another name that requests may give the model; repeat for several",
          "none"},
         {"--max-queue", "N", "answers that wait; more are refused with status 429", "64"},
         {"--max-batch", "N", "answers that are stepped together", "16"},
         {"--room", "N", "tokens of a prompt and its answer, beside the context", "16K"},
         {"--keep", "SIZE",
          "keep rows of ended answers, for prompts that go on from their texts; 0: keep none",
          "1/4 of what is free"},
         {"--mmap", "", "rows of FILEs stay in them"},
         length_help("as they were read with")}},
       retrieval,
       prefill},
      {"topkv serve -m models/needle-14m notes.tkv",
       "topkv serve -m Qwen/Qwen2.5-7B-Instruct-1M book.tkv laws.tkv --port 8000 --max-batch 8"},
      "FILE.tkv"};
}

CommandHelp verify_help() {
  return {
      "verify",
      "check such a file, byte by byte",
      "FILE.tkv [flags]",
      "Reads all of a context's file and checks it: every checksum, that rows are finite, that "
      "indices are of these rows. Ends with status 1, and names the first part that is damaged.",
      {{"",
        {threads_help(),
         {"--json", "", "print one JSON object, of a damaged file, too"},
         {"--quiet", "", "no progress, and nothing of a file that is whole"}}}},
      {"topkv verify book.tkv", "topkv verify book.tkv && cp book.tkv backup/"},
      "FILE.tkv"};
}

}  // namespace topkv::cli
