// Conversions: what becomes of each type, the account, and what is refused.
#include "hub/convert.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/json.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "hub/account.h"
#include "hub/configs.h"
#include "hub/gguf/gguf_model.h"
#include "hub/saved_folder.h"
#include "support/check.h"
#include "support/files.h"
#include "support/param_named.h"
#include "tensor/quant.h"
#include "text/chat.h"

namespace moe::test::convert_test {
namespace {

std::string choice(WeightKind kind, int64_t cols, std::optional<DType> asked,
                   DType stored = DType::f32, Target target = Target::gguf) {
  const TypeChoice c = choose_type(kind, cols, stored, asked, target);
  return std::string(name_of(c.dtype)) + (c.why.empty() ? "" : "!");
}

// A "!" marks a type that was not asked for.
TEST(QuantPolicy, ProductsFallBackAsLlamaCppDoes) {
  using enum WeightKind;
  for (const DType same : {DType::q8_0, DType::q5_1, DType::q5_0, DType::q4_1, DType::q4_0}) {
    EXPECT_EQ(choice(product, 64, same), name_of(same));
    EXPECT_EQ(choice(product, 576, same), name_of(same));
    EXPECT_EQ(choice(product, 48, same), "f16!");
  }
  for (const auto& [asked, fallback] :
       {std::pair{DType::q4_k, "q5_0!"}, std::pair{DType::q6_k, "q8_0!"}}) {
    EXPECT_EQ(choice(product, 512, asked), name_of(asked));
    EXPECT_EQ(choice(product, 576, asked), fallback);
    EXPECT_EQ(choice(embedding, 576, asked), fallback);
    EXPECT_EQ(choice(product, 100, asked), "f16!");
  }
  EXPECT_EQ(choice(product, 576, DType::q5_k), "q5_1!");
  EXPECT_EQ(choice(product, 512, DType::iq4_xs), "iq4_xs");
  EXPECT_EQ(choice(product, 576, DType::iq4_xs), "iq4_nl!");
  EXPECT_EQ(choice(product, 576, DType::q2_0), "q2_0");
  EXPECT_EQ(choice(product, 96, DType::q2_0), "q4_0!");
  EXPECT_EQ(choice(product, 100, DType::q2_0), "f16!");
  for (const DType half : {DType::f32, DType::bf16, DType::f16})
    EXPECT_EQ(choice(product, 100, half), name_of(half));
}

TEST(QuantPolicy, TheHeadKeepsMoreBits) {
  using enum WeightKind;
  for (const DType asked :
       {DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q4_k, DType::q2_0}) {
    EXPECT_EQ(choice(lm_head, 512, asked), "q6_k!");
    EXPECT_EQ(choice(lm_head, 576, asked), "q8_0!");
    EXPECT_EQ(choice(lm_head, 100, asked), "f16!");
  }
  EXPECT_EQ(choice(lm_head, 512, DType::q8_0), "q8_0");
  EXPECT_EQ(choice(lm_head, 512, DType::q6_k), "q6_k");
  EXPECT_EQ(choice(lm_head, 576, DType::q6_k), "q8_0!");
  EXPECT_EQ(choice(lm_head, 512, DType::bf16), "bf16");
}

TEST(QuantPolicy, SmallThingsStayF32AndFoldersHoldNoBlocks) {
  using enum WeightKind;
  for (const DType asked : {DType::q4_0, DType::q8_0, DType::f16, DType::bf16})
    EXPECT_EQ(choice(small, 512, asked), "f32!");
  EXPECT_EQ(choice(small, 512, DType::bf16, DType::f32, Target::folder), "bf16");
  EXPECT_EQ(choice(buffer, 512, DType::bf16, DType::f32, Target::folder), "f32!");
  EXPECT_EQ(choice(product, 512, std::nullopt, DType::q4_k), "q4_k");
  EXPECT_EQ(choice(product, 512, std::nullopt, DType::bf16), "bf16");
  EXPECT_EQ(choice(product, 512, std::nullopt, DType::bf16, Target::folder), "bf16");
  EXPECT_EQ(choice(product, 512, std::nullopt, DType::q4_k, Target::folder), "f32!");
  EXPECT_EQ(choice(product, 512, DType::f16, DType::q4_k, Target::folder), "f16");
  EXPECT_FAILS(check_asked(DType::q8_0, Target::folder), "ends in .gguf");
}

// Nobody asks for it, so it is marked wherever it stands; rows that are no whole blocks say so.
TEST(QuantPolicy, ASketchHasATypeOfItsOwn) {
  for (const DType own : {DType::q2_0, DType::q4_0}) {
    const TypeChoice kept = choose_sketch_type(own, 64, Target::gguf),
                     cut = choose_sketch_type(own, 72, Target::gguf),
                     wide = choose_sketch_type(own, 64, Target::folder);
    EXPECT_EQ(kept.dtype, own);
    EXPECT_EQ(cut.dtype, DType::f32);
    EXPECT_EQ(wide.dtype, DType::f32);
    EXPECT_EQ(kept.why, "a router's sketch is of that type");
    EXPECT_EQ(wide.why, kept.why);
    EXPECT_EQ(cut.why,
              own == DType::q2_0 ? "rows are no multiple of 64" : "rows are no multiple of 32");
  }
}

TEST(QuantPolicy, KindsOfAModel) {
  ModelConfig config = small_shared();
  config.positions = Positions::learned;
  Model model(config, Storage::bound);
  std::map<WeightKind, std::vector<std::string>> names;
  for (const Param* param : model.params()) names[kind_of(model, *param)].push_back(param->name);
  EXPECT_EQ(names[WeightKind::embedding], std::vector<std::string>{"embed.weight"});
  EXPECT_EQ(names[WeightKind::lm_head], std::vector<std::string>{"head.weight"});
  // q, k, v, o; a dense layer; experts and shared ones of two
  EXPECT_EQ(names[WeightKind::product].size(), 3u * 4 + 3 + 2 * 6);
  for (const std::string& name : names[WeightKind::product])
    EXPECT_TRUE(name.find("attn.") != name.npos || name.find("experts.") != name.npos ||
                name.find("shared.") != name.npos)
        << name;
  const auto is_small = [&](const std::string& name) {
    return std::ranges::count(names[WeightKind::small], name) == 1;
  };
  for (const char* name :
       {"positions.weight", "layers.1.ffn.router.weight", "layers.1.ffn.shared_gate.weight",
        "layers.0.norm1.weight", "layers.0.attn.q.bias"})
    EXPECT_TRUE(is_small(name)) << name;
  config.tied = true;
  Model tied(config, Storage::bound);
  EXPECT_EQ(kind_of(tied, *param_named(tied, "embed.weight")), WeightKind::lm_head);
}

void expect_same_weights(
    const std::string& a, const std::string& b,
    const std::function<float(float)>& stored = [](float x) { return x; }) {
  const LoadedModel x = load_model(a), y = load_model(b);
  ASSERT_EQ(x.model->params().size(), y.model->params().size());
  for (size_t p = 0; p < x.model->params().size(); ++p) {
    const Param &m = *x.model->params()[p], &n = *y.model->params()[p];
    const bool rounded = m.is_trained();
    for (int64_t i = 0; i < m.value.numel(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(rounded ? stored(m.value.as<float>()[i])
                                                : m.value.as<float>()[i]),
                std::bit_cast<uint32_t>(n.value.as<float>()[i]))
          << m.name << " number " << i;
  }
}

ConvertReport converted(const std::string& in, const std::string& out,
                        std::optional<DType> dtype = {}, int threads = 2) {
  LoadedModel model = open_model(in, {});
  check_convert_target(in, out, model);
  return convert_model(model, in, out, {.dtype = dtype, .threads = threads});
}

// Every layout of every architecture: turned, joined, apart, tied.
TEST(Convert, AFolderToAFolder) {
  for (const NamedConfig& named : small_configs()) {
    if (named.name.starts_with("recipe_")) continue;  // they differ in routers only
    SCOPED_TRACE(named.name);
    TempFolder folder;
    save_model(folder / "in", *drawn_model(named.config), *make_tokenizer("bytes"), DType::f32,
               {{"step", "17"}});
    const ConvertReport report = converted(folder / "in", folder / "same");
    for (const char* file : {"/config.json", "/tokenizer.json", "/model.safetensors"})
      EXPECT_EQ(slurp(folder / "in" + file), slurp(folder / "same" + file)) << file;
    EXPECT_EQ(report.bytes_before, report.bytes_after);
    EXPECT_EQ(report.sources, report.targets);
    int64_t numbers = 0;
    const Model shapes(named.config, Storage::bound);
    for (const Param* param : shapes.params()) numbers += param->value.numel();
    EXPECT_EQ(report.numbers, numbers);

    converted(folder / "in", folder / "bf16", DType::bf16);
    expect_same_weights(folder / "in", folder / "bf16", [](float x) { return to_f32(to_bf16(x)); });
    converted(folder / "in", folder / "f16", DType::f16, 1);
    expect_same_weights(folder / "in", folder / "f16",
                        [](float x) { return f16_to_f32(f32_to_f16(x)); });
    converted(folder / "bf16", folder / "kept");
    EXPECT_EQ(slurp(folder / "bf16/model.safetensors"), slurp(folder / "kept/model.safetensors"));
  }
}

TEST(Convert, ThreadsChangeNothing) {
  TempFolder folder;
  save_model(folder / "in", *drawn_model(small_nanomoe(true, true)), *make_tokenizer("bytes"));
  converted(folder / "in", folder / "one", DType::f16, 1);
  for (const int threads : {2, 3, 7}) {
    converted(folder / "in", folder / "many", DType::f16, threads);
    EXPECT_EQ(slurp(folder / "one/model.safetensors"), slurp(folder / "many/model.safetensors"))
        << threads;
  }
}

TEST(Convert, RefusesWhatTheTypeCannotHold) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), 70000.0f}) {
    TempFolder folder;
    const auto model = drawn_model(small_olmoe());
    param_named(*model, "layers.1.ffn.experts.up.weight")->value.at(2).as<float>()[5] = bad;
    save_model(folder / "in", *model, *make_tokenizer("bytes"));
    const std::string name =
        "number 5 of tensor \"model.layers.1.mlp.experts.2.up_proj.weight\" is ";
    EXPECT_FAILS(
        converted(folder / "in", folder / "out", DType::f16),
        name + (std::isfinite(bad) ? "70000, and f16 ends at 65504; take dtype bf16" : ""));
    EXPECT_FALSE(std::filesystem::exists(folder / "out/config.json"));
    EXPECT_FALSE(std::filesystem::exists(folder / "out/model.safetensors"));
    if (std::isfinite(bad)) converted(folder / "in", folder / "out", DType::bf16);
    else EXPECT_FAILS(converted(folder / "in", folder / "out"), name);
  }
}

