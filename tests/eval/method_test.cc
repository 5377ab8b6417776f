// Methods by their texts.

#include "src/eval/run/method.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/index_spec.h"

namespace topkv {
namespace {

MethodDefaults defaults() {
  MethodDefaults defaults{.head_dim = 64, .layers = 8, .options = {}};
  defaults.options.window = 256;
  defaults.options.sinks = 2;
  return defaults;
}

Method parsed(std::string_view text) { return parse_method(text, defaults()); }

TEST(Methods, DenseAttendsAllRowsInAllLayersWhateverTheBudget) {
  const Method dense = parsed("dense");
  EXPECT_FALSE(dense.budgets);
  EXPECT_EQ(dense.options.dense_layers, 8);
  EXPECT_EQ(dense.options.index, "exact");
  EXPECT_EQ(dense.indices(), std::vector<std::string>{"exact"});
  EXPECT_FALSE(parsed("hnsw@dense=all").budgets);
}

TEST(Methods, CodesAreTheModelsDefault) {
  const Method codes = parsed("codes");
  EXPECT_EQ(codes.options.index, IndexSpec::default_for(64).text());
  EXPECT_EQ(codes.options.tail, "");
  EXPECT_TRUE(codes.budgets);
  EXPECT_EQ(parse_method("codes", {.head_dim = 512, .layers = 2}).options.index, "codes:k=16,v=8");
}

TEST(Methods, AnyIndexIsOne) {
  EXPECT_EQ(parsed("exact").options.index, "exact");
  EXPECT_EQ(parsed("hnsw:M=8").options.index, "hnsw:M=8");
  EXPECT_EQ(parsed("exact").options.window, 256);
  EXPECT_EQ(parsed("exact").options.sinks, 2);
  EXPECT_EQ(parsed("exact").options.dense_layers, 0);
}

TEST(Methods, TailsStandBehindAPlus) {
  const Method mean = parsed("exact+mean");
  EXPECT_EQ(mean.options.index, "exact");
  EXPECT_EQ(mean.options.tail, "mean");
  EXPECT_EQ(mean.indices(), (std::vector<std::string>{"exact", "mean"}));
  EXPECT_EQ(parsed("exact+codes").options.tail, "codes");
  EXPECT_EQ(parsed("codes+none").options.tail, "none");
  EXPECT_EQ(parsed("codes:k=16,v=8+codes").options.tail, "");   // its own
  EXPECT_EQ(parsed("retroinfer+codes").options.tail, "codes");  // its own is of clusters
  EXPECT_EQ(parsed("hnsw:M=8+codes:k=16,v=8").options.tail, "codes:k=16,v=8");
}

TEST(Methods, StreamingWidensTheWindowByTheBudget) {
  const Method streaming = parsed("streaming");
  EXPECT_EQ(streaming.options.index, "none");
  EXPECT_EQ(streaming.with(64, 10).window, 256 + 64);
  EXPECT_EQ(parsed("exact").with(64, 10).window, 256);
  EXPECT_EQ(parsed("exact").with(64, 10).k.value, 64);
  EXPECT_EQ(parsed("exact").with(64, 10).capacity, 10);
}

TEST(Methods, ParametersStandBehindAnAt) {
  const Method method = parsed("exact+mean@window=8,sinks=0,dense=2,select=group");
  EXPECT_EQ(method.name, "exact+mean@window=8,sinks=0,dense=2,select=group");
  EXPECT_EQ(method.options.window, 8);
  EXPECT_EQ(method.options.sinks, 0);
  EXPECT_EQ(method.options.dense_layers, 2);
  EXPECT_EQ(method.options.select_by, SelectBy::group);
  EXPECT_TRUE(method.budgets);
}

TEST(Methods, ARisingScheduleSpendsTheSameSum) {
  const TopK k = parsed("exact@schedule=rising").with(64, 10).k;
  const std::vector<std::int64_t> layers = k.resolve(8);
  EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), std::int64_t{0}), 8 * 64);
  EXPECT_LT(layers.front(), layers.back());
  EXPECT_EQ(parsed("exact@schedule=same").with(64, 10).k.resolve(8),
            std::vector<std::int64_t>(8, 64));
}

TEST(Methods, ErrorsNameThePart) {
  const auto refused = [](std::string_view text, const std::vector<std::string_view>& parts) {
    expect_error<InvalidArgument>([&] { parsed(text); },
                                  "method '" + std::string(text) + "': ", parts);
  };
  refused("exct", {"exct", "methods are dense, codes, quest, streaming, or an index"});
  refused("", {"methods are"});
  refused("mean", {"methods are"});
  refused("exact+hnsw", {"'hnsw' has no codes of values", "none, mean"});
  refused("exact+nothing", {"nothing"});
  refused("exact@", {"'' is no parameter", "window=N"});
  refused("exact@window", {"window: expected a whole number from 1", "found ''"});
  refused("exact@window=0", {"window: expected", "'0'"});
  refused("exact@dense=9", {"dense: expected a whole number from 0 to 8", "'9'"});
  refused("exact@select=head", {"'select=head' is no parameter", "select=group"});
  refused("exact@schedule=falling", {"'schedule=falling' is no parameter", "schedule=rising"});
  refused("exact@k=3", {"'k=3' is no parameter"});
}

TEST(Methods, StandInAList) {
  const std::vector<Method> methods =
      parse_methods("dense;faiss:IVF,SQ8;nprobe=8;exact+mean", defaults());
  ASSERT_EQ(methods.size(), 3U);
  EXPECT_EQ(methods[1].name, "faiss:IVF,SQ8;nprobe=8");
  EXPECT_EQ(methods[2].name, "exact+mean");
  expect_error<InvalidArgument>([] { parse_methods("exact;exact", defaults()); },
                                "method 'exact': is given twice", {});
}

}  // namespace
}  // namespace topkv
