// The jobs that make one model out of others, called as a program calls them: they print nothing,
// tell what they are about, and stopped they leave nothing.
#include <limits>
#include <nlohmann/json.hpp>

#include "convert/models.h"
#include "core/memory.h"
#include "core/words.h"
#include "formats/safetensors.h"
#include "hub/adapted.h"
#include "hub/adapter_gguf.h"
#include "jobs/carve.h"
#include "jobs/convert.h"
#include "jobs/merge.h"
#include "jobs/prune.h"
#include "jobs/upcycle.h"
#include "support/check.h"
#include "support/files.h"
#include "support/limits.h"
#include "support/tiny_model.h"

namespace moe::make_model_test {
namespace {

using namespace moe::test;

class MakeModel : public ::testing::Test {
 protected:
  MakeModel() {
    ModelConfig dense = dense_config();
    dense.vocab = 256;
    std::string text;
    for (int i = 0; i < 60; ++i) text += fmt::format("line {} of the text that is looked at\n", i);
    put(folder_ / "text.txt", text);
    put(folder_ / "one.txt", "the router");
    put(folder_ / "two.txt", "an expert");
    save("dense", dense, 1);
    save("other", dense, 2);
    save("moe", plain_config(), 3);
  }
  void save(const std::string& name, const ModelConfig& config, uint64_t seed) {
    auto model = fresh(config, seed);
    save_model(folder_ / name, *model, *make_tokenizer("bytes"));
  }
  template <class Job>
  Job job(const std::string& in) const {
    Job made;
    made.in = folder_ / in;
    made.out = folder_ / "out";
    return made;
  }
  std::vector<std::function<Json(const Watch&)>> jobs() const {
    const CalibrationOptions calibration{.text = folder_ / "text.txt", .windows = 2, .window = 8};
    auto carve = job<CarveJob>("dense");
    carve.options.experts = 4;
    carve.calibration = calibration;
    auto upcycle = job<UpcycleJob>("dense");
    upcycle.routing.experts = 4;
    auto merge = job<MergeJob>("dense");
    merge.experts = {(folder_ / "dense") + ":" + (folder_ / "one.txt"),
                     (folder_ / "other") + ":" + (folder_ / "two.txt")};
    auto prune = job<PruneJob>("moe");
    prune.options.experts = 3;
    prune.calibration = calibration;
    auto convert = job<ConvertJob>("moe");
    convert.dtype = "bf16";
    return {[=](const Watch& w) { return to_json(carve_model(carve, w)); },
            [=](const Watch& w) { return to_json(upcycle_model(upcycle, w)); },
            [=](const Watch& w) { return to_json(merge_models(merge, w)); },
            [=](const Watch& w) { return to_json(prune_model(prune, w)); },
            [=](const Watch& w) { return to_json(convert_model(convert, w)); }};
  }
  TempFolder folder_;
};

TEST_F(MakeModel, PrintsNothingAndTellsHowFarItIs) {
  for (const auto& make : jobs()) {
    std::vector<std::string> counted;
    const Watch watch{.begin = [&]() -> Progress {
      return [&](int64_t, int64_t, std::string_view what) { counted.emplace_back(what); };
    }};
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const Json reply = make(watch);
    EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_FALSE(reply.empty());
    EXPECT_FALSE(counted.empty());
    EXPECT_NO_THROW(load_model(folder_ / "out"));
    std::filesystem::remove_all(folder_ / "out");
  }
}

// However often it was asked before.
TEST_F(MakeModel, StoppedLeavesNothing) {
  const auto before = folder_.entries();
  for (const auto& make : jobs())
    for (int patience : {0, 1, 3}) {
      int asked = 0;
      const Watch watch{.stopped = [&] { return asked++ >= patience; }};
      EXPECT_FAILS(make(watch), "interrupted; nothing was written to ") << patience;
      EXPECT_EQ(folder_.entries(), before) << patience;
    }
}

TEST_F(MakeModel, WhatHealsIsOpenedBeforeAnythingIsPruned) {
  auto prune = job<PruneJob>("moe");
  prune.options.experts = 3;
  prune.calibration = {.text = folder_ / "text.txt", .windows = 2, .window = 8};
  prune.heal.minutes = 1;
  prune.heal.data = {folder_ / "none.txt"};
  bool began = false;
  const Watch watch{.begin = [&]() -> Progress {
    began = true;
    return [](int64_t, int64_t, std::string_view) {};
  }};
  EXPECT_FAILS(prune_model(prune, watch), "none.txt");
  EXPECT_FALSE(began);
}

// Nobody has asked check_given here, so the rate is found to be none once the model is pruned: that
// one goes again.
TEST_F(MakeModel, ARunThatCannotBeginLeavesNothing) {
  const auto before = folder_.entries();
  auto prune = job<PruneJob>("moe");
  prune.options.experts = 3;
  prune.calibration = {.text = folder_ / "text.txt", .windows = 2, .window = 8};
  prune.heal.minutes = 1;
  prune.heal.lr = 0;
  EXPECT_FAILS(prune_model(prune, {}), "lr is 0");
  EXPECT_EQ(folder_.entries(), before);
  prune.out = folder_ / "new/out";
  EXPECT_FAILS(prune_model(prune, {}), "lr is 0");
  EXPECT_EQ(folder_.entries(), before);
}

// Text may end in tokens that are not learned from.
TEST(Healing, SaysWhatTheLastStepWithATargetSaid) {
  const auto step = [](int64_t number, double ce) {
    StepResult r;
    r.step = number;
    r.tokens = 100 * number;
    r.ce = ce;
    r.kl = ce / 2;
    return r;
  };
  const double none = std::numeric_limits<double>::quiet_NaN();
  Healed healed;
  healed.took(step(1, none));
  EXPECT_EQ(to_json(healed), (Json{{"steps", 1}, {"tokens", 100}, {"tuned", "all"}}));
  healed.took(step(2, 4));
  healed.took(step(3, none));
  EXPECT_EQ(to_json(healed),
            (Json{{"steps", 3}, {"tokens", 300}, {"tuned", "all"}, {"ce", 4.0}, {"kl", 2.0}}));
}

// Its numbers in f32 would take 38 MB.
TEST_F(MakeModel, AQuantisedModelIsUpcycledWhereItLies) {
  if (!kLimitsWork) GTEST_SKIP() << "what a sanitizer holds back counts as taken";
  ModelConfig config = dense_config();
  config.vocab = 256;
  config.width = 256;
  config.layers = 8;
  config.dense_width = config.expert_width = 1536;
  save("large", config, 1);
  auto convert = job<ConvertJob>("large");
  convert.out = folder_ / "large.gguf";
  convert.quant = "q8_0";
  convert_model(convert, {});
  auto upcycle = job<UpcycleJob>("large.gguf");
  upcycle.routing.experts = 2;
  upcycle.memory.limits.all = taken_memory() + (int64_t{30} << 20);
  const UpcycleReply reply = upcycle_model(upcycle, {});
  EXPECT_LT(reply.difference.largest, 1e-4 * reply.difference.largest_logit);
}

TEST_F(MakeModel, MakingErrorsGoodIsEstimated) {
  auto convert = job<ConvertJob>("dense");
  convert.out = folder_ / "out.gguf";
  convert.quant = "q4_0";
  convert.importance.calibration = {.text = folder_ / "text.txt", .windows = 2, .window = 8};
  convert.importance.gptq = true;
  convert.memory.show = true;
  std::string said;
  const Watch watch{.tell = [&](const std::string& line) { said += line + "\n"; }};
  convert_model(convert, watch);
  // the most columns are those of down
  const auto bytes = static_cast<double>(48 * 48 * (4 + 8 + 8));
  EXPECT_NE(said.find("making errors good " + human_bytes(bytes)), std::string::npos) << said;
}

TEST_F(MakeModel, AnAdapterAloneIsWrittenBesideWhatIsThere) {
  ModelConfig config = dense_config();
  config.vocab = 256;
  Adapted adapted(config);
  save_model(folder_ / "base", adapted.model, *make_tokenizer("bytes"));
  save_adapter(folder_ / "adapter", adapted.model, adapted.file);
  auto convert = job<ConvertJob>("base");
  convert.out = folder_ / "adapter.gguf";
  convert.adapter = folder_ / "adapter";
  convert.adapter_only = true;
  put(convert.out, "notes");
  EXPECT_FAILS(convert_model(convert, {}), "is no adapter; it is not replaced");
  std::filesystem::remove(convert.out);
  // and a layer behind the model's own, which predicts further tokens
  {
    const Safetensors file = Safetensors::open(folder_ / "base");
    std::vector<SafetensorsItem> items;
    for (const NamedTensor& t : file.tensors()) items.push_back({t.name, t.value, t.value.dtype});
    float number = 0;
    items.push_back({"model.layers.4.enorm.weight", Tensor(&number, DType::f32, {1}), DType::f32});
    write_safetensors(folder_ / "base/model.safetensors", items);
  }
  EXPECT_FAILS(convert_model(convert, {}), "--text-only");
  convert.text_only = true;
  EXPECT_GT(convert_model(convert, {}).adapter_alone->matrices, 0);
  EXPECT_TRUE(is_gguf_adapter(convert.out));
  std::string told;
  Watch watch;
  watch.tell = [&](const std::string& line) { told += line; };
  convert_model(convert, watch);
  EXPECT_EQ(told, "note: replacing " + convert.out);
  convert.adapter = convert.out;
  EXPECT_FAILS(convert_model(convert, {}), "is the adapter itself");
}

TEST_F(MakeModel, MessagesNameFields) {
  auto carve = job<CarveJob>("dense");
  carve.calibration.text = folder_ / "text.txt";
  carve.calibration.windows = 0;
  EXPECT_EQ(message_of([&] { carve_model(carve, {}); }), "windows is 0; it must be at least 1");
  auto upcycle = job<UpcycleJob>("dense");
  EXPECT_EQ(message_of([&] { upcycle_model(upcycle, {}); }).find("experts is missing"), 0u);
}

}  // namespace
}  // namespace moe::make_model_test
