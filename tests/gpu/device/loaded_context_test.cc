// Contexts out of files on a device: as those that it prefilled, and questions of them together.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/bundled_model.h"
#include "tests/support/needs_gpu.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"

namespace topkv {
namespace {

const std::string codes = "codes:k=32,v=8";

bool is_page_locked(const Context& context) {
  cudaPointerAttributes attributes = {};
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, context.rows(0, 0).keys.data), cudaSuccess);
  return attributes.type == cudaMemoryTypeHost;
}

std::vector<std::vector<Token>> questions(const Model& model) {
  std::vector<std::vector<Token>> all = {test::question(model)};
  for (const char* text : {"\nThe special magic number for quiet-river is", "\nThe grass is"})
    all.push_back(model.tokenizer().encode(text));
  return all;
}

std::vector<std::vector<Token>> answers(const Model& model,
                                        const std::shared_ptr<const Context>& context,
                                        std::int64_t dense_layers) {
  std::vector<std::vector<Token>> all;
  for (const auto& prompt : questions(model)) {
    Session session(context, {.index = codes, .dense_layers = dense_layers, .window = 256},
                    model.device());
    all.push_back(model.generate(session, prompt, {.max_tokens = 12}).tokens);
  }
  return all;
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(LoadedContext, IsPageLockedAndAnswersAsTheOneThatWasSaved) {
  TOPKV_NEEDS_GPU();
  const Device device = Device::open("cuda");
  const Model model = test::bundled(device);
  const auto prefilled = model.prefill(test::text_with_fact(model, 6000), {.indices = {codes}});
  EXPECT_TRUE(is_page_locked(*prefilled));
  const TempDirectory folder;
  save_context(*prefilled, folder.path() / "c.tkv");
  for (const bool mapped : {false, true}) {
    const auto loaded =
        load_context(folder.path() / "c.tkv", {.mapped = mapped, .device = device}).context;
    EXPECT_EQ(is_page_locked(*loaded), !mapped);
    for (const std::int64_t dense_layers : {0, 3})
      EXPECT_EQ(answers(model, loaded, dense_layers), answers(model, prefilled, dense_layers));
    save_context(*loaded, folder.path() / "again.tkv");
    EXPECT_TRUE(bytes_of(folder.path() / "again.tkv") == bytes_of(folder.path() / "c.tkv"));
  }
  EXPECT_FALSE(is_page_locked(*load_context(folder.path() / "c.tkv").context));
}

TEST(LoadedContext, TakesCodesThatTheDeviceMakesAsAPrefilledOneDoes) {
  TOPKV_NEEDS_GPU();
  const Device device = Device::open("cuda");
  const Model model = test::bundled(device);
  const auto prefilled = model.prefill(test::text_with_fact(model, 6000));
  const TempDirectory folder;
  save_context(*prefilled, folder.path() / "plain.tkv");
  const auto loaded = load_context(folder.path() / "plain.tkv", {.device = device}).context;
  save_context(*prefilled->with_index(codes, {}, device), folder.path() / "a.tkv");
  save_context(*loaded->with_index(codes, {}, device), folder.path() / "b.tkv");
  EXPECT_TRUE(bytes_of(folder.path() / "a.tkv") == bytes_of(folder.path() / "b.tkv"));
}

TEST(LoadedContext, IsAskedTogetherWithTheAnswersOfEachAlone) {
  TOPKV_NEEDS_GPU();
  const Device device = Device::open("cuda");
  const Model model = test::bundled(device);
  const auto context = model.prefill(test::text_with_fact(model, 6000), {.indices = {codes}});
  for (const std::int64_t dense_layers : {0, 3}) {
    std::vector<Session> sessions;
    std::vector<Session*> each;
    const auto prompts = questions(model);
    for (std::size_t i = 0; i < prompts.size(); ++i)
      sessions.emplace_back(
          context, RetrievalOptions{.index = codes, .dense_layers = dense_layers, .window = 256},
          device);
    for (Session& session : sessions) each.push_back(&session);
    const auto want = answers(model, context, dense_layers);
    const auto got = model.generate_together(each, prompts, {.max_tokens = 12});
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].tokens, want[i]) << i;
    EXPECT_NE(model.tokenizer().decode(got[0].tokens).find(test::answer), std::string::npos);
  }
}

}  // namespace
}  // namespace topkv