TEST(Convert, WhatIsThereIsSpared) {
  TempFolder folder;
  save_model(folder / "in", *drawn_model(small_olmoe()), *make_tokenizer("bytes"));
  save_model(folder / "other", *drawn_model(small_shared()), *make_tokenizer("bytes"));
  const std::string other = slurp(folder / "other/model.safetensors");
  EXPECT_FAILS(converted(folder / "in", folder / "in"), "is the model itself");
  EXPECT_FAILS(
      converted(folder / "in",
                folder / "../" + std::filesystem::path(folder.path()).filename().string() + "/in"),
      "is the model itself");
  EXPECT_FAILS(converted(folder / "in", folder / "other"), "another model is in this folder");
  EXPECT_EQ(slurp(folder / "other/model.safetensors"), other);
  converted(folder / "in", folder / "out");
  converted(folder / "in", folder / "out", DType::bf16);  // an earlier result is replaced
  put(folder / "file", "text");
  EXPECT_FAILS(converted(folder / "in", folder / "file"), "cannot make the folder");
}

// A model whose rows are whole blocks of 32, of 256 in the experts' way down, and of 48 numbers
// nowhere.
ModelConfig block_config(bool tied = false) {
  ModelConfig c = small_olmoe();
  c.width = 64;
  c.heads = c.kv_heads = 2;
  c.head_width = 32;
  c.expert_width = c.dense_width = 256;
  c.tied = tied;
  return c;
}
// The same where rows of queries and keys change places in the file.
ModelConfig paired_config(bool tied = false) {
  ModelConfig c = block_config(tied);
  c.qk_norm = QkNorm::none;
  c.routing = default_options(find_recipe("mixtral"), 4, 2, c.layers);
  return c;
}

