// What `moe compare --also` refuses of the further models before anything is measured.
#include "jobs/compare.h"

#include "support/check.h"
#include "support/files.h"
#include "support/tiny_model.h"

namespace moe::compare_test {
namespace {

using namespace moe::test;

class CompareFiles : public ::testing::Test {
 protected:
  CompareFiles() {
    save("before", plain_config());
    save("after", plain_config());
    std::string text;
    for (int i = 0; i < 200; ++i) text += fmt::format("line {} of a text to score\n", i);
    put(folder_ / "text.txt", text);
    job_.text = folder_ / "text.txt";
    job_.options.windows = 1;
    job_.speed = {.prompt = 6, .tokens = 2, .repeats = 3};
    job_.compute = {.dtype = DType::f32, .threads = 1};
    watch_.begin = [this] {
      begun_ = true;
      return [](int64_t, int64_t, std::string_view) {};
    };
  }
  void save(const std::string& name, const ModelConfig& config) {
    save_model(folder_ / name, *fresh(config, 1), *make_tokenizer("bytes"));
  }
  void refused(const std::string& also, const std::vector<std::string>& parts) {
    job_.also = {folder_ / "after", folder_ / also};
    const std::string said =
        message_of([&] { compare_files(folder_ / "before", folder_ / "after", job_, watch_); });
    for (const std::string& part : parts) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, said);
    EXPECT_FALSE(begun_) << "something was measured";
  }

  TempFolder folder_;
  CompareJob job_;
  bool begun_ = false;
  Watch watch_;
};

TEST_F(CompareFiles, AFurtherModelThatDoesNotFitIsRefusedAtOnce) {
  ModelConfig wide = plain_config();
  wide.width = 1024;
  wide.heads = wide.kv_heads = 2;
  wide.head_width = 512;
  save("wide", wide);
  job_.options.window = 2048;
  job_.memory.limits.all = taken_memory() + (int64_t{48} << 20);
  refused("wide", {"wide: this needs ", "are left of memory", "lower the tokens of a window"});
}

TEST_F(CompareFiles, AFurtherModelOfFewerPositionsIsRefusedAtOnce) {
  ModelConfig few = plain_config();
  few.positions = Positions::learned;
  few.context = 7;
  save("few", few);
  refused("few", {"prompt 6 and tokens 2 make a text of 8, but ", "positions for 7 tokens only"});
  job_.speed.tokens = 1;
  job_.options.window = 8;
  refused("few",
          {"window is 8, but ", "few has learned positions for 7 tokens only; give at most 7"});
  // by default all are read by windows that each of them can take
  job_.options.window = 0;
  EXPECT_EQ(compare_files(folder_ / "before", folder_ / "after", job_, watch_).figures.window, 7);
}

}  // namespace
}  // namespace moe::compare_test
