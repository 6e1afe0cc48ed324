// Writes the valid files that the fuzzers start from: OUT/<fuzzer>/<seed>. Usage: fuzz_seeds OUT
// Here those of weights, configs, routing and records; seeds_of_texts.cpp has the others.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "fuzz/seeds.h"
#include "hub/adapter_gguf.h"
#include "hub/configs.h"
#include "hub/folder/config_json.h"
#include "hub/gguf/gguf_config.h"
#include "hub/gguf/gguf_vocab.h"
#include "hub/gguf/imatrix.h"
#include "moe/recipes/recipes.h"
#include "moe/recipes/spec_json.h"
#include "tensor/arena.h"
#include "text/ggml_vocab.h"

namespace moe {
namespace {

void safetensors_seeds(const std::string& folder) {
  std::filesystem::create_directories(folder);
  Arena arena;
  const Tensor router = arena.alloc_zeroed(DType::f32, {4, 3});    // [E,D]
  const Tensor gate = arena.alloc_zeroed(DType::bf16, {2, 5, 3});  // [E,F,D]
  const Tensor counts = arena.alloc_zeroed(DType::i32, {4});       // [E]
  const std::string path = folder + "/whole";
  write_safetensors(path,
                    {{"layers.0.router.weight", router, DType::f32},
                     {"layers.0.gate", gate, DType::bf16},
                     {"counts", counts, DType::i32}},
                    {{"step", "10"}});
  const std::string whole = read_text(path);
  put(folder, "whole", "\x01" + whole);
  const size_t header = whole.find("}}") + 2;
  put(folder, "parted",
      std::string(1, '\0') + whole.substr(8, header - 8) + std::string(1, '\0') +
          std::string(48 + 16 + 60, '\x07'));
  put(folder, "scalar",
      std::string(1, '\0') +
          R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"h":{"dtype":"F16","shape":[1,1,1,2],"data_offsets":[4,8]}})" +
          std::string(1, '\0') + "12345678");
  put(folder, "empty",
      std::string(1, '\0') +
          R"({"none":{"dtype":"BF16","shape":[0,3],"data_offsets":[0,0]},"__metadata__":{"format":"pt"}})");
}

// Files of packed weights, each tensor of which reads the same bytes. What a file's first byte says
// is in packed_fuzz.cpp.
class PackedSeeds {
 public:
  PackedSeeds(const std::string& folder, std::byte all) : folder_(folder), bytes_(1024, all) {
    std::filesystem::create_directories(folder);
  }
  SafetensorsItem item(const char* name, DType dtype, std::initializer_list<int64_t> dims) {
    return {name, Tensor(bytes_.data(), dtype, dims), dtype};
  }
  void write(const char* name, char first, const std::vector<SafetensorsItem>& items) const {
    const std::string path = folder_ + "/" + name;
    write_safetensors(path, items);
    put(folder_, name, std::string(1, first) + read_text(path));
  }

 private:
  std::string folder_;
  std::vector<std::byte> bytes_;
};