// What no architecture of llama.cpp can say: slices of a dense network, some of them shared.
ModelConfig carved_config() {
  ModelConfig c = paired_config(true);
  c.kv_heads = 1;
  c.expert_down_bias = true;
  c.shared_experts = 2;
  c.shared_width = c.expert_width;
  c.routing = default_options(find_recipe("carved"), 4, 2, c.layers);
  return c;
}

std::map<std::string, std::string> types_of(const std::string& path) {
  std::map<std::string, std::string> types;
  const Gguf file = Gguf::open(path);
  for (const NamedTensor& tensor : file.tensors()) types[tensor.name] = name_of(tensor.value.dtype);
  return types;
}

TEST(Convert, ToGgufAndBackIsTheSameFolder) {
  for (const ModelConfig& config :
       {block_config(), paired_config(), paired_config(true), carved_config()})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(config.routing.recipe + (config.tied ? " tied " : " ") +
                   std::string(name_of(dtype)));
      TempFolder folder;
      save_model(folder / "f32", *drawn_model(config), *make_tokenizer("bytes"));
      converted(folder / "f32", folder / "in", dtype);
      const ConvertReport report = converted(folder / "in", folder / "m.gguf");
      EXPECT_EQ(report.targets,
                static_cast<int64_t>(Gguf::open(folder / "m.gguf").tensors().size()));
      expect_same_weights(folder / "in", folder / "m.gguf");
      converted(folder / "m.gguf", folder / "out", dtype);
      EXPECT_EQ(slurp(folder / "in/model.safetensors").size(),
                slurp(folder / "out/model.safetensors").size());
      expect_same_weights(folder / "in", folder / "out");
      converted(folder / "m.gguf", folder / "again.gguf");
      EXPECT_EQ(slurp(folder / "m.gguf"), slurp(folder / "again.gguf"));
    }
}

