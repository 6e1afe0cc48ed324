// The command given model folders that are damaged or hostile: one clear line that names the file,
// and nothing else.
#include <cstdint>

#include "support/command.h"

namespace moe::test::model_files_test {
namespace {

namespace fs = std::filesystem;

// A model folder made once; each test damages a copy.
class ModelFiles : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new TempFolder;
    put(*made_ / "text.txt", repeated_text(50));
    const CommandResult r =
        moe_command(command_line("train --width 16 --heads 2 --layers 1 --experts 4 --top-k 2 "
                                 "--expert-width 16 --context 16 --batch 2 --steps 1",
                                 {"--data", *made_ / "text.txt", "--out", *made_ / "m"}));
    ASSERT_EQ(r.code, 0) << r.err;
  }
  static void TearDownTestSuite() {
    delete made_;
    made_ = nullptr;
  }
  ModelFiles() { fs::copy(*made_ / "m", m_); }

  void refused(const std::vector<std::string>& parts) const {
    expect_refused({"generate", m_, "-p", "x", "-n", "1"}, 1, parts);
  }
  // A safetensors file of this header and `data` bytes of zeros.
  void put_tensors(const std::string& header, size_t data, uint64_t claimed = 0) const {
    uint64_t length = claimed > 0 ? claimed : header.size();
    put(m_ + "/model.safetensors",
        std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data, '\0'));
  }

  static TempFolder* made_;
  TempFolder folder_;
  std::string m_ = folder_ / "m";
};
TempFolder* ModelFiles::made_ = nullptr;

TEST_F(ModelFiles, TheUndamagedOneRuns) {
  EXPECT_EQ(moe_command({"generate", m_, "-p", "x", "-n", "1"}).code, 0);
}

TEST_F(ModelFiles, TruncatedTensors) {
  const std::string whole = slurp(m_ + "/model.safetensors");
  for (const size_t kept :
       {size_t{0}, size_t{7}, size_t{8}, size_t{50}, whole.size() / 2, whole.size() - 1}) {
    put(m_ + "/model.safetensors", whole.substr(0, kept));
    refused({"model.safetensors"});
  }
  put(m_ + "/model.safetensors", whole + "x");
  refused({"model.safetensors"});
}

TEST_F(ModelFiles, HostileHeaders) {
  put_tensors("{}", 0, uint64_t{1} << 63);
  refused({"model.safetensors"});
  put_tensors(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
      12);
  refused({"model.safetensors"});
  put_tensors(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0);
  refused({"model.safetensors"});
  put_tensors(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4);
  refused({"model.safetensors"});
  put_tensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,99999999999]}})", 4);
  refused({"model.safetensors"});
  put_tensors(R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", 4);
  refused({"model.safetensors"});
  put_tensors(R"({"other":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
  refused({m_, "model.embed_tokens.weight"});
}

TEST_F(ModelFiles, BrokenConfig) {
  const std::string good = slurp(m_ + "/config.json");
  const auto with = [&](const std::string& text, const std::vector<std::string>& parts) {
    put(m_ + "/config.json", text);
    refused(parts);
    expect_refused({"inspect", m_}, 1, parts);
  };
  with("", {"config.json"});
  with("not json", {"config.json", "line 1"});
  with(std::string(1000, '['), {"config.json"});
  with("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}", {"config.json", "deep"});
  with("[]", {"config.json"});
  const size_t at = good.find("\"hidden_size\": 16");
  ASSERT_NE(at, std::string::npos) << good;
  const auto hidden = [&](const std::string& value) {
    return std::string(good).replace(at, 17, "\"hidden_size\": " + value);
  };
  with(hidden("\"16\""), {"config.json", "hidden_size"});
  with(hidden("16.5"), {"config.json", "hidden_size"});
  with(hidden("-16"), {"config.json", "hidden_size"});
  with(hidden("17"), {"config.json"});
  with(hidden("1e99"), {"config.json", "hidden_size"});
  const size_t type = good.find("\"model_type\": \"olmoe\"");
  ASSERT_NE(type, std::string::npos) << good;
  with(std::string(good).replace(type, 21, "\"model_type\": \"olmoo\""),
       {"config.json", "\"olmoe\""});
}

TEST_F(ModelFiles, AConfigOfAnotherSize) {
  std::string config = slurp(m_ + "/config.json");
  const size_t at = config.find("\"num_hidden_layers\": 1");
  ASSERT_NE(at, std::string::npos) << config;
  put(m_ + "/config.json", config.replace(at, 22, "\"num_hidden_layers\": 2"));
  refused({m_, "model.layers.1.", "config.json"});
}

TEST_F(ModelFiles, MissingFiles) {
  for (const std::string name : {"tokenizer.json", "config.json", "model.safetensors"}) {
    const std::string content = slurp(m_ + "/" + name);
    fs::remove(m_ + "/" + name);
    refused({m_, name});
    put(m_ + "/" + name, "");
    refused({name});
    put(m_ + "/" + name, content);
  }
}

TEST_F(ModelFiles, ResumingFromTornMoments) {
  const std::string moments = m_ + "/trainer-1.safetensors";
  ASSERT_TRUE(fs::exists(moments));
  const std::string whole = slurp(moments), model = slurp(m_ + "/model.safetensors");
  const std::vector<std::string> resume = command_line(
      "train --width 16 --heads 2 --layers 1 --experts 4 --top-k 2 --expert-width 16 --context 16 "
      "--batch 2 --steps 5 --resume",
      {"--data", *made_ / "text.txt", "--out", m_});
  put(moments, whole.substr(0, whole.size() / 2));
  expect_refused(resume, 1, {"trainer-1.safetensors"});
  fs::remove(moments);
  expect_refused(resume, 1, {"trainer-1.safetensors"});
  EXPECT_EQ(slurp(m_ + "/model.safetensors"), model);
}

}  // namespace
}  // namespace moe::test::model_files_test
