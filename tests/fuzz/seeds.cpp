// Writes the valid files that the fuzzers start from: OUT/<fuzzer>/<seed>. Usage: fuzz_seeds OUT
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
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
#include "hub/adapter_gguf.h"
#include "hub/configs.h"
#include "hub/folder/config_json.h"
#include "hub/gguf/gguf_config.h"
#include "hub/gguf/gguf_vocab.h"
#include "hub/gguf/imatrix.h"
#include "moe/recipes/recipes.h"
#include "moe/recipes/spec_json.h"
#include "support/learned_bpe.h"
#include "support/sentencepiece_file.h"
#include "tensor/arena.h"
#include "text/bpe.h"
#include "text/chat.h"
#include "text/ggml_vocab.h"
#include "text/sentencepiece_model.h"
#include "text/tokenize.h"
#include "text/tokenizer.h"
#include "text/tool_calls.h"

namespace moe {
namespace {

void put(const std::string& folder, const std::string& name, const std::string& content) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/" + name, std::ios::binary) << content;
}

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

// Numbers and scales in every packing; what the first byte says is in packed_fuzz.cpp.
void packed_seeds(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::vector<std::byte> bytes(1024, std::byte{7});
  int64_t shape[] = {6, 20};
  const auto item = [&](const char* name, DType dtype, std::initializer_list<int64_t> dims) {
    return SafetensorsItem{name, Tensor(bytes.data(), dtype, dims), dtype};
  };
  const auto seed = [&](const char* name, char first, const std::vector<SafetensorsItem>& items) {
    const std::string path = folder + "/" + name;
    write_safetensors(path, items);
    put(folder, name, std::string(1, first) + read_text(path));
  };
  seed("mxfp4", '\x01',
       {item("e.gate_up_proj_blocks", DType::u8, {2, 4, 2, 16}),
        item("e.gate_up_proj_scales", DType::u8, {2, 4, 2}), item("norm", DType::f32, {3})});
  seed("fp8", '\x23',  // blocks of 4 x 4
       {item("w", DType::f8_e4m3, {6, 8}), item("w_scale_inv", DType::f32, {2, 2})});
  seed("gptq", '\xC5',  // groups of 8
       {item("x.qweight", DType::i32, {2, 8}), item("x.qzeros", DType::i32, {2, 1}),
        item("x.scales", DType::f16, {2, 8}), item("x.bias", DType::f16, {8})});
  // In blocks of 32 as they stay, q4_0, q4_1 and q8_0: scales that f16 has, one a row.
  int32_t middles = 0x77777777;  // less one
  const SafetensorsItem scales_of_rows = item("x.scales", DType::f16, {1, 8});
  seed("gptq_q4_0", '\x05',
       {item("x.qweight", DType::i32, {4, 8}),
        scales_of_rows,
        {"x.qzeros", Tensor(&middles, DType::i32, {1, 1}), DType::i32}});
  seed("gptq_q4_1", '\x05',
       {item("x.qweight", DType::i32, {4, 8}), scales_of_rows,
        item("x.qzeros", DType::i32, {1, 1})});
  seed("awq_q4_1", '\x09',
       {item("x.qweight", DType::i32, {32, 1}), scales_of_rows,
        item("x.qzeros", DType::i32, {1, 1})});
  seed("bytes_q8_0", '\x0B',
       {item("x.weight", DType::i8, {6, 32}), item("x.weight_scale", DType::f16, {6, 1})});
  std::memset(bytes.data(), 0, bytes.size());  // a list of groups that there are
  seed("gptq_listed", '\xC7',
       {item("x.qweight", DType::i32, {4, 4}), item("x.qzeros", DType::i32, {2, 1}),
        item("x.scales", DType::bf16, {2, 4}), item("x.g_idx", DType::i32, {16})});
  seed("awq", '\xC9',
       {item("x.qweight", DType::i32, {16, 1}), item("x.qzeros", DType::i32, {2, 1}),
        item("x.scales", DType::f16, {2, 8})});
  const SafetensorsItem said = {"x.weight_shape", Tensor(shape, DType::i64, {2}), DType::i64};
  seed("words", '\x8B',  // groups of 4
       {item("x.weight_packed", DType::i32, {6, 3}), item("x.weight_scale", DType::bf16, {6, 5}),
        item("x.weight_zero_point", DType::i32, {1, 5}), said});
  seed("words_listed", '\x8B',
       {item("x.weight_packed", DType::i32, {6, 5}), item("x.weight_scale", DType::bf16, {6, 5}),
        item("x.weight_zero_point", DType::i8, {6, 5}), item("x.weight_g_idx", DType::i32, {20}),
        said});
  seed("bytes", '\x2D',
       {item("x.weight", DType::i8, {6, 8}), item("x.weight_scale", DType::f32, {2, 2}),
        item("x.weight_zero_point", DType::i8, {2, 2}), item("x.input_scale", DType::f32, {1})});
  const SafetensorsItem scales = item("x.weight_scale", DType::f8_e4m3, {6, 2});
  seed("nvfp4", '\x13',
       {item("x.weight", DType::u8, {6, 16}), scales, item("x.weight_scale_2", DType::f32, {1})});
  seed("nvfp4_divided", '\x0B',
       {item("x.weight_packed", DType::u8, {6, 16}), scales,
        item("x.weight_global_scale", DType::f32, {1})});
  seed("rows", '\x15',
       {item("x.weight", DType::f8_e4m3, {6, 8}), item("x.weight_scale", DType::f32, {6, 1})});
  std::string said_of_codes =
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [6, 20]})";
  const auto state = [&] {
    return SafetensorsItem{"x.weight.quant_state.bitsandbytes__nf4",
                           Tensor(said_of_codes.data(), DType::u8, {std::ssize(said_of_codes)}),
                           DType::u8};
  };
  const SafetensorsItem codes = item("x.weight", DType::u8, {60, 1}),
                        map = item("x.weight.quant_map", DType::f32, {16});
  seed("nf4", '\x11', {codes, map, state(), item("x.weight.absmax", DType::f32, {2})});
  said_of_codes.back() = ',';
  said_of_codes += R"("nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5})";
  seed("nf4_nested", '\x11',
       {codes, map, state(), item("x.weight.absmax", DType::u8, {2}),
        item("x.weight.nested_absmax", DType::f32, {1}),
        item("x.weight.nested_quant_map", DType::f32, {256})});
  seed("int8", '\x11',
       {item("x.weight", DType::i8, {6, 8}), item("x.SCB", DType::f32, {6}),
        item("x.weight_format", DType::u8, {1})});
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
  if (row.window_every > 0) c.attention_window = 5;
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
  if (row.scan) {
    c.scan = {.heads = 2, .groups = 1, .width = 4, .states = 4, .conv_width = 2};
    c.scan_layers = {0};
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

void json_seeds(const std::string& folder) {
  put(folder, "config",
      R"({"model_type": "olmoe", "hidden_size": 64, "num_experts": 8, "rope_theta": 10000.0, "tie_word_embeddings": false, "rope_scaling": null,
 "moe_layers": [0, 2, 4], "hidden_act": "silu", "names": ["a", "b"], "nested": {"x": [{"y": -1.5e-3}, {"y": 18446744073709551615}]}})");
  put(folder, "logits", R"({"logits": [[0.5, -1.25, 3], [1e-9, 0, 7E+2]], "bias": [0, 0, 0]})");
  put(folder, "text", "[\"\\u00e9\\ud83d\\ude00\\n\", \"\xC3\xA9\", true, false, null, -0, 1]");
}