// The tensors of a target, whose numbers are all 0.
std::vector<GgufItem> zero_items(const GgufTarget& target) {
  static std::vector<float> zeros(1 << 18);
  std::vector<GgufItem> items;
  for (const FileTensor& tensor : target.tensors)
    items.push_back(
        {tensor.name, DType::f32, tensor.shape, [shape = tensor.shape](int64_t) {
           const int64_t numbers =
               std::reduce(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
           return Tensor(zeros.data(), DType::f32, {numbers / shape.back(), shape.back()});
         }});
  return items;
}

// What becomes of a folder, and what becomes of that.
constexpr std::pair<const char*, const char*> kWays[] = {{"copy", "again"}, {"m.gguf", "back"}};

TEST(Convert, EveryTokenThatEndsATextIsKept) {
  using Ids = std::vector<int32_t>;
  for (const Ids& ends : {Ids{33}, Ids{33, 65}, Ids{33, 65, 66}, Ids{33, 65, 66, 67, 68}}) {
    TempFolder folder;
    save_model(folder / "in", *drawn_model(block_config()), *make_tokenizer("bytes"));
    put(folder / "in/generation_config.json", Json{{"eos_token_id", ends}}.dump());
    for (const auto& [first, second] : kWays) {
      converted(folder / "in", folder / first);
      converted(folder / first, folder / second);
      for (const std::string name : {first, second}) {
        const SpecialIds special = open_model(folder / name, {}).tokenizer->special();
        EXPECT_EQ(special.eos, ends[0]) << name;
        EXPECT_EQ(special.ends, Ids(ends.begin() + 1, ends.end())) << name;
      }
    }
  }
}

TEST(Convert, TheFirstTokenThatEndsATextStaysTheFirst) {
  using Ids = std::vector<int32_t>;
  Json json = parse_json(make_tokenizer("bytes")->to_json(), "t");
  for (const char* name : {"<|endoftext|>", "<|im_end|>"})
    json["added_tokens"].push_back({{"id", 256 + json["added_tokens"].size()},
                                    {"content", name},
                                    {"special", true},
                                    {"normalized", false}});
  ModelConfig config = block_config();
  config.vocab = 258;
  // <|endoftext|> (256) is known by its name, wherever it is listed
  for (const Ids& ends : {Ids{257}, Ids{257, 256}, Ids{257, 65, 256}, Ids{256, 257}}) {
    TempFolder folder;
    save_model(folder / "in", *drawn_model(config), *parse_tokenizer(json.dump(), "t"));
    put(folder / "in/generation_config.json", Json{{"eos_token_id", ends}}.dump());
    for (const auto& [first, second] : kWays) {
      converted(folder / "in", folder / first);
      converted(folder / first, folder / second);
      for (const std::string name : {"in", first, second}) {
        const LoadedModel model = open_model(folder / name, {});
        EXPECT_EQ(model.tokenizer->special().eos, ends[0]) << name;
        for (const int32_t id : ends) EXPECT_TRUE(model.tokenizer->ends_text(id)) << name;
      }
    }
  }
}

TEST(Convert, AnEndThatLlamaCppCannotBeToldIsNoted) {
  TempFolder folder;
  save_model(folder / "in", *drawn_model(block_config()), *make_tokenizer("bytes"));
  put(folder / "in/generation_config.json", R"({"eos_token_id": [33, 65, 66]})");
  EXPECT_TRUE(converted(folder / "in", folder / "three.gguf").notes.empty());
  put(folder / "in/generation_config.json", R"({"eos_token_id": [33, 65, 66, 67]})");
  EXPECT_TRUE(converted(folder / "in", folder / "copy").notes.empty()) << "a folder says them all";
  const ConvertReport report = converted(folder / "in", folder / "four.gguf");
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "it writes on behind 67 (\"C\"), where moe ends",
                      report.notes[0]);
}

