// OWNER/NAME in a cache made as Hugging Face's programs make it: what is found, what is refused and
// what is told of it.
#include "hub/hub_cache.h"

#include <filesystem>

#include "hub/adapter.h"
#include "hub/configs.h"
#include "hub/convert.h"
#include "hub/hub.h"
#include "hub/named_models.h"
#include "support/check.h"
#include "support/environment.h"
#include "support/files.h"
#include "support/made_hub.h"

namespace moe::test::hub_cache_test {
namespace {

namespace fs = std::filesystem;

const std::string kOld(40, 'a'), kNew = "0123456789abcdef0123456789abcdef01234567";

class HubCache : public ::testing::Test {
 protected:
  HubCache() : before_(fs::current_path()) {
    environment_.set("HF_HUB_CACHE", folder_ / "hub");
    fs::create_directories(folder_ / "here");
    fs::current_path(folder_ / "here");
  }
  ~HubCache() override { fs::current_path(before_); }

  MadeRepository repository(const std::string& owner, const std::string& name) const {
    return {folder_ / "hub", owner, name};
  }
  // A model folder of so many layers.
  std::string saved(int64_t layers) const {
    const std::string path = folder_ / ("saved" + std::to_string(layers));
    if (fs::exists(path)) return path;
    ModelConfig c = small_olmoe();
    c.layers = layers;
    c.routing = default_options(find_recipe("olmoe"), 3, 2, c.layers);
    Model model(c);
    model.initialise(1);
    save_model(path, model, *make_tokenizer("bytes"));
    return path;
  }
  static int64_t layers_of(const std::string& name) {
    return load_model(name).model->config().layers;
  }