test::SentencePieceFile small_sentencepiece() {
  return {.words = {{"<unk>", 0, 2},
                    {"<s>", 0, 3},
                    {"</s>", 0, 3},
                    {"\u2581", -3},
                    {"\u2581the", -2},
                    {"at", -3.5f},
                    {"a", -4},
                    {"<x>", 0, 4}},
          .charsmap = test::charsmap_of({{'A', "a"}, {'\t', " "}})};
}

void tokenizer_seeds(const std::string& folder) {
  put(folder, "bytes", make_tokenizer("bytes")->to_json());
  const std::string_view text = "the cat and the dog, the cat's 12 12";
  const std::string trained = test::learned_bpe(std::span(&text, 1), 262)->to_json();
  put(folder, "bpe", trained);
  Json llama = parse_json(trained, "seed");
  llama["model"]["ignore_merges"] = true;
  llama["model"]["merges"] = Json::array({Json::array({"t", "h"})});
  llama["pre_tokenizer"] = parse_json(
      R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
 {"type": "Split", "pattern": {"Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false},
 {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})",
      "seed");
  llama["post_processor"] = parse_json(
      R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}]})",
      "seed");
  put(folder, "llama", llama.dump());
  Json composed = parse_json(trained, "seed");
  composed["normalizer"] = {{"type", "NFC"}};
  composed["added_tokens"][0]["rstrip"] = composed["added_tokens"][0]["normalized"] = true;
  put(folder, "composed", composed.dump());
  const auto pieces =
      make_ggml_tokenizer(parse_sentencepiece(small_sentencepiece().bytes(), "seed"), "seed");
  put(folder, "sentencepiece", pieces->to_json());
  Json unigram = parse_json(pieces->to_json(), "seed");
  unigram["model"].erase("moe_cpp_sentencepiece");
  put(folder, "unigram", unigram.dump());
  GgmlVocab scored;
  scored.model = "llama";
  for (int b = 0; b < 256; ++b) scored.tokens.push_back(fmt::format("<0x{:02X}>", b));
  scored.types.assign(scored.tokens.size(), 6);
  for (const char* word : {"a", "t", "th", "\u2581", "\u2581t", "the", "h", "e", "</s>"})
    scored.tokens.emplace_back(word);
  scored.types.resize(scored.tokens.size(), 1);
  scored.types.back() = 3;
  for (size_t i = 0; i < scored.tokens.size(); ++i) scored.scores.push_back(-static_cast<float>(i));
  Json characters = parse_json(make_ggml_tokenizer(scored, "seed")->to_json(), "seed");
  put(folder, "characters", characters.dump());
  characters["normalizer"] = nullptr;
  characters["pre_tokenizer"] = {{"type", "Metaspace"},
                                 {"replacement", "\u2581"},
                                 {"prepend_scheme", "first"},
                                 {"split", false}};
  put(folder, "metaspace", characters.dump());
  put(folder, "small",
      R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": {"type": "ByteLevel"}})");
  put(folder, "utf8", "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF");
}