// Of several families, and of those whose integers stay as blocks of GGUF.
void packed_blocks_seeds(const std::string& folder) {
  PackedSeeds to(folder, std::byte{7});
  to.write(
      "mxfp4", '\x01',
      {to.item("e.gate_up_proj_blocks", DType::u8, {2, 4, 2, 16}),
       to.item("e.gate_up_proj_scales", DType::u8, {2, 4, 2}), to.item("norm", DType::f32, {3})});
  to.write("fp8", '\x23',  // blocks of 4 x 4
           {to.item("w", DType::f8_e4m3, {6, 8}), to.item("w_scale_inv", DType::f32, {2, 2})});
  to.write("gptq", '\xC5',  // groups of 8
           {to.item("x.qweight", DType::i32, {2, 8}), to.item("x.qzeros", DType::i32, {2, 1}),
            to.item("x.scales", DType::f16, {2, 8}), to.item("x.bias", DType::f16, {8})});
  // In blocks of 32 as they stay, q4_0, q4_1 and q8_0: scales that f16 has, one a row.
  int32_t middles = 0x77777777;  // less one
  const SafetensorsItem scales_of_rows = to.item("x.scales", DType::f16, {1, 8});
  to.write("gptq_q4_0", '\x05',
           {to.item("x.qweight", DType::i32, {4, 8}),
            scales_of_rows,
            {"x.qzeros", Tensor(&middles, DType::i32, {1, 1}), DType::i32}});
  to.write("gptq_q4_1", '\x05',
           {to.item("x.qweight", DType::i32, {4, 8}), scales_of_rows,
            to.item("x.qzeros", DType::i32, {1, 1})});
  to.write("awq_q4_1", '\x09',
           {to.item("x.qweight", DType::i32, {32, 1}), scales_of_rows,
            to.item("x.qzeros", DType::i32, {1, 1})});
  to.write(
      "bytes_q8_0", '\x0B',
      {to.item("x.weight", DType::i8, {6, 32}), to.item("x.weight_scale", DType::f16, {6, 1})});
}

// Where the bytes are a list of groups, all of them there; and what other families say beside their
// numbers.
void packed_lists_seeds(const std::string& folder) {
  PackedSeeds to(folder, std::byte{0});
  int64_t shape[] = {6, 20};
  to.write("gptq_listed", '\xC7',
           {to.item("x.qweight", DType::i32, {4, 4}), to.item("x.qzeros", DType::i32, {2, 1}),
            to.item("x.scales", DType::bf16, {2, 4}), to.item("x.g_idx", DType::i32, {16})});
  to.write("awq", '\xC9',
           {to.item("x.qweight", DType::i32, {16, 1}), to.item("x.qzeros", DType::i32, {2, 1}),
            to.item("x.scales", DType::f16, {2, 8})});
  const SafetensorsItem said = {"x.weight_shape", Tensor(shape, DType::i64, {2}), DType::i64};
  to.write("words", '\x8B',  // groups of 4
           {to.item("x.weight_packed", DType::i32, {6, 3}),
            to.item("x.weight_scale", DType::bf16, {6, 5}),
            to.item("x.weight_zero_point", DType::i32, {1, 5}), said});
  to.write("words_listed", '\x8B',
           {to.item("x.weight_packed", DType::i32, {6, 5}),
            to.item("x.weight_scale", DType::bf16, {6, 5}),
            to.item("x.weight_zero_point", DType::i8, {6, 5}),
            to.item("x.weight_g_idx", DType::i32, {20}), said});
  to.write("bytes", '\x2D',
           {to.item("x.weight", DType::i8, {6, 8}), to.item("x.weight_scale", DType::f32, {2, 2}),
            to.item("x.weight_zero_point", DType::i8, {2, 2}),
            to.item("x.input_scale", DType::f32, {1})});
  const SafetensorsItem scales = to.item("x.weight_scale", DType::f8_e4m3, {6, 2});
  to.write("nvfp4", '\x13',
           {to.item("x.weight", DType::u8, {6, 16}), scales,
            to.item("x.weight_scale_2", DType::f32, {1})});
  to.write("nvfp4_divided", '\x0B',
           {to.item("x.weight_packed", DType::u8, {6, 16}), scales,
            to.item("x.weight_global_scale", DType::f32, {1})});
  to.write(
      "rows", '\x15',
      {to.item("x.weight", DType::f8_e4m3, {6, 8}), to.item("x.weight_scale", DType::f32, {6, 1})});
}

