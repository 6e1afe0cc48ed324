#include "hub/gguf/gguf_vocab.h"

#include <algorithm>

#include "core/error.h"

namespace moe {
namespace {

using Type = GgufEntry::Type;

constexpr const char* kVocabPrefix = "tokenizer.ggml.";
constexpr const char *kTemplate = "tokenizer.chat_template",
                     *kTemplates = "tokenizer.chat_templates";
// Read by this engine only: ids, where more than three tokens end what a model writes.
constexpr const char* kMoreEnds = "tokenizer.moe_cpp.further_end_token_ids";
constexpr int32_t kNormal = 1, kUnused = 5;  // llama.h, enum llama_token_type

struct IdKey {
  const char* key;
  std::optional<int32_t> GgmlVocab::*id;
};
constexpr IdKey kIds[] = {
    {"bos_token_id", &GgmlVocab::bos},     {"eos_token_id", &GgmlVocab::eos},
    {"eot_token_id", &GgmlVocab::eot},     {"eom_token_id", &GgmlVocab::eom},
    {"unknown_token_id", &GgmlVocab::unk}, {"padding_token_id", &GgmlVocab::pad}};
struct FlagKey {
  const char* key;
  std::optional<bool> GgmlVocab::*flag;
};
constexpr FlagKey kFlags[] = {{"add_bos_token", &GgmlVocab::add_bos},
                              {"add_eos_token", &GgmlVocab::add_eos},
                              {"add_space_prefix", &GgmlVocab::add_space_prefix},
                              {"remove_extra_whitespaces", &GgmlVocab::remove_extra_whitespaces}};
constexpr const char* kCharsmap = "precompiled_charsmap";

std::string name(std::string_view key) { return kVocabPrefix + std::string(key); }
// github ggml-org/llama.cpp, gguf-py/gguf/gguf_writer.py, add_chat_template
std::string key_of_template(const std::string& of) { return std::string(kTemplate) + "." + of; }

}  // namespace

GgmlVocab read_gguf_vocab(const Gguf& file) {
  GgmlVocab vocab;
  vocab.model = file.text(name("model"));
  if (file.has(name("pre"))) vocab.pre = file.text(name("pre"));
  vocab.tokens = file.texts(name("tokens"));
  const auto last = static_cast<int64_t>(vocab.tokens.size()) - 1;
  const auto need_one_each = [&](std::string_view key, size_t size) {
    if (size != vocab.tokens.size())
      fail("{}: key \"{}\" has {} values, one for each of {} tokens is needed", file.path(),
           name(key), size, vocab.tokens.size());
  };
  if (file.has(name("scores"))) {
    for (const double score : file.numbers(name("scores")))
      vocab.scores.push_back(static_cast<float>(score));
    need_one_each("scores", vocab.scores.size());
  }
  if (file.has(name("token_type"))) {
    for (const int64_t type : file.integers(name("token_type"))) {
      if (type < 0 || type > 6)
        fail("{}: key \"{}\" holds {}; types of tokens are 0 to 6", file.path(), name("token_type"),
             type);
      vocab.types.push_back(static_cast<int32_t>(type));
    }
    need_one_each("token_type", vocab.types.size());
  }
  if (file.has(name("merges"))) vocab.merges = file.texts(name("merges"));
  for (const IdKey& id : kIds)
    if (file.has(name(id.key)))
      vocab.*id.id = static_cast<int32_t>(file.integer(name(id.key), 0, last));
  if (file.has(kMoreEnds))
    for (const int64_t id : file.integers(kMoreEnds)) {
      if (id < 0 || id > last)
        fail("{}: key \"{}\" holds {}; the tokens are 0 to {}", file.path(), kMoreEnds, id, last);
      vocab.more_ends.push_back(static_cast<int32_t>(id));
    }
  for (const FlagKey& flag : kFlags)
    if (file.has(name(flag.key))) vocab.*flag.flag = file.flag(name(flag.key));
  if (file.has(name(kCharsmap)))
    for (const int64_t byte : file.integers(name(kCharsmap)))
      vocab.charsmap += static_cast<char>(byte);  // some files hold them signed
  if (file.has(kTemplate)) vocab.chat_template = file.text(kTemplate);
  if (file.has(kTemplates))
    for (const std::string& named : file.texts(kTemplates))
      if (const std::string key = key_of_template(named); file.has(key))
        vocab.named_templates.emplace(named, file.text(key));
  return vocab;
}

std::vector<GgufEntry> gguf_vocab_entries(GgmlVocab vocab, int64_t rows) {
  const auto wanted = static_cast<size_t>(rows);
  if (vocab.types.empty()) vocab.types.assign(vocab.tokens.size(), kNormal);
  for (size_t i = vocab.tokens.size(); i < wanted; ++i) {
    vocab.tokens.push_back(fmt::format("[PAD{}]", i));
    vocab.types.push_back(kUnused);
    if (!vocab.scores.empty()) vocab.scores.push_back(0);
  }
  std::vector<GgufEntry> out = {{name("model"), Type::string, vocab.model}};
  if (!vocab.pre.empty()) out.push_back({name("pre"), Type::string, vocab.pre});
  out.push_back({name("tokens"), Type::strings, std::move(vocab.tokens)});
  if (!vocab.scores.empty())
    out.push_back({name("scores"), Type::f32s,
                   std::vector<double>(vocab.scores.begin(), vocab.scores.end())});
  out.push_back({name("token_type"), Type::i32s,
                 std::vector<int64_t>(vocab.types.begin(), vocab.types.end())});
  // llama.cpp asks for the list where there are no merges too.
  if (!vocab.merges.empty() || vocab.scores.empty())
    out.push_back({name("merges"), Type::strings, std::move(vocab.merges)});
  for (const IdKey& id : kIds)
    if (vocab.*id.id) out.push_back({name(id.key), Type::u32, int64_t{*(vocab.*id.id)}});
  if (!vocab.more_ends.empty())
    out.push_back({kMoreEnds, Type::i32s,
                   std::vector<int64_t>(vocab.more_ends.begin(), vocab.more_ends.end())});
  for (const FlagKey& flag : kFlags)
    if (vocab.*flag.flag) out.push_back({name(flag.key), Type::boolean, *(vocab.*flag.flag)});
  if (!vocab.charsmap.empty()) {
    std::vector<int64_t> bytes;
    for (const char byte : vocab.charsmap) bytes.push_back(static_cast<unsigned char>(byte));
    out.push_back({name(kCharsmap), Type::u8s, std::move(bytes)});
  }
  if (!vocab.chat_template.empty())
    out.push_back({kTemplate, Type::string, std::move(vocab.chat_template)});
  std::vector<std::string> names;
  for (auto& [named, text] : vocab.named_templates) {
    names.push_back(named);
    out.push_back({key_of_template(named), Type::string, std::move(text)});
  }
  if (!names.empty()) out.push_back({kTemplates, Type::strings, std::move(names)});
  return out;
}

}  // namespace moe