void ggml_vocab_seeds(const std::string& folder) {
  put(folder, "bytes", std::string("\x20") + "cEnd\nnth\nnthe\nmt h\nmth e\n");
  put(folder, "characters", std::string("\x01") + "na\nzth\nyt\nxh\nc</s>\nn\u2581\nz\u2581th\n");
}

void sentencepiece_seeds(const std::string& folder) {
  test::SentencePieceFile file = small_sentencepiece();
  put(folder, "unigram", file.bytes());
  file.trims = file.prepends = false;
  for (int b = 0; b < 256; ++b) file.words.push_back({byte_token(b), 0, 6});
  put(folder, "bytes", file.bytes());
  file.model = 2;
  put(folder, "bpe", file.bytes());
}

// What `moe tokenize` writes, each behind the byte that tells what it is.
void shards_seeds(const std::string& folder) {
  put(folder + "/in", "a.txt", "a short text, and another\n");
  put(folder + "/in", "b.jsonl",
      R"({"messages": [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}]})");
  tokenize({.paths = {folder + "/in"}, .out = folder + "/out"}, *make_tokenizer("bytes"), {});
  const std::string shard = read_text(folder + "/out/00000.tokens"),
                    index = read_text(folder + "/out/" + kTokensIndex);
  std::filesystem::remove_all(folder + "/in");
  std::filesystem::remove_all(folder + "/out");
  put(folder, "index", std::string(1, '\0') + index);
  put(folder, "shard", "\x01" + shard);
  std::string numbers = "\x02" + std::string(32, 'x');
  for (const uint32_t n : {7u, 9u, 20u, 32u, 1u, 3u, 12u, 15u})
    numbers.append(reinterpret_cast<const char*>(&n), sizeof n);
  put(folder, "ends", numbers);
}

