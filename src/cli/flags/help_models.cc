// What --help says of the commands that run a model for what it answers.
#include "src/cli/flags/help_models.h"

#include "src/cli/flags/help_shared.h"

namespace topkv::cli {
namespace {

FlagHelp files(const std::string& meaning) { return {"-f, --file", "FILE", meaning}; }

FlagHelp chat_message(const std::string& what) {
  return {"--chat", "", what + " in the model's chat template"};
}

FlagHelp system_message(const std::string& condition) {
  return {"--system", "TEXT", condition + "begin with this system message"};
}

FlagHelp template_variable(const std::string& condition) {
  return {
      "--template-arg", "NAME=JSON",
      condition +
          "set a variable of the chat template, such as enable_thinking=false; repeat for several"};
}

FlagGroup with_samples(FlagGroup answer) {
  answer.flags.insert(
      answer.flags.begin() + 1,
      {"-N, --samples", "N", "generate N answers, with this seed and the next ones", "1"});
  return answer;
}

FlagGroup with_profile(FlagGroup shown) {
  shown.flags.push_back({"--profile", "", "print where the time of a step went, layer by layer"});
  return shown;
}

}  // namespace

CommandHelp needle_help() {
  return {"needle",
          "hide facts in a long text and ask for them",
          "-m DIR [-c 128K,1M] [flags]",
          "Hides facts at several depths of a long text and prefills the text once. Then asks for "
          "each fact in a session of its own.",
          {model_help(),
           {"task",
            {{"-c, --ctx", "LIST",
              "prefill contexts of these lengths in tokens: 4096,1M (K = 1024, M = 1024²)", "128K"},
             {"--ruler-length", "",
              "let -c include the question and 128 tokens of answer, as RULER does"},
             {"--depths", "N|LIST",
              "hide facts at N evenly spread depths, or at these percentages: 5,50,95 (a single "
              "one: 50%)",
              "10"},
             {"--haystack",
              "DIR",
              "hide facts in generated, noise or needles text, or in a folder of *.txt and *.md",
              "generated",
              {"generated", "noise", "needles"}},
             {"--needle",
              "STYLE",
              "hide a number, word or uuid (as in RULER) or a passkey",
              "number",
              {"number", "word", "uuid", "passkey"}},
             {"--needle-text", "TEXT", "hide this sentence; needs --question and --answer"},
             {"--question", "TEXT", "ask for your own needle with this text"},
             {"--answer", "TEXT", "expect this answer to your question"},
             {"--separate", "",
              "prefill a context for each needle; always so for passkey and for your own needle"}}},
           retrieval_help("64"),
           prefill_help("window"),
           sampling_help("32; 64 for uuid"),
           {"results",
            {{"-o, --output", "DIR",
              "write results to DIR; an earlier run there continues, with more -c or --kv-index",
              "a folder for these settings"},
             {"--fresh", "", "replace earlier results in the folder"},
             {"--kv-recall", "",
              "also search exactly, and report the share of those rows that the index found"},
             {"--profile", "", "print where the time of a step went, layer by layer"},
             {"--json", "", "print cells as lines of JSON"}}}},
          {"topkv needle -m models/needle-14m -c 32K,128K,1M --kv-topk 64",
           "topkv needle -m models/needle-14m -c 128K --kv-index exact --kv-index hnsw:M=16 -o "
           "out/hnsw"}};
}

CommandHelp generate_help() {
  return {"generate",
          "continue a prompt, with files as context if wanted",
          "-m DIR [-p PROMPT] [-f FILE]... [flags]",
          "Continues a prompt, or the text of files. Files become a frozen context before the "
          "prompt, and each step retrieves rows from it. Files and prompt are read as one text: "
          "end the last line of a file before a question.",
          {model_help(),
           {"text",
            {{"-p, --prompt", "TEXT", "continue this text; with --chat, ask it", "the files alone"},
             files("read text of the context; repeat for several, - is standard input"),
             chat_message("ask with files and prompt as one message"),
             system_message("with --chat: "),
             template_variable("with --chat: "),
             length_help("all the model supports")}},
           with_samples(answer_help("128")),
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
      "hold a conversation over files, for models with a chat template",
      "-m DIR [-f FILE]... [flags]",
      "Holds a conversation in the model's chat template. Each line of standard input is a "
      "question; answers go to standard output. Files are read once, before the first question. "
      "Ctrl-C ends an answer. At the prompt, Ctrl-C or the end of the input (Ctrl-D) ends the "
      "program.",
      {model_help(),
       {"text",
        {files("talk about this text; repeat for several"),
         system_message(""),
         template_variable(""),
         {"--room", "N", "allow N tokens for questions and answers together, beside the files",
          "64K"}}},
       answer_help("1024"),
       retrieval_help("64"),
       prefill_help("dense"),
       shown_help()},
      {"topkv chat -m Qwen2.5-7B-Instruct-1M -f book.txt",
       "printf 'Who is the hero?\\nWhy?\\n' | topkv chat -m Qwen2.5-7B-Instruct-1M -f book.txt"}};
}

CommandHelp prefill_command_help() {
  return {
      "prefill",
      "read texts once into a context file",
      "-m DIR -f FILE... -o FILE.tkv [flags]",
      "Reads texts once and writes their context to a file for topkv ask: rows, indices and codes. "
      "The new file appears once it is complete; an older file of that name stays until then.",
      {model_help(),
       {"text",
        {files("read text of the context; repeat for several, - is standard input"),
         chat_message("make the texts the beginning of a message"), system_message("with --chat: "),
         length_help("all the model supports")}},
       {"file",
        {{"-o, --output", "FILE", "write the context to FILE"},
         {"--kv-index",
          "SPEC",
          "build codes, exact, ivf, hnsw, faiss:IVF,SQ8, …; repeat for several",
          "codes:k=16,v=8; k=32 below 128 dims a head",
          {"codes", "exact", "ivf", "hnsw", "faiss:IVF,SQ8", "faiss:HNSW32"}},
         {"--kv-tail",
          "SPEC",
          "build a tail beside the index's own: mean, or a spec of codes",
          "none",
          {"mean", "codes"}}}},
       prefill_help("dense"),
       {"results", {{"--quiet", "", "print no figures and no progress"}}}},
      {"topkv prefill -m Qwen2.5-7B-Instruct-1M -f book.txt -o book.tkv --chat",
       "topkv prefill -m models/needle-14m -f notes.txt -o notes.tkv --prefill window"}};
}

CommandHelp ask_help() {
  FlagGroup retrieval = retrieval_help("64");
  retrieval.flags.front() = index_help("the file's");
  retrieval.flags.front().meaning =
      "find rows with an index of the file, or build another one first";
  return {
      "ask",
      "answer prompts over a context file",
      "FILE.tkv -m DIR [-p PROMPT]... [flags]",
      "Answers prompts over a context that topkv prefill wrote, with the model that read it. Each "
      "prompt is answered by itself, several of them in joint steps. Answers go to standard output "
      "in the order of the prompts.",
      {model_help("hold weights as for topkv prefill: stored, int8 or int4"),
       {"text",
        {{"-p, --prompt", "TEXT",
          "continue this text, or ask it if the context is in a chat template; repeat for several",
          "lines of standard input"},
         template_variable("for a context in a chat template: "),
         {"--mmap", "", "leave rows in the file, for contexts larger than memory"},
         memory_help(),
         length_help("as the context was read")}},
       answer_help("128"),
       retrieval,
       shown_help()},
      {"topkv ask book.tkv -m Qwen2.5-7B-Instruct-1M -p \"Who is the hero?\" -p \"Where does it "
       "end?\"",
       "topkv ask notes.tkv -m models/needle-14m <prompts.txt"},
      "FILE.tkv"};
}

CommandHelp serve_help() {
  FlagGroup retrieval = retrieval_help("64");
  retrieval.flags.front() = index_help("a FILE's own; codes for texts of clients");
  retrieval.flags.front().meaning = "find rows of all contexts with this index";
  FlagGroup prefill = prefill_help("dense");
  prefill.title = "prefill of texts that clients send";
  return {
      "serve",
      "serve contexts over HTTP to many clients of OpenAI's API",
      "-m DIR [FILE.tkv]... [--port N] [flags]",
      "Answers requests over HTTP as OpenAI's API does; requests over one context share steps. A "
      "request names book.tkv by \"context\": \"book\" or by \"model\": \"MODEL:book\". Ctrl-C "
      "ends the server once running answers are complete, after 10 s at most. A second Ctrl-C ends "
      "it at once. Routes, fields and limits: docs/reference/server.md.",
      {model_help("hold weights as for topkv prefill: stored, int8 or int4"),
       {"server",
        {{"--host", "ADDRESS", "listen at this address", "127.0.0.1"},
         {"--port", "N", "listen at this port; 0 takes any free port", "8080"},
         {"--api-key", "KEY",
          "require this key from clients; other users cannot see it in TOPKV_API_KEY", "none"},
         {"--alias", "NAME", "accept NAME for the model in requests, too; repeat for several",
          "none"},
         {"--max-queue", "N", "let at most N answers wait; refuse more with status 429", "64"},
         {"--max-batch", "N", "step at most N answers together", "16"},
         {"--room", "N", "allow N tokens for a prompt and its answer, beside the context", "16K"},
         {"--keep", "SIZE",
          "keep rows of ended answers for prompts that continue their texts; 0 keeps none",
          "1/4 of free memory"},
         {"--mmap", "", "leave rows in the files"},
         length_help("as the contexts were read")}},
       retrieval,
       prefill},
      {"topkv serve -m models/needle-14m notes.tkv",
       "topkv serve -m Qwen/Qwen2.5-7B-Instruct-1M book.tkv laws.tkv --port 8000 --max-batch 8"},
      "FILE.tkv"};
}

CommandHelp verify_help() {
  return {"verify",
          "check a context file byte by byte",
          "FILE.tkv [flags]",
          "Reads a whole context file. Checks every checksum, that all rows are finite, and that "
          "the indices belong to these rows. Ends with status 1 and names the first damaged part "
          "if there is one.",
          {{"",
            {threads_help(),
             {"--json", "", "print one JSON object, for a damaged file, too"},
             {"--quiet", "", "print no progress, and nothing about an undamaged file"}}}},
          {"topkv verify book.tkv", "topkv verify book.tkv && cp book.tkv backup/"},
          "FILE.tkv"};
}

}  // namespace topkv::cli
