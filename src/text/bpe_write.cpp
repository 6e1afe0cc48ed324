// tokenizer.json, written from what a tokenizer is made of.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base64.h"
#include "core/error.h"
#include "core/json.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/pattern.h"

namespace moe {
namespace {

Json byte_level(bool prefix_space, bool use_regex = true) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json one_or_sequence(Json steps, const char* list) {
  if (steps.empty()) return nullptr;
  return steps.size() == 1 ? steps[0] : Json{{"type", "Sequence"}, {list, steps}};
}

Json replacement(std::string_view what, std::string_view with) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", with}};
}

Json precompiled(const std::string& map) {
  return {{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(map)}};
}
Json squeeze(std::string_view with) {
  return {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", with}};
}
Json strip(bool left, bool right) {
  return {{"type", "Strip"}, {"strip_left", left}, {"strip_right", right}};
}

// As close as `tokenizers` comes; the space marks are the pre_tokenizer's.
void add_sentencepiece(const NormalizerStep& step, Json& steps) {
  if (!step.what.empty()) steps.push_back(precompiled(step.what));
  if (!step.trims) return;
  steps.push_back(strip(true, true));
  steps.push_back(squeeze(" "));
}

Json normalizer(const BpeParts& parts) {
  Json steps = Json::array();
  for (const NormalizerStep& step : parts.normalizer) {
    switch (step.kind) {
      case NormalizerStep::Kind::nfkc: steps.push_back({{"type", "NFKC"}}); break;
      case NormalizerStep::Kind::squeeze: steps.push_back(squeeze(step.with)); break;
      case NormalizerStep::Kind::strip_left: steps.push_back(strip(true, false)); break;
      case NormalizerStep::Kind::strip_right: steps.push_back(strip(false, true)); break;
      case NormalizerStep::Kind::precompiled: steps.push_back(precompiled(step.what)); break;
      case NormalizerStep::Kind::sentencepiece: add_sentencepiece(step, steps); break;
      case NormalizerStep::Kind::nfc: steps.push_back({{"type", "NFC"}}); break;
      case NormalizerStep::Kind::prepend:
        steps.push_back({{"type", "Prepend"}, {"prepend", step.with}});
        break;
      case NormalizerStep::Kind::replace: steps.push_back(replacement(step.what, step.with)); break;
    }
  }
  return one_or_sequence(steps, "normalizers");
}

const char* name_of(Metaspace::Prepend prepend) {
  switch (prepend) {
    case Metaspace::Prepend::always: return "always";
    case Metaspace::Prepend::first: return "first";
    case Metaspace::Prepend::never: return "never";
  }
  return "";
}

Json metaspace(const Metaspace& m) {
  return {{"type", "Metaspace"},
          {"replacement", kSpaceMark},
          {"prepend_scheme", name_of(m.prepend)},
          {"split", m.split}};
}

// GPT-2's pattern has a word of its own where it comes last.
Json pre_tokenizer(const BpeParts& parts) {
  using Prepend = Metaspace::Prepend;
  if (const NormalizerStep* own = own_form(parts))
    return metaspace({own->prepends ? Prepend::always : Prepend::never, false});
  if (parts.characters) {
    Json steps = Json::array();
    if (parts.characters->splits_at_space) steps.push_back({{"type", "WhitespaceSplit"}});
    if (parts.characters->metaspace) steps.push_back(metaspace(*parts.characters->metaspace));
    return one_or_sequence(steps, "pretokenizers");
  }
  const bool gpt2_last = !parts.patterns.empty() && parts.patterns.back() == kGpt2Pattern;
  Json steps = Json::array();
  for (size_t i = 0; i + (gpt2_last ? 1 : 0) < parts.patterns.size(); ++i)
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", parts.patterns[i]}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  steps.push_back(byte_level(false, gpt2_last));
  return one_or_sequence(steps, "pretokenizers");
}

Json decoder(const BpeParts& parts) {
  if (!parts.characters) return byte_level(true);
  if (parts.characters->strip_first && parts.characters->metaspace)
    return metaspace(*parts.characters->metaspace);
  Json steps = {replacement(kSpaceMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (parts.characters->strip > 0)
    steps.push_back(
        {{"type", "Strip"}, {"content", " "}, {"start", parts.characters->strip}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", steps}};
}

Json post_processor(const BpeParts& parts) {
  if (!parts.special.add_bos || !parts.special.bos) return nullptr;
  const std::string& bos = parts.pieces[static_cast<size_t>(*parts.special.bos)];
  const auto token = [&](int type) {
    return Json{{"SpecialToken", {{"id", bos}, {"type_id", type}}}};
  };
  const auto sequence = [](const char* id, int type) {
    return Json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  return {
      {"type", "TemplateProcessing"},
      {"single", {token(0), sequence("A", 0)}},
      {"pair", {token(0), sequence("A", 0), token(1), sequence("B", 1)}},
      {"special_tokens", {{bos, {{"id", bos}, {"ids", {*parts.special.bos}}, {"tokens", {bos}}}}}}};
}

Json added_tokens(const BpeParts& parts) {
  std::vector<std::pair<int32_t, Json>> tokens;
  for (const bool late : {false, true})
    for (const AddedToken& t : late ? parts.added_late : parts.added)
      tokens.emplace_back(t.id, Json{{"id", t.id},
                                     {"content", t.content},
                                     {"single_word", false},
                                     {"lstrip", t.lstrip},
                                     {"rstrip", t.rstrip},
                                     {"normalized", late},
                                     {"special", t.special}});
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  Json list = Json::array();
  for (auto& [id, token] : tokens) list.push_back(std::move(token));
  return list;
}

// The content of each id that is an added token.
std::vector<std::string> names_of_added(const BpeParts& parts) {
  std::vector<std::string> names(parts.pieces.size());
  for (const std::vector<AddedToken>* tokens : {&parts.added, &parts.added_late})
    for (const AddedToken& token : *tokens) names[static_cast<size_t>(token.id)] = token.content;
  return names;
}

// `tokenizers` gives added tokens that the vocabulary lacks the ids behind it, in turn, whatever
// the file says: only those may be left out.
size_t first_apart(const BpeParts& parts, const std::vector<std::string>& added) {
  size_t first = added.size();
  while (first > 0 && !added[first - 1].empty()) --first;
  for (size_t id = 0; id < first; ++id)
    if (parts.pieces[id].empty()) return added.size();
  return first;
}

template <class Word>
Json unigram(const BpeParts& parts, const Word& word, size_t apart) {
  Json vocab = Json::array();
  for (size_t id = 0; id < apart; ++id) {
    const double score = (*parts.characters->scores)[id];
    std::string name = word(static_cast<int32_t>(id));
    if (name.empty()) name = fmt::format("<unused:{}>", id);
    vocab.push_back({std::move(name), std::isnan(score) ? 0 : score});
  }
  return {{"type", "Unigram"},
          {"unk_id", parts.unk ? Json(*parts.unk) : Json(nullptr)},
          {"byte_fallback", parts.characters->byte_fallback},
          {"vocab", std::move(vocab)}};
}

}  // namespace

const NormalizerStep* own_form(const BpeParts& parts) {
  const bool own = parts.normalizer.size() == 1 &&
                   parts.normalizer[0].kind == NormalizerStep::Kind::sentencepiece;
  return own ? &parts.normalizer[0] : nullptr;
}

std::string write_bpe(const BpeParts& parts) {
  Json vocab = Json::object(), merges = Json::array();
  const std::vector<std::string> added = names_of_added(parts);
  const auto word = [&](int32_t id) {
    const auto i = static_cast<size_t>(id);
    if (!added[i].empty()) return added[i];
    return parts.characters ? parts.characters->words[i] : to_alphabet(parts.pieces[i]);
  };
  const size_t apart = first_apart(parts, added);
  for (size_t id = 0; id < apart; ++id)
    if (const std::string name = word(static_cast<int32_t>(id)); !name.empty()) vocab[name] = id;
  // Pairs rather than "a b": a word over characters may hold a space.
  for (const Merge& m : parts.merges) {
    if (parts.characters) merges.push_back({word(m.left), word(m.right)});
    else merges.push_back(fmt::format("{} {}", word(m.left), word(m.right)));
  }
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", parts.unk ? Json(word(*parts.unk)) : Json(nullptr)},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", parts.fuse_unk},
                {"byte_fallback", parts.characters && parts.characters->byte_fallback},
                {"ignore_merges", parts.ignore_merges},
                {"vocab", std::move(vocab)},
                {"merges", std::move(merges)}};
  if (parts.characters && parts.characters->scores) model = unigram(parts, word, apart);
  if (const NormalizerStep* own = own_form(parts))
    model[kOwnForm] = {{"trims", own->trims}, {"prepends", own->prepends}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added_tokens(parts)},
                          {"normalizer", normalizer(parts)},
                          {"pre_tokenizer", pre_tokenizer(parts)},
                          {"post_processor", post_processor(parts)},
                          {"decoder", decoder(parts)},
                          {"model", std::move(model)}};
  try {
    return tokenizer.dump(2) + "\n";
  } catch (const Json::type_error&) {
    fail("a token of this vocabulary is not UTF-8, so it has no tokenizer.json");
  }
}

}  // namespace moe