  TempFolder folder_;
  Environment environment_;
  fs::path before_;
};

TEST_F(HubCache, WhatIsAName) {
  const auto read = [](const char* text) {
    const std::optional<HubName> n = parse_hub_name(text);
    return n ? n->repository + " " + n->revision + " " + n->type : "none";
  };
  EXPECT_EQ(read("Qwen/Qwen3-0.6B"), "Qwen/Qwen3-0.6B  ");
  EXPECT_EQ(read("gpt2"), "gpt2  ");
  EXPECT_EQ(read("a/b_c.d@v1.0"), "a/b_c.d v1.0 ");
  EXPECT_EQ(read("a/b@refs/pr/1"), "a/b refs/pr/1 ");
  EXPECT_EQ(read("a/b-GGUF:Q4_K_M"), "a/b-GGUF  Q4_K_M");
  EXPECT_EQ(read("a/b@main:UD-Q4_K_XL"), "a/b main UD-Q4_K_XL");
  EXPECT_EQ(as_text({"a/b", "main", "Q8_0"}), "a/b@main:Q8_0");
  for (const char* text :
       {"",     "/",        "a/",    "/b",    "a/b/c",    "a/..",          "../b",
        "..",   "a/b--c",   "a/.b",  "-a/b",  "a/b c",    "a/b\n",         "a/b;c",
        "a/$b", "~/b",      "./b",   "a/b@",  "a/b@../x", "a/b@x/../../y", "a/b@/x",
        "a/b:", "a/b:../x", "a/b:*", "a\\b/c"})
    EXPECT_EQ(read(text), "none") << text;
  EXPECT_EQ(read(("a/" + std::string(97, 'b')).c_str()), "none");
}

TEST_F(HubCache, LiesWhereTheEnvironmentSays) {
  EXPECT_EQ(hub_cache(), folder_ / "hub");
  EXPECT_EQ(hub_place({"a/b", "", ""}), folder_ / "hub/models--a--b");
  environment_.set("HOME", "/home/somebody");
  environment_.set("XDG_CACHE_HOME", "/xdg");
  environment_.set("HF_HOME", "~/hf");
  environment_.set("HUGGINGFACE_HUB_CACHE", "/older");
  environment_.set("HF_HUB_CACHE", "");
  EXPECT_EQ(hub_cache(), "/older");
  environment_.unset("HUGGINGFACE_HUB_CACHE");
  EXPECT_EQ(hub_cache(), "/home/somebody/hf/hub");
  environment_.unset("HF_HOME");
  EXPECT_EQ(hub_cache(), "/xdg/huggingface/hub");
  environment_.unset("XDG_CACHE_HOME");
  EXPECT_EQ(hub_cache(), "/home/somebody/.cache/huggingface/hub");
  environment_.unset("HOME");
  EXPECT_EQ(hub_cache(), "");
  EXPECT_FAILS(load_model("a/b"), "`hf download a/b` fetches it");
}

TEST_F(HubCache, OpensThroughLinksByRevision) {
  const MadeRepository made = repository("some", "Model-1.5");
  made.files(kOld, saved(1));
  made.files(kNew, saved(2));
  made.ref("main", kNew + "\n");
  made.ref("refs/pr/3", kOld);
  EXPECT_EQ(find_model("some/Model-1.5"), made.snapshot(kNew));
  EXPECT_EQ(layers_of("some/Model-1.5"), 2);
  EXPECT_EQ(layers_of("some/Model-1.5@main"), 2);
  EXPECT_EQ(layers_of("some/Model-1.5@refs/pr/3"), 1);
  EXPECT_EQ(layers_of("some/Model-1.5@" + kOld), 1);
  EXPECT_EQ(read_model_config("some/Model-1.5").layers, 2);
  EXPECT_FAILS(load_model("some/Model-1.5@v2"),
               "holds nothing of its revision v2; `hf download some/Model-1.5 --revision v2`");
  EXPECT_FAILS(load_model("some/Model-1.5:Q8_0"),
               "no .gguf file; `hf download some/Model-1.5 --include '*Q8_0*'` fetches");
  fs::create_directories("some");
  fs::copy(saved(3), "some/Model-1.5");
  EXPECT_EQ(layers_of("some/Model-1.5"), 3) << "what is there under the name comes first";
}

TEST_F(HubCache, TheOnlySnapshotNeedsNoRef) {
  const MadeRepository made = repository("some", "model");
  made.files(kOld, saved(1));
  EXPECT_EQ(layers_of("some/model"), 1);
  made.files(kNew, saved(2));
  EXPECT_FAILS(load_model("some/model"), "holds nothing of its revision main");
}

TEST_F(HubCache, ANameWithoutOwnerIsFoundToo) {
  const std::string snapshot = folder_ / ("hub/models--gpt2/snapshots/" + kOld);
  fs::create_directories(fs::path(snapshot).parent_path());
  fs::copy(saved(1), snapshot);
  put(folder_ / "hub/models--gpt2/refs/main", kOld);
  EXPECT_EQ(find_model("gpt2"), snapshot);
  EXPECT_FAILS(find_model("gpt3"), "nor a model of that name");
}

TEST_F(HubCache, WhatIsNotThereIsToldWithTheCommand) {
  EXPECT_EQ(find_model("some/model"), "some/model") << "for its reader to refuse";
  for (const auto& read :
       {+[] { load_model("some/model"); }, +[] { read_model_config("some/model"); }})
    EXPECT_FAILS(read(),
                 "some/model: there is no such folder, nor a model of that name in Hugging "
                 "Face's cache (" +
                     folder_ / "hub/models--some--model" +
                     "); `hf download some/model` fetches it");
  EXPECT_FAILS(load_model("some/model@v1"), "`hf download some/model --revision v1`");
  EXPECT_FAILS(load_model("some/model:Q4_0"), "`hf download some/model --include '*Q4_0*'`");
  fs::create_directories("some");
  EXPECT_FAILS(load_model("some/model"), "a model folder holds") << "a path, mistyped";
  EXPECT_EQ(path_if_here("some/model"), "");
  EXPECT_EQ(path_if_here("nothing"), "");
}

TEST_F(HubCache, SaysWhatOfADownloadIsMissing) {
  const MadeRepository made = repository("some", "model");
  made.ref("main", kNew);
  EXPECT_FAILS(load_model("some/model"), "holds nothing of its revision main");
  made.file(kNew, "README.md", "x");
  EXPECT_FAILS(load_model("some/model"), "neither config.json nor a .gguf file; `hf download");
  made.file(kNew, "config.json", slurp(saved(2) + "/config.json"));
  made.file(kNew, "tokenizer.json", slurp(saved(2) + "/tokenizer.json"));
  EXPECT_EQ(read_model_config("some/model").layers, 2) << "more is not needed for it";
  EXPECT_FAILS(load_model("some/model"),
               "some/model: it is not here as a whole, model.safetensors is missing; `hf download "
               "some/model` fetches the rest");
  made.file(kNew, "model.safetensors.index.json", R"({"weight_map": {
    "a": "model-00001-of-00003.safetensors", "b": "model-00002-of-00003.safetensors",
    "c": "model-00003-of-00003.safetensors", "d": "model-00003-of-00003.safetensors"}})");
  made.file(kNew, "model-00001-of-00003.safetensors", "x");
  made.file(kNew, "model-00002-of-00003.safetensors", "x");
  EXPECT_FAILS(load_model("some/model"), "whole, model-00003-of-00003.safetensors is missing;");
  fs::remove_all(made.place() + "/blobs");  // the links lead nowhere
  EXPECT_FAILS(load_model("some/model"), "neither config.json nor a .gguf file");
}

