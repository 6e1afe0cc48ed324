// What --verify, --report and --sweep do for the verbs that convert: refused before the work,
// measured on the files after it, nothing left behind.
#include "jobs/verification.h"

#include <filesystem>

#include "support/check.h"
#include "support/files.h"
#include "support/tiny_model.h"

namespace moe::verification_test {
namespace {

using namespace moe::test;

struct Fixture {
  TempFolder folder;
  LoadedModel before;
  CompareJob flags;
  std::vector<std::string> told;
  Watch watch{.tell = [this](const std::string& line) { told.push_back(line); }};

  Fixture() {
    save("before", 1);
    save("out", 2);
    before = open_model(folder / "before", {});
    std::string text;
    for (int i = 0; i < 40; ++i) text += fmt::format("line {} of a text to score\n", i);
    put(folder / "text.txt", text);
    flags.text = folder / "text.txt";
    flags.options.windows = 4;
    flags.speed = {.prompt = 6, .tokens = 2, .repeats = 3};
    flags.compute.dtype = DType::f32;
  }
  void save(const std::string& name, uint64_t seed) { write(folder / name, seed); }
  static void write(const std::string& path, uint64_t seed) {
    auto model = fresh(plain_config(), seed);
    save_model(path, *model, *make_tokenizer("bytes"));
  }
  NamedModel named() { return {"before", before}; }
};

TEST(Verification, MeasuresWhatWasWrittenAndKeepsHowItWasMade) {
  Fixture f;
  Verification v(f.flags, f.named(), f.watch);
  EXPECT_TRUE(v.asked());
  ConversionReport made{
      .kind = "Carving", .steps = {{"method", "fitted"}}, .layers = {{0, 2, 0.5, 0.75}}};
  const ConversionReport r = v.measure(f.folder / "out", made);
  EXPECT_EQ(r.kind, "Carving");
  EXPECT_EQ(r.steps, made.steps);
  EXPECT_EQ(r.layers.size(), 1u);
  EXPECT_EQ(r.after.name, f.folder / "out");
  EXPECT_EQ(r.figures.windows, 4);
  EXPECT_GT(r.figures.kl, 0);
  EXPECT_EQ(r.after_speed->decode_seconds.size(), 3u);
  EXPECT_TRUE(r.frontier.empty());
}

TEST(Verification, ASweepWritesBesideAndRemoves) {
  Fixture f;
  f.flags.html = f.folder / "page.html";
  Verification v(f.flags, f.named(), f.watch);
  std::vector<std::string> written;
  const auto writes = [&](uint64_t seed) {
    return [&, seed](const std::string& path) {
      written.push_back(path);
      Fixture::write(path, seed);
    };
  };
  const ConversionReport r = v.measure(
      f.folder / "out", {.kind = "Carving"},
      {{"1 active", 0.25, writes(3)}, {"2 active", 0.5, {}}, {"3 active", 0.75, writes(1)}});
  ASSERT_EQ(r.frontier.size(), 4u);
  EXPECT_EQ(written.size(), 2u);
  for (const std::string& path : written) {
    EXPECT_FALSE(std::filesystem::exists(path)) << path;
    EXPECT_EQ(std::filesystem::path(path).parent_path(), f.folder.path());
  }
  EXPECT_EQ(r.frontier[1].perplexity, r.figures.after.perplexity);
  EXPECT_TRUE(r.frontier[1].is_written);
  EXPECT_FALSE(r.frontier[0].is_written);
  EXPECT_EQ(r.frontier[0].ffn_share, 0.25);
  EXPECT_NE(r.frontier[0].perplexity, r.frontier[1].perplexity);
  EXPECT_EQ(r.frontier[2].kl, 0) << "the same model as before";
  EXPECT_GT(r.frontier[2].speed_up.decode, 0);
  EXPECT_TRUE(r.frontier[3].is_before);
  EXPECT_EQ(r.frontier[3].perplexity, r.figures.before.perplexity);
  v.write_page(r);
  EXPECT_NE(slurp(f.flags.html).find("id=\"frontier\""), std::string::npos);
}

// A GGUF file stays one by its name, so that the same kind of model is measured.
TEST(Verification, TheNameBesideKeepsItsEnding) {
  Fixture f;
  f.save("x.gguf", 2);  // a folder may be called so
  std::string path;
  Verification(f.flags, f.named(), f.watch)
      .measure(f.folder / "x.gguf", {},
               {{"1 active", 0.5, [&](const std::string& p) { Fixture::write(path = p, 3); }}});
  EXPECT_TRUE(path.ends_with(".gguf")) << path;
  EXPECT_NE(path, f.folder / "x.gguf");
}

TEST(Verification, AFailedSweepLeavesNothingBehind) {
  Fixture f;
  Verification v(f.flags, f.named(), f.watch);
  const auto entries = f.folder.entries();
  const auto breaks = [](const std::string& path) {
    Fixture::write(path, 3);
    fail("the disk is full");
  };
  EXPECT_FAILS(v.measure(f.folder / "out", {}, {{"1 active", 0.5, breaks}}), "the disk is full");
  EXPECT_EQ(f.folder.entries(), entries);
}

TEST(Verification, RefusesBeforeTheWork) {
  Fixture f;
  CompareJob flags = f.flags;
  put(f.folder / "short.txt", "too short");
  flags.text = f.folder / "short.txt";
  EXPECT_FAILS(Verification(flags, f.named(), f.watch), "9 tokens");
  flags = f.flags;
  flags.html = f.folder / "no/page.html";
  EXPECT_FAILS(Verification(flags, f.named(), f.watch), "page.html");
  flags = {};
  EXPECT_FALSE(Verification(flags, f.named(), f.watch).asked());
}

// The text that the model was fitted to cannot show the damage, whatever was put in front of it or
// left out.
TEST(Verification, RefusesTheCalibrationText) {
  Fixture f;
  f.flags.options.windows = 0;
  const auto ids = [](const std::string& text) {
    return std::vector<int32_t>(text.begin(), text.end());
  };
  const std::string text = slurp(f.flags.text);
  std::string other;
  for (int i = 0; i < 40; ++i) other += fmt::format("another line, number {}, of some text\n", i);
  const Verification v(f.flags, f.named(), f.watch);
  EXPECT_FAILS(v.check_not_fitted_to(ids(text)), "100% of verify");
  EXPECT_FAILS(v.check_not_fitted_to(ids("a line that was put in front\n" + text)),
               "100% of verify");
  EXPECT_FAILS(v.check_not_fitted_to(ids(other + text)), "stand in the calibration text");
  EXPECT_FAILS(v.check_not_fitted_to(ids(other + text.substr(0, text.size() * 2 / 3))),
               "stand in the calibration text");
  EXPECT_NO_THROW(v.check_not_fitted_to(ids(other + text.substr(0, text.size() / 3))));
  ASSERT_EQ(f.told.size(), 1u);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "may be larger than it shows", f.told[0]);
  EXPECT_NO_THROW(v.check_not_fitted_to(ids(other)));
  EXPECT_NO_THROW(v.check_not_fitted_to({}));
  EXPECT_EQ(f.told.size(), 1u);
  // The other way round: little of a long text is the calibration text, but all of that one.
  EXPECT_FAILS(v.check_not_fitted_to(ids(text.substr(0, text.size() / 4))),
               "of the calibration text, by its lines, stand in verify");
  // What is scored counts: of the whole text a third is known, of its first windows all.
  EXPECT_NO_THROW(v.check_not_fitted_to(ids(other + other + text.substr(0, text.size() / 4))));
  f.flags.options.windows = 1;
  f.flags.options.window = 128;
  const Verification first(f.flags, f.named(), f.watch);
  EXPECT_FAILS(first.check_not_fitted_to(ids(other + other + text.substr(0, text.size() / 4))),
               "of verify");
}

TEST(Verification, FlagsWithoutATextToMeasureOn) {
  const auto check = [](const std::vector<const char*>& names, const char* text) {
    CompareJob flags;
    flags.text = text;
    Given given;
    for (const char* name : names) given.add(name, GivenBy::caller);
    flags.no_speed = given.has("no_speed");
    check_verify_options(flags, given);
  };
  for (const char* name : {"report", "verify_windows", "no_speed", "repeats", "sweep"}) {
    EXPECT_FAILS(check({name}, ""), "add verify TEXT") << name;
    EXPECT_NO_THROW(check({name}, "text.txt")) << name;
  }
  EXPECT_FAILS(check({"sweep", "no_speed"}, "text.txt"), "give one of them");
  for (const char* name : {"prompt", "tokens", "repeats"})
    EXPECT_FAILS(check({"no_speed", name}, "text.txt"), "no_speed leaves out") << name;
}

}  // namespace
}  // namespace moe::verification_test
