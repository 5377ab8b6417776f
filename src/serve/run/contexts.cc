#include "src/serve/run/contexts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/core/text/byte_text.h"
#include "src/core/text/printable.h"
#include "src/serve/request/problem.h"
#include "src/serve/run/prompt_boundary.h"
#include "topkv/error.h"

namespace topkv::serve {

struct Contexts::Entry {
  ContextRequest request;  // text: until it is read
  std::string state = "waiting";
  std::string error, warning;
  std::int64_t done = 0, total = 0;
  bool removed = false;
  std::shared_ptr<const ServedContext> ready;
};

Contexts::Contexts(const Model& model, const ChatTemplate* chat, ReadingOptions options,
                   PromisedMemory& memory)
    : model_(model), chat_(chat), options_(std::move(options)), memory_(memory) {
  reader_ = std::thread([this] { read_all(); });
}

Contexts::~Contexts() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  reader_.join();
}

void Contexts::add(ServedContext context) {
  const std::lock_guard lock(mutex_);
  if (!is_context_name(context.name))
    throw InvalidArgument(fmt::format(
        "\"{}\" is not a context's name; expected 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'",
        printable_beginning(context.name)));
  if (entries_.contains(context.name))
    throw InvalidArgument(
        fmt::format("two contexts are named \"{}\"; expected different names", context.name));
  const auto entry = std::make_shared<Entry>();
  entry->request.name = context.name;
  entry->request.chat = context.end.chat;
  entry->state = "ready";
  entry->done = entry->total = context.context->tokens();
  const std::string name = context.name;
  entry->ready = std::make_shared<const ServedContext>(std::move(context));
  entries_.emplace(name, entry);
}

void Contexts::create(ContextRequest request) {
  if (request.chat) check_chat(request);
  const std::lock_guard lock(mutex_);
  if (entries_.contains(request.name))
    throw Problem(409,
                  fmt::format("there is a context \"{}\" already; delete it first, or give another "
                              "name",
                              request.name),
                  "name", "context_exists");
  if (entries_.size() >= most)
    throw Problem(
        429, fmt::format("there are {} contexts, the most that there may be; delete some", most),
        {}, "too_many_contexts");
  if (waiting_.size() >= most_waiting)
    throw Problem(429, fmt::format("{} texts wait to be read; try again later", most_waiting), {},
                  "too_many_contexts");
  const auto entry = std::make_shared<Entry>();
  entry->request = std::move(request);
  entries_.emplace(entry->request.name, entry);
  waiting_.push_back(entry);
  changed_.notify_all();
}

void Contexts::check_chat(const ContextRequest& request) const {
  if (chat_ == nullptr)
    throw Problem(400, "the model has no chat template; leave \"chat\" out", "chat",
                  "no_chat_template");
  try {
    check_keeps_texts(*chat_, request.system);
  } catch (const InvalidArgument&) {  // the template refuses a system message, for one
    throw;
  } catch (const Error& error) {
    throw Problem(400,
                  fmt::format("{}; leave \"chat\" out, and use POST /v1/completions with the text",
                              printable(error.what())),
                  "chat");
  }
}

void Contexts::remove(const std::string& name) {
  const std::shared_ptr<Entry> entry = entry_of(name);
  const std::lock_guard lock(mutex_);
  entry->removed = true;
  std::erase(waiting_, entry);
  const auto at = entries_.find(name);
  if (at != entries_.end() && at->second == entry) entries_.erase(at);
}

std::shared_ptr<const ServedContext> Contexts::find(const std::string& name) const {
  const std::shared_ptr<Entry> entry = entry_of(name);
  const std::lock_guard lock(mutex_);
  if (entry->ready) return entry->ready;
  if (entry->state == "failed")
    throw Problem(409, fmt::format("context \"{}\" could not be read: {}", name, entry->error),
                  "context", "context_failed");
  throw Problem(
      409,
      fmt::format("context \"{}\" is not ready: {} of {} tokens are read; ask again later", name,
                  entry->done, entry->total),
      "context", "context_not_ready");
}

bool Contexts::has(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains(name);
}

std::vector<ContextInfo> Contexts::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<ContextInfo> all;
  for (const auto& [name, entry] : entries_) all.push_back(info_of(*entry));
  return all;
}

