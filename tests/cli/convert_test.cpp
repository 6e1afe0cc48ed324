// `moe convert` as a user runs it: what it prints, what it writes, and what it refuses in one line.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "formats/gguf.h"
#include "support/command.h"

namespace moe::test::convert_test {
namespace {

namespace fs = std::filesystem;

// A model made once; its rows are whole blocks of 32, those of its experts' way down too.
class Convert : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new TempFolder;
    put(*made_ / "text.txt", repeated_text(100));
    const CommandResult r =
        moe_command(command_line("train --width 64 --heads 2 --layers 1 --experts 4 --top-k 2 "
                                 "--expert-width 32 --context 32 --batch 2 --steps 3",
                                 {"--data", *made_ / "text.txt", "--out", *made_ / "m"}));
    ASSERT_EQ(r.code, 0) << r.err;
  }
  static void TearDownTestSuite() {
    delete made_;
    made_ = nullptr;
  }

  std::string model() const { return *made_ / "m"; }
  std::string text() const { return *made_ / "text.txt"; }

  static TempFolder* made_;
  TempFolder folder_;
};
TempFolder* Convert::made_ = nullptr;

TEST_F(Convert, PrintsTheAccountAndBothPerplexities) {
  const CommandResult r =
      moe_command({"convert", model(), folder_ / "m.gguf", "--quant", "q4_0", "--verify", text()});
  ASSERT_EQ(r.code, 0) << r.err;
  has(r.out, "norms, biases, routers and positions stay f32");
  has(r.out, "output.weight: the head keeps more bits");
  has(r.out, "tensors read once");
  has(r.out, "written once");
  has(r.out, "perplexity on " + text());
  const CommandResult again =
      moe_command({"score", folder_ / "m.gguf", "--text", text(), "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  has(r.out, fmt::format("{:.4f} after", Json::parse(again.out)["perplexity"].get<double>()));
}

// Mixes by llama.cpp's names, in either case; a type's name alone is its usual mix there.
TEST_F(Convert, TakesMixesByName) {
  for (const auto& [name, same] :
       {std::pair("Q4_K_M", "q4_k"), std::pair("q5_k_m", "Q5_K"), std::pair("q4_k_s", "Q4_K_S")}) {
    ok({"convert", model(), folder_ / "a.gguf", "--quant", name});
    ok({"convert", model(), folder_ / "b.gguf", "--quant", same});
    EXPECT_EQ(slurp(folder_ / "a.gguf"), slurp(folder_ / "b.gguf")) << name;
  }
  const std::string help = ok({"convert", "--help"}).out;
  for (const char* name :
       {"q8_0", "q6_k", "q5_k_m", "q5_k_s", "q5_1", "q5_0", "q4_k_m", "q4_k_s", "q4_1", "q4_0"})
    has(help, name);
}

// Errors weighed by what a text multiplies: measured, saved and read again, the same bytes.
TEST_F(Convert, CalibratesAndSavesWhatItMeasured) {
  std::string other;
  for (int i = 0; i < 200; ++i) other += fmt::format("line {} of a text to judge by\n", i);
  put(folder_ / "other.txt", other);
  const CommandResult r = ok({"convert", model(), folder_ / "a.gguf", "--quant", "q4_0",
                              "--calibration", text(), "--windows", "4", "--save-imatrix",
                              folder_ / "i.gguf", "--verify", folder_ / "other.txt"});
  has(r.out, fmt::format("calibrated on {}: 4 windows of it, perplexity", text()));
  has(r.out, "7 tensors quantised by the importance in " + text());
  has(r.out, "experts: ");
  has(r.out, "rows in the middle");
  const CommandResult again = ok({"convert", model(), folder_ / "b.gguf", "--quant", "q4_0",
                                  "--imatrix", folder_ / "i.gguf", "--json"});
  EXPECT_EQ(slurp(folder_ / "a.gguf"), slurp(folder_ / "b.gguf"));
  const Json importance = Json::parse(again.out)["importance"];
  EXPECT_EQ(importance["weighed"], 7);
  EXPECT_EQ(importance["not_weighed"], Json::array());
  ASSERT_EQ(importance["expert_rows"].size(), 1u);
  // four windows of 32 tokens, two experts each
  int64_t rows = 0;
  for (const Json& n : importance["expert_rows"][0]["rows"]) rows += n.get<int64_t>();
  EXPECT_EQ(rows, 4 * 32 * 2);
  ok({"convert", model(), folder_ / "plain.gguf", "--quant", "q4_0"});
  EXPECT_NE(slurp(folder_ / "a.gguf"), slurp(folder_ / "plain.gguf"));
}

// The same form and size, other numbers; all but the queries, keys and values.
TEST_F(Convert, MakesRoundingErrorsGood) {
  const auto convert = [&](const char* name, std::vector<std::string> more) {
    std::vector<std::string> words = {"convert",       model(), folder_ / name, "--quant", "q4_0",
                                      "--calibration", text(),  "--windows",    "4"};
    words.insert(words.end(), more.begin(), more.end());
    return ok(words).out;
  };
  has(convert("a.gguf", {"--gptq"}),
      "7 tensors quantised by the importance in " + text() + ", errors of 4 made good");
  EXPECT_EQ(Json::parse(convert("b.gguf", {"--gptq", "--json"}))["importance"]["compensated"], 4);
  EXPECT_EQ(slurp(folder_ / "a.gguf"), slurp(folder_ / "b.gguf"));
  convert("plain.gguf", {});
  EXPECT_EQ(slurp(folder_ / "a.gguf").size(), slurp(folder_ / "plain.gguf").size());
  EXPECT_NE(slurp(folder_ / "a.gguf"), slurp(folder_ / "plain.gguf"));
}

TEST_F(Convert, RefusesCalibrationsThatDoNotGoTogether) {
  const std::string out = folder_ / "x.gguf";
  const auto convert = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"convert", model(), out};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_refused(convert({"--calibration", text()}), 2, {"--calibration", "add --quant"});
  expect_refused(convert({"--dtype", "bf16", "--imatrix", "i.gguf"}), 2,
                 {"--imatrix", "add --quant"});
  expect_refused(convert({"--quant", "q4_0", "--windows", "4"}), 2,
                 {"--windows", "--calibration TEXT"});
  expect_refused(convert({"--quant", "q4_0", "--save-imatrix", "i"}), 2, {"--calibration TEXT"});
  for (const std::string& same : {out, folder_ / "none/../x.gguf"})
    expect_refused(convert({"--quant", "q4_0", "--calibration", text(), "--save-imatrix", same}), 2,
                   {"--save-imatrix " + same + " is OUT", "choose another name"});
  expect_refused({"convert", model(), out, "--quant", "q4_0", "--calibration", text(),
                  "--save-imatrix", model() + "/model.safetensors"},
                 1, {"is no importance matrix"});
  expect_refused(convert({"--quant", "q4_0", "--gptq"}), 2, {"--gptq", "--calibration TEXT"});
  expect_refused(convert({"--quant", "q4_0", "--calibration", text(), "--imatrix", "i"}), 2,
                 {"give one of them"});
  expect_refused(convert({"--quant", "q4_0", "--imatrix", folder_ / "none"}), 1, {"none"});
  expect_refused(convert({"--quant", "q4_0", "--imatrix", text()}), 1, {text()});
  expect_refused(convert({"--quant", "q4_0", "--calibration", text(), "--save-imatrix", text()}), 1,
                 {"is no importance matrix"});
  expect_refused(convert({"--quant", "q4_0", "--calibration", text(), "--verify", text()}), 2,
                 {"cannot show the damage"});
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(Convert, SaysWhatItReplaces) {
  for (const std::string& out : {folder_ / "m.gguf", folder_ / "out"}) {
    const std::string line = "note: replacing " + out + "\n";
    const CommandResult first = ok({"convert", model(), out, "--dtype", "f32"}),
                        again = ok({"convert", model(), out, "--dtype", "bf16"});
    EXPECT_EQ(first.err.find(line), std::string::npos) << first.err;
    has(again.err, line);
  }
}

TEST_F(Convert, JsonHoldsTheSame) {
  const CommandResult r =
      moe_command({"convert", model(), folder_ / "bf16", "--dtype", "bf16", "--verify", text(),
                   "--verify-windows", "2", "--verify-window", "32", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json reply = Json::parse(r.out);
  EXPECT_EQ(reply["sources"], reply["targets"]);
  EXPECT_EQ(reply["bytes_after"].get<int64_t>() * 2, reply["bytes_before"].get<int64_t>());
  ASSERT_EQ(reply["tensors"].size(), 1u);
  EXPECT_EQ(reply["tensors"][0]["from"], "f32");
  EXPECT_EQ(reply["tensors"][0]["to"], "bf16");
  EXPECT_EQ(reply["verify"]["windows"], 2);
  EXPECT_EQ(reply["verify"]["window"], 32);
  const double before = reply["verify"]["before"]["perplexity"],
               after = reply["verify"]["after"]["perplexity"];
  EXPECT_NEAR(after / before, 1, 0.02);
  EXPECT_NE(after, before);
}

// Makes a file's tensors of q3_k such of iq3_s, whose blocks are as large, with numbers of 0:
// nothing here makes that type.
void turn_q3_k_into_iq3_s(const std::string& path) {
  std::string bytes = slurp(path);
  const Gguf file = Gguf::open(path);
  for (const std::string& name : file.names()) {
    const Tensor blocks = file.get(name);
    if (blocks.dtype != DType::q3_k) continue;
    size_t at = bytes.find(name) + name.size();
    at += 4 + 8 * static_cast<size_t>(bytes[at]);  // its rank, and so many sizes
    ASSERT_EQ(bytes[at], 11) << name;
    bytes[at] = 21;
    const std::string_view data(static_cast<const char*>(blocks.data),
                                static_cast<size_t>(blocks.bytes()));
    bytes.replace(bytes.find(data), data.size(), data.size(), '\0');
  }
  put(path, bytes);
}

TEST_F(Convert, TypesThatAreOnlyReadAreKeptAndNotMade) {
  ok(command_line(
      "train --width 256 --heads 2 --layers 1 --experts 4 --top-k 2 --expert-width 256 "
      "--context 32 --batch 2 --steps 1 --no-report",
      {"--data", text(), "--out", folder_ / "m"}));
  const std::string in = folder_ / "in.gguf", out = folder_ / "out.gguf", adapter = folder_ / "a";
  ok({"convert", folder_ / "m", in, "--quant", "q3_k_s"});
  ASSERT_NO_FATAL_FAILURE(turn_q3_k_into_iq3_s(in));
  ok({"convert", in, out});
  EXPECT_EQ(Gguf::open(out).get("blk.0.ffn_down_exps.weight").dtype, DType::iq3_s);
  ok(command_line("train --tune lora --context 32 --batch 2 --steps 1 --no-report",
                  {"--from", in, "--data", text(), "--out", adapter}));
  fs::remove(out);
  const CommandResult merged = moe_command({"convert", in, out, "--adapter", adapter});
  EXPECT_EQ(merged.code, 2);
  has(merged.err, "changes and is iq3_s, which is read, not made; choose a type with --quant");
  EXPECT_FALSE(fs::exists(out));
  expect_refused({"prune", in, out, "--experts", "3", "--calibration", text()}, 2,
                 {"most of " + in + " is iq3_s, which is read, not made", "--quant"});
  ok({"convert", in, out, "--adapter", adapter, "--quant", "q3_k_m"});
}

TEST_F(Convert, Refusals) {
  const std::string out = folder_ / "out", gguf = folder_ / "out.gguf";
  expect_refused({"convert", model(), out, "--quant", "q8_0"}, 2, {"q8_0", ".gguf", "--dtype"});
  expect_refused({"convert", model(), gguf, "--quant", "q9_0"}, 2, {"--quant", "q9_0", "q8_0"});
  expect_refused({"convert", model(), gguf, "--quant", "bf16"}, 2, {"--dtype bf16"});
  expect_refused({"convert", model(), gguf, "--dtype", "q8_0"}, 2, {"--quant q8_0"});
  expect_refused({"convert", model(), gguf, "--dtype", "bf16", "--quant", "q8_0"}, 2,
                 {"--quant", "--dtype"});
  expect_refused({"convert", model(), gguf, "--quant", "Q2_K_S"}, 2,
                 {"--quant Q2_K_S", "llama.cpp makes it of a mix of Q2_K", "q2_k"});
  expect_refused({"convert", model(), gguf, "--quant", "iq3_xxs"}, 2,
                 {"iq3_xxs", "IQ types", "q3_k_m"});
  expect_refused({"convert", model(), gguf, "--quant", "q4_k_x"}, 2, {"'q4_k_x'", "\"q4_k_m\""});
  expect_refused({"convert", model(), model()}, 1, {"is the model itself"});
  expect_refused({"convert", folder_ / "nothing", gguf}, 1, {"nothing"});
  put(folder_ / "short.txt", "x");
  expect_refused({"convert", model(), gguf, "--verify", folder_ / "short.txt"}, 1,
                 {"short.txt has 1 token, less than one window of 32; give a longer text"});
  put(folder_ / "short.txt", "too short");
  expect_refused({"convert", model(), gguf, "--verify", folder_ / "short.txt"}, 1,
                 {"short.txt has 9 tokens", "give a longer text, or --verify-window 9"});
  expect_refused({"convert", model(), gguf, "--verify-windows", "2"}, 2,
                 {"--verify-windows", "--verify TEXT"});
  put(folder_ / "text.gguf", "text");
  expect_refused({"convert", model(), folder_ / "text.gguf"}, 1,
                 {"text.gguf", "choose another name"});
  EXPECT_EQ(slurp(folder_ / "text.gguf"), "text");
  put(folder_ / "texts/one.txt", "text");
  expect_refused({"convert", model(), folder_ / "texts"}, 1, {"one.txt", "an empty folder"});
  expect_refused({"convert", model(), folder_ / "m.safetensors"}, 1, {"is a folder", ".gguf"});
  EXPECT_FALSE(fs::exists(folder_ / "m.safetensors"));
  EXPECT_FALSE(fs::exists(out) || fs::exists(gguf));
}

}  // namespace
}  // namespace moe::test::convert_test
