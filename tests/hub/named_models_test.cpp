// What MODEL means: a path that is there, else a name.
#include "hub/named_models.h"

#include <cstdlib>
#include <filesystem>
#include <set>

#include "hub/configs.h"
#include "hub/convert.h"
#include "hub/hub.h"
#include "support/check.h"
#include "support/environment.h"
#include "support/files.h"

namespace moe::test::named_models_test {
namespace {

namespace fs = std::filesystem;

// Models are kept in a folder of the test's own, and the test stands in another one.
class NamedModels : public ::testing::Test {
 protected:
  NamedModels() : before_(fs::current_path()) {
    environment_.set("MOE_CACHE", folder_ / "cache");
    fs::create_directories(folder_ / "here");
    fs::current_path(folder_ / "here");
  }
  ~NamedModels() override { fs::current_path(before_); }
  static void save(const std::string& path, int64_t layers) {
    ModelConfig c = small_olmoe();
    c.layers = layers;
    Model model(c);
    model.initialise(1);
    save_model(path, model, *make_tokenizer("bytes"));
  }

  TempFolder folder_;
  Environment environment_;
  fs::path before_;
};

TEST_F(NamedModels, TheTableIsWhole) {
  std::set<std::string_view> names;
  for (const KnownModel& m : known_models()) {
    EXPECT_TRUE(names.insert(m.name).second) << m.name;
    EXPECT_EQ(m.name.find('/'), m.name.npos);
    EXPECT_EQ(m.sha256.size(), 64u);
    EXPECT_TRUE(m.inside.ends_with(".gguf"));
    EXPECT_GT(m.wheel_bytes, 0);
    EXPECT_GT(m.bytes, 0);
    for (const std::string_view word : {m.what, m.licence, m.package, m.version})
      EXPECT_FALSE(word.empty()) << m.name;
  }
  EXPECT_FAILS(known_model("smolm2"), "did you mean \"smollm2\"?");
}

TEST_F(NamedModels, AreKeptWhereTheyAreToldTo) {
  const KnownModel& m = known_model("smollm2");
  EXPECT_EQ(cached_path(m), folder_ / "cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
  environment_.set("MOE_CACHE", "");
  environment_.set("HOME", "/home/somebody");
  EXPECT_EQ(model_cache(), "/home/somebody/.cache/moe.cpp");
  environment_.unset("HOME");
  EXPECT_FAILS(model_cache(), "set MOE_CACHE");
}

TEST_F(NamedModels, APathThatIsThereComesFirst) {
  EXPECT_FAILS(find_model("smollm2"), "smollm2 is not here yet; `moe get smollm2` fetches it");
  put(cached_path(known_model("smollm2")), "GGUF");
  EXPECT_EQ(find_model("smollm2"), cached_path(known_model("smollm2")));
  save("smollm2", 1);
  EXPECT_EQ(find_model("smollm2"), "smollm2");
  EXPECT_EQ(load_model("smollm2").model->config().layers, 1);
}

TEST_F(NamedModels, ANameThatIsNoneIsToldTheOthers) {
  EXPECT_FAILS(find_model("smollm3"),
               "no such folder or file, nor a model of that name; did you mean \"smollm2\"?");
  EXPECT_FAILS(
      load_model("zebra"),
      "zebra: there is no such folder or file, nor a model of that name; known are smollm2");
  EXPECT_FAILS(find_model("llama3:8b"), "are called OWNER/NAME, Ollama's ollama:llama3:8b");
  EXPECT_FAILS(known_model("llama3"), "'llama3'; known are smollm2; `hf download OWNER/NAME`");
  for (const char* address :
       {"https://hub.example/some/model", "https://hub.example/some/model/blob/main/a.gguf"})
    EXPECT_FAILS(find_model(address), "is called by its name here, some/model");
  for (const char* path : {"out/none", "./none", "none.gguf", "/none"})
    EXPECT_EQ(find_model(path), path) << "for its reader to refuse";
}

// Who loads needs to know nothing of names.
TEST_F(NamedModels, LoadByName) {
  save(folder_ / "model", 3);
  const std::string path = cached_path(known_model("smollm2"));
  fs::create_directories(fs::path(path).parent_path());
  LoadedModel model = open_model(folder_ / "model", {});
  convert_model(model, folder_ / "model", path, {});
  EXPECT_EQ(load_model("smollm2").model->config().layers, 3);
  fs::create_directory_symlink(folder_ / "model", folder_ / "cache/zebra");
  EXPECT_FAILS(load_model("zebra"), "no such folder");  // only what is in the table has a name
  EXPECT_FAILS(load_model("someone/some-model"), "`hf download someone/some-model");
  EXPECT_FAILS(load_model("zebra.gguf"), "zebra.gguf: there is no such file");
}

}  // namespace
}  // namespace moe::test::named_models_test