void packed_codes_seeds(const std::string& folder) {
  PackedSeeds to(folder, std::byte{0});
  std::string said_of_codes =
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [6, 20]})";
  const auto state = [&] {
    return SafetensorsItem{"x.weight.quant_state.bitsandbytes__nf4",
                           Tensor(said_of_codes.data(), DType::u8, {std::ssize(said_of_codes)}),
                           DType::u8};
  };
  const SafetensorsItem codes = to.item("x.weight", DType::u8, {60, 1}),
                        map = to.item("x.weight.quant_map", DType::f32, {16});
  to.write("nf4", '\x11', {codes, map, state(), to.item("x.weight.absmax", DType::f32, {2})});
  said_of_codes.back() = ',';
  said_of_codes += R"("nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5})";
  to.write("nf4_nested", '\x11',
           {codes, map, state(), to.item("x.weight.absmax", DType::u8, {2}),
            to.item("x.weight.nested_absmax", DType::f32, {1}),
            to.item("x.weight.nested_quant_map", DType::f32, {256})});
  to.write("int8", '\x11',
           {to.item("x.weight", DType::i8, {6, 8}), to.item("x.SCB", DType::f32, {6}),
            to.item("x.weight_format", DType::u8, {1})});
}

// Numbers and scales in every packing.
void packed_seeds(const std::string& folder) {
  packed_blocks_seeds(folder);
  packed_lists_seeds(folder);
  packed_codes_seeds(folder);
}

// A value of every kind and tensors of several types, some of them as other programs would align
// them.
void gguf_seeds(const std::string& folder) {
  std::filesystem::create_directories(folder);
  using Type = GgufEntry::Type;
  std::vector<std::byte> zeros(4096);
  const auto item = [&](const char* name, DType dtype, std::vector<int64_t> shape, int64_t rows) {
    const int64_t cols = shape.back();
    return GgufItem{name, dtype, std::move(shape), [&zeros, dtype, rows, cols](int64_t) {
                      return Tensor(zeros.data(), dtype, {rows, cols});
                    }};
  };
  write_gguf(folder + "/whole",
             {{"general.architecture", Type::string, std::string("llama")},
              {"general.alignment_of", Type::u32, int64_t{32}},
              {"llama.rope.freq_base", Type::f32, 10000.0},
              {"tokenizer.ggml.add_bos_token", Type::boolean, true},
              {"tokenizer.ggml.tokens", Type::strings, std::vector<std::string>{"<s>", "a", ""}},
              {"tokenizer.ggml.scores", Type::f32s, std::vector<double>{0, -1, -2}},
              {"tokenizer.ggml.token_type", Type::i32s, std::vector<int64_t>{3, 1, 6}}},
             {item("token_embd.weight", DType::q8_0, {3, 32}, 3),
              item("blk.0.ffn_up.weight", DType::mxfp4, {3, 32}, 3),
              item("blk.0.ffn_down.weight", DType::iq4_xs, {1, 256}, 1),
              item("blk.0.attn_k.weight", DType::q2_0, {2, 64}, 2),
              item("blk.0.ffn_up_exps.weight", DType::q4_k, {2, 2, 256}, 4),
              item("output_norm.weight", DType::f32, {5}, 1),
              item("blk.0.attn_q.weight", DType::f16, {2, 3}, 2)});
  write_gguf(folder + "/keys",
             {{"k", Type::u64, int64_t{7}},
              {"i", Type::i32, int64_t{-7}},
              {"u", Type::u32s, std::vector<int64_t>{1, 2}}},
             {});
  std::string odd = read_text(folder + "/keys");
  const std::string key = "general.alignment";
  std::string entry(8, '\0');
  entry[0] = static_cast<char>(key.size());
  odd = odd.substr(0, 16) + std::string("\x01\0\0\0\0\0\0\0", 8) + entry + key +
        std::string("\x04\0\0\0\x01\0\0\0", 8);
  put(folder, "odd", std::string(1, '\x01') + odd);
  for (const char* name : {"whole", "keys"})
    put(folder, name, std::string(1, '\0') + read_text(folder + "/" + name));
}

