// ollama:NAME in a store made as Ollama makes it.
#include "hub/ollama_store.h"

#include <filesystem>

#include "hub/configs.h"
#include "hub/convert.h"
#include "hub/hub.h"
#include "hub/named_models.h"
#include "support/check.h"
#include "support/environment.h"
#include "support/files.h"

namespace moe::test::ollama_store_test {
namespace {

const std::string kHash(64, 'c');

class OllamaStore : public ::testing::Test {
 protected:
  OllamaStore() { environment_.set("OLLAMA_MODELS", folder_ / "models"); }

  void manifest(const std::string& path, const std::string& digest) const {
    put(folder_ / ("models/manifests/" + path),
        R"({"schemaVersion": 2, "layers": [
  {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:aa", "size": 1},
  {"mediaType": "application/vnd.ollama.image.model", "digest": ")" +
            digest + R"(", "size": 4}]})");
  }

  TempFolder folder_;
  Environment environment_;
};

TEST_F(OllamaStore, OpensAModelByItsName) {
  ModelConfig c = small_olmoe();
  Model made(c);
  made.initialise(1);
  save_model(folder_ / "saved", made, *make_tokenizer("bytes"));
  LoadedModel saved = open_model(folder_ / "saved", {});
  convert_model(saved, folder_ / "saved", folder_ / "m.gguf", {});
  const std::string blob = folder_ / ("models/blobs/sha256-" + kHash);
  put(blob, slurp(folder_ / "m.gguf"));
  manifest("some.host/library/small/latest", "sha256:" + kHash);
  manifest("some.host/someone/else/0.6b", "sha256:" + kHash);
  EXPECT_EQ(load_model("ollama:small").model->config().layers, c.layers);
  for (const char* name : {"ollama:small:latest", "ollama:library/small",
                           "ollama:someone/else:0.6b", "ollama:some.host/someone/else:0.6b"})
    EXPECT_EQ(find_model(name), blob) << name;
  for (const char* name : {"ollama:small:0.6b", "ollama:someone/else", "ollama:else:0.6b",
                           "ollama:other.host/someone/else:0.6b"})
    EXPECT_FAILS(find_model(name), "there is no such model in Ollama's store (") << name;
}

TEST_F(OllamaStore, RefusesWhatLeadsOut) {
  EXPECT_FAILS(find_model("ollama:small"), "`ollama pull small` fetches it");
  for (const char* name : {"ollama:", "ollama:../x", "ollama:x:", "ollama:x:../y", "ollama:/x",
                           "ollama:x/", "ollama:a/b/c/d", "ollama:a b", "ollama:x:y:z"})
    EXPECT_FAILS(find_model(name), "no name of a model of Ollama's") << name;
  manifest("some.host/library/small/latest", "sha256:../../x");
  EXPECT_FAILS(find_model("ollama:small"), R"("digest" is "sha256:../../x", no sha256)");
  manifest("some.host/library/small/latest", "sha256:" + kHash);
  EXPECT_FAILS(find_model("ollama:small"), "is missing; `ollama pull small` fetches the rest");
  put(folder_ / "models/manifests/some.host/library/small/latest", R"({"layers": []})");
  EXPECT_FAILS(find_model("ollama:small"), "no layer of it is a model");
}

}  // namespace
}  // namespace moe::test::ollama_store_test