TEST_F(HubCache, CountsWhatIsMissing) {
  const MadeRepository made = repository("some", "model");
  made.ref("main", kNew);
  made.file(kNew, "config.json", slurp(saved(2) + "/config.json"));
  made.file(kNew, "model.safetensors.index.json",
            R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})");
  EXPECT_FAILS(load_model("some/model"),
               "model-1.safetensors, with 2 more, is missing;");  // and the tokenizer
}

TEST_F(HubCache, NamesWeightsThatAreNotRead) {
  const MadeRepository made = repository("some", "model");
  made.ref("main", kNew);
  made.files(kNew, saved(1));
  made.drop(kNew, "model.safetensors");
  made.file(kNew, "pytorch_model.bin", "x");
  EXPECT_FAILS(load_model("some/model"),
               "its weights are in pytorch_model.bin, and of folders only");
  fs::create_directories("folder");
  put("folder/model.Q8_0.gguf", "GGUF");
  EXPECT_FAILS(load_model("folder"), "in model.Q8_0.gguf; name that file in place of the folder");
}

TEST_F(HubCache, RefsAreNotTrusted) {
  const MadeRepository made = repository("some", "model");
  made.files(kNew, saved(1));
  for (const std::string& ref : {std::string("../../../x"), std::string(), std::string(65, 'a'),
                                 std::string("main"), std::string("a b")}) {
    made.ref("main", ref);
    EXPECT_FAILS(find_model("some/model"), "refs/main: it should hold the name of a commit") << ref;
  }
  made.ref("main", std::string(10'000, 'a'));
  EXPECT_FAILS(find_model("some/model"), "refs/main is longer than the");
  EXPECT_EQ(models_in_hub_cache().size(), 1u);
}

class HubGguf : public HubCache {
 protected:
  HubGguf() { made_.ref("main", kNew); }
  void file(const std::string& name) const { made_.file(kNew, name, "GGUF"); }
  std::string found(const std::string& type) const {
    const std::string path = find_model("some/model-GGUF" + (type.empty() ? "" : ":" + type));
    return path.substr(made_.snapshot(kNew).size() + 1);
  }
  MadeRepository made_ = repository("some", "model-GGUF");
};

TEST_F(HubGguf, TheOnlyOneNeedsNoType) {
  file("model-Q8_0.gguf");
  file("mmproj-model-f16.gguf");
  file("config.json");  // of what it was made from
  EXPECT_EQ(found(""), "model-Q8_0.gguf");
  EXPECT_EQ(found("q8_0"), "model-Q8_0.gguf");
  EXPECT_EQ(found("model-Q8_0"), "model-Q8_0.gguf");
}

TEST_F(HubGguf, IsPickedByAWholeWordOfItsName) {
  for (const char* name : {"model-Q4_K_M.gguf", "model-Q4_K_S.gguf", "model-IQ4_XS.gguf",
                           "model.q5_0.gguf", "model-UD-Q6_K_XL.gguf"})
    file(name);
  EXPECT_EQ(found("Q4_K_M"), "model-Q4_K_M.gguf");
  EXPECT_EQ(found("q4_k_s"), "model-Q4_K_S.gguf");
  EXPECT_EQ(found("Q5_0"), "model.q5_0.gguf");
  EXPECT_EQ(found("UD-Q6_K_XL"), "model-UD-Q6_K_XL.gguf");
  EXPECT_EQ(found("Q6_K_XL"), "model-UD-Q6_K_XL.gguf");
  for (const char* type : {"Q4_K", "Q4_XS", "Q5", "Q8_0"})
    EXPECT_FAILS(found(type), "no .gguf file that is here has " + std::string(type) +
                                  " in its name (here are some/model-GGUF:IQ4_XS, ");
  EXPECT_FAILS(found(""), "5 .gguf files are meant; say which: some/model-GGUF:IQ4_XS, ");
  EXPECT_FAILS(found("model"), "5 .gguf files are meant");
}

TEST_F(HubGguf, TheFirstOfSeveralFilesStandsForAll) {
  file("Q8_0/model-Q8_0-00002-of-00003.gguf");
  file("Q8_0/model-Q8_0-00003-of-00003.gguf");
  EXPECT_FAILS(found("Q8_0"),
               "not here as a whole, model-Q8_0-00001-of-00003.gguf is missing; `hf download "
               "some/model-GGUF --include '*Q8_0*'` fetches the rest");
  file("Q8_0/model-Q8_0-00001-of-00003.gguf");
  EXPECT_EQ(found("Q8_0"), "Q8_0/model-Q8_0-00001-of-00003.gguf");
  EXPECT_EQ(found(""), "Q8_0/model-Q8_0-00001-of-00003.gguf");
}

TEST_F(HubGguf, OpensThroughLinks) {
  LoadedModel model = open_model(saved(2), {});
  fs::create_directories(folder_ / "parts");
  const ConvertReport report =
      convert_model(model, saved(2), folder_ / "parts/m-F32.gguf", {.file_bytes = 10'000});
  ASSERT_GE(report.files.size(), 2u);
  made_.files(kNew, folder_ / "parts");
  EXPECT_EQ(layers_of("some/model-GGUF:f32"), 2);
}

// PEFT names the base by its repository.
TEST_F(HubCache, AnAdapterFindsItsBase) {
  const std::string adapter = folder_ / "adapter";
  put(adapter + "/adapter_config.json", R"({"base_model_name_or_path": "some/base"})");
  EXPECT_FAILS(adapter_base(adapter),
               "the model it belongs to, some/base, is not there (`hf download some/base` fetches "
               "it); name it yourself");
  const MadeRepository made = repository("some", "base");
  made.files(kNew, saved(2));
  EXPECT_EQ(adapter_base(adapter), "some/base");
  EXPECT_EQ(read_model_config(adapter).layers, 2);
  put(adapter + "/adapter_config.json", R"({"base_model_name_or_path": "nothing"})");
  EXPECT_FAILS(adapter_base(adapter), "nothing, is not there; name it yourself");
}

TEST_F(HubCache, ListsWhatCanBeOpened) {
  EXPECT_TRUE(models_in_hub_cache().empty());
  const MadeRepository whole = repository("some", "whole");
  whole.files(kNew, saved(1));
  whole.files(kOld, saved(2));
  whole.ref("main", kNew);
  whole.ref("old", kOld);
  const MadeRepository part = repository("some", "part");
  part.files(kNew, saved(1));
  part.ref("main", kNew);
  part.drop(kNew, "model.safetensors");
  const MadeRepository other = repository("some", "other");
  other.file(kNew, "config.json", R"({"model_type": "bert"})");
  other.ref("main", kNew);
  const MadeRepository gguf = repository("some", "GGUF");
  gguf.file(kNew, "m-Q8_0.gguf", "GGUF");
  gguf.file(kNew, "m-Q4_0-00001-of-00002.gguf", "GGUF");
  gguf.file(kNew, "m-i1.Q4_0.gguf", "GGUF!");
  put(folder_ / "hub/datasets--some--data/refs/main", kNew);
  put(folder_ / "hub/models--..--x/refs/main", kNew);

  std::vector<std::string> said;
  for (const HubModel& m : models_in_hub_cache()) {
    said.push_back(m.name + " " + m.kind + (m.whole ? "" : " not whole"));
    if (m.whole) EXPECT_EQ(find_model(m.name), m.path);
  }
  EXPECT_EQ(said,
            (std::vector<std::string>{"some/GGUF:Q8_0 gguf", "some/GGUF:m-Q4_0 gguf not whole",
                                      "some/GGUF:m-i1.Q4_0 gguf", "some/part olmoe not whole",
                                      "some/whole olmoe", "some/whole@old olmoe"}));
  const std::vector<HubModel> all = models_in_hub_cache();
  EXPECT_EQ(all[2].bytes, 5);
  EXPECT_EQ(all[3].bytes, 0);
  EXPECT_EQ(all[4].bytes, static_cast<int64_t>(fs::file_size(saved(1) + "/model.safetensors")));
}

}  // namespace
}  // namespace moe::test::hub_cache_test