TEST(Convert, NamedChatTemplatesAreKept) {
  TempFolder folder;
  save_model(folder / "in", *drawn_model(block_config()), *make_tokenizer("bytes"));
  put(folder / "in/tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "plain"},
                            {"name": "tool_use", "template": "with tools"},
                            {"name": "rag", "template": "with sources"}]})");
  for (const auto& [first, second] : kWays) {
    converted(folder / "in", folder / first);
    converted(folder / first, folder / second);
    for (const std::string name : {first, second}) {
      const LoadedModel model = open_model(folder / name, {});
      EXPECT_EQ(chat_template_of(*model.tokenizer), "plain") << name;
      EXPECT_EQ(chat_template_of(*model.tokenizer, "tool_use"), "with tools") << name;
      EXPECT_EQ(chat_template_of(*model.tokenizer, "rag"), "with sources") << name;
    }
  }
  const Gguf file = Gguf::open(folder / "m.gguf");
  EXPECT_EQ(file.text("tokenizer.chat_template"), "plain");
  EXPECT_EQ(file.texts("tokenizer.chat_templates"), (std::vector<std::string>{"rag", "tool_use"}));
  EXPECT_EQ(file.text("tokenizer.chat_template.tool_use"), "with tools");
}

// What a file says of itself in whatever type, but for what the new file says of its own tensors.
TEST(Convert, AGgufKeepsWhatAnotherSaysOfItself) {
  using Type = GgufEntry::Type;
  TempFolder folder;
  save_model(folder / "in", *drawn_model(block_config()), *make_tokenizer("bytes"));
  LoadedModel model = open_model(folder / "in", {});
  GgufTarget target = gguf_target(*model.model, *model.tokenizer);
  const std::vector<GgufEntry> said = {
      {"general.name", Type::string, "Some Model"},
      {"general.tags", Type::strings, std::vector<std::string>{"moe", "", "text"}},
      {"general.base_model.count", Type::u32, int64_t{1}},
      {"general.sampling.temp", Type::f32, 0.75}};
  target.metadata.insert(target.metadata.end(), said.begin(), said.end());
  target.metadata.push_back({"general.file_type", Type::u32, int64_t{1}});
  target.metadata.push_back({"general.quantization_version", Type::u32, int64_t{2}});
  write_gguf(folder / "m.gguf", target.metadata, zero_items(target));
  for (const auto& [in, out] : {std::pair{"m.gguf", "once.gguf"}, {"once.gguf", "twice.gguf"}}) {
    converted(folder / in, folder / out);
    const Gguf before = Gguf::open(folder / "m.gguf"), after = Gguf::open(folder / out);
    for (const GgufEntry& entry : said) {
      EXPECT_EQ(after.stored(entry.key), before.stored(entry.key)) << entry.key;
      EXPECT_EQ(after.metadata().at(entry.key), entry.value) << entry.key;
    }
    EXPECT_EQ(after.integer("general.file_type", 0, 100), 0);
    EXPECT_FALSE(after.has("general.quantization_version"));
  }
  EXPECT_FAILS(Gguf::open(folder / "m.gguf").stored("general.tag"), "did you mean");
}

// Several files hold what one would, and the first opens all of them.
TEST(Convert, SplitsAGgufIntoFiles) {
  TempFolder folder;
  save_model(folder / "in", *drawn_model(block_config()), *make_tokenizer("bytes"));
  std::vector<std::string> replaced;
  const auto split_of = [&](const std::string& in, int64_t bytes) {
    LoadedModel model = open_model(in, {});
    ConvertOptions options{.threads = 2, .file_bytes = bytes};
    options.replacing = [&](const std::string& path) { replaced.push_back(path); };
    return convert_model(model, in, folder / "m.gguf", options);
  };
  const auto split = [&](int64_t bytes) { return split_of(folder / "in", bytes); };
  converted(folder / "in", folder / "one.gguf");
  const std::vector<std::string> files = split(100000).files;
  ASSERT_GE(files.size(), 3u);
  EXPECT_EQ(files[0], fmt::format("{}-00001-of-{:05}.gguf", folder / "m", files.size()));
  expect_same_weights(folder / "one.gguf", files[0]);
  const Gguf whole = Gguf::open(folder / "one.gguf"), all = Gguf::open(files[0]);
  EXPECT_EQ(all.names(), whole.names());
  for (const auto& [key, value] : whole.metadata()) EXPECT_TRUE(all.has(key)) << key;
  EXPECT_FAILS(Gguf::open(files[1]), "give the first");
  EXPECT_EQ(split(100000).files, files);  // an earlier result is replaced
  EXPECT_FAILS(split_of(files[0], 100000), "is the model itself");
  // Each file is as large as it may be, or holds one tensor.
  for (size_t i = 1; i < files.size(); ++i) {
    const std::string bytes = slurp(files[i]);
    int64_t tensors = 0;
    std::memcpy(&tensors, bytes.data() + 8, sizeof tensors);
    EXPECT_TRUE(bytes.size() < 101000 || tensors == 1) << files[i];
  }
  EXPECT_EQ(replaced, std::vector<std::string>{files[0]});
  EXPECT_EQ(split(int64_t{1} << 40).files, std::vector<std::string>{folder / "m.gguf"});
  EXPECT_EQ(slurp(folder / "m.gguf") == slurp(folder / "one.gguf"), true);
  std::filesystem::remove(files[0]);
  EXPECT_FAILS(split(100000), "is there without the first of its files");
}

