// Seeds of the fuzzers of what reads texts: JSON, tokenizers and their files, templates, requests,
// tool calls, grammars.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "core/file.h"
#include "core/json.h"
#include "fuzz/seeds.h"
#include "support/learned_bpe.h"
#include "support/sentencepiece_file.h"
#include "text/bpe.h"
#include "text/chat.h"
#include "text/ggml_vocab.h"
#include "text/sentencepiece_model.h"
#include "text/tokenize.h"
#include "text/tokenizer.h"
#include "text/tool_calls.h"

namespace moe {
namespace {

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

}  // namespace

void json_seeds(const std::string& folder) {
  put(folder, "config",
      R"({"model_type": "olmoe", "hidden_size": 64, "num_experts": 8, "rope_theta": 10000.0, "tie_word_embeddings": false, "rope_scaling": null,
 "moe_layers": [0, 2, 4], "hidden_act": "silu", "names": ["a", "b"], "nested": {"x": [{"y": -1.5e-3}, {"y": 18446744073709551615}]}})");
  put(folder, "logits", R"({"logits": [[0.5, -1.25, 3], [1e-9, 0, 7E+2]], "bias": [0, 0, 0]})");
  put(folder, "text", "[\"\\u00e9\\ud83d\\ude00\\n\", \"\xC3\xA9\", true, false, null, -0, 1]");
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

}  // namespace moe