ContextInfo Contexts::info(const std::string& name) const {
  const std::shared_ptr<Entry> entry = entry_of(name);
  const std::lock_guard lock(mutex_);
  return info_of(*entry);
}

ContextInfo Contexts::info_of(const Entry& entry) const {
  ContextInfo info = {.name = entry.request.name,
                      .state = entry.state,
                      .chat = entry.request.chat,
                      .done = entry.done,
                      .tokens = entry.total,
                      .index = options_.retrieval.index,
                      .error = entry.error,
                      .warning = entry.warning};
  if (entry.ready) {
    const ContextMemory memory = entry.ready->context->memory();
    info.rows_bytes = memory.rows_bytes;
    info.index_bytes = memory.index_bytes;
    info.index = entry.ready->retrieval.index;
  }
  return info;
}

std::shared_ptr<Contexts::Entry> Contexts::entry_of(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(name);
  if (at == entries_.end())
    throw Problem(404,
                  fmt::format("there is no context \"{}\"; GET /v1/contexts lists the contexts",
                              printable_beginning(name)),
                  "context", "context_not_found");
  return at->second;
}

void Contexts::read_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    const std::shared_ptr<Entry> entry = waiting_.front();
    waiting_.pop_front();
    entry->state = "reading";
    lock.unlock();
    std::string error;
    try {
      read(*entry);
    } catch (...) {
      error = current_problem().message();
    }
    memory_.contexts = 0;
    lock.lock();
    entry->request.text = {};
    if (error.empty()) continue;
    entry->state = "failed";
    entry->error = error;
  }
}

void Contexts::read(Entry& entry) {
  const ContextRequest& request = entry.request;  // which nobody changes but this thread
  const auto stop_if_unwanted = [&] {
    const std::lock_guard lock(mutex_);
    if (entry.removed) throw Stopped("the context was deleted while it was read");
    if (ends_) throw Stopped("the server ends");
  };
  const Tokenizer& tokenizer = model_.tokenizer();
  const KeptPrompt kept =
      request.chat ? kept_prompt(tokenizer, *chat_, request.system, request.text, stop_if_unwanted)
                   : kept_prompt(tokenizer, request.text, stop_if_unwanted);
  const auto tokens = std::ssize(kept.tokens);
  if (tokens == 0)
    throw InvalidArgument(
        "the text is too short: its last word is read with each prompt, which may continue it, and "
        "there is nothing else to keep; give more text, or end it with a line end");
  const std::int64_t bytes = model_.prefill_rows_bytes(tokens, options_.prefill);
  PrefillOptions options = options_.prefill;
  const std::int64_t left = memory_.make_room(bytes);
  if (options.memory_budget == 0 || options.memory_budget > left) options.memory_budget = left;
  if (bytes > options.memory_budget)
    throw OutOfMemory(fmt::format("host memory for the KV rows of {} tokens", tokens), bytes,
                      std::max<std::int64_t>(0, options.memory_budget), "give a shorter text");
  memory_.contexts = bytes;
  const auto report = [&](const Progress& progress) {
    stop_if_unwanted();
    const std::lock_guard lock(mutex_);
    if (progress.stage != "prefill") return;
    entry.done = progress.done;
    memory_.contexts = bytes - bytes / progress.total * progress.done;
  };
  const std::string lost = tokenizer.left_out(request.text);
  {
    const std::lock_guard lock(mutex_);
    entry.total = tokens;
    entry.warning = lost;
  }
  options.attention = model_.prefill_attention(options, tokens);
  std::vector<PrefillShare> shares;
  const std::shared_ptr<const Context> context =
      model_.prefill(kept.tokens, options, report, nullptr, &shares);
  if (options_.on_read) options_.on_read(request.name, options.attention, shares);
  ServedContext made = {.name = request.name,
                        .context = context->ready_for(options_.retrieval, report, model_.device()),
                        .end = kept.end,
                        .tokens = kept.tokens,
                        .retrieval = options_.retrieval};
  const std::lock_guard lock(mutex_);
  entry.done = tokens;
  entry.ready = std::make_shared<const ServedContext>(std::move(made));
  entry.state = "ready";
}

}  // namespace topkv::serve