TEST(Convert, QuantisesAsTheTableSays) {
  TempFolder folder;
  const auto model = drawn_model(block_config());
  save_model(folder / "in", *model, *make_tokenizer("bytes"));
  const ConvertReport report = converted(folder / "in", folder / "m.gguf", DType::q4_k);
  const auto types = types_of(folder / "m.gguf");
  EXPECT_EQ(types.at("token_embd.weight"), "q5_0");
  EXPECT_EQ(types.at("output.weight"), "q8_0");
  EXPECT_EQ(types.at("blk.1.attn_q.weight"), "q5_0");
  EXPECT_EQ(types.at("blk.1.ffn_down_exps.weight"), "q4_k");
  EXPECT_EQ(types.at("blk.1.ffn_up_exps.weight"), "q5_0");
  EXPECT_EQ(types.at("blk.1.ffn_gate_inp.weight"), "f32");
  EXPECT_EQ(types.at("blk.1.attn_norm.weight"), "f32");
  std::map<std::string, int64_t> whys;
  for (const ConvertedRow& row : report.rows)
    whys[std::string(name_of(row.to)) + ": " + std::string(row.why)] += row.targets;
  const std::map<std::string, int64_t> want = {
      {"q8_0: the head keeps more bits", 1},
      {"q5_0: rows are no multiple of 256", 1 + 2 * 6},
      {"q4_k: ", 2},
      {"f32: norms, biases, routers and positions stay f32", 1 + 2 * 5}};
  EXPECT_EQ(whys, want);

  // The bytes are those of quantise(), expert after expert, with any number of threads.
  const Gguf file = Gguf::open(folder / "m.gguf");
  const Tensor got = file.get("blk.1.ffn_down_exps.weight"),
               from = param_named(*model, "layers.1.ffn.experts.down.weight")->value;
  std::vector<char> expected(static_cast<size_t>(got.bytes()));
  quantise(expected.data(), from.as<float>(), DType::q4_k, from.numel());
  EXPECT_EQ(std::memcmp(expected.data(), got.data, expected.size()), 0);
  converted(folder / "in", folder / "one.gguf", DType::q4_k, 1);
  EXPECT_EQ(slurp(folder / "m.gguf"), slurp(folder / "one.gguf"));
}

// Of experts whose text sent nothing to the first.
TEST(Convert, CountsTensorsOfWhichSomeMatricesAreCompensated) {
  struct AllButTheFirst : ErrorShares {
    std::vector<float> none;
    Tensor of(const FileTensor& tensor, int64_t m, int) override {
      if (m == 0) return {};
      const int64_t cols = matrices_of(tensor).cols;
      none.assign(static_cast<size_t>(cols * cols), 0);
      return Tensor(none.data(), DType::f32, {cols, cols});
    }
  } shares;
  TempFolder folder;
  save_model(folder / "in", *drawn_model(block_config()), *make_tokenizer("bytes"));
  LoadedModel in = open_model(folder / "in", {});
  Importance importance;
  for (const FileTensor& tensor : gguf_target(*in.model, *in.tokenizer).tensors) {
    if (tensor.shape.size() < 2 || !tensor.name.starts_with("blk.1.ffn_down")) continue;
    const auto [matrices, cols] = matrices_of(tensor);
    importance.tensors[tensor.name] = {std::vector<float>(static_cast<size_t>(matrices * cols), 1),
                                       std::vector<float>(static_cast<size_t>(matrices), 1)};
  }
  const ConvertReport report =
      convert_model(in, folder / "in", folder / "m.gguf",
                    {.dtype = DType::q4_0, .importance = &importance, .shares = &shares});
  EXPECT_EQ(report.weighed, 1);
  EXPECT_EQ(report.compensated, 1);
}