void jinja_seeds(const std::string& folder) {
  put(folder, "chatml", chat_template_jinja());
  put(folder, "statements",
      "{%- set ns = namespace(a=1) -%}\n{% macro m(x, y='d') %}{{ x ~ y }}{% endmacro %}\n"
      "{% for m in messages[::-1] if m.role != 'system' %}{% set ns.a = ns.a + loop.index0 %}"
      "{% if loop.last %}{% break %}{% elif not ns %}{% continue %}{% else %}{{ m.content }}"
      "{% endif %}{% else %}-{% endfor %}{# a #}{% generation %}{{ m(ns.a) }}{% endgeneration %}");
  put(folder, "expressions",
      "{{ {'a': [1, 2.5, none]} | tojson(indent=2) }}{{ 'x'.split('y')[-1] | trim | upper }}"
      "{{ (1 + 2) * 3 // 4 % 5 ** 2 < 6 and 'a' in 'abc' or not true }}{{ '%s' is string }}"
      "{{ messages | map(attribute='role') | join(', ') }}{{ range(3) | list | sort }}"
      "{{ raise_exception('\\u00e9') if tools is defined and tools else strftime_now('%d') }}"
      "{% raw %}{{ }}{% endraw %}{% set a, b = 1, 2 %}{% set c %}d{% endset %}");
}

void chat_request_seeds(const std::string& folder) {
  put(folder, "tools",
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
 {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, 2.5, null]}"}}]},
 {"role": "tool", "tool_call_id": "1", "name": "f", "content": "<|end|>"}], "tools": [{"type": "function", "function":
 {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {}}}}}],
 "chat_template_kwargs": {"mood": ["x", {"y": true}]}, "add_generation_prompt": false})");
  put(folder, "plain",
      R"({"model": "m", "messages": [{"content": "\u00e9", "role": "developer"}]})");
}

// A byte for the form, one for how much is there, and the reply.
void tool_calls_seeds(const std::string& folder) {
  const auto form = [](ToolCallForm x) { return std::string(1, static_cast<char>(x)) + "\x80"; };
  put(folder, "hermes",
      form(ToolCallForm::hermes) +
          "<think>a</think> b\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
          "</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": \"{}\"}</tool_call> c");
  put(folder, "llama3",
      form(ToolCallForm::llama3) + R"(<|python_tag|>{"name": "f", "parameters": {"a": 1}})");
  put(folder, "mistral",
      form(ToolCallForm::mistral) + R"([TOOL_CALLS] [{"name": "f", "arguments": {}}])");
  put(folder, "mistral_args",
      form(ToolCallForm::mistral) + "a[TOOL_CALLS]f[CALL_ID]1[ARGS]{}[TOOL_CALLS]g[ARGS]{}");
  put(folder, "deepseek",
      form(ToolCallForm::deepseek) +
          "a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```"
          "<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
          "<｜tool▁calls▁end｜>");
  put(folder, "kimi",
      form(ToolCallForm::kimi) +
          "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
          "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>");
  put(folder, "solar",
      form(ToolCallForm::solar) +
          "<|think|>a<|end|><|begin|>assistant<|content|>b<|end|><|begin|>assistant<|tool_calls|>"
          "<|tool_call:begin|>0<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|><|calls|>");
  put(folder, "harmony",
      form(ToolCallForm::harmony) +
          "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>"
          "b<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
          "<|message|>{\"a\": 1}<|call|><|start|>assistant to=functions.g<|channel|>commentary "
          "json<|message|>{}<|end|>c<|start|>assistant<|channel|>final<|message|>d<|return|>");
  put(folder, "lfm2",
      form(ToolCallForm::lfm2) +
          "a<|tool_call_start|>[f(a='b', c=[1, None], d={\"e\": 2.5}), g()]<|tool_call_end|>");
  put(folder, "olmo3",
      form(ToolCallForm::olmo3) + "<function_calls>f(a=\"\\u00e9\", b=true)\ng()</function_calls>");
  put(folder, "gemma4",
      form(ToolCallForm::gemma4) +
          "<|tool_call>call:f{a:<|\"|>b<|\"|>,c:{d:[1,true]}}<tool_call|>");
  put(folder, "qwen3_coder",
      form(ToolCallForm::qwen3_coder) +
          "a\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=e>\n"
          "{'b': True}\n</parameter>\n</function>\n</tool_call>");
  put(folder, "glm",
      form(ToolCallForm::glm) +
          "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>");
  put(folder, "deepseek_v32",
      form(ToolCallForm::deepseek_v32) +
          "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
          "string=\"true\">b</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>");
  put(folder, "minimax",
      form(ToolCallForm::minimax) +
          "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n"
          "</invoke>\n</minimax:tool_call>");
  put(folder, "nemotron",
      form(ToolCallForm::nemotron) + R"(<TOOLCALL>[{"name": "f"}, {"name": "g"}]</TOOLCALL>)");
}