void own_gguf_config_seed(const std::string& folder) {
  ModelConfig carved = test::small_config();
  carved.expert_down_bias = true;
  carved.shared_experts = 2;
  carved.shared_width = carved.expert_width;
  carved.routing = default_options(find_recipe("carved"), 4, 2, carved.layers);
  write_gguf(folder + "/moe_cpp", gguf_config_entries(own_gguf_architecture(), carved), {});
}

// A small model with what sets the row apart.
ModelConfig seed_config_of(const GgufArchitecture& row) {
  ModelConfig c = test::small_config();
  c.vocab = 4;
  c.norm = row.norm;
  c.positions = row.positions;
  if (!row.llama3_scaling)
    c.rope_scaling = {
        .kind = row.qk_norm == QkNorm::head ? RopeScaling::Kind::yarn : RopeScaling::Kind::linear,
        .factor = 2,
        .original_context = 8};
  if (row.routes()) c.routing = default_options(find_recipe(row.recipe), 4, 2, c.layers);
  if (row.shared != SharedExperts::none) c.shared_experts = 1, c.shared_width = c.expert_width;
  if (row.window_every > 0) c.attention_window = row.llama4 ? row.usual_window : 5;
  if (row.linear) {
    c.linear = {
        .key_heads = 1, .value_heads = 2, .key_width = 4, .value_width = 4, .conv_width = 2};
    c.linear_layers = {0};
  }
  if (row.gemma4) {
    c.attention_window = 5;
    c.window_layers = {0};
    c.full = {.kv_heads = 1, .head_width = 8, .values_of_keys = true};
    c.logit_cap = 30;
  }
  if (row.caps) c.score_cap = 50, c.logit_cap = 30;
  if (row.conv) c.conv_layers = {0}, c.conv_width = 3;
  if (row.lightning) c.lightning_layers = {0};
  if (row.scan) {
    c.scan = {.heads = 2, .groups = 1, .width = 4, .states = 4, .conv_width = 2};
    c.scan_layers = {0};
  }
  if (row.selective) {
    c.rope_scaling = {};
    c.scan.heads = 2 * c.width;
    c.scan.width = 1;
    c.scan.step_rank = 2;
  }
  if (row.windows_at > 0 && row.windows()) c.layers = row.windows_at;
  if (row.latent()) {
    c.latent = {.width = 8, .query_width = 6, .value_width = 2};
    c.kv_heads = c.heads;
    c.head_width = 4;
    c.rotary_width = 2;
    c.rope_scaling.kind = RopeScaling::Kind::yarn;
    c.rope_scaling.score_mscale = 1;
  }
  if (row.indexed) c.sparse = {.top = 8, .heads = 2, .width = 4};
  if (row.kimi) {
    c.latent.query_width = 0;
    c.rope_scaling = {};
    c.linear = {.key_heads = c.heads,
                .value_heads = c.heads,
                .key_width = 4,
                .value_width = 4,
                .conv_width = 2,
                .gate_width = 4};
    c.linear_layers = {0};
  }
  if (row.halves) {
    c.rope_scaling = {};
    c.layers = 3;
    c.mixer_only_layers = {0, 1};
    c.ffn_only_layers = {2};
  }
  if (row.query_growth) c.query_growth = {.beta = 0.1f, .context = 8};
  return c;
}