TEST(Convert, WhatLlamaCppCannotSayIsQuantisedAsTheRest) {
  TempFolder folder;
  save_model(folder / "in", *drawn_model(carved_config()), *make_tokenizer("bytes"));
  const ConvertReport report = converted(folder / "in", folder / "m.gguf", DType::q4_k);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "recipe 'carved' does not score by a matrix alone",
                      report.why_own);
  const auto types = types_of(folder / "m.gguf");
  std::map<std::string, std::string> of_layer;
  for (const auto& [name, type] : types)
    if (name.starts_with("blk.1.ffn")) of_layer[name.substr(6)] = type;
  const std::map<std::string, std::string> want = {
      {"ffn_down_exps.bias", "f32"},    {"ffn_down_exps.weight", "q4_k"},
      {"ffn_down_shexp.bias", "f32"},   {"ffn_down_shexp.weight", "q4_k"},
      {"ffn_gate_exps.weight", "q5_0"}, {"ffn_gate_shexp.weight", "q5_0"},
      {"ffn_up_exps.weight", "q5_0"},   {"ffn_up_shexp.weight", "q5_0"},
      {"ffn_gate_inp.weight", "f32"},   {"ffn_gate_inp.bias", "f32"},
      {"ffn_gate_inp.scale", "f32"},    {"ffn_norm.weight", "f32"},
  };
  EXPECT_EQ(of_layer, want);
  EXPECT_EQ(types.at("blk.1.exp_probs_b.bias"), "f32");
  EXPECT_EQ(types.at("token_embd.weight"), "q8_0");
  save_model(folder / "plain", *drawn_model(block_config()), *make_tokenizer("bytes"));
  EXPECT_EQ(converted(folder / "plain", folder / "plain.gguf").why_own, "");
}

TEST(Convert, BlocksAreKeptOrTurnedBackIntoNumbers) {
  for (const ModelConfig& config : {block_config(), paired_config(), carved_config()}) {
    TempFolder folder;
    save_model(folder / "in", *drawn_model(config), *make_tokenizer("bytes"));
    EXPECT_EQ(converted(folder / "in", folder / "q.gguf", DType::q4_0).quantised_twice, 0);
    converted(folder / "q.gguf", folder / "kept.gguf");
    EXPECT_EQ(slurp(folder / "q.gguf"), slurp(folder / "kept.gguf"));
    const ConvertReport report = converted(folder / "q.gguf", folder / "out");
    EXPECT_EQ(report.bytes_after, report.numbers * 4);
    expect_same_weights(folder / "q.gguf", folder / "out");
    EXPECT_EQ(converted(folder / "q.gguf", folder / "twice.gguf", DType::q5_1).quantised_twice,
              (config.tied ? 0 : 1) + 2 * (config.shared_experts > 0 ? 10 : 7));
  }
}

// Each way a file can hold other tensors than its metadata ask for.
TEST(Convert, AWrongTensorInAGgufIsRefused) {
  TempFolder folder;
  save_model(folder / "in", *drawn_model(block_config()), *make_tokenizer("bytes"));
  LoadedModel model = open_model(folder / "in", {});
  const GgufTarget target = gguf_target(*model.model, *model.tokenizer);
  std::vector<float> zeros(1 << 18);
  const auto write = [&](const std::function<void(std::vector<GgufItem>&)>& damage) {
    std::vector<GgufItem> items = zero_items(target);
    damage(items);
    write_gguf(folder / "m.gguf", target.metadata, items);
  };
  const auto item = [](std::vector<GgufItem>& items, const std::string& name) {
    return std::ranges::find_if(items, [&](const GgufItem& i) { return i.name == name; });
  };
  const std::string k = "blk.1.attn_k.weight";
  const auto refused = [&](const std::string& why) {
    EXPECT_FAILS(converted(folder / "m.gguf", folder / "out"), why);
  };
  write([](auto&) {});
  converted(folder / "m.gguf", folder / "good");
  write([&](auto& items) { items.erase(item(items, k)); });
  refused("there is no tensor \"" + k + "\"");
  write([&](auto& items) {
    items.push_back(*item(items, k));
    items.back().name = "blk.1.attn_k.scale";
  });
  refused("tensor \"blk.1.attn_k.scale\" is no part of the model");
  write([&](auto& items) { item(items, k)->name = "blk.1.attn_kk.weight"; });
  refused("there is no tensor \"" + k + "\"");
  write([&](auto& items) {
    GgufItem& down = *item(items, "blk.1.ffn_down_exps.weight");
    std::swap(down.shape[1], down.shape[2]);
    down.produce = [&, rows = down.shape[0] * down.shape[1], cols = down.shape[2]](int64_t) {
      return Tensor(zeros.data(), DType::f32, {rows, cols});
    };
  });
  refused("it looks transposed");
  write([](auto&) {});
  std::string bytes = slurp(folder / "m.gguf");
  bytes.replace(bytes.find(k), k.size(), "blk.1.attn_q.weight");
  put(folder / "m.gguf", bytes);
  refused("blk.1.attn_q.weight");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Convert, AFileThatIsNoneIsSpared) {
  TempFolder folder;
  save_model(folder / "in", *drawn_model(block_config()), *make_tokenizer("bytes"));
  save_model(folder / "other", *drawn_model(paired_config()), *make_tokenizer("bytes"));
  put(folder / "text.gguf", "text");
  EXPECT_FAILS(converted(folder / "in", folder / "text.gguf"), "will not be replaced");
  EXPECT_EQ(slurp(folder / "text.gguf"), "text");
  converted(folder / "other", folder / "m.gguf");
  EXPECT_FAILS(converted(folder / "in", folder / "m.gguf"), "holds another model");
  converted(folder / "other", folder / "m.gguf", DType::q8_0);  // an earlier result is replaced
  EXPECT_EQ(types_of(folder / "m.gguf").at("blk.0.attn_q.weight"), "q8_0");
  EXPECT_FAILS(converted(folder / "m.gguf", folder / "m.gguf"), "is the model itself");
  std::filesystem::create_directory(folder / "folder.gguf");
  EXPECT_FAILS(converted(folder / "in", folder / "folder.gguf"), "is a folder");

  const auto model = drawn_model(block_config());
  param_named(*model, "final_norm.weight")->value.as<float>()[3] = NAN;
  save_model(folder / "bad", *model, *make_tokenizer("bytes"));
  EXPECT_FAILS(converted(folder / "bad", folder / "bad.gguf", DType::q8_0),
               "number 3 of tensor \"output_norm.weight\" is nan");
  EXPECT_FALSE(std::filesystem::exists(folder / "bad.gguf"));
}

