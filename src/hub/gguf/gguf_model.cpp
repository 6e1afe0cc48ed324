#include "hub/gguf/gguf_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "core/error.h"
#include "core/nearest.h"
#include "hub/gguf/gguf_config.h"
#include "hub/gguf/gguf_keys.h"
#include "hub/gguf/gguf_vocab.h"
#include "hub/gguf/quant_mix.h"
#include "text/ggml_vocab.h"

namespace moe {
namespace {

constexpr std::string_view kAsker = "the file's metadata";

// llama.h, enum llama_ftype; 1024 says that it was guessed. Of the mixes of a type the usual one,
// which comes first.
int64_t file_type_of(DType dtype) {
  if (dtype == DType::f32) return 0;
  if (dtype == DType::f16) return 1;
  if (dtype == DType::bf16) return 32;
  const auto mixes = quant_mixes();
  const auto mix = std::ranges::find(mixes, dtype, &QuantMix::base);
  return mix != mixes.end() ? mix->file_type : 1024;
}

// Keys of "general." that are written anew.
bool is_ours(std::string_view key) {
  constexpr std::string_view kOurs[] = {"general.architecture", "general.type", "general.file_type",
                                        "general.quantization_version", "general.alignment"};
  return std::ranges::find(kOurs, key) != std::end(kOurs);
}

// What the file says of itself beside the mathematics.
void read_general(const Gguf& file, LoadedModel& loaded) {
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with("general.") || is_ours(key)) continue;
    if (const auto* text = std::get_if<std::string>(&value)) loaded.metadata.emplace(key, *text);
    else loaded.general.emplace(key, file.stored(key));
  }
}

std::vector<std::string> notes_of_ends(const GgmlVocab& vocab) {
  std::vector<std::string> names;
  for (const int32_t id : ends_unknown_to_llama_cpp(vocab))
    names.push_back(
        fmt::format("{} (\"{}\")", id, printable(vocab.tokens[static_cast<size_t>(id)], 40)));
  if (names.empty()) return {};
  return {fmt::format(
      "more tokens end a reply than llama.cpp has keys for: it writes on behind {}, where moe ends",
      fmt::join(names, ", "))};
}

}  // namespace

bool is_gguf(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) &&
         MappedFile(path).text().starts_with("GGUF");
}

ModelConfig gguf_config(const std::string& path) {
  return read_gguf_config(Gguf::open(path)).config;
}

LoadedModel load_gguf(const std::string& path, LoadFor purpose, const comm::Group& experts,
                      BesideText beside) {
  const auto file = std::make_shared<const Gguf>(Gguf::open(path));
  const auto [config, architecture, names] = read_gguf_config(*file);
  check_size(config, *file, kAsker);
  LoadedModel loaded;
  loaded.tokenizer = make_ggml_tokenizer(read_gguf_vocab(*file), path);
  if (loaded.tokenizer->vocab_size() > config.vocab)
    fail("{}: the tokenizer has {} tokens, but the embedding has {} rows", path,
         loaded.tokenizer->vocab_size(), config.vocab);
  loaded.model = std::make_unique<Model>(
      config, purpose == LoadFor::training ? Storage::owned : Storage::bound, experts);
  std::vector<FileTensor> map = map_tensors(*names, *loaded.model);
  loaded.left_out = check_account(map, *file, kAsker, beside);
  bind_tensors(map, *file, *loaded.model, purpose);
  if (purpose == LoadFor::inference) loaded.model->keep(file);
  read_general(*file, loaded);
  loaded.source = std::make_shared<const ModelSource>(ModelSource{file, std::move(map)});
  return loaded;
}

namespace {

// Whether a tied head is written a second time: where a row wants it, and where weights hold
// multipliers that make it another matrix than the embedding.
bool writes_tied_head(const GgufArchitecture& row, const ModelConfig& c) {
  return row.needs_head ||
         (row.tensors->folds && c.multipliers.embedding * c.multipliers.logits != 1);
}

}  // namespace

GgufTarget gguf_target(Model& model, const Tokenizer& tokenizer) {
  const ModelConfig& c = model.config();
  const auto [architecture, why_own] = gguf_form_of(c);
  const GgufArchitecture& row = *architecture;
  if (tokenizer.vocab_size() > c.vocab)
    fail("the tokenizer has {} tokens, but the model's vocabulary is {}", tokenizer.vocab_size(),
         c.vocab);
  GgufTarget target;
  target.why_own = why_own;
  target.metadata = gguf_config_entries(row, c);
  GgmlVocab vocab = ggml_vocab_of(tokenizer);
  if (why_own.empty()) target.notes = notes_of_ends(vocab);
  for (GgufEntry& entry : gguf_vocab_entries(std::move(vocab), c.vocab))
    target.metadata.push_back(std::move(entry));
  for (FileTensor& tensor : map_tensors(*row.tensors, model))
    if (!tensor.pieces.empty() && (!tensor.alias || writes_tied_head(row, c)))
      target.tensors.push_back(std::move(tensor));
  for (GgufRopeFactors& table : gguf_rope_factors(row, c)) {
    auto factors = std::make_shared<std::vector<float>>(std::move(table.factors));
    const auto n = static_cast<int64_t>(factors->size());
    target.tables.push_back({table.tensor, DType::f32, {n}, [factors, n](int64_t) {
                               return Tensor(factors->data(), DType::f32, {n});
                             }});
  }
  return target;
}

std::vector<GgufEntry> gguf_type_entries(const std::vector<GgufItem>& items, const QuantMix* mix) {
  std::map<DType, int64_t> numbers;
  for (const GgufItem& item : items) {
    int64_t n = 1;
    for (const int64_t size : item.shape) n *= size;
    numbers[item.dtype] += n;
  }
  const auto most =
      std::ranges::max_element(numbers, {}, [](const auto& each) { return each.second; });
  std::vector<GgufEntry> out;
  if (most != numbers.end())
    out.push_back({"general.file_type", GgufEntry::Type::u32,
                   mix != nullptr ? mix->file_type : file_type_of(most->first)});
  if (std::ranges::any_of(numbers, [](const auto& each) { return is_quantised(each.first); }))
    out.push_back({"general.quantization_version", GgufEntry::Type::u32, int64_t{2}});
  return out;
}

}  // namespace moe