// The metadata of a small model of each of llama.cpp's architectures, with the one tensor that they
// are read with, and of our own form.
void gguf_config_seeds(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::vector<float> ones(4096, 1.0f);
  own_gguf_config_seed(folder);
  for (const GgufArchitecture& row : gguf_architectures()) {
    const ModelConfig c = seed_config_of(row);
    std::vector<GgufEntry> entries = gguf_config_entries(row, c);
    GgmlVocab vocab{.model = "llama",
                    .pre = "default",
                    .tokens = {"<unk>", "a", "b"},
                    .scores = {0, -1, -2},
                    .merges = {"a b"},
                    .bos = 0,
                    .add_bos = true};
    for (GgufEntry& entry : gguf_vocab_entries(std::move(vocab), c.vocab))
      entries.push_back(std::move(entry));
    const auto tensor = [&](const char* name, std::vector<int64_t> shape) {
      const int64_t cols = shape.back(), rows = shape.size() == 2 ? shape[0] : 1;
      return GgufItem{name, DType::f32, std::move(shape), [&ones, rows, cols](int64_t) {
                        return Tensor(ones.data(), DType::f32, {rows, cols});
                      }};
    };
    std::vector<GgufItem> items = {tensor("token_embd.weight", {c.vocab, c.width})};
    if (row.llama3_scaling || row.gemma4)
      items.push_back(
          tensor("rope_freqs.weight", {(row.gemma4 ? c.full.head_width : c.head_width) / 2}));
    write_gguf(folder + "/" + std::string(row.title), entries, items);
  }
}