// The account must be able to fail: each way a number can be lost or doubled is told apart.
TEST(Account, ComesOutOnlyWhenEachNumberIsThereOnce) {
  Model model(small_olmoe());
  const std::vector<Param*>& params = model.params();
  const auto settle = [&](const std::function<void(Coverage&, const Param&)>& first) {
    Coverage coverage;
    first(coverage, *params[0]);
    for (size_t i = 1; i < params.size(); ++i)
      coverage.add(*params[i], 0, params[i]->value.numel());
    coverage.settle(params, "file");
  };
  const int64_t n = params[0]->value.numel();
  settle([&](Coverage& c, const Param& p) { c.add(p, 0, n); });
  settle([&](Coverage& c, const Param& p) {
    c.add(p, n / 2, n);
    c.add(p, 0, n / 2);
  });
  EXPECT_FAILS(settle([&](Coverage&, const Param&) {}),
               fmt::format("numbers 0 to {} of \"embed.weight\" would stand nowhere", n - 1));
  EXPECT_FAILS(settle([&](Coverage& c, const Param& p) { c.add(p, 0, n - 1); }),
               fmt::format("numbers {0} to {0} of", n - 1));
  EXPECT_FAILS(settle([&](Coverage& c, const Param& p) {
                 c.add(p, 0, n);
                 c.add(p, 3, 5);
               }),
               "there twice");
  EXPECT_FAILS(settle([&](Coverage& c, const Param& p) {
                 c.add(p, 0, 4);
                 c.add(p, 5, n);
               }),
               "numbers 4 to 4");
  Model stranger(small_config());
  EXPECT_FAILS(settle([&](Coverage& c, const Param& p) {
                 c.add(p, 0, n);
                 c.add(*stranger.params()[0], 0, 1);
               }),
               "1 parameters that the model does not have");
}

// A map that a mistake of ours has damaged is refused before anything is written.
TEST(Convert, AWrongMapIsRefused) {
  TempFolder folder;
  save_model(folder / "in", *drawn_model(small_olmoe()), *make_tokenizer("bytes"));
  const auto with = [&](const std::function<void(std::vector<FileTensor>&)>& damage) {
    LoadedModel model = open_model(folder / "in", {});
    ModelSource source = *model.source;
    damage(source.map);
    model.source = std::make_shared<const ModelSource>(std::move(source));
    convert_model(model, folder / "in", folder / "out", {});
  };
  EXPECT_FAILS(with([](auto& map) { map.pop_back(); }), "was consumed 0 times");
  EXPECT_FAILS(with([](auto& map) { map.push_back(map.front()); }), "was consumed 2 times");
  EXPECT_FAILS(with([](auto& map) { map.front().pieces = map[1].pieces; }),
               "account does not come out");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace moe::test::convert_test
