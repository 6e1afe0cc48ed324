// Patterns as the models' own tokenizers have them: llama.cpp's rewrite them for its matcher, with
// the same pieces but for kimi-k2 and afmoe (docs/tokenizers.md).
#include "text/ggml_pre.h"

#include "core/error.h"
#include "core/nearest.h"
#include "text/linear_patterns.h"
#include "text/pattern.h"

namespace moe {
namespace {

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The same with marks among letters.
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Ling's.
constexpr std::string_view kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Seed-OSS's: the same as Qwen2's, but that line ends are no part of what stands before them.
constexpr std::string_view kSeed =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Youtu's: Hangul, punctuation, Bopomofo and Chinese and Japanese apart, then as gpt-4o has it with
// digits one by one.
constexpr std::string_view kYoutuScripts =
    R"([\uAC00-\uD7A3\u3131-\u318E]+|[\uFF01\u2026\u201C\u201D\u2018\u2019\u2014\uFF1A\uFF1B\uFF0C\u3001-\u303F\uFE30-\uFE4F]+|)"
    R"([\u3105-\u312F]+|[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+)";
constexpr std::string_view kYoutu =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Kimi's (tokenization_kimi.py, of tiktoken). Its [...&&[^\p{Han}]] as what both engines read: no
// other category and no Han.
constexpr std::string_view kKimi =
    R"([\p{Han}]+|)"
    R"([^\r\n\p{L}\p{N}]?[^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{Han}]*[^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{Han}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{Han}]+[^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{Han}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Trinity's for scripts that have no spaces, between that for digits and its last, DeepSeek-V3's.
constexpr std::string_view kTrinityScripts =
    R"((?:[\u4E00-\u9FFF\u3040-\u309F\u30A0-\u30FF\u3400-\u4DBF\uf900-\uFAFF\uFF65-\uFF9F\u2F00-\u2FDF]+|[\u0E00-\u0E7F]+|[\u0E80-\u0EFF]+|)"
    R"([\u1780-\u17FF]+|[\u1000-\u109F\uAA60-\uAA7F\uA9E0-\uA9FF]+|[\uAC00-\uD7AF\u1100-\u11FF]+))";

// Unicode's cased letters as DeepSeek-LLM's tokenizer lists them; escaped are those that an editor
// might compose.
// clang-format off
constexpr std::string_view kDeepSeekLetters =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1F7Dᾀ-ᾴᾶ-ᾼ\u1FBE"
    "ῂ-ῄῆ-ῌῐ-\u1FD3ῖ-\u1FDBῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212A-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-"
    "𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
// clang-format on
constexpr std::string_view kDeepSeekPunctuation = R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)";
constexpr std::string_view kDeepSeekEast = R"([一-龥ࠀ-一가-퟿]+)";
constexpr std::string_view kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<GgmlPre> table() {
  const auto one = [](std::string_view pattern) {
    return std::vector<std::string>{std::string(pattern)};
  };
  const std::string gpt2(kGpt2Pattern), digit = R"(\p{N})", line_end = "[\r\n]";
  const std::string letters(kDeepSeekLetters), punctuation(kDeepSeekPunctuation),
      east(kDeepSeekEast);
  std::vector<std::string> trinity(std::begin(kTrinityDigits), std::end(kTrinityDigits));
  trinity.emplace_back(kTrinityScripts);
  trinity.emplace_back(kDeepSeek3);
  return {
      {{"gpt-2", "gpt2", "phi-2", "mpt", "exaone4"}, {gpt2}},
      {{"olmo"}, {gpt2}, false, true},
      {{"smollm", "starcoder", "refact", "mellum2"}, {digit, gpt2}},
      {{"command-r"}, {digit, gpt2}, false, true},  // transformers:cohere/tokenization_cohere.py
      {{"llama-bpe", "llama3", "llama-v3", "lfm2", "falcon3", "falcon-h1"}, one(kLlama3), true},
      {{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, one(kLlama3)},
      {{"qwen2", "deepseek-r1-qwen"}, one(kQwen2), false, true},
      {{"qwen35"}, one(kQwen35), false, true},
      {{"stablelm2", "hunyuan", "solar-open"}, one(kQwen2)},
      {{"bailingmoe2", "bailingmoe", "llada-moe"}, one(kBailing)},
      {{"tekken"}, one(kTekken), true},
      {{"gpt-4o", "llama4", "minimax-m2"}, one(kGpt4o)},
      {{"deepseek-llm"}, {line_end, letters, punctuation, R"(\s+$)", east, R"(\p{N}+)"}},
      {{"deepseek-coder"}, {line_end, R"(\s?\p{L}+)", R"(\s?\p{P}+)", east, digit}},
      {{"deepseek-v3", "hunyuan-dense", "hy_v4"},
       {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", std::string(kDeepSeek3)}},
      {{"laguna"}, {R"([^\n]+|[\n]+)", std::string(kQwen2)}},
      {{"exaone-moe"}, one(kExaoneMoePattern)},
      {{"seed-coder"}, one(kSeed)},
      {{"youtu"}, {std::string(kYoutuScripts), std::string(kYoutu)}, true},
      {{"kimi-k2"}, one(kKimi)},
      {{"afmoe"}, trinity},
      // What a file without a name is read by.
      {{"default"}, {R"([\p{P}\$\+<=>\^~\|]+)", gpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
  };
}

}  // namespace

const std::vector<GgmlPre>& ggml_pres() {
  static const std::vector<GgmlPre> rows = table();
  return rows;
}

const GgmlPre& ggml_pre(std::string_view name) {
  if (name.empty()) name = "default";
  std::vector<std::string> known;
  for (const GgmlPre& row : ggml_pres())
    for (const std::string& candidate : row.names) {
      if (candidate == name) return row;
      known.push_back(candidate);
    }
  fail("its tokenizer.ggml.pre is \"{}\", which is not known{}", printable(name, 40),
       suggestion(printable(name, 40), known));
}

}  // namespace moe