void config_seeds(const std::string& folder) {
  put(folder, "plain", config_to_json(test::small_config()));
  put(folder, "olmoe", config_to_json(test::small_olmoe()));
  put(folder, "shared", config_to_json(test::small_shared()));
  Json packed = parse_json(config_to_json(test::small_olmoe()), "olmoe");
  const Json weights = {
      {"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {128, 128}}};
  const std::pair<const char*, Json> packings[] = {
      {"gptq", {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"format", "gptq_v2"}}},
      {"awq", {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"version", "gemm"}}},
      {"bitsandbytes", {{"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}}},
      {"fbgemm", {{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}}},
      {"modelopt",
       {{"quant_method", "modelopt"},
        {"quant_algo", "MIXED_PRECISION"},
        {"quantized_layers", {{"a", {{"quant_algo", "FP8"}}}}},
        {"config_groups", {{"group_0", {{"targets", {"a"}}, {"weights", weights}}}}}}},
      {"compressed",
       {{"quant_method", "compressed-tensors"},
        {"format", "float-quantized"},
        {"sparsity_config", {{"format", "dense"}}},
        {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}}}};
  for (const auto& [name, packing] : packings) {
    packed["quantization_config"] = packing;
    put(folder, name, packed.dump());
  }
}

// Stages and numbers to route, parted by a NUL byte: every recipe's, and what an input can hold.
void stages_seeds(const std::string& folder) {
  const std::string nul(1, '\0'),
      logits =
          R"({"logits": [[2, 1, 0, -1], [1.5, 1.5, 0.5, 0], [3, -1, 2, 0]], "coef": {"z": 1}})";
  for (const Recipe& recipe : recipes()) {
    if (!recipe.has_router()) continue;
    const bool hash = !needs_logits(recipe.train.select);
    put(folder, std::string(recipe.name),
        to_json(recipe.train, recipe.eval_as_trained).dump() + nul +
            (hash ? R"({"ids": [0, 5, 7]})" : logits));
  }
  put(folder, "based",
      R"({"base": "shazeer", "capacity": {"type": "buffer", "scope": {"group": 2}}, "losses": {"load": false}})" +
          nul +
          R"({"x": [[1, 2], [3, 4]], "weight": [[1, 0], [0, 1], [1, 1]], "noise_weight": [[1, 0], [0, 1], [1, 1]], "draw": true, "seed": 3,
 "sequences": [1, 1]})");
  put(folder, "given",
      R"({"base": "deepseek-v3", "losses": {"balance": {"scope": "micro_batch", "shares": "step"}}})" +
          nul +
          R"({"logits": [[1, 2], [3, 4]], "noise": [[0, 1], [1, 0]], "sigma": [[1, 1], [2, 2]], "bias": [0.5, 0], "step_counts": [7, 1], "ids": [4, 4],
 "dweights": [[1, 2], [3, 4]], "coef": {"balance": 0.5, "z": 1e-3}})");
}

void history_seeds(const std::string& folder) {
  const auto row = [](int step, const char* more) {
    return R"({"step":)" + std::to_string(step) +
           R"(,"tokens":64,"ce":2.5,"balance":1,"layers":[{"layer":1,"load":[0.25,0.75],"max_vio":0.5,"dropped":0}])" +
           more + "}\n";
  };
  put(folder, "run",
      row(1, "") + row(2, R"(,"eval_ce":2.25,"alarms":[{"kind":"dead","text":"layer 1"}])") +
          row(4000, R"(,"z":1e3)") + R"({"step":40)");
  put(folder, "dense",
      R"({"step":1,"ce":2.5,"layers":[]})"
      "\n"
      R"({"step":1,"eval_ce":2})"
      "\n");
}

// Routing records: one that was written here, header and data parted by a NUL byte as the fuzzer
// wants them.
void record_seeds(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::vector<int32_t> ids = {1, 2, 3, 4}, bounds = {0, 2, 4},
                       experts = {0, 1, 2, -1, -1, -5, 3, 0};
  std::vector<float> weights(8, 0.5f);
  const Tensor pairs(experts.data(), DType::i32, {4, 2});  // [N,K]
  const std::string path = folder + "/whole";
  write_safetensors(path,
                    {{"ids", Tensor(ids.data(), DType::i32, {4}), DType::i32},
                     {"bounds", Tensor(bounds.data(), DType::i32, {3}), DType::i32},
                     {"layers.1.experts", pairs, DType::i32},
                     {"layers.1.weights", Tensor(weights.data(), DType::f32, {4, 2}), DType::f32},
                     {"layers.2.experts", pairs, DType::i32}},
                    {{"routing_record", "1"},
                     {"recipe", "olmoe"},
                     {"routing", "dropless"},
                     {"dtype", "f32"},
                     {"tokenizer", "bytes"},
                     {"layers", "3"},
                     {"experts", "4"},
                     {"slots", "2"},
                     {"window", "2"}});
  const std::string whole = read_text(path);
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  put(folder, "whole", "\x01" + whole);
  put(folder, "parted",
      std::string(1, '\0') + whole.substr(8, header) + std::string(1, '\0') +
          whole.substr(8 + header));
}

// Configuration, a NUL byte, and the adapter of a small model as its fuzzer makes it.
void adapter_seeds(const std::string& folder) {
  std::filesystem::create_directories(folder);
  Arena arena;
  const std::string base = "base_model.model.model.layers.0.";
  const auto zeros = [&](int64_t rows, int64_t cols) {
    return arena.alloc_zeroed(DType::f32, {rows, cols});
  };
  const std::string path = folder + "/whole";
  write_safetensors(
      path,
      {{base + "self_attn.q_proj.lora_A.weight", zeros(2, 8), DType::f32},
       {base + "self_attn.q_proj.lora_B.weight", zeros(8, 2), DType::f32},
       {base + "mlp.experts.1.down_proj.lora_A.weight", zeros(3, 6), DType::f32},
       {base + "mlp.experts.1.down_proj.lora_B.weight", zeros(8, 3), DType::f32},
       {base + "mlp.gate.weight", zeros(3, 8), DType::f32},
       {"base_model.model.lm_head.token_adapter.trainable_tokens_delta", zeros(2, 8), DType::f32}});
  const std::string file = read_text(path);
  const std::string config =
      R"({"peft_type":"LORA","r":2,"lora_alpha":4,"rank_pattern":{"down_proj":3},"alpha_pattern":{"^model.layers.0.self_attn.q_proj":1},"use_rslora":true,"trainable_token_indices":{"lm_head":[5,2]}})";
  put(folder, "whole", config + std::string(1, '\0') + "\x01" + file);
  const size_t header = file.find("}}") + 2;
  put(folder, "parted",
      config + std::string(2, '\0') + file.substr(8, header - 8) + std::string(1, '\0') +
          std::string(4 * (16 + 16 + 18 + 24 + 24 + 16), '\x07'));
}

// Importance in both forms.
void imatrix_seeds(const std::string& folder) {
  std::filesystem::create_directories(folder);
  Importance importance;
  importance.tensors["blk.0.attn_q.weight"] = {{1, 2, 3, 4}, {7}};
  importance.tensors["blk.0.ffn_down_exps.weight"] = {{1, 0, 3, 4, 0, 0}, {5, 0, 2}};
  importance.texts = {"some.txt"};
  importance.windows = 2;
  importance.window = 16;
  write_importance(folder + "/whole.gguf", importance);
  std::string dat;
  const auto add = [&](auto x) { dat.append(reinterpret_cast<const char*>(&x), sizeof x); };
  const auto text = [&](std::string_view t) {
    add(static_cast<int32_t>(t.size()));
    dat += t;
  };
  add(int32_t{1});
  text("blk.0.attn_q.weight");
  for (const int32_t n : {3, 2}) add(n);  // calls, numbers
  for (const float x : {1.5f, 2.5f}) add(x);
  add(int32_t{3});
  text("some.txt");
  put(folder, "old.dat", dat);
}

// The adapter of a small model as its fuzzer makes it: of a matrix and of a bank.
void adapter_gguf_seeds(const std::string& folder) {
  std::filesystem::create_directories(folder);
  Model model(test::small_olmoe());
  model.initialise(1);
  Arena arena;
  AdapterFile file{.rank = 2, .alpha = 4, .base_model = "", .matrices = {}, .whole = {}};
  for (Param* p : model.params()) {
    if (!p->is_matrix() || p->name.find("layers.0.") == std::string::npos) continue;
    const Tensor& w = p->value;
    if (p->name.find(".attn.q") != std::string::npos)
      file.matrices.push_back({p, arena.alloc_zeroed(DType::f32, {2, w.cols()}),
                               arena.alloc_zeroed(DType::f32, {w.rows(), 2})});
    if (p->name.find(".experts.down") != std::string::npos)
      file.matrices.push_back({p, arena.alloc_zeroed(DType::f32, {w.shape[0], 2, w.cols()}),
                               arena.alloc_zeroed(DType::f32, {w.shape[0], w.shape[1], 2})});
  }
  save_gguf_adapter(folder + "/whole", model, file);
}

}  // namespace
}  // namespace moe

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: fuzz_seeds OUT\n", stderr);
    return 2;
  }
  const std::string out = argv[1];
  try {
    moe::safetensors_seeds(out + "/safetensors");
    moe::packed_seeds(out + "/packed");
    moe::gguf_seeds(out + "/gguf");
    moe::gguf_config_seeds(out + "/gguf_config");
    moe::json_seeds(out + "/json");
    moe::tokenizer_seeds(out + "/tokenizer");
    moe::ggml_vocab_seeds(out + "/ggml_vocab");
    moe::sentencepiece_seeds(out + "/sentencepiece");
    moe::shards_seeds(out + "/shards");
    moe::jinja_seeds(out + "/jinja");
    moe::serve_seeds(out + "/serve");
    moe::chat_request_seeds(out + "/chat_request");
    moe::tool_calls_seeds(out + "/tool_calls");
    moe::grammar_seeds(out + "/grammar");
    moe::config_seeds(out + "/config");
    moe::stages_seeds(out + "/stages");
    moe::history_seeds(out + "/history");
    moe::record_seeds(out + "/record");
    moe::adapter_seeds(out + "/adapter");
    moe::adapter_gguf_seeds(out + "/adapter_gguf");
    moe::imatrix_seeds(out + "/imatrix");
  } catch (const moe::Error& e) {
    std::fprintf(stderr, "fuzz_seeds: %s\n", e.what());
    return 1;
  }
  return 0;
}