// Bodies of requests.
void serve_seeds(const std::string& folder) {
  put(folder, "completion",
      R"({"model": "m", "prompt": ["Once", "The end"], "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1,
 "n": 2, "seed": -7, "stop": ["a", "b"], "echo": true, "logprobs": 2, "logit_bias": {"65": 1.5}, "ignore_eos": true,
 "frequency_penalty": 0.5, "presence_penalty": -1, "repeat_penalty": 1.1, "suffix": ""})");
  put(folder, "ids",
      R"({"prompt": [[72, 105], [1]], "stream": true, "stream_options": {"include_usage": true},
 "routing": true, "return_routed_experts": true, "replay": {"shape": [1, 2, 2], "routed_experts": "AAAAAAEAAAACAAAAAwAAAA=="}})");
  put(folder, "chat",
      R"({"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": [{"type": "input_text", "text": "u"}]}],
 "max_completion_tokens": 5, "reasoning_effort": "none", "thinking": {"type": "enabled", "budget_tokens": 9},
 "enable_thinking": true, "modalities": ["text"], "parallel_tool_calls": false, "logprobs": true,
 "top_logprobs": 3, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "tool_choice": "auto",
 "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}})");
  put(folder, "messages",
      R"({"model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"], "stream": true,
 "output_config": {"effort": "low"}, "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
 "tool_choice": {"type": "auto"}, "messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": [
 {"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "r"}]}]})");
  put(folder, "responses",
      R"({"model": "m", "max_output_tokens": 9, "instructions": "s", "reasoning": {"effort": "low"}, "stream": true, "tool_choice": "auto",
 "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
 "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}, {"type": "web_search"}],
 "input": [{"role": "user", "content": [{"type": "input_text", "text": "u"}]},
 {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]}, {"type": "function_call", "call_id": "c", "name": "f",
 "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "r"}]})");
  put(folder, "format", R"({"prompt": "p", "response_format": {"type": "json_object"}})");
}

// A schema, a NUL byte, and a text under it.
void grammar_seeds(const std::string& folder) {
  const std::string nul(1, '\0');
  put(folder, "object",
      R"({"type": "object", "properties": {"a": {"type": "integer", "minimum": -20, "maximum": 130}, "b": {"type": ["string", "null"], "maxLength": 5},
 "c": {"enum": ["x", "xy", 1.5, {"d": []}]}}, "required": ["a"], "additionalProperties": {"type": "number", "exclusiveMinimum": 0}})" +
          nul + R"({"a":-7, "b": "\u00e9", "c": {"d":[]}, "d":0.5})");
  put(folder, "array",
      R"({"prefixItems": [{"format": "date-time"}, {"format": "uuid"}, {"const": "\u00e9"}], "items": {"type": "boolean"}, "minItems": 1, "maxItems": 9})" +
          nul + R"(["2024-02-29T12:00:00Z","123e4567-e89b-12d3-a456-426614174000"])");
  put(folder, "tree",
      R"({"$ref": "#/$defs/t", "$defs": {"t": {"anyOf": [{"type": "object", "properties": {"l": {"$ref": "#/$defs/t"}, "n": {}}, "required": ["l"]},
 {"oneOf": [{"type": "null"}, {"allOf": [{"minLength": 2}]}]}]}}, "title": "T", "default": null})" +
          nul + R"({"l":{"l":null, "m": [1]},"n":{}})");
  put(folder, "refused", R"({"properties": {"a/b": {"pattern": "x"}}})" + nul);
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
