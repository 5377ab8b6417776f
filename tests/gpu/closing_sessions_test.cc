// Sessions are opened and closed by one thread while another's work is recorded to be replayed: it
// is not disturbed.
#include <gtest/gtest.h>

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/session_feed.h"
#include "tests/small_llama.h"
#include "tests/temp_directory.h"
#include "topkv/context.h"
#include "topkv/model.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Place;

TEST(ClosingSessions, WhileAnotherThreadRecordsDisturbsNothing) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  TempDirectory folder;
  folder.write("model.safetensors", file_of(random_tensors(Sizes{})));
  folder.write("config.json", config_of(Sizes{}).dump());
  const std::vector<Token> text = some_tokens(40, Sizes{}.vocab);
  const std::vector<Token> question = some_tokens(5, Sizes{}.vocab);
  const Device& device = place.device();
  const auto first = std::make_unique<Model>(Model::load(folder.path(), device));
  const std::shared_ptr<const Context> context = first->prefill(text, {.indices = {"codes"}});
  const RetrievalOptions options{.index = "codes", .k = TopK::same(4), .window = 4, .capacity = 64};
  const auto answer = [&](const Model& model) {
    Session session(context, options, device);
    return model.generate(session, question, {.max_tokens = 6}).tokens;
  };
  const std::vector<Token> want = answer(*first);

  std::atomic<bool> over = false;
  std::atomic<int> closed = 0;
  std::thread other([&] {
    while (!over) {
      const Session session(context, options, device);
      ++closed;
    }
  });
  std::vector<std::vector<Token>> got;
  std::string failed;
  try {
    for (int i = 0; i < 100; ++i)  // one that is new records its work
      got.push_back(answer(Model::load(folder.path(), device)));
  } catch (const std::exception& error) {
    failed = error.what();
  }
  over = true;
  other.join();
  EXPECT_EQ(failed, "");
  EXPECT_GT(closed, 100);
  for (const auto& tokens : got) EXPECT_EQ(tokens, want);
}

}  // namespace
}  // namespace topkv
